"""Texts of different lengths run together, and every tool gives what it gives for each text alone.

A short text is padded on the right. The references are runs of one text at a time, which have no padding; for fills from
other rows, which need several texts, they are plain hooks of transformer-lens.
"""

import tempfile

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, BatchEncoding

import circuitkit as ck
from circuitkit_book.path_importance import term_importance
from circuitkit_book.residual_stream import deletion_scores
from tests.support import tiny_models, zoo

NATIVE = ("native", "native-mlp", "native-rotary", "native-encoder")
MIXTURES = {
    "mixtral": zoo.GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": zoo.GROUPED
    | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    | {"shared_expert_intermediate_size": 16, "decoder_sparse_step": 1},
}
EVERY_TIME = ("mistral",)
"""Positions in the stream; rotations, windows and shared keys; heads that look ahead. All kinds weekly."""
WEEKLY = sorted({*zoo.SHAPES, *NATIVE, *MIXTURES, "converted native-mlp", "converted gated"})


def model_of(kind):
    if kind in MIXTURES:
        config = AutoConfig.for_model(kind, **MIXTURES[kind])
        torch.manual_seed(0)
        with tempfile.TemporaryDirectory() as folder:
            return tiny_models.from_folder(folder, AutoModelForCausalLM.from_config(config).eval())
    if kind.startswith("converted "):
        return zoo.converted(kind.removeprefix("converted "))
    return zoo.make(kind)


def texts():
    """Three texts of 7, 11 and 9 tokens; only the first two tokens of each come again, at its end."""
    draw = torch.Generator().manual_seed(3)
    rows = [1 + torch.randperm(40, generator=draw)[:n] for n in (5, 9, 7)]
    return [torch.cat([row, row[:2]]) for row in rows]


def padded(rows, side, padding=0):
    width = max(map(len, rows))
    ids, mask = torch.full((len(rows), width), padding), torch.zeros(len(rows), width).long()
    for number, row in enumerate(rows):
        place = slice(0, len(row)) if side == "right" else slice(width - len(row), width)
        ids[number, place], mask[number, place] = row, 1
    return ids, mask


def tokenized(rows, side):
    ids, mask = padded(rows, side)
    return BatchEncoding({"input_ids": ids, "attention_mask": mask})


# --- every tool ----------------------------------------------------------------------------------------------------
# How several texts are compared with each one alone: "tokens" [batch, pos, ...] and "shares" [part, batch, pos, ...] hold
# NaN at padding; "texts" has one column for each text; "mean" is the mean over texts.
TOOLS = {
    "run": ("tokens", lambda m, x: ck.run(m, x).logits),
    "run without a head": ("tokens", lambda m, x: ck.run(m, x, without="L0H1").logits),
    "run keeping a head": ("tokens", lambda m, x: ck.run(m, x, keep="L0H1").logits),
    "run without a wire": ("tokens", lambda m, x: ck.run(m, x, without="L0H1->L1H1.K").logits),
    "run without a path": ("tokens", lambda m, x: ck.run(m, x, without="embed->L0H1->L1H1").logits),
    "run at the end": ("tokens", lambda m, x: ck.run(m, x, without="L0H1", at=[-1, 1]).logits),
    "last logits": ("rows", lambda m, x: ck.run(m, x).last_logits),
    "part": ("tokens", lambda m, x: ck.run(m, x).part("L0H1")),
    "z": ("tokens", lambda m, x: ck.run(m, x).z("L0H1")),
    "stream": ("tokens", lambda m, x: ck.run(m, x).stream("L1H1")),
    "read": ("tokens", lambda m, x: ck.run(m, x).read("L1H1")),
    "pattern": ("squares", lambda m, x: ck.run(m, x).pattern("L1H1")),
    "decompose": ("shares", lambda m, x: ck.residual.decompose(m, x).values),
    "logit_attribution": (
        "shares",
        lambda m, x: ck.residual.logit_attribution(m, x, 3, "mean", neurons=True).values,
    ),
    "why": ("texts", lambda m, x: ck.why(m, x, 3).values),
    "why earlier": ("texts", lambda m, x: ck.why(m, x, 3, versus=4, position=-3).values),
    "path_logits": ("tokens", lambda m, x: ck.paths.path_logits(m, x, max_order=1).sum("L0H1")),
    "path_logits at the end": (
        "rows",
        lambda m, x: ck.paths.path_logits(m, x, max_order=1).sum(at=-1),
    ),
    "loss": ("texts", lambda m, x: ck.effect(m, x, "L0H1", draws=2).values),
    "accuracy": ("texts", lambda m, x: ck.effect(m, x, "L1H1", measure="accuracy", draws=1).values),
    "measure": (
        "texts",
        lambda m, x: (
            ck.effect(m, x, "L1H1", draws=1, measure=lambda run: run.last_logits[:, 3]).values
        ),
    ),
    "attribution": ("mean", lambda m, x: ck.attribution(m, x).values),
    "scores": ("counted", lambda m, x: ck.induction.scores(m, x).values[:, :3]),
    "term_importance": ("losses", lambda m, x: torch.tensor(term_importance(m, x).values)),
}


def together(kind, found, rows):
    """What a tool has found for several texts, as one list of numbers, and that it is NaN at padding."""
    if kind in ("tokens", "squares", "shares"):
        found = found if kind == "shares" else found[None]
        for number, row in enumerate(rows):
            assert found[:, number, len(row) :].isnan().all()
        found = [
            found[:, number, : len(row), : len(row) if kind == "squares" else None].flatten(1)
            if found.ndim > 3
            else found[:, number, : len(row)]
            for number, row in enumerate(rows)
        ]
        return torch.cat(found, 1)
    return found


def one_by_one(kind, found, rows):
    """The same from what it has found for each text alone."""
    if kind in ("tokens", "squares", "shares"):
        found = [one if kind == "shares" else one[None] for one in found]
        return torch.cat([one[:, 0].flatten(1) for one in found], 1)
    if kind == "rows":
        return torch.cat(found)
    if kind == "texts":
        return torch.stack([one if one.ndim == 1 else one[:, 0] for one in found], 1)
    if kind == "mean":
        return torch.stack(found).mean(0)
    n_next = torch.tensor([len(row) - 1.0 for row in rows])
    if kind == "losses":
        return sum(one * n / n_next.sum() for one, n in zip(found, n_next, strict=True))
    # each text has two tokens that came before; previous-token scores count all but the first
    again = torch.full_like(n_next, 1 / len(rows))
    weights = torch.stack([again, n_next / n_next.sum(), again], 1)
    return sum(one * weight for one, weight in zip(found, weights, strict=True))


def check_tools(kind):
    """Compare every tool on one kind of model, and count the tools that work on it."""
    model, rows, tried = model_of(kind), texts(), 0
    for name, (how, tool) in TOOLS.items():
        try:
            alone = [tool(model, row).detach() for row in rows]
        except ValueError:  # of no use on this kind of model, whatever the texts
            with pytest.raises(ValueError):  # noqa: PT011
                tool(model, rows)
            continue
        found = together(how, tool(model, rows).detach(), rows)
        wanted = one_by_one(how, alone, rows)
        error = float((found - wanted).abs().max())
        assert error <= 1e-5 * max(1.0, float(wanted.abs().max())), (name, error)
        tried += 1
    return tried


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", EVERY_TIME)
def test_texts_together_give_what_each_gives_alone(kind):
    assert check_tools(kind) >= 20


@pytest.mark.weekly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", WEEKLY)
def test_texts_together_give_what_each_gives_alone_on_every_kind(kind):
    assert check_tools(kind) >= 15


def test_deletion_counts_no_padding():
    """Products over all tokens but the first of each text, as plain sums."""
    model, rows = zoo.make("native"), texts()
    split = [ck.residual.decompose(model, row).values[:, 0, 1:].flatten(1) for row in rows]
    products = sum(one @ one.T for one in split)
    found = deletion_scores(model, rows).values
    wanted = -products / products.diagonal()
    assert torch.allclose(found[~found.isnan()], wanted[~found.isnan()], atol=1e-9)
    assert (~found.isnan()).any()


@torch.no_grad()
def test_copying_counts_no_padding():
    """Eigenvalues of the map from tokens to logits at all tokens that follow an earlier occurrence."""
    model, rows = zoo.make("native"), texts()
    found = ck.induction.scores(model, rows)
    ids, values = [], []
    for row in rows:
        _, cache = model.run_with_cache(row[None])
        places = [1, 2]  # the two tokens that come again are the first two
        ids.append(row[places])
        values.append(cache["blocks.1.attn.hook_v"][0, places])  # [source, head, d_head]
    values, unembed = torch.cat(values), model.W_U[:, torch.cat(ids)]
    for head in range(4):
        v = values.view(len(values), 4, -1)[:, head]
        logits = (
            (v - v.mean(0))
            @ model.blocks[1].attn.W_O[head]
            @ (unembed - unembed.mean(1, keepdim=True))
        )
        eigenvalues = torch.linalg.eigvals(logits)
        large = eigenvalues[eigenvalues.abs() > 1e-9 * eigenvalues.abs().max()]
        score = float(large.real.sum() / large.abs().sum())
        assert found[f"L1H{head}", "copying in a run"] == pytest.approx(score, abs=1e-6)


# --- fills from other texts, which need several --------------------------------------------------------------------


def with_z_of_head_1(model, row, value):
    """Logits of one text whose head 1 of layer 0 has gathered something else, by a plain hook."""

    def change(z, hook):
        z = z.clone().reshape(*z.shape[:2], 4, -1)
        z[0, :, 1] = value
        return z.reshape(z.shape[0], z.shape[1], -1) if hook_is_flat else z

    hook_is_flat = ck.run(model, row).cache["blocks.0.attn.hook_z"].ndim == 3
    return model.run_with_hooks(row[None], fwd_hooks=[("blocks.0.attn.hook_z", change)])[0]


@pytest.mark.parametrize("kind", ["native", "gpt2"])
def test_fills_from_texts_of_other_lengths(kind):
    """The mean is that over all tokens; a longer text reads the one before it from its beginning again."""
    model, rows = zoo.make(kind), texts()
    z = [ck.run(model, row).z("L0H1")[0] for row in rows]
    mean = ck.run(model, rows, without="L0H1", fill="mean").logits
    before = ck.run(model, rows, without="L0H1", fill="resample").logits
    for number, row in enumerate(rows):
        n, other = len(row), z[number - 1]
        wanted = with_z_of_head_1(model, row, torch.cat(z).mean(0))
        assert torch.allclose(mean[number, :n], wanted, atol=1e-9)
        repeated = torch.stack([other[place % len(other)] for place in range(n)])
        wanted = with_z_of_head_1(model, row, repeated)
        assert torch.allclose(before[number, :n], wanted, atol=1e-9)


def test_patching_takes_texts_of_the_same_lengths():
    model, rows = zoo.make("native"), texts()
    others = [row.flip(0) for row in rows]
    found = ck.run(model, rows, without="L0H1->L1H1.V", patch=others, at=[-2])
    for number, (row, other) in enumerate(zip(rows, others, strict=True)):
        wanted = ck.run(model, row, without="L0H1->L1H1.V", patch=other, at=[len(row) - 2])
        assert torch.allclose(found.logits[number, : len(row)], wanted.logits[0], atol=1e-9)
    with pytest.raises(ValueError, match="as long as the one that it replaces"):
        ck.run(model, rows, without="L0H1", patch=rows[::-1])
    with pytest.raises(ValueError, match="at=7 is outside the shortest text, which has 7 tokens"):
        ck.run(model, rows, without="L0H1", at=[7])


# --- padding that others have put there ----------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["left", "right"])
def test_an_attention_mask_says_what_is_text(side):
    model, rows = zoo.make("gpt2"), texts()
    found = ck.run(model, tokenized(rows, side))
    assert torch.equal(found.lengths, torch.tensor([7, 11, 9]))
    assert torch.equal(found.logits.nan_to_num(), ck.run(model, rows).logits.nan_to_num())
    lists = {name: value.tolist() for name, value in tokenized(rows, side).items()}
    assert torch.equal(ck.run(model, lists).tokens, found.tokens)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_never_read_as_text(side):
    """The shipped tokenizer pads with the token that opens a text, so ids alone do not show what is text."""
    model, texts = ck.load_model("two-layer"), ["In the beginning", "In the beginning God created"]
    ids = model.to_tokens(texts, padding_side=side)
    where = {"left": "begins", "right": "ends"}[side]
    for call in (
        lambda: ck.run(model, ids),
        lambda: ck.effect(model, ids, "L1H3", draws=0),
        lambda: ck.attribution(model, ids),
        lambda: ck.residual.decompose(model, ids),
        lambda: ck.why(model, ids, 3),
        lambda: ck.paths.path_logits(model, ids),
        lambda: ck.induction.scores(model, ids),
    ):
        with pytest.raises(ValueError, match=f"Row 0 {where} with the id 0, which pads rows"):
            call()
    assert len(ck.run(model, list(ids)).tokens) == 2  # rows in a list are text as they are


def test_a_token_that_only_pads_is_left_out(monkeypatch):
    model, rows = zoo.make("gpt2"), texts()
    for name in ("bos_token_id", "eos_token_id"):
        monkeypatch.setattr(type(model.tokenizer), name, 45, raising=False)
    ids, _ = padded(rows, "right")
    assert torch.equal(ck.run(model, ids).lengths, torch.tensor([7, 11, 9]))
    with pytest.raises(ValueError, match="Row 0 begins with the id 0"):
        ck.run(model, padded(rows, "left")[0])


def test_a_loss_leaves_padding_out():
    """The effect on a short text was +0.075 in a padded batch, and is -0.116 alone."""
    model = ck.load_model("two-layer")
    short, long = "In the beginning", "In the beginning God created the heaven"
    alone = ck.effect(model, short, "L1H3", draws=0).change
    values = ck.effect(model, [short, long], "L1H3", draws=0).values
    assert float(values[1, 0] - values[0, 0]) == pytest.approx(alone, abs=1e-5)
    assert alone == pytest.approx(-0.116, abs=5e-3)
    answers = [" God", " and"]
    both = ck.why(model, [short, long], answers)
    for number, (text, answer) in enumerate(zip((short, long), answers, strict=True)):
        assert torch.allclose(both.values[:, number], ck.why(model, text, answer).values, atol=1e-5)


# --- what is refused -----------------------------------------------------------------------------------------------


def test_a_measure_at_padding_is_refused():
    model = zoo.make("native")
    with pytest.raises(ValueError, match="Logits are NaN at padding, where a text has ended"):
        ck.effect(model, texts(), "L0H1", measure=lambda run: run.logits[:, -1, 5], draws=0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "list of texts is empty"),
        ({"input_ids": [[3, 4]]}, "input_ids and an attention_mask"),
        ({"input_ids": [[3, 4, 5]], "attention_mask": [[1, 0, 1]]}, "must be one piece"),
        ({"input_ids": [[3, 4, 5]], "attention_mask": [[0, 0, 0]]}, "must be one piece"),
        ({"input_ids": [[3, 4, 5]], "attention_mask": [[1, 1]]}, "must be one piece"),
        ([torch.tensor([3]), torch.tensor([4, 5])], "every row needs at least two positions"),
        ([torch.tensor([3]), torch.tensor([], dtype=torch.long)], "no tokens"),
        ([torch.tensor([3, 4]), torch.tensor([4, 50])], "0 to 49"),
    ],
)
def test_rows_that_cannot_be_meant(given, message):
    with pytest.raises(ValueError, match=message):
        ck.effect(zoo.make("native"), given, "L0H1", draws=0)


def test_tools_that_need_one_length_say_so():
    model = zoo.make("native-mlp")
    with pytest.raises(ValueError, match="7 to 11, and this function needs texts of one length"):
        ck.conversion.convert.to_tokens(model, texts())
    with pytest.raises(ValueError, match="One text is needed, and these are 3 rows"):
        ck.paths.score_decomposition(model, texts(), "L1H1", 2, 1)


def test_rotations_that_depend_on_the_longest_text_are_refused():
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    rope |= {"original_max_position_embeddings": 8}
    config = AutoConfig.for_model("llama", **zoo.GROUPED, rope_parameters=rope)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_models.from_folder(folder, AutoModelForCausalLM.from_config(config).eval())
    assert ck.run(model, texts()[:1] * 2).logits.isfinite().all()
    with pytest.raises(ValueError, match="depend on the length of the longest text"):
        ck.run(model, texts())
