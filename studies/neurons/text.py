"""What do weights explain of a neuron, beyond a lookup? The plan is in `plan-text.md`.

`python -m studies.neurons.text` takes about 5 minutes of one core and writes
`src/circuitkit/data/conversion/neurons_text.json`.
"""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import circuitkit as ck
from circuitkit import models
from circuitkit.residual import reader_matrix
from circuitkit_book.neuron_reading import Lookup, explained

RESULT = Path(__file__).resolve().parents[2] / "src/circuitkit/data/conversion/neurons_text.json"
N_CTX, BATCH, N_UNITS = 128, 50, 32
WEIGHTS = (1.0, 2.0, 5.0, 10.0, 20.0)
FIRST = 2  # positions that are left out


def heldout() -> tuple[Tensor, list[slice]]:
    """All held-out text in rows, and the rows of the three parts."""
    tokens = models.heldout_tokens()
    n_rows = len(tokens) // (N_CTX - 1)
    rows = F.pad(tokens[: n_rows * (N_CTX - 1)].view(n_rows, -1), (1, 0))
    first, second = int(0.6 * n_rows), int(0.8 * n_rows)
    return rows, [slice(0, first), slice(first, second), slice(second, n_rows)]


@torch.no_grad()
def extension(model, rows: Tensor) -> Tensor:
    """What the MLP of layer 0 writes for each token, if everything but the token is at its mean."""
    rest, count = torch.zeros(model.cfg.d_model), 0
    for batch in rows.split(BATCH):
        run = ck.run(model, list(batch))
        rest += (run.stream("L0 MLP") - run.part("embed", before="L0 MLP")).sum((0, 1))
        count += batch.numel()
    block, stream = model.blocks[0], model.W_E + rest / count
    return block.mlp(block.ln2(stream[None]))[0]


@torch.no_grad()
def terms_of_layer(
    model, rows: Tensor, layer: int, neurons: list[int], extended: Tensor
) -> dict[str, Tensor]:
    """The terms of some neurons `[term, row, pos, neuron]`, without the divisor, and the divisor."""
    W = reader_matrix(model, f"L{layer} MLP")[:, neurons]
    found: dict[str, list[Tensor]] = {}
    for batch in rows.split(BATCH):
        run = ck.run(model, list(batch))
        parts = run.parts(before=f"L{layer} MLP")
        for name, share in parts.items():
            found.setdefault(name, []).append(share @ W)
        if layer == 1:
            direct = heads_on_embeddings(model, run, extended[batch])
            found.setdefault("tokens through L1", []).append(direct @ W)
            found.setdefault("extension", []).append(extended[batch] @ W)
        norm = run.recording.frozen(f"blocks.{layer}.ln2")
        found.setdefault("divisor", []).append(norm.scale)
        mlp = model.blocks[layer].mlp
        bias = norm.bias @ mlp.W_in[:, neurons] + mlp.b_in[neurons]
        hook = run.recording.neurons_z(layer)[..., neurons]
        found.setdefault("activation", []).append(hook)
    return {name: torch.cat(values) for name, values in found.items()} | {"bias": bias}


def heads_on_embeddings(model, run, extensions: Tensor) -> Tensor:
    """What the heads of layer 1 bring of extended embeddings, with the patterns of the run."""
    start = run.parts(before="L1H0")
    embeddings = start["embed"] + start["pos"] + extensions
    norm = run.recording.frozen("blocks.1.ln1")
    heads, read = ck.heads_of(model), norm.apply(embeddings)
    written = torch.zeros_like(embeddings)
    for name in [f"L1H{h}" for h in range(model.cfg.n_heads)]:
        head = heads[name]
        written += run.pattern(name) @ (read @ head.W_V[0]) @ head.W_O[0]
    return written


def regressed(features: Tensor, value: Tensor, new: Tensor) -> Tensor:
    """A linear regression with a constant, fitted on `features` and applied to `new`."""
    features, new = (F.pad(x, (0, 1), value=1.0).double() for x in (features, new))
    return (new @ torch.linalg.lstsq(features, value.double()[:, None]).solution)[:, 0].float()


def unit(terms: dict[str, Tensor], index: int, rows: Tensor, parts: list[slice], d_vocab: int):
    """Predictions of one neuron on the second and the third part, and its own numbers."""
    one = {k: v[..., index] for k, v in terms.items() if k not in ("divisor", "bias")}
    bias, divisor = terms["bias"][index], terms["divisor"][..., 0]
    activation = one.pop("activation")
    through, own = one.pop("tokens through L1", None), one.pop("extension", None)
    total = torch.stack(list(one.values())).sum(0)
    exact = F.gelu(total / divisor + bias)
    fit, middle, test = parts
    mean_divisor = divisor[fit, FIRST:].mean()
    by_weights = {}
    for name, used in {
        "weights, token": ["embed"],
        "weights, tokens": [k for k in one if k in ("embed", "pos") or k.startswith("L0H")],
    }.items():
        known = torch.stack([one[k] for k in used]).sum(0)
        known = known if own is None else known + own
        if name == "weights, tokens" and through is not None:
            known = known + through
        rest = (total - known)[fit, FIRST:].mean()
        by_weights[name] = F.gelu((known + rest) / mean_divisor + bias)
    judged = activation[test, FIRST:]
    best = {}
    for weight in WEIGHTS:
        lookup = Lookup.of(rows[fit], activation[fit], d_vocab, weight)
        for name, predict in (("lookup, token", lookup.token), ("lookup, pair", lookup.pair)):
            score = explained(predict(rows[test])[:, FIRST:], judged)
            if name not in best or score > best[name][0]:
                best[name] = score, torch.cat([predict(rows[p])[:, FIRST:] for p in (middle, test)])
    n_middle = rows[middle].shape[0]
    read = (total / divisor)[test, FIRST:]
    shares = {}
    for group, names in groups(one).items():
        term = torch.stack([one[k] for k in names]).sum(0)
        term = (term / divisor)[test, FIRST:]
        covariance = ((term - term.mean()) * (read - read.mean())).mean()
        shares[group] = float(covariance / read.var(correction=0))
    predictions = {name: value for name, (_, value) in best.items()}
    for name, value in by_weights.items():
        predictions[name] = torch.cat([value[p][:, FIRST:] for p in (middle, test)])
    r2 = {name: explained(p[n_middle:], judged) for name, p in predictions.items()}
    r2["all terms"] = explained(exact[test, FIRST:], judged)
    values = torch.cat([activation[middle, FIRST:], judged])
    return r2, shares, predictions, values, n_middle


def groups(one: dict[str, Tensor]) -> dict[str, list[str]]:
    """The terms by kind: token, position, heads, earlier neurons, biases of layers."""
    kinds = {"token": ["embed"], "position": ["pos"]}
    kinds["heads"] = [k for k in one if "H" in k]
    kinds["earlier neurons"] = [k for k in one if k.endswith("MLP")]
    return {kind: names for kind, names in kinds.items() if names}


def gain(lookup: Tensor, other: Tensor, values: Tensor, n_middle: int) -> float:
    """By how much R² on the third part rises if a regression gets a second prediction."""
    middle, test = slice(None, n_middle), slice(n_middle, None)
    flat = [x.reshape(len(x), -1) for x in (lookup, other, values)]
    scores = []
    for features in (flat[:1], flat[:2]):
        known = torch.stack([x[middle].flatten() for x in features], -1)
        new = torch.stack([x[test].flatten() for x in features], -1)
        predicted = regressed(known, flat[2][middle].flatten(), new)
        scores.append(explained(predicted, flat[2][test].flatten()))
    return scores[1] - scores[0]


@torch.no_grad()
def chosen(model, rows: Tensor, layer: int) -> dict[str, list[int]]:
    """The two samples of a layer."""
    generator = torch.Generator().manual_seed(0)
    at_random = torch.randperm(model.cfg.d_mlp, generator=generator)[:N_UNITS].tolist()
    z = torch.cat(
        [ck.run(model, list(b)).recording.neurons_z(layer)[:, FIRST:] for b in rows.split(BATCH)]
    )
    size = z.flatten(0, 1).var(0).sqrt() * model.blocks[layer].mlp.W_out.norm(dim=1)
    return {"random": at_random, "largest variance": size.topk(N_UNITS).indices.tolist()}


def interval(values: Tensor) -> list[float]:
    """A 95% bootstrap interval of a mean."""
    generator = torch.Generator().manual_seed(0)
    draws = torch.randint(len(values), (10_000, len(values)), generator=generator)
    return values[draws].mean(1).quantile(torch.tensor([0.025, 0.975])).tolist()


def main() -> None:
    torch.set_num_threads(1)
    model = ck.load_model("two-layer-mlp")
    rows, parts = heldout()
    extended = extension(model, rows[parts[0]])
    lines, summary = [], []
    for layer in range(2):
        for sample, neurons in chosen(model, rows[parts[0]], layer).items():
            terms = terms_of_layer(model, rows, layer, neurons, extended)
            units = [unit(terms, i, rows, parts, model.cfg.d_vocab) for i in range(len(neurons))]
            for i, (neuron, (r2, shares, predictions, values, n)) in enumerate(
                zip(neurons, units, strict=True)
            ):
                pair, tokens = "lookup, pair", "weights, tokens"
                other = units[(i + 1) % len(units)][2][tokens]
                line = {"layer": layer, "sample": sample, "neuron": f"L{layer}N{neuron}"}
                line |= {f"R2 {name}": value for name, value in r2.items()}
                line |= {f"share {name}": value for name, value in shares.items()}
                line["gain"] = gain(predictions[pair], predictions[tokens], values, n)
                line["gain of another neuron"] = gain(predictions[pair], other, values, n)
                lines.append(
                    {k: round(v, 4) if isinstance(v, float) else v for k, v in line.items()}
                )
            own = torch.tensor([line["gain"] for line in lines[-len(neurons) :]])
            null = torch.tensor([line["gain of another neuron"] for line in lines[-len(neurons) :]])
            low, high = interval(own)
            summary.append(
                {
                    "layer": layer,
                    "sample": sample,
                    "gain": round(float(own.mean()), 3),
                    "from": round(low, 3),
                    "to": round(high, 3),
                    "null": round(float(null.mean()), 3),
                }
            )
            print(json.dumps(summary[-1]), flush=True)
    provenance = {
        "script": "studies/neurons/text.py",
        "plan": "studies/neurons/plan-text.md",
        "model": "two-layer-mlp",
        "summary": summary,
    }
    RESULT.write_text(json.dumps({"provenance": provenance, "rows": lines}, indent=1) + "\n")


if __name__ == "__main__":
    main()
