"""Every line of the shipped report of the two-layer model, computed again by code of its own.

The library gives the weights and draws the random rows, because other rows would give other numbers.
All measures, controls, p-values and decisions are computed here, in float64.
"""

import math
import re
from pathlib import Path

import pandas as pd
import pytest
import torch

import circuitkit as ck
from circuitkit.effects import random_controls
from circuitkit.reports import logits, rules
from circuitkit.rows import default_rows

STORED = Path(__file__).resolve().parents[3] / "book" / "_static" / "reports"
KEY = ["part", "name", "measure", "text"]
PROMPT = (
    "The house belonged to Mr. Dorling. Nobody in the village had spoken to Mr. Dorling for a year. "
    "One evening a letter came to the house, and it was for Mr."
)
HEADS = [f"L{layer}H{head}" for layer in range(2) for head in range(4)]


def read(name: str) -> pd.DataFrame:
    return pd.read_csv(
        STORED / f"{name}.csv",
        keep_default_na=False,
        na_values={"p": [""], "control": [""], "low": [""], "high": [""]},
    )


@pytest.mark.parametrize("path", sorted(STORED.glob("*.csv")), ids=lambda path: path.stem)
def test_every_line_of_a_shipped_report_has_a_key_of_its_own(path):
    table = read(path.stem)
    assert len(table) > 5
    assert table[table.duplicated(KEY)].empty


class Model:
    """The weights of the two-layer model, and a forward pass that keeps everything."""

    def __init__(self):
        bridge = ck.load_model("two-layer")
        self.tokenizer = bridge.tokenizer
        for name in (
            "W_E",
            "W_pos",
            "W_U",
            "b_U",
            "W_Q",
            "W_K",
            "W_V",
            "W_O",
            "b_Q",
            "b_K",
            "b_V",
            "b_O",
        ):
            setattr(self, name, getattr(bridge, name).detach().double())
        self.to_tokens, self.bridge = bridge.to_tokens, bridge

    def stream(self, tokens):
        return self.W_E[tokens] + self.W_pos[: tokens.shape[-1]]

    def side(self, letter, x, name):
        layer, head = int(name[1]), int(name[3])
        return (
            x @ getattr(self, f"W_{letter}")[layer, head]
            + getattr(self, f"b_{letter}")[layer, head]
        )

    def pattern(self, query, key):
        scores = query @ key.mT / query.shape[-1] ** 0.5
        future = torch.ones(scores.shape[-2:]).triu(1).bool()
        return scores.masked_fill(future, -math.inf).softmax(-1)

    @torch.no_grad()
    def run(self, tokens, without=()):
        """The streams before each layer and at the end, the patterns, and what each head writes."""
        x, streams, patterns, writes = self.stream(tokens), [], {}, {}
        for layer in range(2):
            streams.append(x)
            for name in HEADS[4 * layer : 4 * layer + 4]:
                patterns[name] = self.pattern(self.side("Q", x, name), self.side("K", x, name))
                z = patterns[name] @ self.side("V", x, name)
                writes[name] = z @ self.W_O[layer, int(name[3])]
            kept = [name for name in HEADS[4 * layer : 4 * layer + 4] if name not in without]
            x = x + self.b_O[layer] + sum(writes[name] for name in kept)
        return [*streams, x], patterns, writes


@pytest.fixture(scope="module")
def model():
    return Model()


@pytest.fixture(scope="module")
def stored():
    return read("two-layer")


@pytest.fixture(scope="module")
def random(model):
    """Random rows that repeat, with their runs: of different tokens, and of few."""
    rows = [rules.random_rows(model.bridge, few_tokens=few).tokens for few in (False, True)]
    return [(tokens, *model.run(tokens)) for tokens in rows]


PERIODS = torch.linspace(33, 64, 16).int().tolist()


def line(stored, name, measure, text=""):
    chosen = (stored["name"] == name) & (stored["measure"] == measure) & (stored["text"] == text)
    (found,) = stored[chosen].to_dict("records")
    return found


def tail(difference, error):
    """How often a normal variable with this standard deviation exceeds the difference."""
    return 0.5 * math.erfc(float(difference) / max(float(error), 1e-6) / math.sqrt(2))


def agree(found, **expected):
    for column, value in expected.items():
        if column == "p":  # on the scale of the logarithm, where small ones differ
            one, other = (math.log(max(float(p), 1e-300)) for p in (found["p"], value))
            assert one == pytest.approx(other, rel=0.02, abs=0.02), found
        else:
            assert found[column] == pytest.approx(float(value), rel=2e-3, abs=2e-4), found


def accepted(p_values, share=0.05):
    """Benjamini and Hochberg: all up to the largest place k with p_(k) <= k share / n."""
    ordered = sorted(p_values)
    places = [k for k in range(1, len(ordered) + 1) if ordered[k - 1] <= k * share / len(ordered)]
    return [bool(places) and p <= ordered[max(places) - 1] for p in p_values]


FLOORS = dict.fromkeys(["prefix matching", "previous token", "duplicate token"], 0.25)
FLOORS |= {"first token": 0.25, "copying": 0.25, "wire": 0.25, "skip trigram": 1.5}
FLOORS |= {"copy suppression": 0.25, "group wire": 0.25, "predicts repeats": 0.1}


@pytest.mark.parametrize(
    "name", ["one-layer", "two-layer", "two-layer-mlp", "smollm2-135m", "minilm"]
)
@pytest.mark.parametrize("kind", FLOORS)
def test_named_lines_are_those_of_the_procedure_above_the_floor(name, kind):
    table = read(name)
    table = table[table["measure"] == kind]
    passing = accepted(table["p"].tolist())
    above = (table["value"] - table["control"] >= FLOORS[kind]).tolist()
    expected = [str(a and b) for a, b in zip(passing, above, strict=True)]
    assert [str(named) for named in table["named"]] == expected


def attention(pattern, tokens_from, period, kind):
    """The attention of one row to where a behaviour of this period looks."""
    second = range(tokens_from + period, min(tokens_from + 2 * period, len(pattern)))
    pairs = {
        "prefix matching": [(t, t - period + 1) for t in second],
        "duplicate token": [(t, t - period) for t in second],
        "previous token": [(t, t - 1) for t in range(tokens_from + 1, len(pattern))],
        "first token": [(t, 0) for t in range(tokens_from + 1, len(pattern))],
    }[kind]
    dst, src = torch.tensor(pairs).T
    return pattern[dst, src].mean()


@pytest.mark.parametrize(
    "kind", ["prefix matching", "duplicate token", "previous token", "first token"]
)
def test_attention_of_each_head(model, stored, random, kind):
    _, _, patterns, _ = random[0]
    for name in HEADS:
        rows = patterns[name]
        values = torch.stack([attention(p, 1, n, kind) for p, n in zip(rows, PERIODS, strict=True)])
        error = values.std() / 4
        mean = values.mean()
        found = line(stored, name, kind)
        agree(found, value=mean, low=mean - 2.13 * error, high=mean + 2.13 * error)
        if kind in ("prefix matching", "duplicate token"):
            null = torch.tensor(
                [
                    [attention(rows[r], 1, PERIODS[r - s], kind) for r in range(16)]
                    for s in range(1, 16)
                ]
            )
            error = (values.var() / 16 + null.mean(1).var()).sqrt()
            agree(found, control=null.mean(), p=tail(mean - null.mean() - 0.25, error))
        else:  # a random source that is not after the destination has 1 in t + 1 of the attention
            expected = sum(1 / (t + 1) for t in range(2, 129)) / 127
            assert found["control"] == pytest.approx(expected, abs=0.02)
            assert (found["p"] < 0.05) == (mean - found["control"] > 0.25) or abs(
                mean - found["control"] - 0.25
            ) < 0.05


def test_copying_of_each_head(model, stored, random):
    tokens, streams, _, _ = random[0]
    ids = tokens.unique()
    W = model.W_U[:, ids] - model.W_U[:, ids].mean(1, keepdim=True)
    own = torch.searchsorted(ids, tokens)
    for name in HEADS:
        layer, head = int(name[1]), int(name[3])
        written = model.side("V", streams[layer], name) @ model.W_O[layer, head] @ W
        best = written.argmax(-1)
        share = (best == own).double().mean(1)
        of_other = torch.stack([best[r - 1] == own[r] for r in range(16)]).double().mean()
        table = torch.stack([written[own == i].mean(0) for i in range(len(ids))])
        diagonal = torch.eye(len(ids)).bool()
        others = table[~diagonal]
        difference = table[diagonal].mean() - others.mean() - 0.25
        error = share.std() / 4
        agree(
            line(stored, name, "copying"),
            value=share.mean(),
            low=share.mean() - 2.13 * error,
            high=share.mean() + 2.13 * error,
            control=of_other,
            p=tail(difference, others.std() / len(ids) ** 0.5),
        )


def test_named_heads_are_ablated_and_compared_with_the_median_of_other_heads(model, stored):
    """The library draws the rows and the sets of other heads."""
    rows = default_rows(model.bridge, batch=4)
    begin = rows.start + rows.period

    def loss(without=()):
        logits = model.run(rows.tokens, without)[0][-1] @ model.W_U + model.b_U
        chances = logits[:, begin:-1].softmax(-1)
        right = chances.gather(-1, rows.tokens[:, begin + 1 :, None])
        return -right.log().mean((1, 2))

    whole, tried = loss(), 0
    is_named = stored["named"].astype(str) == "True"
    for kind in FLOORS:
        scores = stored[is_named & (stored["part"] == "behaviour") & (stored["measure"] == kind)]
        names = list(scores.sort_values("value", ascending=False)["name"])
        if not names:
            continue
        tried += 1
        change = loss(names) - whole
        others = random_controls(model.bridge, names, 10, 0)
        null = sorted(float((loss(other) - whole).mean()) for other in others)
        error = 1.96 * change.std() / 2
        agree(
            line(stored, kind, "loss without", ", ".join(names)),
            value=change.mean(),
            low=change.mean() - error,
            high=change.mean() + error,
            control=null[(len(null) - 1) // 2],
        )
    assert tried == (stored["measure"] == "loss without").sum() == 4


def spelled(model, token):
    return model.tokenizer.decode([token]).replace(" ", "·").replace("\n", "↵")


def test_words_of_each_head_are_above_the_mean_token(model, stored):
    prompt = list(dict.fromkeys(model.to_tokens(PROMPT)[0].tolist()))[-8:]
    E = model.W_E
    for name in HEADS:
        layer, head = int(name[1]), int(name[3])
        attends = model.side("Q", E, name) @ model.side("K", E, name).T / model.W_Q.shape[-1] ** 0.5
        raises = E @ model.W_V[layer, head] @ model.W_O[layer, head] @ model.W_U
        for measure, table in (("looks for", attends), ("raises", raises)):
            above = table[prompt] - table.mean(0)
            lines = stored[(stored["name"] == name) & (stored["measure"] == measure)]
            for token, row, found in zip(prompt, above, lines.to_dict("records"), strict=True):
                best = row.topk(4)
                agree(found, value=best.values[0])
                words = " ".join(spelled(model, i) for i in best.indices.tolist())
                assert found["text"] == f"{spelled(model, token)} → {words}"


def behaviours_without(model, tokens, streams, periods, missing, side):
    """The prefix matching of L1H3 above its control, with something missing in one input."""
    query, key = streams[1], streams[1]
    query, key = (query - missing, key) if side == "Q" else (query, key - missing)
    pattern = model.pattern(model.side("Q", query, "L1H3"), model.side("K", key, "L1H3"))
    own = torch.stack([attention(pattern[r], 1, periods[r], "prefix matching") for r in range(16)])
    null = [
        attention(pattern[r], 1, periods[r - s], "prefix matching")
        for r in range(16)
        for s in range(1, 16)
    ]
    return float(own.mean() - torch.stack(null).mean())


@pytest.mark.parametrize("few", [False, pytest.param(True, marks=pytest.mark.weekly)])
def test_wires_are_cut_by_the_mean_and_compared_with_random_directions(model, stored, random, few):
    tokens, streams, _, writes = random[few]
    text = "prefix matching" + ", few tokens" * few
    whole = behaviours_without(model, tokens, streams, PERIODS, 0.0, "Q")
    generator = torch.Generator().manual_seed(0)
    for earlier in HEADS[:4]:
        away = writes[earlier] - writes[earlier].mean((0, 1))
        for side in "QK":
            found = line(stored, f"{earlier}->L1H3.{side}", "wire", text)
            lost = 1 - behaviours_without(model, tokens, streams, PERIODS, away, side) / whole
            agree(found, value=lost)
            if lost < 0.25:
                assert found["p"] == 1
                assert math.isnan(found["control"])
                continue
            null = []
            for _ in range(8):
                width = away.shape[-1]
                sign = 2.0 * torch.randint(2, (width,), generator=generator) - 1
                turned = away[..., torch.randperm(width, generator=generator)] * sign
                null.append(
                    1 - behaviours_without(model, tokens, streams, PERIODS, turned, side) / whole
                )
            null = torch.tensor(null)
            agree(found, control=null.mean(), p=tail(lost - null.mean() - 0.25, null.std()))


def test_the_circuit_has_the_named_wires_and_the_numbers_of_the_weakest(stored):
    wires = stored[(stored["measure"] == "wire") & (stored["named"].astype(str) == "True")]
    (found,) = stored[stored["measure"] == "induction"].to_dict("records")
    assert found["name"].split(", ") == list(dict.fromkeys(wires["name"]))
    agree(found, value=wires["value"].min(), p=wires["p"].max())


def best_by_weights(model, name, among, n_best=64, window=32):
    """The strongest skip trigrams of a head by weights, as numbers with their strengths."""
    layer, head = int(name[1]), int(name[3])
    E = model.W_E[among]
    scores = model.side("Q", E, name) @ model.side("K", E, name).T / model.W_Q.shape[-1] ** 0.5
    typical = scores[:, :: len(among) // 256]
    above = scores - typical.logsumexp(1, keepdim=True) + math.log(typical.shape[1])
    V = model.side("V", E, name)
    logits = (V - V.mean(0)) @ model.W_O[layer, head] @ model.W_U[:, among]
    logits = logits - logits.mean(1, keepdim=True)
    found = []
    for source in range(len(among)):
        destinations, completions = above[:, source].topk(16), logits[source].topk(16)
        attention = (destinations.values - math.log(window - 1)).sigmoid()
        strength = attention[:, None] * completions.values
        rank = strength * (1 + 0.01 * destinations.values.clamp_min(0)[:, None])
        for place in rank.flatten().topk(n_best).indices.tolist():
            d, c = divmod(place, 16)
            ids = among[source], among[destinations.indices[d]], among[completions.indices[c]]
            found.append((float(rank[d, c]), float(strength[d, c]), *map(int, ids)))
    return sorted(found, reverse=True)[:n_best]


def test_the_strongest_skip_trigrams_by_weights(model):
    among = torch.arange(1, 2048, 2)
    text = logits.Text.of(model.bridge, among, [0]).before(0)
    found = logits.trigrams_by_weights(text, "L0H1")
    expected = best_by_weights(model, "L0H1", among)
    assert logits.n_sources(len(among)) == 1024
    strengths, candidates = zip(*found, strict=True)
    torch.testing.assert_close(
        torch.tensor(strengths), torch.tensor([e[1] for e in expected]), rtol=1e-3, atol=1e-3
    )
    same = sum(tuple(c[1:]) == e[2:] for c, e in zip(candidates, expected, strict=True))
    assert same >= 60  # ties may be broken in another way


def measured(model, text, found, n_trials):
    """For each candidate its mean, its control and its p-value in random text."""
    text = logits.placed(text, found, n_trials)
    streams, patterns, _ = model.run(text.tokens)
    values, null = [[] for _ in found], [[] for _ in found]
    for row, numbers in enumerate(text.numbers):
        tokens = text.tokens[row].tolist()
        for place, number in enumerate(numbers):
            name, source, destination, completion = found[number]
            layer, head = int(name[1]), int(name[3])
            src, dst = text.pairs[row][place].tolist()
            assert (tokens[src], tokens[dst]) == (source, destination)
            assert src < dst
            out = model.side("V", streams[layer][row], name) @ model.W_O[layer, head]
            out = out @ (model.W_U[:, completion] - model.W_U.mean(1))
            out = out - out.mean()  # above the mean source
            for other, (src, dst) in enumerate(text.pairs[row].tolist()):
                where = [t for t in range(dst) if tokens[t] == tokens[src]]
                added = float(patterns[name][row, dst, where] @ out[where])
                (values if other == place else null)[number].append(added)
    for mine, others in zip(values, null, strict=True):
        mine, others = torch.tensor(mine), torch.tensor(others)
        error = ((mine.var() + others.var()) / len(mine)).sqrt()
        yield mine.mean(), others.mean(), tail(mine.mean() - others.mean() - 1.5, error)


@pytest.mark.parametrize("layer", [0, pytest.param(1, marks=pytest.mark.weekly)])
def test_skip_trigrams_are_measured_above_other_sources(model, stored, layer):
    among = torch.arange(1, 2048)
    text = logits.Text.of(model.bridge, among, [0]).before(layer)
    found = []
    for name in HEADS[4 * layer : 4 * layer + 4]:
        best = logits.trigrams_by_weights(text, name)
        found += [candidate for _, candidate in best[:8]]
        found += [candidate for strength, candidate in best[8:40] if strength >= 1.5]
    first = list(measured(model, text, found, 4))
    again = [i for i, (value, control, _) in enumerate(first) if value - control >= 0.75]
    expected = [(value, control, 1.0) for value, control, _ in first]
    if again:
        second = measured(model, text, [found[i] for i in again], 16)
        for i, numbers in zip(again, second, strict=True):
            expected[i] = numbers
    of_layer = stored[stored["part"] == f"trigrams L{layer}"]
    lines = of_layer[of_layer["measure"] == "skip trigram"].to_dict("records")
    for candidate, (value, control, p), stored_line in zip(found, expected, lines, strict=True):
        source, destination, completion = (spelled(model, i) for i in candidate[1:])
        text = f"{source} … {destination} → {completion}"
        assert re.sub(r" \(\d+\)$", "", stored_line["text"]) == text
        agree(stored_line, value=value, control=control, p=p)


def test_the_p_value_of_a_skip_trigram_has_the_variances_of_both_kinds_of_pairs():
    """3, 2, 4 have the variance 1, and 1, 0, 0.5, -0.5, 0, 2 have 0.8; the excess over the floor is 1."""
    added = torch.tensor([[3.0, 1.0, 0.0], [2.0, 0.5, -0.5], [4.0, 0.0, 2.0]])
    value, control, p = logits.compared(added, 1.5)
    assert (value, control) == (3.0, 0.5)
    assert p == pytest.approx(tail(3 - 0.5 - 1.5, math.sqrt((1 + 0.8) / 3)))


def test_the_next_token_and_what_adds_to_its_logit(model, stored):
    tokens = model.to_tokens(PROMPT)
    streams, _, writes = model.run(tokens)
    row = streams[-1][0, -1] @ model.W_U
    best = row.softmax(-1).topk(5)
    for value, token in zip(best.values, best.indices.tolist(), strict=True):
        agree(line(stored, "next token", "probability", spelled(model, token)), value=value)
    along = model.W_U[:, best.indices[0]] - model.W_U.mean(1)
    last = tokens[0, -1]
    terms = {"embed": model.W_E[last] @ along, "pos": model.W_pos[tokens.shape[1] - 1] @ along}
    terms |= {name: wrote[0, -1] @ along for name, wrote in writes.items()}
    for name, value in terms.items():
        agree(line(stored, name, "adds to the logit"), value=value)


def test_the_probability_of_the_next_token_without_the_induction_head(model, stored):
    tokens = model.to_tokens(PROMPT)
    answer = (model.run(tokens)[0][-1][0, -1] @ model.W_U).argmax()

    def probability(without):
        return float((model.run(tokens, without)[0][-1][0, -1] @ model.W_U).softmax(-1)[answer])

    others = random_controls(model.bridge, ["L1H3"], 10, 0)
    null = sorted(map(probability, others))
    found = line(stored, "L1H3", "probability without", spelled(model, int(answer)))
    agree(found, value=probability(["L1H3"]), control=null[(len(null) - 1) // 2])
    assert found["value"] < 0.1 < 0.9 < found["control"]


def test_a_source_is_not_counted_at_its_own_destination():
    tokens = torch.tensor([5, 7, 5, 5, 7])
    found = logits.occurrences(tokens, torch.tensor([0, 1]), torch.tensor([3, 4]))
    assert found.long().tolist() == [[1, 0, 1, 0, 0], [0, 1, 0, 0, 0]]
