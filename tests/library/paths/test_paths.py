"""The path expansion, against explicit products position by position."""

import pytest
import torch

from circuitkit import paths as paths_module
from circuitkit.paths import path_logits
from circuitkit_book.path_importance import term_importance
from tests.support import zoo

CLOSE = {"rtol": 0, "atol": 1e-12}


@pytest.mark.parametrize(
    "changes",
    [
        {"n_layers": 3},
        {"attn_only": False, "normalization_type": "LNPre", "unembedding_bias": True},
    ],
    ids=str,
)
def test_sums_to_the_logits_of_any_model(boot, tokens, changes):
    model = boot(**changes)
    logits = model(tokens)
    for order in range(model.cfg.n_layers + 1):
        paths = path_logits(model, tokens, max_order=order)
        most = 1e-12 * max(
            1.0, float(logits.detach().abs().max())
        )  # as the docstring says: of the largest logit
        torch.testing.assert_close(sum(paths.values()), logits, rtol=0, atol=most)
        assert max(path.order for path in paths.paths.values()) <= order
        assert ("rest" in paths) is (order < model.cfg.n_layers)


def test_rest_is_the_longer_chains(boot, tokens):
    model = boot(n_layers=3, normalization_type="LN")
    every, short = path_logits(model, tokens), path_logits(model, tokens, max_order=1)
    longer = [every[name] for name, path in every.paths.items() if path.order > 1]
    assert len(longer) == 27 + 27
    torch.testing.assert_close(short["rest"], sum(longer), **CLOSE)
    torch.testing.assert_close(short["bias"], every["bias"], **CLOSE)
    torch.testing.assert_close(short["L2H0"], every["L2H0"], **CLOSE)


def test_bias_path_is_what_an_empty_stream_gives(boot, tokens):
    """With all weights of the embeddings zero, frozen at another run's patterns, only biases are left."""
    model = boot(seed=5, unembedding_bias=True)
    paths = path_logits(model, tokens)
    _, cache = model.run_with_cache(tokens)

    def freeze(pattern, hook):
        return cache[hook.name]

    def silence(x, hook):
        return torch.zeros_like(x)

    hooks = [(f"blocks.{layer}.attn.hook_pattern", freeze) for layer in range(2)]
    hooks += [("hook_embed", silence), ("hook_pos_embed", silence)]
    torch.testing.assert_close(
        paths["bias"], model.run_with_hooks(tokens, fwd_hooks=hooks), **CLOSE
    )


def test_paths_of_a_model_with_norms_behind_its_layers_sum_to_its_logits():
    model = zoo.make("olmo2")
    tokens = torch.randint(50, (2, 7), generator=torch.Generator().manual_seed(0))
    logits = model(tokens).detach()
    paths = path_logits(model, tokens)
    # transformers computes RMS norms in float32
    assert (sum(paths.values()) - logits).abs().max() <= 1e-6 * logits.abs().max()
    by_order = [1, 0, 0, 0]
    for _ in range(3):
        for order in (3, 2, 1):
            by_order[order] += 4 * by_order[order - 1]
        by_order[0] += 1
    orders = [path.order for name, path in paths.paths.items() if name != "bias"]
    assert [orders.count(order) for order in range(4)] == by_order


def test_names_orders_and_sums(with_norm, tokens):
    paths = path_logits(with_norm, tokens[0])
    some = ["L0H1", "bias", "L0 MLP->L1H2"]
    expected = sum(paths[name] for name in some)
    torch.testing.assert_close(paths.sum(some), expected, **CLOSE)
    torch.testing.assert_close(paths.sum(some, at=-1), expected[:, -1], **CLOSE)
    assert (paths.sum([]) == 0).all()
    assert repr(paths) == "PathLogits of 22 paths"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda m, t: path_logits(m, t)["L9H9"], "no path is called 'L9H9'.*nearest names"),
        (lambda m, t: path_logits(m, t).sum(["direct", "direct"]), "named twice.*add up"),
        (lambda m, t: term_importance(m, t[:, :1]), "at least two positions"),
    ],
)
def test_wrong_arguments(plain, tokens, call, text):
    with pytest.raises(ValueError, match=text):
        call(plain, tokens)


def test_what_cannot_be_expanded(boot, tokens, monkeypatch):
    with pytest.raises(ValueError, match="no sum over its parts.*capped at 3"):
        path_logits(boot(output_logits_soft_cap=3.0), tokens)
    model = boot()
    monkeypatch.setattr(paths_module, "MOST_PATHS", 10)
    with pytest.raises(ValueError, match="more than 10 paths.*Write a smaller max_order"):
        path_logits(model, tokens)
    monkeypatch.undo()
    with (
        model.hooks(fwd_hooks=[("blocks.0.attn.hook_z", lambda z, hook: 0 * z)]),
        pytest.raises(ValueError, match="The parts add up to .* A hook changes"),
    ):
        path_logits(model, tokens)
