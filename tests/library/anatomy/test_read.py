"""What becomes an anatomy, what is refused in words, and that every read is checked."""

import dataclasses
from weakref import WeakKeyDictionary

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import circuitkit as ck
from circuitkit.anatomy import Anatomy, _read, from_heads
from circuitkit.circuits import random_heads
from tests.support import tiny_models
from tests.support.zoo import converted, make


def close(a, b, tolerance=1e-12):
    torch.testing.assert_close(a, b.to(a), atol=tolerance, rtol=tolerance)


def test_names_of_an_ordinary_model():
    anatomy = ck.anatomy(make("native-mlp"))
    heads = [f"L{layer}H{h}" for layer in range(2) for h in range(4)]
    parts = ("embed", "pos", *heads[:4], "L0 bias", "L0 MLP", *heads[4:], "L1 bias", "L1 MLP")
    assert anatomy.parts() == parts
    assert anatomy.parts(1) == parts[:7]
    assert anatomy.parts(0) == parts[:2]
    assert (anatomy.d_model, anatomy.d_vocab, anatomy.n_ctx) == (12, 50, 12)
    assert ck.anatomy(anatomy) is anatomy
    assert (
        repr(anatomy)
        == "Anatomy(d_model=12, d_vocab=50; 4 in 'L0', 1 in 'L0 MLP', 4 in 'L1', 1 in 'L1 MLP')"
    )
    assert anatomy._ipython_key_completions_() == [
        name for name in parts if name[-1].isdigit() or "MLP" in name
    ]


@pytest.mark.parametrize("kind", ["native-mlp", "gated"])
def test_neurons_by_name_are_those_of_the_conversion(kind):
    model = converted(kind)
    neurons = ck.conversion.neuron_heads_of(model, 1)
    anatomy, held, k = ck.anatomy(model), neurons.heads(), len(neurons.terms)
    for names, rows in (("L1N7", range(7 * k, 8 * k)), ("L1N7.1", [7 * k + 1])):
        ours, theirs = anatomy[names], held[list(rows)]
        assert ours.names == theirs.names
        assert (ours.mask, ours.scale) == (theirs.mask, theirs.scale)
        for name in ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_V"):
            close(getattr(ours, name), getattr(theirs, name))


def test_hand_made_models():
    from circuitkit.handmade import build_induction_model

    model = build_induction_model(5, 8)
    run = ck.anatomy(model).run(torch.tensor([[3, 1, 4, 3]]))
    assert run.logits[0, -1].argmax() == 1
    heads = ck.stack(random_heads(2, 8, 3), random_heads(2, 8, 3, layer=1, seed=1))
    eye = torch.eye(8)
    made = from_heads(heads, eye, eye, eye[:4])
    x = eye[[1, 2]] + eye[:2]
    x = x + heads[:2].results(x).sum(0)
    close(made.run(torch.tensor([[1, 2]])).logits[0], x + heads[2:].results(x).sum(0), 1e-6)
    assert made.n_ctx == 4


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            random_heads(2, 8, 3),
            r"got Heads, which are no model by themselves.*from_heads\(heads, W_E, W_U\)",
        ),
        ("gpt2", "anatomy got model='gpt2'; expected a transformer-lens TransformerBridge"),
        (
            torch.nn.Linear(2, 2),
            "anatomy got model as a Linear; expected a transformer-lens TransformerBridge",
        ),
    ],
)
def test_what_is_no_model_is_refused(model, message):
    with pytest.raises(ValueError, match=message):
        ck.anatomy(model)


@pytest.mark.usefixtures("as_a_reader")
def test_heads_of_another_size_are_refused():
    with pytest.raises(
        ValueError,
        match=r"W_U of shape \(8, 8\).* with d_model=7, because axes of one name have one size",
    ):
        from_heads(random_heads(2, 8, 3), torch.eye(7), torch.eye(8))
    with pytest.raises(ValueError, match="expected heads and tables of one d_model"):
        from_heads(random_heads(2, 8, 3), torch.eye(7), torch.eye(7))


def test_every_read_is_checked(monkeypatch):
    """A reader that gets one thing wrong is caught by the logits."""
    right = _read._bridge

    def wrong(bridge, tokens, cache):
        anatomy = right(bridge, tokens, cache)
        return dataclasses.replace(anatomy, W_pos=anatomy.W_pos.roll(1, 0))

    monkeypatch.setattr(_read, "_bridge", wrong)
    monkeypatch.setattr(
        _read, "_KNOWN", WeakKeyDictionary()
    )  # what another test read is not read again
    with pytest.raises(
        ValueError,
        match=r"cannot read this model \(NativeModel\): its parts give logits that are off by",
    ):
        ck.anatomy(make("native"))


def test_a_model_in_training_is_read_without_dropout_and_left_in_training():
    model = make("gpt2", torch.float32)
    model.train()
    try:
        modules = {name: module.training for name, module in model.named_modules()}
        assert isinstance(ck.anatomy(model), Anatomy)
        assert {name: module.training for name, module in model.named_modules()} == modules
    finally:
        model.eval()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    assert ck.anatomy(make("native-mlp", dtype)).W_E.dtype == dtype


def test_folded_weights_are_read():
    """After transformer-lens's processing norms have no gains and the unembedding is centred."""
    model = tiny_models.boot(
        d_model=12,
        d_head=5,
        n_heads=4,
        n_layers=2,
        n_ctx=12,
        d_vocab=50,
        attn_only=False,
        normalization_type="LN",
    )
    model.enable_compatibility_mode()
    tokens = torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        close(ck.anatomy(model).run(tokens).logits, model(tokens), 1e-9)


def test_positions_that_begin_later_in_their_table():
    anatomy = ck.anatomy(make("opt"))
    table = make("opt").original_model.model.decoder.embed_positions.weight
    assert torch.equal(anatomy.W_pos, table[2:])


def test_no_weight_is_copied_when_neurons_are_read():
    """What an anatomy of a converted model holds beyond the model does not grow with the weights."""
    sizes = []
    for d_mlp in (32, 256):
        model = tiny_models.boot(
            torch.float32,
            d_model=24,
            d_head=8,
            n_heads=3,
            n_layers=2,
            n_ctx=16,
            d_vocab=50,
            attn_only=False,
            d_mlp=d_mlp,
        )
        model = ck.to_attention_only(model, heads_per_neuron=5)
        owned = {p.untyped_storage().data_ptr() for p in model.original_model.parameters()}
        held, seen = _tensors(ck.anatomy(model)), set()
        extra = 0
        for tensor in held:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in owned | seen:
                seen.add(storage.data_ptr())
                extra += storage.nbytes()
        sizes.append(extra)
    assert sizes[1] == sizes[0] <= 4096


def _tensors(value):
    """Every tensor that a value holds, functions left out."""
    if isinstance(value, torch.Tensor):
        yield value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _tensors(getattr(value, field.name))
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


class _Made(TorchDispatchMode):
    """The entries of the largest tensor that any operation makes anew."""

    def __init__(self):
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        owned = {arg.untyped_storage().data_ptr() for arg in args if isinstance(arg, torch.Tensor)}
        if isinstance(out, torch.Tensor) and out.untyped_storage().data_ptr() not in owned:
            self.most = max(self.most, out.numel())
        return out


def test_no_table_is_copied_on_the_way():
    """Reading makes nothing as large as the embedding: its largest tensor is the logits of the probe, 2 rows of 12 tokens."""
    sizes = {
        "d_model": 64,
        "d_head": 8,
        "n_heads": 3,
        "n_layers": 1,
        "n_ctx": 12,
        "d_vocab": 5000,
        "d_mlp": 32,
    }
    model = ck.to_attention_only(
        tiny_models.boot(torch.float32, **sizes, attn_only=False), heads_per_neuron=5
    )
    with _Made() as made:
        ck.anatomy(model)
    assert made.most <= 2 * 12 * 5000 < 64 * 5000
