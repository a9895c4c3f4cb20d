"""Neurons of MLPs that are still MLPs, against hooks of torch on the wrapped model, and against converted ones."""

import pytest
import torch
import transformers

import circuitkit as ck
from circuitkit.effects import attribution, effect
from tests.support import zoo

TOKENS = torch.tensor([[3, 7, 11, 4, 9, 2], [5, 1, 30, 8, 8, 21]])
KINDS = ["gpt2", "opt", "llama", "gemma2", "phi", "neox-parallel", "neox-serial"]
#: Where the module that multiplies W_out is in transformers.
OUT = {"gpt2": "transformer.h.{}.mlp.c_proj", "opt": "model.decoder.layers.{}.fc2"}
OUT |= {"phi": "model.layers.{}.mlp.fc2"}
OUT |= dict.fromkeys(["neox-parallel", "neox-serial"], "gpt_neox.layers.{}.mlp.dense_4h_to_h")
DOWN = "model.layers.{}.mlp.down_proj"


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def wrapped(model, hooks):
    """The logits of the wrapped model, with a function for the input of W_out in some layers."""
    inner = model.original_model
    kind = next(name for name in KINDS if zoo.make(name) is model)
    handles = []
    for layer, function in hooks.items():
        module = inner.get_submodule(OUT.get(kind, DOWN).format(layer))

        def change(module, args, function=function):
            shape = args[0].shape
            return (function(args[0].reshape(*TOKENS.shape, -1)).reshape(shape),)

        handles.append(module.register_forward_pre_hook(change))
    try:
        return inner(TOKENS).logits
    finally:
        for handle in handles:
            handle.remove()


def without(row, value=0.0):
    def change(z):
        z = z.clone()
        z[..., row] = value if not callable(value) else value(z[..., row])
        return z

    return change


@pytest.mark.parametrize("kind", KINDS)
def test_an_ablated_neuron_is_missing_from_what_w_out_multiplies(kind):
    model = zoo.make(kind)
    close(ck.run(model, TOKENS, without="L0N3").logits, wrapped(model, {0: without(3)}))
    both = {0: without(3), 1: without(5)}
    close(ck.run(model, TOKENS, without=["L0N3", "L1N5"]).logits, wrapped(model, both))
    mean = {1: without(5, lambda z: z.mean(0, keepdim=True).expand_as(z))}
    close(ck.run(model, TOKENS, without="L1N5", fill="mean").logits, wrapped(model, mean))


@pytest.mark.parametrize("kind", KINDS)
def test_neurons_and_their_bias_add_up_to_the_mlp(kind):
    model = zoo.make(kind)
    run = ck.run(model, TOKENS)
    direction = torch.randn(
        model.cfg.d_model, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).to(model.W_E.dtype)
    whole, split = run.contributions(direction), run.contributions(direction, neurons=True)
    for layer in range(len(model.blocks)):
        of_layer = [
            value
            for name, value in split.items()
            if name.startswith((f"L{layer}N", f"L{layer} MLP"))
        ]
        close(sum(of_layer), sum(v for k, v in whole.items() if k.startswith(f"L{layer} MLP")))
        neuron = run.recording.share(ck.names.parse(f"L{layer}N2")[0], 2 * len(model.blocks))
        close(split[f"L{layer}N2"], neuron @ direction)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "gemma2"])
def test_a_wire_out_of_a_neuron_is_the_share_of_its_mlp_without_it(kind):
    """The wire of an MLP, patched from a run without the neuron, is the wire of the neuron.

    Behind a norm (Gemma 2), the divisor of a whole MLP follows what it writes.
    """
    model = zoo.make(kind)
    donor = ck.run(model, TOKENS, without="L0N3")
    for reader in ("L1H2.V", "L2H1.K", "L2 MLP", "unembed"):
        ours = ck.run(model, TOKENS, without=f"L0N3->{reader}").logits
        inside = ck.run(model, TOKENS, without=f"L0 MLP->{reader}", patch=donor).logits
        close(ours, inside)
        assert (ours - ck.run(model, TOKENS).logits).abs().max() > 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_a_neuron_without_a_wire_into_it_has_the_value_of_an_mlp_without_this_wire(kind):
    model = zoo.make(kind)
    cut = ck.run(model, TOKENS, without="L0H1->L1 MLP")
    z = cut.recording.neurons_z(1)
    ours = ck.run(model, TOKENS, without="L0H1->L1N4").logits
    close(ours, wrapped(model, {1: without(4, z[..., 4])}))
    paths = [f"L0H1->L1N{number}->unembed" for number in range(len(model.blocks[1].mlp.W_out))]
    whole = ck.run(model, TOKENS, without="L0H1->L1 MLP->unembed").logits
    if kind != "gemma2":  # each neuron has the divisor of a norm as if it changed alone
        close(ck.run(model, TOKENS, without=paths).logits, whole)
    assert (whole - ck.run(model, TOKENS).logits).abs().max() > 1e-4


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    """A model with SiLU, and the same with its neurons as heads, without an error."""
    settings = zoo.tiny_models.GPT2 | {"n_head": 4, "n_layer": 2, "activation_function": "silu"}
    torch.manual_seed(0)
    config = transformers.GPT2Config(**settings)
    folder = tmp_path_factory.mktemp("silu")
    model = zoo.tiny_models.from_folder(folder, transformers.GPT2LMHeadModel(config).eval())
    zoo.tiny_models.in_dtype(model, torch.float64)
    return model, ck.to_attention_only(model, heads_per_neuron=1)


@pytest.mark.parametrize(
    "names",
    [
        "L0N3",
        "L0N3->L1H2.V",
        ["L0N3", "L1N1"],
        "L0H1->L1N4",
        "L0N3->L1N4->unembed",
        "L1N2->unembed",
    ],
)
@pytest.mark.parametrize("at", [None, [2]])
def test_neurons_of_an_exact_conversion_are_those_of_the_original(exact, names, at):
    model, converted = exact
    for fill in ("zero", "mean"):
        ours = ck.run(model, TOKENS, without=names, at=at, fill=fill).logits
        close(ours, ck.run(converted, TOKENS, without=names, at=at, fill=fill).logits)


def test_measures_of_neurons_agree_with_those_of_an_exact_conversion(exact):
    model, converted = exact
    close(*(attribution(one, TOKENS, neurons=True).values for one in exact))
    close(*(effect(one, TOKENS, "L0N3", draws=3).values for one in exact))
    ours, theirs = (
        ck.residual.logit_attribution(one, TOKENS[:1], 3, neurons=True) for one in exact
    )
    close(ours["L0N3"], theirs["L0N3"])
    estimate = attribution(model, TOKENS, neurons=True, measure=lambda run: run.logits[:, -1, 3])
    last = model.blocks[1].mlp.W_out.shape[0] // 2
    values = (
        ck.run(model, TOKENS).logits[:, -1, 3]
        - ck.run(model, TOKENS, without=f"L1N{last}").logits[:, -1, 3]
    )
    assert float(estimate[f"L1N{last}"]) == pytest.approx(-float(values.mean()), rel=0.3, abs=1e-3)


def test_controls_of_a_neuron_are_neurons_of_its_layer():
    found = effect(zoo.make("llama"), TOKENS, "L1N3", draws=5)
    assert len(found.sets) == 6
    assert all(name.startswith("L1N") for names in found.sets for name in names)


def test_what_a_neuron_cannot_do_is_said():
    model = zoo.make("llama")
    with pytest.raises(ValueError, match="'L0 MLP' contains L0N3, so both cannot be named"):
        ck.run(model, TOKENS, without=["L0 MLP", "L0N3->L1H2.V"])
    with pytest.raises(ValueError, match="only heads attend"):
        ck.run(model, TOKENS).pattern("L0N3")
    with pytest.raises(ValueError, match="It has one input"):
        ck.run(model, TOKENS, without="L0H1->L1N3.Q")
    with pytest.raises(ValueError, match="L0N4"):
        ck.run(model, TOKENS, without="L0N4000")


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma2", "phi"])
def test_virtual_weights_of_a_neuron_are_a_row_or_a_column_of_those_of_its_mlp(kind):
    model, weights = zoo.make(kind), ck.residual.virtual_weights
    close(weights(model, "L0N3", "L2H1.K").AB, weights(model, "L0 MLP", "L2H1.K").AB[3:4])
    whole, d_mlp = weights(model, "L0H1", "L1 MLP").AB, len(model.blocks[1].mlp.W_out)
    close(weights(model, "L0H1", "L1N3").AB, whole[:, 3::d_mlp])
