"""The decomposition of one attention score."""

import pytest
import torch

import circuitkit as ck
from circuitkit.paths import score_decomposition
from tests.support import zoo


def head_weights(model, layer, head):
    d, state = model.cfg.d_head, model.state_dict()
    rows = slice(head * d, (head + 1) * d)
    q, k, v = (state[f"blocks.{layer}.attn.{side}.weight"][rows].T for side in "qkv")
    return q, k, v, state[f"blocks.{layer}.attn.o.weight"][:, rows].T


def test_norms_and_biases_by_hand(with_norm, tokens):
    """The share of L0 MLP as a query times all biases as a key, with the frozen norm written out."""
    model, dst, src = with_norm, 7, 3
    _, cache = model.run_with_cache(tokens)
    table = score_decomposition(model, tokens[1], "L1H1", dst, src)
    norm, state = model.blocks[1].ln1, model.state_dict()
    q, k, *_ = head_weights(model, 1, 1)

    def through(vector, place):
        x = cache["blocks.1.ln1.hook_in"][1, place]
        scale = ((x - x.mean()).square().mean() + 1e-5).sqrt()
        return (vector - vector.mean()) / scale * norm.weight.detach()

    written = cache["blocks.0.hook_mlp_out"][1, dst]
    of_layer = through(state["blocks.0.attn.o.bias"], src) @ k
    of_head = norm.bias.detach() @ k + state["blocks.1.attn.k.bias"][5:10]
    for column, constant in (("L0 bias", of_layer), ("bias", of_head)):
        expected = (through(written, dst) @ q) @ constant / 5**0.5
        assert table["L0 MLP", column] == pytest.approx(expected.item(), abs=1e-12)


def test_scores_are_those_before_the_cap(boot, tokens):
    model = boot(attn_scores_soft_cap=1.0)
    _, cache = model.run_with_cache(tokens)
    pattern = cache["blocks.1.attn.hook_pattern"][0, 2, 6]
    tables = [score_decomposition(model, tokens[0], "L1H2", 6, src) for src in range(7)]
    scores = torch.stack([table.values.sum() for table in tables]).tanh()
    torch.testing.assert_close(scores.softmax(-1), pattern[:7], rtol=0, atol=1e-12)


def test_a_norm_of_the_whole_stream_stands_before_no_head():
    """BERT: the parts are shares of a stream that was normalised already, and heads look ahead."""
    model, tokens = zoo.make("bert"), torch.arange(7)
    _, cache = model.run_with_cache(tokens[None])
    queries, keys = (cache[f"blocks.1.attn.hook_{side}"][0] for side in "qk")
    for dst, src in ((2, 5), (6, 1)):
        table = score_decomposition(model, tokens, "L1H2", dst, src)
        score = queries.view(7, 4, 6)[dst, 2] @ keys.view(7, 4, 6)[src, 2] / 6**0.5
        assert table.values.sum().item() == pytest.approx(score.item(), abs=1e-10)


def test_positions_are_counted_from_the_end_and_text_is_read():
    model = ck.load_model("two-layer")
    text = "The house belonged to Mr. Dorling. Nobody had seen Mr. D"
    tokens = model.to_tokens(text)
    n = tokens.shape[1]
    table = score_decomposition(model, text, "L1H3", -1, 8)
    assert torch.equal(table.values, score_decomposition(model, tokens, "L1H3", n - 1, 8).values)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("L1H0", 2, 5), "source 5 comes after the destination 2"),
        (("L1H0", 9, 5), "dst=9 is outside the text, which has 9 tokens"),
    ],
)
def test_wrong_arguments(plain, tokens, arguments, text):
    with pytest.raises(ValueError, match=text):
        score_decomposition(plain, tokens[0], *arguments)
    with pytest.raises(ValueError, match="2 rows of tokens"):
        score_decomposition(plain, tokens, "L1H0", 3, 2)
