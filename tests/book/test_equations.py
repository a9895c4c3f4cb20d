r"""Every displayed formula is read from the LaTeX of its page, computed, and compared with what the library computes."""

import math
import re
from functools import cache

import pytest
import torch

import circuitkit as ck
from circuitkit import circuits, conversion, residual
from circuitkit import superposition as sp
from circuitkit.paths import path_logits, score_decomposition
from circuitkit.superposition.block import Recipe
from circuitkit.superposition.gated_training import seed_of
from circuitkit.superposition.verdict import always_leads
from circuitkit_book import residual_stream, theorems
from circuitkit_book.omega import omega_mlp, omega_window
from circuitkit_book.superposition_models import load_original
from circuitkit_book.superposition_task import post_recipe, train_on_task
from tests.support.latex import sides
from tests.support.tiny_models import boot
from tools.check.numbers_in_prose import cells_of, pages

N, D, H, V = 5, 6, 3, 7  # positions, d_model, d_head, d_vocab


@cache
def prose(name: str) -> str:
    """The Markdown of a page without code."""
    cells = [cell for cell in cells_of(pages()[name]) if cell["cell_type"] == "markdown"]
    text = "\n\n".join("".join(cell["source"]) for cell in cells)
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.S)


@cache
def equations() -> dict[str, str]:
    """Every displayed formula by its number; one without a number goes by its text."""
    found = {}
    for name in pages():
        for formula in re.findall(r"\$\$(.+?)\$\$", prose(name), re.S):
            number = re.search(r"\\tag\{([\d.]+)\}", formula)
            found[number[1] if number else f"{name}: {formula}"] = formula
    return found


def draw(*shape, seed=0):
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(sum(shape) + 31 * seed), dtype=torch.float64
    )


def close(*values):
    first, *others = [torch.as_tensor(value, dtype=torch.float64) for value in values]
    for other in others:
        torch.testing.assert_close(other, first, atol=1e-10, rtol=1e-10)


@cache
def model(**settings):
    usual = {"n_layers": 2, "n_heads": 2, "d_model": D, "d_head": H, "n_ctx": N, "d_vocab": V}
    return boot(bias=False, **{**usual, **settings})


def tokens():
    return torch.tensor([[3, 1, 4, 1, 5]])


def causal(scores):
    return scores.masked_fill(torch.triu(torch.ones(N, N, dtype=torch.bool), 1), -math.inf)


def softmax(scores):
    return scores.softmax(-1)


def one_head(seed=0):
    shapes = [(1, D, H), (1, D, H), (1, D, H), (1, H, D)]
    head = ck.Heads(("L0H0",), *(draw(*shape, seed=seed + i) for i, shape in enumerate(shapes)))
    names = {name: getattr(head, name)[0] for name in ("W_Q", "W_K", "W_V", "W_O")}
    matrices = {"W_{QK}": head.QK.AB[0], "W_{OV}": head.OV.AB[0]}
    functions = {
        r"\text{softmax}": softmax,
        r"\operatorname{softmax}": softmax,
        r"\text{mask}": causal,
    }
    return head, names | matrices | functions | {"d_{head}": H}


def equation_0_1_conventions_matrices(latex):
    _, symbols = one_head()
    for statement in sides(latex, symbols):
        close(*statement)


def equation_0_2_conventions_head(latex):
    head, symbols = one_head()
    x = draw(N, D)
    pattern, result = head.pattern(x)[0], head.results(x)[0]
    (A, formula), (r, product) = sides(latex, symbols | {"x": x, "A": pattern, "r": result})
    close(A, formula)
    close(r, product)


def equation_0_3_conventions_one_position(latex):
    head, symbols = one_head()
    x = draw(N, D)
    q, k, v = (x @ symbols[name] for name in ("W_Q", "W_K", "W_V"))
    for i in range(N):
        inner = {r"\sum_{j' \le i}": [{"k_{j'}": k[j]} for j in range(i + 1)]}
        outer = {r"\sum_{j \le i}": [{"k_j": k[j], "v_j": v[j]} for j in range(i + 1)]}
        ((r, formula),) = sides(
            latex, symbols | inner | outer | {"q_i": q[i], "r_i": head.results(x)[0, i]}
        )
        close(r, formula)


def equation_1_1_output_is_a_sum_of_heads(latex):
    tiny = model(n_heads=4)
    z = tiny.run_with_cache(tokens())[1]["blocks.0.attn.hook_z"][0, 2]  # [head, d_head]
    W_O = tiny.blocks[0].attn.W_O  # [head, d_head, d_model]
    terms = [{"z_h": z[h], "W_O^h": W_O[h]} for h in range(4)]
    together = {"[z_0 z_1 z_2 z_3]": z.flatten(), "W_O": W_O.flatten(0, 1), r"\sum_{h}": terms}
    ((left, right),) = sides(latex, together)
    output = tiny.run_with_cache(tokens())[1]["blocks.0.hook_attn_out"][0, 2]
    close(output, left, right)


def equation_1_2_stream_is_a_sum(latex):
    tiny = model()
    cache = tiny.run_with_cache(tokens())[1]
    terms = []
    for layer in range(2):
        z, W_O = cache[f"blocks.{layer}.attn.hook_z"][0, 2], tiny.blocks[layer].attn.W_O
        terms += [{"z_h": z[h], "W_O^h": W_O[h]} for h in range(2)]
    symbols = {
        r"\sum_{h}": terms,
        "W_E[t]": tiny.W_E[tokens()[0, 2]],
        "W_{pos}[i]": tiny.W_pos[2],
        r"x_{\text{final}}": residual.decompose(tiny, tokens()).values.sum(0)[0, 2],
    }
    close(*sides(latex, symbols)[0])


def equation_1_3_logit_is_a_sum(latex):
    tiny = model()
    split, logits = residual.decompose(tiny, tokens()), tiny(tokens())[0, -1]
    symbols = {
        r"\sum_{c}": [{"r_c": split[name][0, -1]} for name in split.names],
        "W_U[:, t]": tiny.W_U[:, 3],
        r"\overline{W_U}": tiny.W_U.mean(1),
        r"\text{logit}_t": logits[3],
        r"\overline{\text{logit}}": logits.mean(),
    }
    close(residual.why(tiny, tokens(), 3).values.sum(), *sides(latex, symbols)[0])


def equation_1_4_rotation_cancels(latex):
    R = torch.linalg.qr(draw(D, D)).Q
    close(*sides(latex, {"W_E": draw(V, D), "W_U": draw(D, V, seed=1), "R": R})[0])


def equation_1_5_virtual_weight(latex):
    tiny = model()
    table = residual_stream.virtual_weight_table(tiny)
    product = residual.virtual_weights(tiny, "L0H1", "L1H0.K")
    ((value,),) = sides(latex, {"W_{out}": product.A, "W_{in}": product.B})
    close(table["L0H1", "L1H0.K"], value)


def equation_1_6_deletion(latex):
    tiny = model()
    split = residual.decompose(tiny, tokens())
    scores = residual_stream.deletion_scores(tiny, tokens(), skip=0)
    symbols = {
        "r_b": split["L1H1"],
        "r_a": split["L0H0"],
        r"\text{deletion}(b, a)": torch.tensor(scores["L1H1", "L0H0"], dtype=torch.float64),
    }
    close(*sides(latex, symbols)[0])


def equation_2_1_two_products(latex):
    head, symbols = one_head()
    x = draw(N, D)
    close(*sides(latex, symbols | {"x": x, "A": head.pattern(x)[0], "h(x)": head.results(x)[0]})[0])


def equation_2_2_the_pattern(latex):
    head, symbols = one_head()
    x = draw(N, D)
    close(*sides(latex, symbols | {"x": x, "A": head.pattern(x)[0]})[0])


def score_and_tables(a, i, b, j):
    """The score of token a at i for token b at j, from the stream, and the four tables."""
    tiny, sides_of = model(), {"t": "token", "p": "position"}
    tables = {
        one + other: circuits.full_qk(tiny, "L0H0", query=sides_of[one], key=sides_of[other]).AB
        for one in "tp"
        for other in "tp"
    }
    stream = torch.stack([tiny.W_E[a] + tiny.W_pos[i], tiny.W_E[b] + tiny.W_pos[j]])
    return ck.heads_of(tiny)["L0H0"].scores(stream)[0, 0, 1], tables


def equation_2_3_four_tables(latex):
    a, i, b, j = 2, 3, 4, 1
    score, t = score_and_tables(a, i, b, j)
    symbols = {"s_{tt}(a,b)": t["tt"][a, b], "s_{tp}(a,j)": t["tp"][a, j]}
    symbols |= {"s_{pt}(i,b)": t["pt"][i, b], "s_{pp}(i,j)": t["pp"][i, j], "s((a,i),(b,j))": score}
    close(*sides(latex, symbols)[0])


def equation_2_4_two_factors(latex):
    a, i, b, j = 2, 3, 4, 1
    score, t = score_and_tables(a, i, b, j)
    content = (t["tt"][a, b] + t["pt"][i, b]).exp()
    place = (t["tp"][a, j] + t["pp"][i, j]).exp()
    names = {r"\text{token factor of } b": content, r"\text{position factor of } j": place}
    close(*sides(latex, names | {"s": score})[0])


def equation_2_5_paths(latex):
    tiny = model()
    stack, split = ck.heads_of(tiny), residual.decompose(tiny, tokens())
    patterns, first = {}, split["embed"] + split["pos"]
    _, cache = tiny.run_with_cache(tokens())
    for layer in range(2):
        for h in range(2):
            patterns[f"L{layer}H{h}"] = cache["pattern", layer][0, h].double()
    one = [{"A_h": A, "W_{OV}^h": stack[name].OV.AB[0]} for name, A in patterns.items()]
    two = [
        {"A_{h_1}": patterns[f"L0H{i}"], "A_{h_2}": patterns[f"L1H{j}"]}
        | {"W_{OV}^{h_1}": stack[f"L0H{i}"].OV.AB[0], "W_{OV}^{h_2}": stack[f"L1H{j}"].OV.AB[0]}
        for i in range(2)
        for j in range(2)
    ]
    symbols = {"x": first[0], "W_U": tiny.W_U, r"\sum_h": one, r"\sum_{h_1,\,h_2}": two}
    found = path_logits(tiny, tokens())
    close(*sides(latex, symbols | {r"\text{logits}": found.sum()[0]})[0], tiny(tokens())[0])


def two_heads():
    return [circuits.random_heads(1, D, H, layer=i, seed=i).to(torch.float64) for i in (0, 1)]


def equation_3_3_composition(latex):
    score_with_matrix(latex, "K", r"W_{QK}^\top")


def score_with_matrix(latex, kind, matrix):
    """The printed score, with `matrix` as what the later head reads with, is the score of this kind."""
    early, late = two_heads()
    later = {"W_{QK}": late.QK.AB[0], "W_{OV}": late.OV.AB[0]}
    ((M,),) = sides(matrix, later)
    symbols = {f"W_{{OV}}^{early_name}": early.OV.AB[0] for early_name in ("{early}", "e")}
    symbols |= {"W_{QK}^{late\\,\\top}": later["W_{QK}"].T, "W_{QK}^{late}": later["W_{QK}"]}
    ((value,),) = sides(latex, symbols | {"M": M, "M^l": M})
    close(circuits.composition_scores(early, late, kind).values[0, 0], value)


def equation_3_1_first_layer_score(latex):
    tiny, t, s = model(), 3, 1
    head, names = ck.heads_of(tiny)["L0H0"], tokens()[0]
    symbols = {
        "W_E[x_t]": tiny.W_E[names[t]],
        "W_E[x_s]": tiny.W_E[names[s]],
        "p_t": tiny.W_pos[t],
        "p_s": tiny.W_pos[s],
    }
    score = score_decomposition(tiny, tokens()[:1], "L0H0", t, s).values.sum()
    symbols |= {"W_{QK}": head.QK.AB[0], "d_{head}": H, r"\text{score}(t, s)": score}
    close(*sides(latex, symbols)[0])


def equation_3_2_match_matrix(latex):
    tiny, C_q, C_k = model(), draw(D, D, seed=1), draw(D, D, seed=2)
    head = ck.heads_of(tiny)["L1H0"]
    symbols = {"W_E": tiny.W_E, "C_q": C_q, "C_k": C_k, "W_Q": head.W_Q[0], "W_K": head.W_K[0]}
    ((table,),) = sides(latex, symbols)
    for a, b in ((0, 3), (5, 2)):
        stream = torch.stack([tiny.W_E[a] @ C_q, tiny.W_E[b] @ C_k])
        close(head.scores(stream)[0, 0, 1] * math.sqrt(H), table[a, b])


def equation_4_2_theorem_2(latex):
    V1, V2, a1, a2 = draw(D, 4, seed=1), draw(4, D, seed=2), 1.7, -0.6
    for i, head in enumerate(theorems.theorem2(V1, V2, N, a1, a2)):
        symbols = {"W_{QK}^i": head.W_QK, "W_{OV}^i": head.W_OV, r"\Lambda": head.mask}
        symbols |= {"w_{in}^i": V1[:, i : i + 1], "w_{out}^i": V2[i : i + 1]}
        symbols |= {"a_1": a1, "a_2": a2, "I": torch.eye(N)}
        for statement in sides(latex, symbols):
            close(*statement)


def equation_4_4_one_head_computes(latex):
    terms = conversion.HeadSum(
        "one term",
        torch.tensor([1.3, -0.4, 0.7, 0.2], dtype=torch.float64).view(4, 1, 1),
        torch.zeros(1),
    )
    x = torch.linspace(-3, 3, 9, dtype=torch.float64)
    symbols = {"x": x, "b": 1.3, "c": -0.4, "a": 0.7, "d": 0.2, r"\sigma": torch.sigmoid}
    close(terms(x), torch.stack([sides(latex, symbols | {"x": one})[0][0] for one in x]))


def equation_4_5_gated_mlp(latex):
    x, gate, into, out = draw(N, D), draw(D, 4, seed=1), draw(D, 4, seed=2), draw(4, D, seed=3)
    symbols = {"x": x, "W_{gate}": gate, "W_{in}": into, "W_{out}": out, "f": torch.sigmoid}
    close(
        conversion.neuron_heads(into, out, activation="sigmoid", W_gate=gate)(x),
        sides(latex, symbols)[0][0],
    )


def equation_4_1_sigmoid_of_two_scores(latex):
    x = torch.tensor(0.7, dtype=torch.float64)
    ((left, right),) = sides(latex, {"x": x, r"\sigma": torch.sigmoid})
    (head,) = theorems.theorem2(torch.ones(1, 1).double(), torch.ones(1, 1).double(), 1)
    close(head.pattern(torch.block_diag(x.view(1, 1), torch.ones(1, 1)))[0, 0], left, right)


def equation_4_3_factors_of_a_neuron(latex):
    w_in, w_out = draw(1, 1, seed=1), draw(1, 1, seed=2)
    heads = theorems.remark3(w_in, w_out)
    given = {name: getattr(heads, name)[0] for name in ("W_Q", "W_K", "W_V", "W_O")}
    for statement in sides(latex, given | {"w_{in}": w_in, "w_{out}": w_out}):
        close(*statement)


def equation_4_6_sum_of_sigmoids(latex):
    terms = conversion.gate_sum("silu", 30.0, 16)
    silu = torch.nn.functional.silu
    parts = [{"b_i": b, "c_i": c, "m_i": d} for b, c, _, d in terms.terms]
    for g, u in ((-7.0, 1.3), (0.4, -2.0), (21.0, 0.5)):
        symbols = {r"\mathrm{SiLU}": silu, r"\sigma": torch.sigmoid, "g": g, "u": u}
        ((exact, summed),) = sides(latex.replace(r"\approx", "="), symbols | {r"\sum_i": parts})
        assert abs(float(exact - summed)) <= terms.error * abs(u)
        close(terms(torch.tensor([g], dtype=torch.float64))[0] * u, summed)


def equation_4_7_head_of_the_post(latex):
    layer = omega_mlp(draw(D, H), draw(H, D), n_ctx=N)
    X, V = layer.augment(draw(N, D, seed=1)), draw(layer.d_stream, layer.d_stream)
    symbols = {
        r"\mathrm{head}": lambda x: layer.linear_step(x, V),
        r"\mathrm{softmax}": softmax,
        "X": X,
        "Q": layer.self_matrix(),
        "V": V,
    }
    (statement,) = sides(latex, symbols)
    close(*statement)


def equation_4_8_silu_through_the_skip(latex):
    x = torch.tensor(-1.3, dtype=torch.float64)
    eye = torch.eye(1, dtype=torch.float64)
    layer = omega_mlp(eye, eye, n_ctx=1)
    symbols = {"x": x, r"\sigma": torch.sigmoid}
    symbols[r"\mathrm{SiLU}"] = lambda value: layer(value.view(1, 1))[0, 0]
    (statement,) = sides(latex, symbols)
    close(*statement)


def equation_4_9_window_of_omega(latex):
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        symbols = {"N": 20, r"\varepsilon": tolerance, r"\Omega": 20.0, r"\ln": torch.log}
        symbols |= {"u": torch.finfo(dtype).eps}
        ((smallest, omega, largest),) = sides(latex, symbols)
        low, high = omega_window(21, dtype, tolerance)
        close(low, smallest)
        close(high, largest)
        assert smallest <= omega <= largest


def equation_4_10_widened_head(latex):
    QK, OV, mask, X = draw(D, D), draw(D, D, seed=1), torch.ones(N, N).double().tril(), draw(N, D)
    symbols = {"h'": theorems.augmented_head(QK, OV, mask), "h": theorems.MaskedHead(QK, OV, mask)}
    (statement,) = sides(latex, symbols | {"X": X})
    close(*statement)


def equation_4_11_attention_as_linear_map(latex):
    W, X = draw(D, D), draw(N, D)
    (statement,) = sides(latex, {"h": theorems.theorem6(W, N), "X": X, "W_{OV}": W})
    close(*statement)


def equation_5_8_some_set_fails(latex):
    m, r = 0.8 + draw(40, 3, 4, seed=5), 1.5 + draw(40, 4, seed=6)
    carried = always_leads(m, r)
    assert 0.1 < carried.double().mean() < 0.9
    assert r"\le" in latex
    for row in range(40):
        for h in range(3):
            others = [{"m_k[u]": m[row, k]} for k in range(3) if k != h]
            symbols = {r"\sum_{k \neq h}": others, "m_h[u]": m[row, h], "r[u]": r[row]}
            left, right = sides(latex, symbols)[0]
            assert bool(left <= right) is not bool(carried[row, h])


def random_block():
    """A gated block with random biases of its gates, and a stream."""
    block = sp.GatedBlock(Recipe(d_head=H, d_gate=2), 2, D, dtype=torch.float64)
    with torch.no_grad():
        block.b_GQ.copy_(draw(*block.b_GQ.shape)), block.b_GK.copy_(draw(*block.b_GK.shape, seed=1))
    block.requires_grad_(False)
    assert {*block.gates(draw(N, D)).flatten().tolist()} > {0.0, 1.0}
    return block, draw(N, D)


def equation_5_1_gate_vectors(latex):
    block, x = random_block()
    for h in range(block.n_heads):
        symbols = {"x": x}
        for name in ("W_GQ", "b_GQ", "W_GK", "b_GK"):
            symbols[name[:2] + "{" + name[2:] + "}"] = getattr(block, name)[h]
        symbols |= {"G_Q": x @ block.W_GQ[h] + block.b_GQ[h]}
        symbols |= {"G_K": x @ block.W_GK[h] + block.b_GK[h]}
        (_, query), (_, key) = statements = sides(latex, symbols)
        for statement in statements:
            close(*statement)
        close((query @ key.T).clamp(0, 1), block.gates(x)[h])


def equation_5_2_gate_pattern(latex):
    block, x = random_block()
    for h in range(block.n_heads):
        symbols = {"G_Q": x @ block.W_GQ[h] + block.b_GQ[h]}
        symbols |= {"G_K": x @ block.W_GK[h] + block.b_GK[h]}
        symbols |= {r"\mathrm{clamp}": torch.clamp, r"\mathrm{gate}": block.gates(x)[h]}
        close(*sides(latex, symbols)[0])


def equation_5_3_gated_output(latex):
    block, x = random_block()
    W_V, W_O = block.used_weights()
    names = {
        r"\mathrm{gate}_h": block.gates(x),
        r"\mathrm{pattern}_h": block.pattern(x),
        "W_V": W_V,
        "b_V": block.b_V,
        "W_O": W_O,
    }
    heads = [{name: value[h] for name, value in names.items()} for h in range(block.n_heads)]
    close(*sides(latex, {"x": x, r"\mathrm{out}": block(x), r"\sum_h": heads})[0])


def equation_5_4_gate_penalty(latex):
    block, _ = random_block()
    gates = torch.rand(1, 3, 1, 1, generator=torch.Generator().manual_seed(0)).double()
    terms = [{r"\mathrm{gate}_h": gate} for gate in gates[0, :, 0, 0]]
    right = block.penalty(gates, gates.transpose(1, 2))  # this penalty reads no z
    close(*sides(latex, {r"\sum_h": terms, "L_{0.6}": right})[0])


def equation_5_5_gated_loss(latex):
    original = load_original(2, 3, seed=0).to(torch.float64)
    recipe = post_recipe(2).but(steps=1, batch=20, n_prompts=20, lr=0.0)
    runs = train_on_task(original, recipe, inits=1, seed=0)
    tokens = original.task.sample(20, seed_of(0, 10_000))
    x, block = original.W_E[tokens], runs.block
    written = sp.head_logits(original, tokens)[0].sum(2)
    symbols = {
        r"L_{\mathrm{reconstruction}}": (block(x).flatten() - written.flatten()).square().mean(),
        r"\alpha": recipe.alpha,
        "L_{0.6}": torch.linalg.vector_norm(block.gates(x), 0.6, dim=1).mean(),
        "L": runs.training_loss[0, 0],
    }
    close(*sides(latex, symbols)[0])


def equation_5_6_write_penalty(latex):
    block = sp.GatedBlock(sp.WRITES, 2, D, dtype=torch.float64).requires_grad_(False)
    z = draw(1, 1, block.n_heads, 1)
    sizes = (z[0, 0] * block.used_weights()[1][:, 0]).abs()  # [head, u]
    terms = [
        {r"\sum_h": [{"|z_h W_O^h[u]|": size} for size in column]} for column in sizes.unbind(1)
    ]
    left = block.penalty(torch.ones(1, block.n_heads, 1, 1), z)
    (sought, value) = sides(latex, {r"\sum_u": terms, r"L_{\mathrm{write}}": left})[0]
    torch.testing.assert_close(sought, value, rtol=0.05, atol=0)  # the library adds 0.001 to sizes


def equation_5_7_length_penalty(latex):
    lengths = draw(4).abs()
    for power in (0.6, 1.0):
        terms = [{"|o_h|": length} for length in lengths]
        symbols = {r"\lambda": 0.03, "p": power, r"\sum_h": terms}
        close(sides(latex, symbols)[0][0], 0.03 * torch.linalg.vector_norm(lengths, power))


TIES = {
    ".".join(name.split("_")[1:3]): computation
    for name, computation in list(globals().items())
    if name.startswith("equation_")
}


def test_every_displayed_formula_has_a_computation():
    assert set(equations()) == set(TIES), "add a computation to TIES"


@pytest.mark.parametrize("number", TIES)
def test_the_printed_formula_is_what_the_library_computes(number):
    TIES[number](equations()[number])


def matrices_for(sentence: str) -> dict[str, str]:
    """Which matrix a sentence names for which input: both in the order of the sentence."""
    matrices = re.findall(r"\$(W_\{\w+\}(?:\^\\top)?)\$", sentence)
    return dict(zip(re.findall(r"\b[QKV]\b(?!\})", sentence)[-3:], matrices, strict=True))


def test_the_matrices_named_for_q_k_and_v_give_the_composition_scores():
    text = prose("book/3-induction-heads/how-induction-forms.ipynb")
    (sentence,) = re.findall(r"where \$M\$ is the later head's (.*?for Q, K and V)", text, re.S)
    for kind, matrix in matrices_for(sentence).items():
        score_with_matrix(equations()["3.3"], kind, matrix)
    with pytest.raises(AssertionError):
        score_with_matrix(equations()["3.3"], "Q", r"W_{QK}^\top")


def test_every_reference_leads_to_its_equation():
    for name in pages():
        for said, number in re.findall(r"\[\(([\d.]+)\)\]\([^)\s]*#eq-([\d-]+)\)", prose(name)):
            assert said == number.replace("-", "."), f"[({said})](#eq-{number}) in {name}"
            assert said in equations(), f"{name} refers to ({said}), which is no equation"


@pytest.mark.parametrize("number", TIES)
def test_a_formula_with_a_factor_too_much_is_noticed(number):
    latex = equations()[number]
    sign = re.search(r"=|\\approx|\+", latex)
    place = sign.end() if sign else 0
    with pytest.raises((AssertionError, ValueError, RuntimeError)):
        TIES[number](latex[:place] + " 3 " + latex[place:])
