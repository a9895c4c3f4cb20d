"""Wires cut in models of transformers, and random sets of names, against passes that never add them."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from circuitkit import induction
from circuitkit.ablation import run
from circuitkit.effects import wires
from circuitkit_book.induction_by_hand import build_induction_model
from tests.support.slow_tools import forward
from tests.support.zoo import make

ROWS = torch.tensor([[3, 7, 1, 22, 0, 7], [5, 5, 8, 2, 9, 11]])
NAMES = ["L0H0", "L1H1", "L0 MLP", "L0H1->L1H0.Q", "L0H1->L1H0.K", "L0H0->L1H1.V", "L0H1->L1H2.K"]
NAMES += ["L0 MLP->L1H2.K", "L0 bias->L1H2.V", "pos->L1H3.Q", "L1H2->unembed", "embed->L0 MLP"]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from(NAMES), max_size=5, unique=True))
def test_any_set_of_parts_and_wires(names):
    model = make("native-mlp")
    cut = []
    for wire in names:
        writer, _, reader = wire.partition("->")
        if reader:
            cut.append((writer, *reader.partition(".")[::2]))
    gone = [name for name in names if "->" not in name]
    expected = torch.stack([forward(model, row, cut=cut, gone=gone)[0] for row in ROWS])
    torch.testing.assert_close(run(model, ROWS, without=names).logits, expected)


def test_all_wires_of_gpt2_against_hooks_of_torch(tmp_path):
    """Layer 1 of transformers' own GPT-2 attends to a stream without the heads of layer 0."""
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 8, "vocab_size": 50, "n_positions": 16}
    original = GPT2LMHeadModel(GPT2Config(**sizes, initializer_range=0.5)).eval()
    original.save_pretrained(tmp_path)
    reference = GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    model = TransformerBridge.boot_transformers(str(tmp_path), hf_model=original).eval()
    everything = [wire for kind in "QKV" for wire in wires(model, kind)]
    cut = run(model, ROWS, without=everything).logits

    first, second = reference.transformer.h
    values = {}

    def keep_heads(module, args, output):
        values["heads"] = output[0] - module.c_proj.bias

    def keep_stream(module, args, kwargs):
        values["stream"] = args[0] if args else kwargs["hidden_states"]

    def read_without_heads(module, args, kwargs):
        return (second.ln_1(values["stream"] - values["heads"]), *args[1:]), kwargs

    first.attn.register_forward_hook(keep_heads)
    second.register_forward_pre_hook(keep_stream, with_kwargs=True)
    second.attn.register_forward_pre_hook(read_without_heads, with_kwargs=True)
    with torch.no_grad():
        expected = reference(ROWS).logits
    torch.testing.assert_close(cut, expected, atol=1e-4 * float(expected.abs().max()), rtol=1e-4)
    assert (cut - model(ROWS)).abs().max() > 1e-2


def test_hand_made_circuits_break_where_they_should():
    for method, kind in (("k-composition", "K"), ("pointer", "Q")):
        model = build_induction_model(12, 24, method=method)
        for side in "QKV":
            accuracy = induction.induction_loss(model, without=wires(model, side)).accuracy
            assert accuracy == (0.0 if side == kind else 1.0), (method, side)
