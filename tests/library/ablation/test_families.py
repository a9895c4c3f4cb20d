"""Every architecture: wires cut by hooks of transformer-lens, and sums of parts."""

import pytest
import torch

from circuitkit.ablation import run
from circuitkit.parts import part_names
from tests.support import tiny_models, zoo
from tests.support.zoo import converted, make

FEW = ["native-mlp", "gpt2", "llama", "gemma2"]  # native, biases, grouped queries, norms behind
MANY = ["native", "native-rotary", "native-encoder", *zoo.SHAPES]
CONVERTED = ["native-mlp, converted", "gated, converted"]


def families(few, many=MANY):
    rest = [name for name in many if name not in few]
    return [*few, *(pytest.param(name, marks=pytest.mark.weekly) for name in rest)]


def load(name):
    family, _, is_converted = name.partition(", ")
    return converted(family) if is_converted else make(family)


def close(name, a, b):
    """Norms or rotations of some families are computed in float32."""
    is_float32 = name == "native-encoder" or name in {*zoo.SHAPES} - {*zoo.IN_FLOAT64}
    tolerance = 1e-4 if is_float32 else 1e-11
    torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


@torch.no_grad()
def logits_with_input(model, tokens, side, stream):
    """Logits if the queries, keys or values of L1H3 are made of this stream, by hooks."""
    block = model.blocks[1]
    has_norm_in_front = "ln1" in block._modules and "output" not in str(block.ln1.name)
    read = block.ln1.original_component(stream) if has_norm_in_front else stream
    new = getattr(block.attn, side.lower()).original_component(read)
    z_of = {}

    def put_in(value, hook):
        return new.view_as(value)

    def take_out(z, hook):
        z_of["L1H3"] = z.reshape(*z.shape[:2], 4, -1)[:, :, 3].clone()

    def put_z(z, hook):
        z = z.clone()
        z.view(*z.shape[:2], 4, -1)[:, :, 3] = z_of["L1H3"]
        return z

    hook = f"blocks.1.attn.hook_{side.lower()}"
    model.run_with_hooks(tokens, fwd_hooks=[(hook, put_in), ("blocks.1.attn.hook_z", take_out)])
    # of this run only L1H3 counts, because a family may share keys and values among heads
    return model.run_with_hooks(tokens, fwd_hooks=[("blocks.1.attn.hook_z", put_z)])


@pytest.mark.parametrize("name", families([*FEW, "bert", "neox-no-bias"]))
def test_a_wire_is_the_stream_without_its_writer(name, tokens):
    model = make(name)
    whole = run(model, tokens)
    for side, writer in (("Q", "L0H1"), ("K", "L0H2"), ("V", "embed")):
        stream = whole.stream("L1H3") - whole.part(writer, before="L1H3")
        expected = logits_with_input(model, tokens, side, stream)
        assert (expected - whole.logits).abs().max() > 1e-4
        cut = run(model, tokens, without=f"{writer}->L1H3.{side}")
        close(name, cut.logits, expected)


@pytest.mark.parametrize("name", families([*FEW, "bert"]))
def test_wires_into_several_heads_are_cut_together(name, tokens):
    """Heads that share a key or a norm must not see what another of them misses."""
    model = make(name)
    wires = ["L0H0->L1H2.K", "L0H1->L1H3.K", "L0H1->L1H0.V", "L0H2->L1H0.Q", "L0H1->L1H1.Q"]
    together = run(model, tokens, without=wires)
    for head in range(4):
        own = [wire for wire in wires if f"L1H{head}." in wire]
        alone = run(model, tokens, without=own)
        close(name, together.z(f"L1H{head}"), alone.z(f"L1H{head}"))


@pytest.mark.parametrize("name", families([*FEW, "bert", *CONVERTED]))
def test_parts_of_a_run_with_cuts_add_up(name, tokens):
    model = load(name)
    names = ["L0H0", "L0H1->L1H3.K", "embed->L0H2.V->L1H1"]
    names += ["L0N5", "L0N3->L1N5.Q"] if name in CONVERTED else []
    for how in ({}, {"fill": "mean"}, {"at": [2, 5]}):
        cut = run(model, tokens, without=names, **how)
        for reader in ("unembed", "L1H0"):
            parts = cut.parts(before=reader, neurons=True)
            if reader == "unembed":
                assert tuple(parts) == part_names(model)
            close(name, sum(parts.values()), cut.stream(reader))


@pytest.mark.parametrize("name", families([*FEW, "bert"]))
def test_a_run_without_cuts_has_the_models_logits(name, tokens):
    model = make(name)
    whole = run(model, tokens)
    with torch.no_grad():
        logits, cache = model.run_with_cache(tokens)
    assert torch.equal(whole.logits, logits)
    assert torch.equal(whole.pattern("L1H2"), cache["blocks.1.attn.hook_pattern"][:, 2])
    assert whole.cache.keys() == cache.keys()


def runs(model, tokens):
    """Whether a model runs without any of our code."""
    try:
        model(tokens)
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.weekly)]
)
@pytest.mark.parametrize("name", ["native-mlp", *families(["gemma2", "olmo2", "bert"], zoo.SHAPES)])
def test_half_precision(name, dtype, tokens):
    """Norms behind a layer hold their divisors in float32."""
    model, exact = make(name, dtype), make(name)
    if not runs(model, tokens):  # OLMo 2 with transformer-lens 4.3 and transformers 5.24
        with pytest.raises(ValueError, match="transformer-lens cannot run this model"):
            run(model, tokens)
        return
    for names in ("L0H1->L1H3.K", "L0 MLP->L1 MLP", ["embed->L0H1->L1H2.Q", "L1H0->unembed"]):
        cut = run(model, tokens, without=names)
        assert cut.logits.dtype == cut.part("L0H1").dtype == dtype
        expected = run(exact, tokens, without=names).logits
        # three layers, each of which rounds several times
        tolerance = 8 * torch.finfo(dtype).eps * expected.abs().max()
        assert (cut.logits.double() - expected).abs().max() < tolerance, names


def test_folded_weights():
    """After transformer-lens's processing, norms have no gains and the unembedding is centred."""
    sizes = {"d_model": 12, "d_head": 5, "n_heads": 4, "n_layers": 2, "n_ctx": 12, "d_vocab": 50}
    model = tiny_models.boot(**sizes, attn_only=False, normalization_type="LN")
    tokens = torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(1))
    model.enable_compatibility_mode()
    whole = run(model, tokens)
    close("native", sum(whole.parts().values()), whole.stream())
    stream = whole.stream("L1H3") - whole.part("L0H1", before="L1H3")
    cut = run(model, tokens, without="L0H1->L1H3.K")
    close("native", cut.logits, logits_with_input(model, tokens, "K", stream))


UNKNOWN = {
    "BloomForCausalLM": ("BloomConfig", {"hidden_size": 24, "n_layer": 2, "n_head": 3, "vocab_size": 50}),
    "GraniteForCausalLM": ("GraniteConfig", zoo.SIZES | {"residual_multiplier": 0.2}),
}  # fmt: skip


@pytest.mark.parametrize("family", UNKNOWN)
def test_a_layer_that_does_not_simply_add_is_refused(family, tmp_path, tokens):
    import transformers

    config, settings = UNKNOWN[family]
    torch.manual_seed(0)
    original = getattr(transformers, family)(getattr(transformers, config)(**settings))
    model = tiny_models.from_folder(tmp_path, original)
    whole = run(model, tokens)
    with pytest.raises(ValueError, match="layer 0 of this model does not simply add its output"):
        whole.part("L0H1")
    with pytest.raises(ValueError, match="layer 0 of this model does not simply add its output"):
        run(model, tokens, without="L0H1->L1H2.K")
