"""The path expansion and the term importance, against explicit products position by position."""

import pytest
import torch

import circuitkit as ck
from circuitkit import paths as paths_module
from circuitkit.paths import path_logits, term_importance
from tests.support import zoo

CLOSE = {"rtol": 0, "atol": 1e-12}


def weights(model, layer, head):
    d, state = model.cfg.d_head, model.state_dict()
    rows = slice(head * d, (head + 1) * d)
    return state[f"blocks.{layer}.attn.v.weight"][rows].T, state[f"blocks.{layer}.attn.o.weight"][
        :, rows
    ].T


def stream_start(model, ids):
    state = model.state_dict()
    return torch.stack(
        [state["embed.weight"][t] + state["pos_embed.weight"][i] for i, t in enumerate(ids)]
    )


def test_every_path_of_a_plain_model(plain, tokens):
    paths = path_logits(plain, tokens)
    _, cache = plain.run_with_cache(tokens)
    unembed = plain.state_dict()["unembed.weight"].T
    assert len(paths) == 1 + 6 + 9  # a model without biases has no path "bias"
    for row, ids in enumerate(tokens):
        x = stream_start(plain, ids)
        expected = {"direct": x @ unembed}
        for layer in range(2):
            for head in range(3):
                v, o = weights(plain, layer, head)
                pattern = cache[f"blocks.{layer}.attn.hook_pattern"][row, head]
                expected[f"L{layer}H{head}"] = pattern @ x @ v @ o @ unembed
        for first in range(3):
            for second in range(3):
                (v1, o1), (v2, o2) = weights(plain, 0, first), weights(plain, 1, second)
                a1 = cache["blocks.0.attn.hook_pattern"][row, first]
                a2 = cache["blocks.1.attn.hook_pattern"][row, second]
                expected[f"L0H{first}->L1H{second}"] = (a2 @ a1) @ x @ (v1 @ o1 @ v2 @ o2) @ unembed
        assert set(expected) == set(paths)
        for name, value in expected.items():
            torch.testing.assert_close(paths[name][row], value, **CLOSE)


@pytest.mark.parametrize(
    "changes",
    [
        {"n_layers": 1},
        {"n_layers": 3},
        {"attn_only": False},
        {"normalization_type": "LN"},
        {"attn_only": False, "normalization_type": "LN"},
        {"attn_only": False, "normalization_type": "LNPre"},
        {"normalization_type": "RMSPre", "positional_embedding_type": "rotary", "d_head": 4},
        {"n_heads": 4, "n_key_value_heads": 2},
        {"d_vocab": 41, "n_ctx": 9, "d_model": 22, "d_head": 7, "n_heads": 2},
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


def frozen_norm(module, x):
    """The frozen norm at one position as an explicit matrix (row vectors) and an offset."""
    d = len(x)
    centre = torch.eye(d, dtype=x.dtype) - torch.ones(d, d, dtype=x.dtype) / d
    scale = ((x @ centre).square().mean() + 1e-5).sqrt()
    return centre @ torch.diag(module.weight.detach()) / scale, module.bias.detach()


def test_paths_through_norms_one_position_at_a_time(with_norm, tokens):
    """L0 MLP->L1H2 and L0H1->L1H2 written out for the last position, with each norm a matrix."""
    model, last = with_norm, 8
    _, cache = model.run_with_cache(tokens)
    paths = path_logits(model, tokens)
    names = [f"L{layer}H{head}" for layer in range(2) for head in range(3)]
    two = [f"L0H{i}->L1H{j}" for i in range(3) for j in range(3)]
    assert set(paths) == {
        "direct",
        "L0 MLP",
        "L1 MLP",
        "bias",
        *names,
        *two,
        *(f"L0 MLP->L1H{j}" for j in range(3)),
    }
    (v1, o1), (v2, o2) = weights(model, 0, 1), weights(model, 1, 2)
    for row in range(2):
        x = stream_start(model, tokens[row])
        second = cache["blocks.1.attn.hook_pattern"][row, 2, last]
        first = cache["blocks.0.attn.hook_pattern"][row, 1]
        end, _ = frozen_norm(model.ln_final, cache["ln_final.hook_in"][row, last])
        from_mlp, from_head = (
            torch.zeros(24, dtype=torch.float64),
            torch.zeros(24, dtype=torch.float64),
        )
        for middle in range(last + 1):
            between, _ = frozen_norm(
                model.blocks[1].ln1, cache["blocks.1.ln1.hook_in"][row, middle]
            )
            from_mlp += (
                second[middle] * cache["blocks.0.hook_mlp_out"][row, middle] @ between @ v2 @ o2
            )
            for source in range(middle + 1):
                begin, _ = frozen_norm(
                    model.blocks[0].ln1, cache["blocks.0.ln1.hook_in"][row, source]
                )
                moved = first[middle, source] * x[source] @ begin @ v1 @ o1
                from_head += second[middle] * moved @ between @ v2 @ o2
        for name, value in (("L0 MLP->L1H2", from_mlp), ("L0H1->L1H2", from_head)):
            torch.testing.assert_close(
                paths[name][row, last], value @ end @ model.W_U.detach(), **CLOSE
            )
        torch.testing.assert_close(
            paths["direct"][row, last], x[last] @ end @ model.W_U.detach(), **CLOSE
        )


def test_paths_of_one_head_make_what_it_wrote(boot, tokens):
    """transformer-lens's own head outputs: all chains that end in a head, and its share of the biases."""
    model = boot(bias=False)
    _, cache = model.run_with_cache(tokens)
    paths = path_logits(model, tokens)
    for head in range(3):
        written = cache["blocks.1.attn.hook_z"][:, :, head] @ model.W_O[1, head].detach()
        names = [name for name in paths if name.split("->")[-1] == f"L1H{head}"]
        chains = [paths.paths[name].stream() for name in names]
        assert len(chains) == 4
        torch.testing.assert_close(sum(chains), written, **CLOSE)


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
    model = boot(seed=5)
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


def test_shipped_models_in_both_precisions():
    """The promise of the chapter: 1e-5 in float32, 1e-12 in float64."""
    model = ck.load_model("two-layer")
    rows = torch.randint(1, 2048, (2, 40), generator=torch.Generator().manual_seed(0))
    for dtype, bound in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        model = model.to(dtype)
        logits = model(rows)
        assert (path_logits(model, rows).sum() - logits).abs().max() <= bound * logits.abs().max()


@pytest.mark.parametrize("name", ["gpt2", "olmo2"])
def test_paths_of_other_families_sum_to_their_logits(name):
    model = zoo.make(name)
    tokens = torch.randint(50, (2, 7), generator=torch.Generator().manual_seed(0))
    logits = model(tokens).detach()
    paths = path_logits(model, tokens)
    # transformers computes RMS norms in float32
    most = 1e-6 if name == "olmo2" else 1e-12
    assert (sum(paths.values()) - logits).abs().max() <= most * logits.abs().max()
    by_order = [1, 0, 0, 0]
    for _ in range(3):
        for order in (3, 2, 1):
            by_order[order] += 4 * by_order[order - 1]
        by_order[0] += 1
    orders = [path.order for name, path in paths.paths.items() if name != "bias"]
    assert [orders.count(order) for order in range(4)] == by_order


def test_names_orders_and_sums(with_norm, tokens):
    paths = path_logits(with_norm, tokens[0])
    assert paths["direct"].shape == (1, 9, 37)
    some = ["L0H1", "bias", "L0 MLP->L1H2"]
    expected = sum(paths[name] for name in some)
    torch.testing.assert_close(paths.sum(some), expected, **CLOSE)
    torch.testing.assert_close(paths.sum(some, at=-1), expected[:, -1], **CLOSE)
    assert (paths.sum([]) == 0).all()
    assert repr(paths) == "PathLogits of 22 paths"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda m, t: path_logits(m, t)["L9H9"], "no path is called 'L9H9'.*nearest of 16"),
        (lambda m, t: path_logits(m, t).sum(["direct", "direct"]), "named twice.*add up"),
        (lambda m, t: term_importance(m, t[:, :1]), "at least two positions"),
    ],
)
def test_wrong_arguments(plain, tokens, call, text):
    with pytest.raises(ValueError, match=text):
        call(plain, tokens)
    with pytest.raises(TypeError, match="sum was given names=3"):
        path_logits(plain, tokens).sum(3)


def test_what_cannot_be_expanded(boot, tokens, monkeypatch):
    with pytest.raises(ValueError, match="no sum over its parts.*capped at 3"):
        path_logits(boot(output_logits_soft_cap=3.0), tokens)
    model = boot()
    monkeypatch.setattr(paths_module, "MOST_PATHS", 10)
    with pytest.raises(ValueError, match="more than 10 paths.*Write a smaller max_order"):
        path_logits(model, tokens)
    with (
        model.hooks(fwd_hooks=[("blocks.0.attn.hook_z", lambda z, hook: 0 * z)]),
        pytest.raises(ValueError, match="This model has hooks"),
    ):
        path_logits(model, tokens)
