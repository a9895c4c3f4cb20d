"""What the paper on attention-only transformers says, recomputed: MLPs as masked heads, and Theorem 4's norm."""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from circuitkit import conversion
from circuitkit_book import theorems
from circuitkit_book.claims.numbers import above_the_mlp, largest, normal
from circuitkit_book.stored_tables import stored_study

N, D, UNITS = 5, 8, 12


def _parts():
    """X, V1, V2 of a small MLP without biases."""
    return normal(0, N, D), normal(1, D, UNITS), normal(2, UNITS, D)


def _summed(heads, X):
    return sum((head(X) for head in heads), start=torch.zeros(()))


def _grid(reach: float):
    return torch.linspace(-reach, reach, 2_400_001, dtype=torch.float64)


def generalized_silu() -> list[bool]:
    """Is a1 SiLU(a2 x) one head for a1, a2 of either sign?"""
    x = torch.linspace(-9, 9, 181, dtype=torch.float64)
    pairs = (1.0, 1.0), (1 / 1.702, 1.702), (-0.5, 3.0), (2.0, -0.7)
    return [
        largest(theorems.generalized_silu(a1, a2)(x) - a1 * F.silu(a2 * x)) < 1e-14
        for a1, a2 in pairs
    ]


def gelu_as_silu() -> list[float]:
    """SiLU(1.702 x) / 1.702 against GELU: largest error, where it is; then the slope whose largest error is least, and it."""
    x = _grid(6.0)
    error = (theorems.generalized_silu(1 / 1.702, 1.702)(x) - F.gelu(x)).abs()
    best = conversion.head_sum("gelu", 1)
    return [float(error.max()), abs(float(x[error.argmax()])), best.terms[0][0], best.error]


def relu_as_silu() -> list[float]:
    """k times the largest error of SiLU(k x) / k against ReLU, and k times the x where it is, for k = 100."""
    k, x = 100.0, _grid(0.06)
    error = (conversion.head_sum("relu", sharpness=k)(x) - x.relu()).abs()
    return [k * float(error.max()), k * abs(float(x[error.argmax()]))]


def masked_softmax() -> float:
    """Largest difference between the library's masked softmax and rownorm(exp(X) * mask)."""
    X, mask = normal(0, N, N), (normal(1, N, N) > 0).double() + torch.eye(N).double()
    weighed = X.exp() * mask.clamp(max=1)
    return largest(theorems.masked_softmax(X, mask) - weighed / weighed.sum(1, keepdim=True))


def theorem_2() -> list[float]:
    """Largest error of the heads' sum for 20 tokens, 32 coordinates, 128 neurons; and the largest entry beside f(X)."""
    X, V1, V2 = normal(0, 20, 32), normal(1, 32, 128) / 6, normal(2, 128, 32) / 11
    a1, a2 = 1 / 1.702, 1.702
    got = _summed(theorems.theorem2(V1, V2, 20, a1, a2), theorems.direct_sum(X, 1.0))
    beside = torch.cat([got[-1], got[:, -1]])
    return [largest(got[:-1, :-1] - a1 * F.silu(a2 * X @ V1) @ V2), largest(beside)]


def block_sizes() -> list[int]:
    """Size of the blocks of W_QK for 5 tokens of 8 coordinates: rows before the last, and the last."""
    X, V1, V2 = _parts()
    size = len(theorems.theorem2(V1, V2, len(X))[0].W_QK)
    return [size - 1, 1]


def _one_neuron(x: float):
    """The head of one neuron that reads x, on one token and the bias token: scores and pattern of the token."""
    one = torch.ones(1, 1, dtype=torch.float64)
    head, X = theorems.theorem2(one, one, 1)[0], theorems.direct_sum(x * one, 1.0)
    return (X @ head.W_QK @ X.T)[0], head.pattern(X)[0]


def proof_sketch() -> list[float]:
    """For x = 0.7: softmax(-x, 0); the scores of the token for itself and for the bias token; the softmax of these scores."""
    scores, _ = _one_neuron(0.7)
    printed = torch.tensor([-0.7, 0.0], dtype=torch.float64)
    return [
        one for part in (printed.softmax(0), scores, scores.softmax(0)) for one in part.tolist()
    ]


def appendix_pattern() -> float:
    """Largest difference between a neuron-head's pattern and the appendix's, diag(sigma(XV)) beside sigma(-XV)."""
    X, V1, V2 = _parts()
    pattern = theorems.theorem2(V1, V2, N)[0].pattern(theorems.direct_sum(X, 1.0))
    pre = X @ V1[:, 0]
    stated = theorems.direct_sum(torch.diag(pre.sigmoid()), 1.0)
    stated[:-1, -1] = (-pre).sigmoid()
    return largest(pattern - stated)


def remark_3() -> list:
    """Is the library's W_K right, is the paper's right in a library, and how much too large is the paper's W_K there?"""
    X, V1, V2 = _parts()
    heads, exact = theorems.remark3(V1, V2), F.silu(X @ V1) @ V2
    copied = replace(heads, W_K=heads.W_K * math.sqrt(D + 1))
    wide = conversion.with_bias_token(X)
    right = [largest(one.results(wide).sum(0)[1:, :-1] - exact) < 1e-12 for one in (heads, copied)]
    return [*right, largest(copied.W_K) / largest(heads.W_K)]


def causal_masks() -> list[bool]:
    """Is the theorem's mask lower triangular, and the library's, with the bias token first?"""
    X, V1, V2 = _parts()
    masks = theorems.theorem2(V1, V2, N)[0].mask, conversion.neuron_heads(V1, V2).pattern(X)[0]
    return [torch.equal(mask, mask.tril()) for mask in masks]


def layer_norm_step() -> list[float]:
    """LayerNorm(X + [1]) at 16 coordinates: the bias token's first and last entry, and the largest leak of a token."""
    normed = theorems.layer_norm(theorems.direct_sum(normal(10, 6, 16), 1.0))
    return [float(normed[-1, 0]), float(normed[-1, -1]), largest(normed[:-1, -1])]


def theorem_4() -> list:
    """Error of an attention-only copy of a post-norm transformer whose LayerNorms have gains and biases, relative to its largest
    entry; do the steps with RMSNorm and a gain, and with a norm of the original coordinates, hold to 1e-13?
    """
    X = normal(10, 6, 16)
    wide, exact = theorems.direct_sum(X, 1.0), theorems.direct_sum(theorems.layer_norm(X), 1.0)
    errors = [
        theorems.rms_with_gain(16)(wide) - theorems.direct_sum(theorems.rms_norm(X), 1.0),
        theorems.norm_of_first(theorems.layer_norm)(wide) - exact,
    ]
    return [_error_of_the_copy(), *(largest(error) < 1e-13 for error in errors)]


def _error_of_the_copy() -> float:
    """Two layers of two heads and an MLP each, and their copy on N + 1 tokens of D + 2 coordinates, from heads and LayerNorm alone.

    The bias token ends in (1, -1). One more head in each sublayer subtracts the mean of a token, so the sum has mean 0, and
    clears the bias of the norm before from the bias token.
    """
    stream = normal(0, N, D)
    copy = torch.block_diag(stream, torch.tensor([[1.0, -1.0]]).double())
    before = torch.zeros(D).double()  # the bias of the norm before, which the bias token holds
    for sublayer in range(4):
        gain, bias = 1 + normal(100 + sublayer, D) / 4, normal(200 + sublayer, D) / 4
        written, heads = _sublayer(stream, sublayer)
        stream = theorems.layer_norm(stream + written) * gain + bias
        added = sum(_on_two_bias_coordinates(head, before)(copy) for head in heads)
        copy = theorems.centred_with_gain(D)(copy + added + _centring_head(before)(copy))
        copy = copy * F.pad(gain, (0, 2), value=1.0) + F.pad(bias, (0, 2))
        before = bias
    return largest(copy[:-1, :D] - stream) / largest(stream)


def _sublayer(X, number: int):
    """What two causal heads, or an MLP, write on X; and the heads of the paper's proof that do this on X (+) [1]."""
    if number % 2:
        V1, V2 = normal(10 + number, D, UNITS) / 3, normal(20 + number, UNITS, D) / 3
        return F.silu(X @ V1) @ V2, theorems.theorem2(V1, V2, N)
    causal = torch.ones(N, N).double().tril()
    made = [(normal(s, D, D) / D, normal(s + 1, D, D) / D) for s in (30 + number, 40 + number)]
    written = [theorems.MaskedHead(W_QK, W_OV, causal)(X) for W_QK, W_OV in made]
    return sum(written), [theorems.augmented_head(W_QK, W_OV, causal) for W_QK, W_OV in made]


def _on_two_bias_coordinates(head, held):
    """The head with one more coordinate; it writes rows of mean 0, and nothing of what the bias token holds."""
    W_OV = F.pad(head.W_OV, (0, 1, 0, 1))
    W_OV[:D, :D] -= W_OV[:D, :D].mean(1, keepdim=True)
    W_OV[D, :D] = -held @ W_OV[:D, :D]
    return theorems.MaskedHead(F.pad(head.W_QK, (0, 1, 0, 1)), W_OV, head.mask)


def _centring_head(held):
    """A head of Theorem 6: it subtracts the mean of a token, and `held` from the bias token."""
    W = F.pad(torch.full((D, D), -1 / D).double(), (0, 2, 0, 2))
    W[D, :D] = held.mean() - held
    return theorems.theorem6(W, N + 1)


def old_heads() -> float:
    """Largest error of an ordinary causal head widened to ignore the bias token."""
    X, W_QK, W_OV, mask = (
        normal(0, N, D),
        normal(1, D, D),
        normal(2, D, D),
        torch.ones(N, N).double().tril(),
    )
    head = theorems.augmented_head(W_QK, W_OV, mask)
    exact = theorems.masked_softmax(X @ W_QK @ X.T, mask) @ X @ W_OV
    return largest(head(theorems.direct_sum(X, 1.0)) - theorems.direct_sum(exact, 0.0))


def bias_trick() -> list[bool]:
    """With a column of ones: are the heads those of the MLP with its inner bias; is the column one after LayerNorm?"""
    X, V1, V2 = _parts()
    b_in, ones = normal(3, UNITS), torch.ones(N, 1).double()
    wide1, wide2 = theorems.bias_trick(V1, b_in, V2)
    with_ones = torch.cat([X, ones], 1)
    got = _summed(theorems.theorem2(wide1, wide2, N), theorems.direct_sum(with_ones, 1.0))[:-1, :D]
    normed = theorems.layer_norm(with_ones)[:, -1:]
    return [largest(got - F.silu(X @ V1 + b_in) @ V2) < 1e-12, largest(normed - ones) < 1e-12]


def theorem_6() -> float:
    """Largest error of a head with the identity as mask, whatever its scores, against X W_OV."""
    X, W = normal(0, N, D), normal(1, D, D)
    head = replace(theorems.theorem6(W, N), W_QK=normal(2, D, D))
    return largest(head(X) - X @ W)


def theorem_7() -> list:
    """Heads for the activation alone and through a skip, and whether each is exact."""
    X = normal(0, N, D)
    wide, found = theorems.direct_sum(X, 1.0), []
    for residual, kept in ((False, 0.0), (True, 1.0)):
        heads = theorems.theorem7(D, N, residual=residual, like=X)
        got = kept * wide + _summed(heads, wide)
        found.append((len(heads), largest(got - theorems.direct_sum(F.silu(X), kept)) < 1e-13))
    return [count for count, _ in found] + [exact for _, exact in found]


def identity_of_theorem_7() -> list[bool]:
    """Is X I defined, and X itself, with the identity of size N = 5, and of size D = 8?"""
    X = normal(0, N, D)
    return [X.shape[1] == size and torch.equal(X @ torch.eye(size).double(), X) for size in (N, D)]


def _persistent(X, V1, V2):
    """Theorem 2's heads when the softmax also holds one vector (0, ..., 0, 1), shared by all, that is no token."""
    stream, extra = torch.cat([X, X.new_zeros(len(X), 1)], 1), torch.eye(D + 1).double()[-1:]
    total = torch.zeros_like(stream)
    for head in theorems.theorem2(V1, V2, len(X)):
        asked = stream @ head.W_QK
        own, other = (
            torch.stack([(asked * stream).sum(1), asked @ extra[0]], 1).softmax(1).split(1, 1)
        )
        total = total + (own * stream + other * extra) @ head.W_OV
    return total[:, :-1]


def persistent_vector() -> list:
    """Is one layer exact with it; are two without skips; how wrong are two when the stream carries the bias token?"""
    X, V1, V2 = _parts()
    once, exact = _persistent(X, V1, V2), F.silu(X @ V1) @ V2
    twice, layer = F.silu(exact @ V1) @ V2, theorems.theorem2(V1, V2, N)
    stream = theorems.post_norm_layers(
        theorems.direct_sum(X, 1.0), [layer, layer], lambda x: x, skip=False
    )[-1]
    right = [largest(once - exact) < 1e-12, largest(_persistent(once, V1, V2) - twice) < 1e-12]
    return [*right, largest(stream[:-1, :-1] - twice) / largest(twice)]


def rank_collapse() -> list[float]:
    """Share of a stream that is not the same in all rows, after 2 and 4 layers of 4 heads: without skips, and with."""
    shares = []
    for skip in (False, True):
        X = normal(20, 12, 16)
        for layer in range(4):
            heads = [
                [normal(30 + 8 * layer + 2 * h + i, 16, 16) / 4 for i in (0, 1)] for h in range(4)
            ]
            X = skip * X + sum((X @ Q @ X.T / 4).softmax(-1) @ X @ V for Q, V in heads)
            X = 4 * X / X.norm(dim=1).mean()
            shares.append(float((X - X.mean(0)).norm() / X.norm()))
    return shares[1::2]


def without_skips() -> list[float]:
    """The bias coordinate after one layer without a skip, and the largest score in the next layer."""
    X, V1, V2 = _parts()
    layer = theorems.theorem2(V1, V2, N)
    stream = theorems.post_norm_layers(
        theorems.direct_sum(X, 1.0), [layer], lambda x: x, skip=False
    )[-1]
    return [largest(stream[:, -1]), max(largest(stream @ head.W_QK @ stream.T) for head in layer)]


def _gpt3():
    """GPT-3's MLP in the sizes alone, as neuron-heads; its 96 heads of dimension 128."""
    W_in = torch.ones(1, 1).expand(12288, 4 * 12288)
    # not by neuron_heads, which would look at each of 600 million weights
    return conversion.Neurons(W_in, W_in.T, None, None, conversion.head_sum("silu")), 96


def gpt3_heads() -> list[int]:
    """Neuron-heads in a layer of GPT-3, and the dimension of each of its 96 heads."""
    neurons, n_heads = _gpt3()
    return [len(neurons), neurons.W_in.shape[0] // n_heads]


def gpt3_ratios() -> list[float]:
    """MLP over attention in a layer of GPT-3: by parameters, and by heads."""
    neurons, n_heads = _gpt3()
    mlp = neurons.W_in.numel() + neurons.W_out.numel()
    return [mlp / (4 * neurons.W_in.shape[0] ** 2), len(neurons) / n_heads]


def cost() -> list[float]:
    """Multiplications over the MLP's, for all patterns and for two keys a token, and the share of patterns masked away,
    at the sizes of the page; for all patterns at other sizes; seconds of SmolLM2 by two keys and 16 heads a neuron over the
    original's, stored study.
    """
    made = conversion.neuron_heads(normal(1, 768, 8), normal(2, 8, 768))
    pattern = made.pattern(normal(0, 256, 768), [0])[0]
    masked = float((pattern == 0).double().mean())
    other = multiplications_over_the_mlp(64, 64)[0]
    rows, _ = stored_study("smollm2")
    seconds = rows[(rows.precision == "float32") & (rows.heads_per_neuron == 16)].seconds.item()
    return [*multiplications_over_the_mlp(256, 768), masked, other, seconds]


def multiplications_over_the_mlp(n_ctx: int, d_model: int) -> list[float]:
    """Those of a neuron-head over those of a neuron, for all patterns and for two keys a token."""
    X, W_in, W_out = normal(0, n_ctx, d_model), normal(1, d_model, 1), normal(2, 1, d_model)
    made = conversion.neuron_heads(W_in, W_out)
    routes = (lambda: F.silu(X @ W_in) @ W_out), (lambda: made.literal(X)), (lambda: made(X))
    mlp, literal, two_key = (_multiplications(route) for route in routes)
    return [literal / mlp, two_key / mlp]


def _multiplications(run) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def any_mask() -> bool:
    """Is an arbitrary mask, written into weights, right within 2 N exp(spread - Omega), for Omega from 5 to 40?"""
    mask = normal(3, 6, 6) > 0
    mask.fill_diagonal_(True)
    scores = normal(4, 6, 6)
    exact = theorems.masked_softmax(scores, mask.double())
    spread = float(scores.max() - scores.min())
    within = []
    for omega in (5.0, 10.0, 20.0, 40.0):
        W_Q, W_K = theorems.mask_as_weights(mask, omega)
        error = ((scores + (W_Q @ W_K.T).double()).softmax(-1) - exact).abs().sum(-1).max()
        within.append(float(error) <= 12 * math.exp(spread - omega) + 1e-15)
    return all(within)


def gated() -> list:
    """Is a sigmoid-gated neuron one head exactly; then errors of a SiLU gate with 8 heads and 16, on [-30, 30]."""
    X, V1, V2 = _parts()
    gate = normal(5, D, UNITS)
    heads = conversion.neuron_heads(V1, V2, activation="sigmoid", W_gate=gate)
    exact = (
        largest(heads(X) - (torch.sigmoid(X @ gate) * (X @ V1)) @ V2) < 1e-13
        and len(heads) == UNITS
    )
    return [exact, *(conversion.gate_sum("silu", 30.0, k).error for k in (8, 16))]


def trained_to_match() -> list[float]:
    """Loss of neuron-heads with queries and values of their own above a SiLU MLP's of as many numbers: mean and interval."""
    return above_the_mlp("untied")
