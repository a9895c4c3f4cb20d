"""Every public tool that takes a model, on nine kinds of model: each cell agrees with plain loops or says why it has none.

What is checked where stands in `what_works.toml`, which the page "Your own model" shows; the loops are in
`tests/support/slow_tools.py` and share no code with the library. A cell without meaning raises a sentence, never an error
from inside torch.
"""

import base64
import functools
import itertools
import re
import tomllib
import traceback
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import circuitkit as ck
from circuitkit import superposition
from circuitkit.parts import part_names
from circuitkit_book.induction_by_hand import build_induction_model
from circuitkit_book.path_importance import term_importance
from circuitkit_book.superposition_models import hand_specified
from tests.support import lab_models, slow_tools, zoo
from tests.support.slow_tools import place, stands_for

TABLE = tomllib.loads(Path(__file__).with_name("what_works.toml").read_text("utf-8"))
KINDS = list(TABLE["kinds"])
EVERY_TIME = ("mlp", "llama", "converted", "gated")
"""The kinds that every change is tried on: plain, with rotated and grouped heads, converted, with gates. All ten weekly."""
TOOLS = {tool["name"]: tool for tool in TABLE["tool"]}
TOLERANCE = {"llama": 1e-5, "hand": 1e-6}
"""transformers computes RMSNorms in float32; the hand-built model's scores reach 80."""


# --- nine models, each beside its loops -----------------------------------------------------------------------------


def model_and_loops(kind):
    """A model of this kind, and the same in plain loops."""
    if kind in ("llama", "neox"):
        model = zoo.make({"llama": "llama", "neox": "neox-parallel"}[kind])
        return model, {"llama": slow_tools.llama, "neox": slow_tools.neox}[kind](model)
    if kind in ("converted", "swiglu"):
        model = zoo.converted({"converted": "native-mlp", "swiglu": "gated"}[kind])
        return model, slow_tools.native(model, slow_tools.terms_of(model))
    toy = zoo.tiny_models.in_dtype(hand_specified(3, 5), torch.float64)
    if kind == "gated":
        block = gated_block(toy.cfg.d_model)
        model = superposition.with_gated_layer(toy, 0, block)
        return model, slow_tools.gated(toy, block)
    if kind == "hand":
        model = zoo.tiny_models.in_dtype(build_induction_model(7, 10), torch.float64)
    else:
        model = (
            toy if kind == "toy" else zoo.make({"mlp": "native-mlp", "attention": "native"}[kind])
        )
    return model, slow_tools.native(model)


class Case:
    """One kind of model: the model, its loops, tokens for both, and one slow run of every row."""

    def __init__(self, kind, length=None):
        self.kind, self.tolerance = kind, TOLERANCE.get(kind, 1e-9)
        self.model, self.slow = model_and_loops(kind)
        self.d_vocab = len(self.slow.W_E)
        if kind in ("toy", "gated"):
            tokens = hand_specified(3, 5).task.sample(2, 0)[:, :9]
        else:
            draw = torch.Generator().manual_seed(1)
            tokens = torch.randint(self.d_vocab, (2, 8), generator=draw)
        self.tokens = tokens[:, :length]
        self.rotary = kind in ("llama", "neox")
        self.layers = len(self.slow.layers)
        self.heads = list(self.slow.heads)
        self.head = "L1H0" if kind == "hand" else self.heads[-2] if self.layers == 1 else "L1H1"
        self.earlier = "L0H0"
        self.neuron = next((name for name in self.slow.neurons if name.startswith("L0N3")), None)

    @functools.cached_property
    def runs(self):
        return [self.slow.run(row) for row in self.tokens]

    def each(self, what):
        """Something of every row's run, stacked."""
        return torch.stack([what(run) for run in self.runs])

    def logits(self, tokens, **changes):
        return torch.stack([self.slow.run(row, **changes).logits for row in tokens])


def gated_block(d_model):
    """A block with gates that are neither all open nor all shut."""
    sup = superposition
    block = sup.GatedBlock(sup.GATES, 2, d_model, dtype=torch.float64).requires_grad_(False)
    for bias in (block.b_GQ, block.b_GK):
        bias.add_(0.6)
    return block


case = functools.cache(Case)


def same(found, wanted, tolerance):
    """Within a tolerance of the largest entry; NaN only where the other has it."""
    found, wanted = (torch.as_tensor(v, dtype=torch.float64).detach() for v in (found, wanted))
    assert found.shape == wanted.shape, (tuple(found.shape), tuple(wanted.shape))
    assert torch.equal(found.isnan(), wanted.isnan()), "NaN in different places"
    size = max(1.0, float(wanted.nan_to_num().abs().max())) if wanted.numel() else 1.0
    error = (found - wanted).nan_to_num().abs()
    assert (error <= tolerance * size).all(), float(error.max())


def some(names, most=40):
    names = list(names)
    return names[:: max(1, -(-len(names) // most))]


def covers(names, c):
    """Every head has a name of its own, and every MLP either one name or one for each of its neuron-heads."""
    for head in c.heads:
        assert head in names, f"{head} is missing"
    for number, layer in enumerate(c.slow.layers):
        if layer.mlp is not None:
            own = [name for name in c.slow.neurons if name.startswith(f"L{number}N")]
            assert f"L{number} MLP" in names or (own and {*own} <= {*names}), (
                f"the MLP of layer {number} is missing"
            )


# --- one check for each tool ---------------------------------------------------------------------------------------


def check_run(c):
    whole = ck.run(c.model, c.tokens)
    same(whole.logits, c.each(lambda r: r.logits), c.tolerance)
    names = part_names(c.model)
    assert {*names} == {*c.runs[0].parts}
    for name in some(names):
        same(whole.part(name), c.each(lambda r, n=name: r.part(n)), c.tolerance)
    for names, changes in taken_out(c):
        cut = ck.run(c.model, c.tokens, without=names).logits
        same(cut, c.logits(c.tokens, **changes), 10 * c.tolerance)


def check_heads_of(c):
    assert {*ck.heads_of(c.model).names} == {*c.heads}
    found, d = ck.heads_of(c.model, [*c.heads, *c.slow.neurons]), c.slow.W_E.shape[1]
    QK, OV = found.QK.AB.double(), found.OV.AB.double()
    for name in c.heads:
        row, head = found.names.index(name), c.slow.heads[name]
        same(OV[row, :d, :d], head.W_V @ head.W_O, c.tolerance)
        same(QK[row, :d, :d], head.W_Q @ head.W_K.T, c.tolerance)
        assert not QK[row, d:].any()
        if c.rotary:
            rows = len(head.W_Q)
            every = torch.eye(rows, dtype=torch.float64)
            there = score_of(c, head, every, every, 2) * head.scale
            queries = found[name].turn(found[name].W_Q, torch.full((rows,), 2))
            keys = found[name].turn(found[name].W_K, torch.zeros(rows).long())
            same((queries @ keys.mT)[0], there, 1e-5)
    for name, (layer, neuron, (b, _, a, _)) in c.slow.neurons.items():
        row, mlp = found.names.index(name), layer.mlp
        gate = mlp.W_in if mlp.W_gate is None else mlp.W_gate
        same(OV[row, :d, :d], a * mlp.W_in[:, neuron, None] @ mlp.W_out[None, neuron], c.tolerance)
        # it looks at the bias token where the neuron is off
        same(QK[row, :d, d], -b * gate[:, neuron], c.tolerance)


def writer(c, name):
    """What a part writes with, `[rows, d_model]`."""
    if name in ("embed", "pos"):
        return c.slow.W_E if name == "embed" else c.slow.W_pos
    if "H" in name:
        return c.slow.heads[name].W_O
    mlp = c.slow.layers[int(re.match(r"L(\d+)", name)[1])].mlp
    neuron = re.search(r"N(\d+)", name)
    return mlp.W_out if neuron is None else mlp.W_out[int(neuron[1])][None]


def reader(c, name):
    """What an input reads with, `[d_model, columns]`, and whether its size is its own."""
    if name == "unembed":
        return c.slow.W_U if c.slow.final is None else c.slow.final.folded(c.slow.W_U)
    part, _, kind = name.rpartition(".") if name[-1] in "QKV" else (name, "", "")
    layer = c.slow.layers[int(re.match(r"L(\d+)", part)[1])]
    if "H" in part:
        norm, W = layer.norm, getattr(c.slow.heads[part], f"W_{kind}")
    else:
        norm, mlp = layer.mlp_norm, layer.mlp
        W = mlp.W_gate if kind == "Q" and mlp.W_gate is not None else mlp.W_in
        neuron = re.search(r"N(\d+)", part)
        W = W if neuron is None else W[:, int(neuron[1])][:, None]
    return W if norm is None else norm.folded(W)


def parallel(found, wanted, tolerance):
    """The same up to a factor: a neuron-head reads its neuron's column times a number of its own."""
    found, wanted = found.double().flatten(), wanted.double().flatten()
    if found.norm() > 0:
        same((found / found.norm() * torch.sign(found @ wanted)), wanted / wanted.norm(), tolerance)


def compare_every_component(c):
    writers, readers = ck.residual.writers_and_readers(c.model)
    writers = {name: ck.residual.writer_matrix(c.model, name) for name in writers}
    readers = {name: ck.residual.reader_matrix(c.model, name) for name in readers}
    covers(writers, c)
    for head in c.heads:
        assert {f"{head}.{kind}" for kind in "QKV"} <= {*readers}
    covers({*c.heads, *(name.removesuffix(".Q").removesuffix(".V") for name in readers)}, c)
    assert "embed" in writers
    assert "unembed" in readers
    assert ("pos" in writers) == (c.slow.W_pos is not None)
    d = c.slow.W_E.shape[1]
    for name, W in writers.items():
        same(W[..., :d], writer(c, name), c.tolerance)
    for name, W in readers.items():
        if "N" in name:
            parallel(W[:d], reader(c, name), c.tolerance)
        else:
            same(W[:d], reader(c, name), c.tolerance)


def pairs(c):
    """A few writers with readers behind them."""
    if c.layers == 1:
        return [("embed", "unembed"), ("embed", f"{c.head}.K"), (c.head, "unembed")]
    out = [("embed", "unembed"), (c.head, "unembed")]
    out += [(c.earlier, f"{c.head}.{kind}") for kind in "KV"]
    if c.slow.layers[0].mlp is not None:
        out += [("L0 MLP", f"{c.head}.V")]
    return out


def check_virtual_weights(c):
    compare_every_component(c)
    for w, r in pairs(c):
        found = ck.residual.virtual_weights(c.model, w, r).AB
        same(found, writer(c, w) @ reader(c, r), c.tolerance)


def check_decompose(c):
    found = ck.residual.decompose(c.model, c.tokens)
    covers(found.names, c)
    same(found.values.sum(0), c.each(lambda r: r.streams["unembed"]), c.tolerance)
    for name in some(found.names):
        same(found[name], c.each(lambda r, n=name: r.part(n)), c.tolerance)


def check_logit_attribution(c):
    answer = c.tokens.roll(1, 1)
    found = ck.residual.logit_attribution(c.model, c.tokens, answer, neurons=True)
    assert {*c.slow.neurons} <= {*found.names}, "single neuron-heads"
    pick = lambda logits: logits.gather(-1, answer[..., None])[..., 0]  # noqa: E731
    same(found.values.sum(0), pick(c.each(lambda r: r.logits)), c.tolerance)
    names = set(found.names)
    for number, layer in enumerate(c.slow.layers):
        converted = [name for name in c.slow.neurons if name.startswith(f"L{number}N")]
        if layer.mlp is None or converted:
            continue
        # the neurons of an MLP and the bias that it adds are the MLP
        own = {name for name in names if name.startswith((f"L{number}N", f"L{number} MLP"))}
        mlp = c.each(lambda r, n=f"L{number} MLP": r.unembedded(r.part(n)))
        same(sum(found[name] for name in own), pick(mlp), c.tolerance)
        names = (names - own) | {f"L{number} MLP"}
    covers(names, c)
    for name in some([name for name in found.names if name in names]):
        if name == "norm bias":
            wanted = (c.slow.final.bias @ c.slow.W_U).expand(*c.tokens.shape, -1)
        elif name == "unembed bias":
            wanted = c.slow.b_U.expand(*c.tokens.shape, -1)
        else:
            wanted = c.each(lambda r, n=name: r.unembedded(r.part(n)))
        same(found[name], pick(wanted), c.tolerance)


def score_of(c, head, dst_rows, src_rows, distance=0):
    """Scores of stream vectors for stream vectors `distance` back."""
    q, k = dst_rows @ head.W_Q, src_rows @ head.W_K
    if head.turned is not None:
        q = torch.stack([head.turned(v, distance) for v in q])
        k = torch.stack([head.turned(v, 0) for v in k])
    return q @ k.T / head.scale


def check_full_qk(c):
    how = {"offset": 2} if c.rotary else {}
    head, V = c.slow.heads[c.head], c.d_vocab
    found = ck.circuits.full_qk(c.model, c.head, **how).AB
    same(found[:V, :V], score_of(c, head, c.slow.W_E, c.slow.W_E, 2), c.tolerance)
    if c.slow.W_pos is not None:
        found = ck.circuits.full_qk(c.model, c.head, query="position", key="position").AB
        n = len(c.slow.W_pos)
        same(found[:n, :n], score_of(c, head, c.slow.W_pos, c.slow.W_pos), c.tolerance)
    if c.neuron:
        layer, neuron, (b, *_) = c.slow.neurons[c.neuron]
        gate = layer.mlp.W_in if layer.mlp.W_gate is None else layer.mlp.W_gate
        found = ck.circuits.full_qk(c.model, c.neuron).AB
        assert not found[:V, :V].any()
        # the bias token is the last key
        same(found[:V, V], -b * c.slow.W_E @ gate[:, neuron], c.tolerance)


def check_full_ov(c):
    head, V = c.slow.heads[c.head], c.d_vocab
    found = ck.circuits.full_ov(c.model, c.head).AB
    same(found[:V, :V], c.slow.W_E @ head.W_V @ head.W_O @ c.slow.W_U, c.tolerance)
    if c.neuron:
        layer, neuron, (_, _, a, _) = c.slow.neurons[c.neuron]
        found = ck.circuits.full_ov(c.model, c.neuron).AB
        reads = a * c.slow.W_E @ layer.mlp.W_in[:, neuron, None]
        same(found[:V, :V], reads @ layer.mlp.W_out[None, neuron] @ c.slow.W_U, c.tolerance)


def check_copying_score(c):
    found = ck.circuits.copying_score(c.model)
    assert {*found.names} == {*c.heads}
    for name in c.heads:
        head = c.slow.heads[name]
        values = torch.linalg.eigvals(c.slow.W_E @ head.W_V @ head.W_O @ c.slow.W_U)
        sizes = values.abs()
        kept = sizes > 1e-9 * sizes.max()
        score = values[kept].real.sum() / sizes[kept].sum() if sizes.any() else torch.tensor(0.0)
        same(found[name], score, 1e-5)
    between = c.slow.W_U @ c.slow.W_E
    for name in some(c.slow.neurons):
        found = ck.circuits.copying_score(ck.heads_of(c.model, name), c.model)
        layer, neuron, (_, _, a, _) = c.slow.neurons[name]
        sign = torch.sign(a * layer.mlp.W_out[neuron] @ between @ layer.mlp.W_in[:, neuron])
        same(found.values[0], sign, 1e-9)


def check_composition_scores(c):
    d = c.slow.W_E.shape[1]
    width = d + bool(c.neuron)
    late = [head for head in c.heads if c.layers == 1 or head.startswith("L1")]

    def wide(W, bias=0.0):
        out = torch.zeros(width, width, dtype=torch.float64)
        out[:d, :d] = W
        out[d:, :d] = bias
        return out

    def OV(name):
        if name in c.slow.heads:
            return wide(c.slow.heads[name].W_V @ c.slow.heads[name].W_O)
        layer, neuron, (_, _, a, shift) = c.slow.neurons[name]
        mlp = layer.mlp
        b_in = 0.0 if isinstance(mlp.b_in, float) else mlp.b_in[neuron]
        W_out = mlp.W_out[neuron]
        return wide(a * mlp.W_in[:, neuron, None] * W_out, -(a * b_in + shift) * W_out)

    earlier = [c.earlier] + ([c.neuron] if c.neuron else [])
    for kind in "QKV":
        heads = [ck.heads_of(c.model, names) for names in (earlier, late)]
        found = ck.circuits.composition_scores(*heads, kind)
        for i, first in enumerate(earlier):
            for j, second in enumerate(late):
                head = c.slow.heads[second]
                QK = wide(head.W_Q @ head.W_K.T)
                M = {"Q": QK, "K": QK.T, "V": OV(second)}[kind]
                size = OV(first).norm() * M.norm()
                same(found.values[i, j], (OV(first) @ M).norm() / size if size else 0.0, 1e-6)


def check_score_decomposition(c):
    dst, src, row = 6, 3, 1
    found = ck.paths.score_decomposition(c.model, c.tokens[row], c.head, dst, src)
    names, run, head = found.names, c.runs[row], c.slow.heads[c.head]
    same(found.values.sum(), run.scores[c.head][dst, src], c.tolerance)
    layer = place(c.head)[0]
    norm, scale = c.slow.layers[layer].norm, run.scales[f"L{layer}"]
    earlier = [name for name in names if name != "bias"]
    covered = [part for part in run.parts if any(stands_for(name, part) for name in earlier)]
    before = {p for p in run.parts if c.slow.before(p, c.head) and not p.endswith("bias")}
    assert before <= {*covered}, f"not in the table: {before - {*covered}}"

    def side(name, pos, kind):
        x = run.part(name)
        x = x if norm is None else norm.linear(x, scale)
        out = x[pos] @ getattr(head, f"W_{kind}")
        return out if head.turned is None else head.turned(out, pos)

    for one, two in itertools.product(some(earlier, 12), some(earlier, 12)):
        wanted = side(one, dst, "Q") @ side(two, src, "K") / head.scale
        same(found[one, two], wanted, c.tolerance)


def check_path_logits(c):
    found = ck.paths.path_logits(c.model, c.tokens)
    same(found.sum(), c.each(lambda r: r.logits), 10 * c.tolerance)
    assert {*c.heads} <= {*found}
    assert any(name in found for name in ("direct", "embed"))
    for name in some(found):
        if name != "rest" and "bias" not in name:
            same(found[name], c.each(lambda r, n=name: r.path(n)), 10 * c.tolerance)


def losses(logits, tokens):
    """The loss of every next token, `[row, pos - 1]`."""
    return -logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]


def loss(logits, tokens):
    return float(losses(logits, tokens).mean())


def check_strongest(c):
    window, head, slow = 32, c.slow.heads[c.head], c.slow
    found = ck.skip_trigrams.strongest(c.model, c.head, k=6, window=window)
    norm = slow.layers[place(c.head)[0]].norm
    rows = slow.W_E if norm is None else norm(slow.W_E)
    W_U = slow.W_U if slow.final is None else slow.final.folded(slow.W_U)
    ov = rows @ head.W_V @ head.W_O @ W_U
    effect = ov - ov.mean(0)
    effect = effect - effect.mean(1, keepdim=True)
    scores = score_of(c, head, rows, rows) + head.b_Q @ (rows @ head.W_K).T / head.scale
    ratio = scores.exp()  # [B, A]
    ratio = ratio / ratio.mean(1, keepdim=True)
    weight = ratio / window / (1 + (ratio - 1) / window)
    best = (weight.max(0).values[:, None] * effect).clamp_min(0)
    wanted = best.flatten().topk(min(6, best.numel())).values
    wanted = wanted[wanted > 0]
    same(found["strength"].tolist(), wanted, 1e-5)
    for a, b, out, strength, attention, e in found.itertuples(index=False):
        same(strength, weight[b, a] * effect[a, out], 1e-5)
        same((attention, e), (weight[b, a], effect[a, out]), 1e-5)


def slow_scores(c, tokens):
    """The four scores of every attention head, position by position."""
    runs, out = [c.slow.run(row) for row in tokens], {}
    n = tokens.shape[1]
    for name in c.heads:
        after, same_token, back, values, columns, count = [], [], [], [], [], 0
        for run, row in zip(runs, tokens.tolist(), strict=True):
            pattern, sources = run.patterns[name], set()
            back += [float(pattern[t, t - 1]) for t in range(1, n)]
            for t in range(n):
                earlier = [p for p in range(t) if row[p] == row[t]]
                count += bool(earlier)
                after.append(float(sum(pattern[t, p + 1] for p in earlier)))
                same_token.append(float(sum(pattern[t, p] for p in earlier)))
                sources |= {p + 1 for p in earlier}
            head, final = c.slow.heads[name], c.slow.final
            for s in sorted(sources):
                values.append(run.values[name][s] @ head.W_O)
                column = c.slow.W_U[:, row[s], None]
                columns.append((column if final is None else final.folded(column))[:, 0])
        v, u = torch.stack(values), torch.stack(columns)
        eigenvalues = torch.linalg.eigvals((v - v.mean(0)) @ (u - u.mean(0)).T)
        total = float(eigenvalues.abs().sum())
        copying = float(eigenvalues.real.sum()) / total if total > 1e-9 else 0.0
        out[name] = (sum(after) / count, sum(back) / len(back), sum(same_token) / count, copying)
    return out


def twice(c, batch=2):
    return ck.induction.repeated_tokens(c.d_vocab, 4, batch=batch)


def check_scores(c):
    rows = twice(c)
    found, wanted = ck.induction.scores(c.model, rows), slow_scores(c, rows.tokens)
    assert {*found.names} == {*c.heads}
    for name in found:
        if name in wanted:
            same(found[name], wanted[name], 1e-4)


def check_wires(c):
    for kind in "QKV":
        found = ck.effects.wires(c.model, kind)
        wires = [f"{a}->{b}.{kind}" for a in c.heads for b in c.heads if place(a)[0] < place(b)[0]]
        assert {name for name in found if "N" not in name} == {*wires}


def taken_out(c):
    """Names to take out, with what the loops call them."""
    out = [([c.earlier], {"gone": [c.earlier]})]
    if c.layers > 1:
        wires = [f"{c.earlier}->{c.head}.{kind}" for kind in "QKV"]
        out.append((wires, {"cut": {(c.earlier, c.head, kind) for kind in "QKV"}}))
    if c.slow.layers[0].mlp is not None:
        out.append((["L0 MLP"], {"gone": ["L0 MLP"]}))
        if not c.slow.parallel:
            out.append(([f"L0 MLP->{c.head}.V"], {"cut": {("L0 MLP", c.head, "V")}}))
    if c.neuron:
        out.append(([c.neuron, "L1N2"], {"gone": [c.neuron, "L1N2"]}))
    return out


def slow_losses(c, tokens, **changes):
    return losses(c.logits(tokens, **changes), tokens)


def passes(of_tokens, rows):
    first = of_tokens[:, rows.start : rows.start + rows.period - 1].mean()
    return first, of_tokens[:, rows.start + rows.period : rows.start + 2 * rows.period - 1].mean()


def check_induction_loss(c):
    rows = twice(c)
    for names, changes in [((), {}), *taken_out(c)[:2]]:
        found = ck.induction.induction_loss(c.model, rows, without=names)
        wanted = passes(slow_losses(c, rows.tokens, **changes), rows)
        same((found.first, found.second), wanted, 1e-5)


def check_effect(c):
    for names, changes in taken_out(c):
        found = ck.effect(c.model, c.tokens, names, draws=1)
        for row, told in ((0, {}), (1, changes)):
            same(found.values[row], slow_losses(c, c.tokens, **told).mean(1), 10 * c.tolerance)


def check_attribution(c):
    found = ck.attribution(c.model, c.tokens, fill="zero")
    assert {*c.heads} == {*found.names}


def check_to_attention_only(c):
    out = ck.to_attention_only(c.model, heads_per_neuron=8)
    terms, slow = slow_tools.terms_of(out), case(c.kind).slow
    layers = [
        replace(layer, mlp=replace(layer.mlp, terms=terms(n)))
        for n, layer in enumerate(slow.layers)
    ]
    slow = replace(slow, layers=layers)
    wanted = torch.stack([slow.run(row).logits for row in c.tokens])
    with torch.no_grad():
        same(out(c.tokens), wanted, max(1e-8, 100 * TOLERANCE.get(c.kind, 0)))


def check_record_layer(c):
    layer = c.layers - 1
    found = superposition.record_layer(c.model, layer, c.tokens)
    norm = c.slow.layers[layer].norm
    read = c.each(lambda r: r.streams[f"L{layer}"])
    same(found.x, read if norm is None else norm(read), c.tolerance)
    own = [name for name in c.heads if place(name)[0] == layer]
    same(found.y, c.each(lambda r: sum(r.parts[name] for name in own)), c.tolerance)


def check_with_gated_layer(c):
    block = gated_block(c.slow.W_E.shape[1])
    written = slow_tools.gated(c.model, block).layers[0].heads

    def write(read):
        out = 0
        for head in written:
            q, k, v = (read @ getattr(head, f"W_{n}") + getattr(head, f"b_{n}") for n in "QKV")
            future = torch.ones(len(read), len(read)).triu(1).bool()
            pattern = (q @ k.T / head.scale).masked_fill(future, -torch.inf).softmax(-1)
            out = out + (pattern * head.gate(read)) @ v @ head.W_O
        return out

    with torch.no_grad():
        logits = superposition.with_gated_layer(c.model, 0, block)(c.tokens)
    same(logits, c.logits(c.tokens, instead=(0, write)), 10 * c.tolerance)


def check_lab(c):
    page = ck.lab(c.model, c.tokens)
    asked = [{"text": " ".join(map(str, row.tolist()))} for row in c.tokens]
    question = {"weights": base64.b64encode(page.weights).decode(), "asked": asked}
    (answer,) = lab_models.computed_by_the_lab([question])
    wanted = c.logits(c.tokens)
    found = torch.tensor(answer["logits"], dtype=torch.float64).view_as(wanted)
    by_rounding, largest = page.rounding
    assert float((found - wanted).abs().max()) <= 1.01 * by_rounding + 1e-5 * largest


CHECKS = {
    name.removeprefix("check_"): check
    for name, check in list(globals().items())
    if name.startswith("check_")
}


# --- the table -----------------------------------------------------------------------------------------------------

NO_MEANING = {
    (tool, kind): reason
    for tool, row in TOOLS.items()
    for reason, kinds in row.get("no", {}).items()
    for kind in kinds
}


def marks(kind):
    return [] if kind in EVERY_TIME else [pytest.mark.weekly]


def cells(meaning):
    """The pairs of a tool and a kind of model that mean something, or those that mean nothing."""
    for tool, kind in itertools.product(TOOLS, KINDS):
        if ((tool, kind) not in NO_MEANING) == meaning:
            yield pytest.param(tool, kind, marks=marks(kind), id=f"{tool}-{kind}")


@pytest.mark.parametrize(("tool", "kind"), [*cells(True)])
def test_a_tool_agrees_with_loops(tool, kind):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        CHECKS[tool](case(kind))


@pytest.mark.weekly
@pytest.mark.parametrize(("tool", "kind"), [*cells(True)])
def test_a_tool_agrees_with_loops_when_it_is_asked_about_other_rows(tool, kind):
    """About rows of 8 or 9 tokens, and then about their first 7."""
    test_a_tool_agrees_with_loops(tool, kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        CHECKS[tool](case(kind, 7))


@pytest.mark.parametrize(("tool", "kind"), [*cells(False)])
def test_a_tool_that_means_nothing_for_a_model_says_so(tool, kind):
    with pytest.raises((ValueError, TypeError)) as caught:
        CHECKS[tool](case(kind))
    said = str(caught.value)
    assert len(said.split()) >= 8, said
    where = traceback.extract_tb(caught.value.__traceback__)[-1].filename
    assert "circuitkit" in where, f"raised in {where}: {said}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=marks(kind)) for kind in KINDS])
def test_the_importance_of_paths_agrees_with_loops(kind):
    c = case(kind)
    found = term_importance(c.model, c.tokens)
    split = [run.orders() for run in c.runs]
    longest = max(split[0][0])

    def kept(orders):
        logits = []
        for run, (shares, bias) in zip(c.runs, split, strict=True):
            direct = run.unembedded(sum(shares[o] for o in orders)) if orders else 0
            logits.append(direct + run.constant_logits(bias))
        return loss(torch.stack(logits), c.tokens)

    every = range(longest + 1)
    same(found["kept"].iloc[-1], loss(c.each(lambda r: r.logits), c.tokens), 1e-5)
    same(found["kept"].tolist(), [kept(range(k + 1)) for k in every], 1e-5)
    same(found["removed"].tolist(), [kept([o for o in every if o != k]) for k in every], 1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=marks(kind)) for kind in KINDS])
def test_a_patch_by_address_agrees_with_loops(kind):
    """Inputs, wires, paths and heads get what they have on the other row of the untouched model."""
    c = case(kind)
    at, later = f"L{place(c.head)[0]}", c.layers > 1
    parts = ["embed", *[c.earlier] * later, *[c.neuron] * bool(c.neuron and later)]
    changes = []  # for each row: by name, what the loops change
    for row, other in zip(c.tokens, c.runs[::-1], strict=True):
        of_row = {c.earlier: {"given": {c.earlier: other.parts[c.earlier]}}}
        for side in "QKV":
            of_row[f"{c.head}.{side}"] = {"read": {(None, c.head, side): other.streams[at]}}
            for part in parts:
                read = {(part, c.head, side): other.parts[part]}
                of_row[f"{part}->{c.head}.{side}"] = {"read": read}
        if later:  # what the first head writes when the embedding it reads is the other row's
            into = {("embed", c.earlier, side): other.parts["embed"] for side in "QKV"}
            written = c.slow.run(row, read=into).parts[c.earlier]
            read = {(c.earlier, c.head, "K"): written}
            of_row[f"embed->{c.earlier}->{c.head}.K"] = {"read": read}
        changes.append(of_row)
    moved = {}
    for name in changes[0]:
        rows = zip(c.tokens, changes, strict=True)
        wanted = torch.stack([c.slow.run(row, **of_row[name]).logits for row, of_row in rows])
        found = ck.run(c.model, c.tokens, without=name, fill="resample").logits
        same(found, wanted, 10 * c.tolerance)
        moved[name] = float((wanted - c.each(lambda run: run.logits)).abs().max())
    assert moved[c.earlier] > 1e-6
    assert sum(moved.values()) > moved[c.earlier]


def test_the_table_names_tools_and_kinds_that_exist():
    """The page "What works on what" shows a tick for each cell, so that each needs its check."""
    assert {*TOOLS} == {*CHECKS}
    assert {*NO_MEANING.values()} == {*TABLE["reasons"]}
    assert {kind for _, kind in NO_MEANING} | {*EVERY_TIME} <= {*KINDS}
