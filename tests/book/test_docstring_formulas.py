r"""Every formula in a public docstring is read from its LaTeX, computed, and compared with what the function returns."""

import importlib
import inspect
import re
from pathlib import Path

import pytest
import torch

import circuitkit as ck
from circuitkit import circuits, induction, paths, residual
from circuitkit_book import induction_by_hand
from tests.book.test_equations import (
    D,
    H,
    V,
    close,
    draw,
    matrices_for,
    model,
    score_with_matrix,
    tokens,
)
from tests.support.latex import sides

#: A symbol, a number, or a list, sum or comparison of two of these is notation; anything else is a formula.
ATOM = r"[-\d.]*(?:\\?[A-Za-z]+)?(?:_(?:\w|\{[^}]*\}))?(?:\^(?:\w|\\top))?'?"
NOTATION = re.compile(rf"{ATOM}(?:(?: = | \\ge | \\le | \+ |, |,){ATOM})*|\(\w,\w\)")


def public() -> dict[str, object]:
    """Every public name, `circuitkit.circuits.full_ov`, with what it names: the names of the API pages."""
    names = {}
    for page in sorted((Path(__file__).resolve().parents[2] / "book/api").glob("*.md")):
        # the page of the course package names its modules; other pages have the name of their module
        marked = re.findall(r"<!-- names: ([\w.]+) -->", page.read_text("utf-8"))
        for path in marked or [f"circuitkit.{page.stem}"]:
            module = importlib.import_module(path)
            for name in module.__all__:
                if not name.startswith("check_"):  # an exercise states its formula on its page
                    names[f"{path}.{name}"] = getattr(module, name)
    return names


def formulas(thing) -> list[str]:
    text = " ".join((inspect.getdoc(thing) or "").split())
    return [found for found in re.findall(r"\$(.+?)\$", text) if not NOTATION.fullmatch(found)]


def value(latex: str, symbols: dict):
    """The value of a formula of one side."""
    ((found,),) = sides(latex, symbols)
    return found


def matrices(head) -> dict:
    names = {name: getattr(head, name)[0] for name in ("W_Q", "W_K", "W_V", "W_O")}
    return names | {"d_{head}": H, "W_{OV}": head.OV.AB[0]}


def share_of_positive(latex: str, eigenvalues):
    terms = [
        {r"\lambda_i": one.real, r"\mathrm{Re}\,\lambda_i": one.real, r"|\lambda_i|": one.abs()}
        for one in eigenvalues
    ]
    return value(latex, {r"\sum_i": terms})


def composition_scores(score):
    sentence = re.search(r"with \$M\^l(.*)side Q, K, V", circuits.composition_scores.__doc__, re.S)
    named = matrices_for(sentence[0].replace("M^l = ", ""))
    assert set(named) == {"Q", "K", "V"}
    for kind, matrix in named.items():
        score_with_matrix(score, kind, matrix)


def composition_baseline(chance):
    early = circuits.random_heads(1, 64, 8)
    expected = value(chance, {"d_{model}": 64})
    assert abs(circuits.composition_baseline(early) / expected - 1) < 0.02


def copying_score(share, circuit, own):
    tiny = model()
    head = ck.heads_of(tiny)["L0H0"]
    symbols = matrices(head) | {"W_E": tiny.W_E, "W_U": tiny.W_U}
    of_weights = torch.linalg.eigvals(value(own, symbols))
    close(circuits.copying_score(head).values[0], share_of_positive(share, of_weights))
    full = torch.linalg.eigvals(value(circuit, symbols))
    close(circuits.copying_score(tiny).values[0], share_of_positive(share, full))


def full_ov(circuit):
    tiny = model()
    symbols = matrices(ck.heads_of(tiny)["L0H0"]) | {"W_E": tiny.W_E, "W_U": tiny.W_U}
    close(circuits.full_ov(tiny, "L0H0").AB, value(circuit, symbols))


def full_qk(circuit):
    tiny = model()
    symbols = matrices(ck.heads_of(tiny)["L0H0"]) | {"W_E": tiny.W_E}
    close(circuits.full_qk(tiny, "L0H0").AB, value(circuit, symbols))


def random_heads(variance):
    weights = circuits.random_heads(500, D, H).W_Q
    assert abs(weights.var() / value(variance, {"d_{model}": D}) - 1) < 0.06  # four standard errors


def score_decomposition(formula):
    tiny, t, s = model(), 3, 1
    score = paths.score_decomposition(tiny, tokens()[:1], "L1H0", t, s).values.sum()
    stream = residual.decompose(tiny, tokens())
    names = [name for name in stream.names if not name.startswith("L1")]
    terms = [{"c_i": stream[a][0, t], "c_j": stream[b][0, s]} for a in names for b in names]
    symbols = matrices(ck.heads_of(tiny)["L1H0"]) | {r"\sum_{i,j}": terms, "s": score}
    close(*sides(formula, symbols)[0])


def skip_trigrams(typical, attention, effect, strength, with_likelihood):
    tiny, window = model(), 32
    best = next(ck.skip_trigrams.strongest(tiny, "L0H0", k=1, window=window).itertuples())
    scores = circuits.full_qk(tiny, "L0H0").AB[best.destination]
    ov = circuits.full_ov(tiny, "L0H0").AB
    ov = ov - ov.mean(1, keepdim=True)
    assert typical == r"E_{A'} \exp s(B, A')"
    ratio = scores[best.source].exp() / scores.exp().mean()
    found = {"r": ratio, "p": 1 / window, "w": best.attention}
    close(*sides(attention, found)[0])
    mean = ov[:, best.completion].mean()
    symbols = {"W_{OV}[A, C]": ov[best.source, best.completion], "E_{A'} W_{OV}[A', C]": mean}
    close(*sides(effect, symbols | {"e": best.effect})[0])
    close(best.strength, value(strength, {"w": best.attention, "e": best.effect}))
    likelihood = draw(V, V).softmax(-1)
    found = ck.skip_trigrams.strongest(tiny, "L0H0", k=1, window=window, likelihood=likelihood)
    best = next(found.itertuples())
    chance = likelihood[best.destination, best.completion]
    symbols = {"P(C|B)": chance, "w": best.attention, "e": best.effect}
    close(best.strength, value(with_likelihood, symbols))


def attribution(guess):
    tiny, seen = model(), []

    def keep(z, hook):
        z = z.clone()
        z.retain_grad()
        seen.append(z)
        return z

    hooks = [(f"blocks.{layer}.attn.hook_z", keep) for layer in (0, 1)]
    tiny.run_with_hooks(tokens(), return_type="loss", fwd_hooks=hooks).backward()
    guessed = []
    for kept in seen:
        for z, slope in zip(kept[0].unbind(1), kept.grad[0].unbind(1), strict=True):
            symbols = {r"\nabla_z m": slope.flatten(), "z'": 0 * z.flatten(), "z": z.flatten()}
            guessed.append(value(guess, symbols).detach())
    close(ck.attribution(tiny, tokens(), fill="zero").values, torch.stack(guessed))


def build_induction_model(bound, epsilon, pointer, first, at_least, share, difference, example):
    n, beta = 16, 6.5
    built = induction_by_hand.build_induction_model(n, n, sharpness=beta)
    row = torch.arange(n)
    row[-1] = row[3]
    _, cache = built.run_with_cache(row[None])
    symbols = {"n": n, r"\beta": beta, "c": 1.0}
    small = value(epsilon.split("=")[1], symbols)
    symbols[r"\epsilon"] = small
    assert value(bound, symbols) <= cache["pattern", 1][0, 0, -1, 4] <= 1
    assert value(first, symbols) <= cache["pattern", 0][0, 0, -1, -2] <= 1
    close(value(at_least, symbols), value(first, symbols))
    close(value(pointer.split("=")[1], {"m": 4}), value(share, {"m": 4}))
    close(1 - n * torch.exp(-value(difference, symbols)), value(bound, symbols))
    stated = {"n": 256, r"\beta": 40.0, "c": 1.0, r"\epsilon": 0.0}
    assert 0.5 < (1 - value(bound, stated)) / value(example, {}) < 2


def scores(prefix, duplicate, share, copying):
    tiny, row = model(n_ctx=12), torch.tensor([[3, 1, 4, 1, 5, 3, 1, 4, 1, 5]])
    found = induction.scores(tiny, row)
    _, cache = tiny.run_with_cache(row)
    earlier = {t: [p for p in range(t) if row[0, p] == row[0, t]] for t in range(row.shape[1])}
    earlier = {t: places for t, places in earlier.items() if places}
    for h in range(2):
        A = cache["pattern", 1][0, h]
        sums = {prefix: [], duplicate: []}
        for t, places in earlier.items():
            terms = [{r"A_{t,\,p+1}": A[t, p + 1], r"A_{t,\,p}": A[t, p]} for p in places]
            for formula, values in sums.items():
                values.append(value(formula, {r"\sum_{p \in P_t}": terms}))
        close(found.values[2 + h, 0], torch.stack(sums[prefix]).mean())
        close(found.values[2 + h, 2], torch.stack(sums[duplicate]).mean())
        sources = sorted({p + 1 for places in earlier.values() for p in places})
        v, U = cache["v", 1][0, sources, h], tiny.W_U[:, row[0, sources]]
        v, U = v - v.mean(0), U - U.mean(1, keepdim=True)
        W_O = ck.heads_of(tiny)[f"L1H{h}"].W_O[0]
        rows = {"v_i": v, "W_O": W_O, "U": U}
        table = value(copying.split("=")[1].replace("W_U[:, x_j]", "U"), rows)
        close(found.values[2 + h, 3], share_of_positive(share, torch.linalg.eigvals(table)))


TIES = {
    "circuits.composition_baseline": composition_baseline,
    "circuits.composition_scores": composition_scores,
    "circuits.copying_score": copying_score,
    "circuits.full_ov": full_ov,
    "circuits.full_qk": full_qk,
    "circuits.random_heads": random_heads,
    "paths.score_decomposition": score_decomposition,
    "skip_trigrams.strongest": skip_trigrams,
    "effects.attribution": attribution,
    "induction.scores": scores,
}
COMPUTATIONS = {f"circuitkit.{name}": computation for name, computation in TIES.items()}
COMPUTATIONS["circuitkit_book.induction_by_hand.build_induction_model"] = build_induction_model
#: These formulas introduce notation; nothing new can be computed from them.
REASONS = {
    "paths.path_logits": "a shorthand with products of maps for (2.5), which is computed on its page",
}


def test_every_docstring_with_a_formula_has_a_computation():
    found = {name for name, thing in public().items() if formulas(thing)}
    reasons = {f"circuitkit.{name}" for name in REASONS}
    assert found == {*COMPUTATIONS} | reasons, "add it to TIES"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", COMPUTATIONS)
def test_the_docstring_formula_is_what_the_function_computes(name):
    COMPUTATIONS[name](*formulas(public()[name]))
