"""Heads and single paths taken out, against a forward pass that never adds them."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from circuitkit import handmade, run
from circuitkit.effects import wires as paths
from circuitkit.induction import induction_loss

ROWS = [[3, 7, 1, 22, 0, 7], [5, 5, 8, 2, 9, 11]]


def logits_without(model, cuts, fill="zero"):
    return run(model, torch.tensor(ROWS), without=cuts, fill=fill).logits.numpy()


def parsed(cuts):
    heads, edges = [], []
    for cut in cuts:
        ends = [tuple(int(n) for n in end[1:].split("H")) for end in cut.split(".")[0].split("->")]
        if len(ends) == 1:
            heads.append(ends[0])
        else:
            edges.append((ends[0], ends[1], cut[-1]))
    return heads, edges


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.sampled_from(["L0H0", "L1H1", "L0H1->L1H0.Q", "L0H1->L1H0.K", "L0H0->L1H1.V", "L0H1->L2H1.K",
                                      "L1H0->L2H1.K", "L1H0->L2H0.V", "L0H0->L2H0.V", "L1H1->L2H0.Q"]), max_size=5, unique=True),
       which=st.sampled_from(["plain", "with_norm"]))  # fmt: skip
def test_against_loops(plain, with_norm, slow, cuts, which):
    model = {"plain": plain, "with_norm": with_norm}[which]
    heads, edges = parsed(cuts)
    expected = np.stack([slow(model).run(row, heads, edges)[0] for row in ROWS])
    assert np.abs(logits_without(model, cuts) - expected).max() < 1e-10


def test_rotary_and_grouped_queries(boot, slow):
    """No loop for rotary positions here: a path cut equals a model whose query never saw that head."""
    model = boot(positional_embedding_type="rotary", d_head=6, n_layers=2)
    every = [path for path in paths(model, "Q", into="L1H0")]
    stream = {}
    full = model.run_with_hooks(
        torch.tensor(ROWS),
        fwd_hooks=[("blocks.1.hook_resid_pre", lambda x, hook: stream.update(x=x))],
    )
    embedded = model.embed.weight[torch.tensor(ROWS)] + model.state_dict()["blocks.0.attn.o.bias"]
    query = torch.einsum("bpm,md->bpd", embedded, model.W_Q[1, 0]) + model.b_Q[1, 0]

    def only_embedding(q, hook):
        q = q.clone()
        q[:, :, 0] = query
        return q

    expected = model.run_with_hooks(
        torch.tensor(ROWS), fwd_hooks=[("blocks.1.attn.hook_q", only_embedding)]
    )
    assert np.abs(logits_without(model, every) - expected.numpy()).max() < 1e-10
    assert np.abs(expected.numpy() - full.numpy()).max() > 1e-3
    grouped = boot(n_heads=4, n_key_value_heads=2, seed=2)
    expected = np.stack([slow(grouped).run(row, [], [((0, 1), (2, 3), "Q")])[0] for row in ROWS])
    assert np.abs(logits_without(grouped, ["L0H1->L2H3.Q"]) - expected).max() < 1e-10
    expected = np.stack([slow(grouped).run(row, [], [((0, 1), (2, 3), "K")])[0] for row in ROWS])
    assert (
        np.abs(logits_without(grouped, ["L0H1->L2H3.K"]) - expected).max() < 1e-10
    )  # its keys alone, though head 2 has the same


def test_a_hugging_face_model(tmp_path):
    """GPT-2 with its joint query-key-value matrix: cutting every path into Q, K and V of every later head."""
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=2, n_head=2, n_embd=8, vocab_size=50, n_positions=16, initializer_range=0.5
    )
    hf = GPT2LMHeadModel(config).eval()
    hf.save_pretrained(tmp_path)
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = TransformerBridge.boot_transformers(str(tmp_path), hf_model=hf).eval()
    rows = torch.tensor(ROWS)
    everything = [path for kind in "QKV" for path in paths(model, kind)]
    full = model(rows)
    cut = torch.tensor(logits_without(model, everything))
    block = hf.transformer.h[1]

    def attention_without_layer_zero(module, args, kwargs):
        kept = stream["pre"] - wrote["heads"]
        return (block.ln_1(kept), *args[1:]), kwargs

    stream, wrote = {}, {}

    def keep(module, args, output):
        wrote["heads"] = (output[0] if isinstance(output, tuple) else output) - module.c_proj.bias

    def pre(module, args, kwargs):
        stream["pre"] = args[0] if args else kwargs["hidden_states"]

    reference = GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    block = reference.transformer.h[1]
    reference.transformer.h[0].attn.register_forward_hook(keep)
    block.register_forward_pre_hook(pre, with_kwargs=True)
    block.attn.register_forward_pre_hook(attention_without_layer_zero, with_kwargs=True)
    expected = reference(rows).logits
    assert (expected - reference(rows).logits).abs().max() == 0
    assert (cut - expected).abs().max() < 1e-4 * expected.abs().max()
    assert (cut - full).abs().max() > 1e-2


def test_mean_ablation(plain):
    rows = torch.tensor(ROWS)
    kept = {}
    plain.run_with_hooks(
        rows, fwd_hooks=[("blocks.1.attn.hook_z", lambda z, hook: kept.update(z=z.clone()))]
    )
    mean = kept["z"][:, :, 1].mean(0)

    def put(z, hook):
        z = z.clone()
        for row in range(len(z)):
            z[row, :, 1] = mean
        return z

    expected = plain.run_with_hooks(rows, fwd_hooks=[("blocks.1.attn.hook_z", put)])
    found = torch.tensor(logits_without(plain, ["L1H1"], "mean"))
    assert torch.allclose(found, expected, atol=1e-12)


def test_all_three_inputs_cut_is_a_head_that_reads_the_rest_of_the_stream(plain):
    """Law: without every path out of layer 0 into a layer-1 head, that head's pattern ignores layer 0's weights."""
    cuts = [path for kind in "QKV" for path in paths(plain, kind, into="L1H0")]
    rows = torch.tensor(ROWS)
    cut, ablated = (run(plain, rows, without=names) for names in (cuts, ["L0H0", "L0H1"]))
    assert torch.allclose(cut.pattern("L1H0"), ablated.pattern("L1H0"), atol=1e-12)


def test_names_of_paths(plain):
    assert len(paths(plain, "K")) == 2 * 2 + 4 * 2
    assert paths(plain, "V", into="L1H0") == ("L0H0->L1H0.V", "L0H1->L1H0.V")
    assert paths(plain, "Q", out_of="L1H1") == ("L1H1->L2H0.Q", "L1H1->L2H1.Q")


def test_handmade_circuits_break_where_they_should():
    for method, kind in (("k-composition", "K"), ("pointer", "Q")):
        model = handmade.build_induction_model(12, 24, method=method)
        for other in "QKV":
            accuracy = induction_loss(model, without=paths(model, other)).accuracy
            assert accuracy == (0.0 if other == kind else 1.0), (method, other)
