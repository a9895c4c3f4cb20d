"""Heads that share keys, rotate, norm or squeeze what they compare, or see a window: by hand and against loops."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from circuitkit import Heads, stack
from circuitkit.anatomy import Norm
from circuitkit.heads import Rotary as Turn


def close(a, b, tolerance=1e-12):
    torch.testing.assert_close(a, torch.as_tensor(b, dtype=a.dtype), atol=tolerance, rtol=tolerance)


def random(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def grouped(seed=0, groups=(0, 1, 0, 1), d_model=5, d_head=4, bias=True, **more):
    n, g = len(groups), max(groups) + 1
    drawn = {name: random(seed + i, n if name in ("W_Q", "b_Q") else g, *([d_model] if name[0] == "W" else []), d_head)
             for i, name in enumerate(("W_Q", "W_K", "W_V", "b_Q", "b_K", "b_V")) if bias or name[0] == "W"}  # fmt: skip
    return Heads(
        tuple(f"L0H{h}" for h in range(n)),
        W_O=random(seed + 9, n, d_head, d_model),
        groups=tuple(groups),
        **drawn,
        **more,
    )


def turn(d_head=4, gain=1.0):
    return Turn(
        torch.tensor([[0, 2], [1, 3]]), torch.tensor([1.0, 0.25], dtype=torch.float64), gain
    )


def slow_pattern(heads, x):
    """One head, one destination, one source at a time."""
    out = torch.zeros(len(heads), len(x), len(x), dtype=torch.float64)

    def norm(row, of, n):
        if of is None:
            return row
        return row / (row.pow(2).mean() + of.eps).sqrt() * of.gain[n, 0]

    for h in range(len(heads)):
        g = h if heads.groups is None else heads.groups[h]
        for dst in range(len(x)):
            row = {}
            for src in range(dst + 1):
                if heads.window is not None and dst - src >= heads.window:
                    continue
                q = norm(x[dst] @ heads.W_Q[h] + heads.b_Q[h], heads.norm_Q, h)
                k = norm(x[src] @ heads.W_K[g] + heads.b_K[g], heads.norm_K, g)
                if heads.turn is not None:
                    total = 0.0
                    for (i, j), angle in zip(
                        heads.turn.planes.tolist(), heads.turn.angles.tolist(), strict=True
                    ):
                        a = complex(q[i], q[j]) * complex(
                            math.cos(dst * angle), math.sin(dst * angle)
                        )
                        b = complex(k[i], k[j]) * complex(
                            math.cos(src * angle), math.sin(src * angle)
                        )
                        total += heads.turn.gain**2 * (a * b.conjugate()).real
                    turned = heads.turn.planes.flatten().tolist()
                    total += sum(float(q[i] * k[i]) for i in range(heads.d_head) if i not in turned)
                else:
                    total = float(q @ k)
                score = total / heads.scale
                row[src] = score if heads.cap is None else heads.cap * math.tanh(score / heads.cap)
            whole = sum(math.exp(score) for score in row.values())
            for src, score in row.items():
                out[h, dst, src] = math.exp(score) / whole
    return out


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 99),
    groups=st.sampled_from([(0, 0, 0), (0, 1, 0, 1), (1, 0), (0, 1, 2)]),
    rotates=st.sampled_from([None, 1.0, 1.3]),
    normed=st.booleans(),
    cap=st.sampled_from([None, 0.7]),
    window=st.sampled_from([None, 1, 2, 9]),
)
def test_against_loops(seed, groups, rotates, normed, cap, window):
    more = {"cap": cap, "window": window, "scale": 1.7}
    if normed:
        more |= {"norm_Q": Norm(random(seed + 20, len(groups), 1, 6), None, 1e-2, False)}
        more |= {"norm_K": Norm(random(seed + 21, max(groups) + 1, 1, 6), None, 1e-2, False)}
    if rotates is not None:
        more |= {"turn": turn(gain=rotates), "positions": "rotary"}
    heads, x = grouped(seed, groups, d_head=6, **more), random(seed + 30, 5, 5)
    pattern = slow_pattern(heads, x)
    close(heads.pattern(x), pattern, 1e-11)
    results = heads.results(x)
    for h, g in enumerate(groups):
        close(results[h], pattern[h] @ (x @ heads.W_V[g] + heads.b_V[g]) @ heads.W_O[h], 1e-11)
        one = heads[[h]]
        close(one.pattern(x)[0], pattern[h], 1e-11)
        assert one.groups is None or len(one.W_K) == 1
    close(heads[::-1].pattern(x), pattern.flip(0), 1e-11)


def test_a_rotation_by_hand():
    x = torch.tensor([[1.0, 0.0, 2.0, 5.0, 9.0]], dtype=torch.float64).expand(3, 5)
    quarter = Turn(torch.tensor([[0, 1]]), torch.tensor([math.pi / 2], dtype=torch.float64))
    close(quarter(x), [[1, 0, 2, 5, 9], [0, 1, 2, 5, 9], [-1, 0, 2, 5, 9]])
    close(quarter(x[:1], torch.tensor([3])), [[0, -1, 2, 5, 9]])
    # what lies one position back has been turned one quarter less
    close(quarter.matrix(1, 3), [[0, 1, 0], [-1, 0, 0], [0, 0, 1]])
    close(
        dataclasses.replace(quarter, gain=2.0).matrix(0, 3),
        torch.diag(torch.tensor([4.0, 4.0, 1.0])),
    )


def test_qk_at_a_distance_is_the_score():
    heads = grouped(bias=False, turn=turn(gain=1.2), positions="rotary")
    x = random(7, 6, 5)
    scores = heads.scores(x) * heads.scale
    for dst, src in ((3, 3), (4, 1), (5, 4)):
        close(x[dst] @ heads.QK_at(dst - src).AB @ x[src], scores[:, dst, src], 1e-11)
    plain = grouped(bias=False)
    close(plain.QK_at(3).AB, plain.QK.AB)
    with pytest.raises(ValueError, match="these heads rotate queries and keys"):
        dataclasses.replace(heads, turn=None).QK_at(1)


def test_groups_are_views_and_repeated_only_when_asked():
    heads = grouped()
    assert heads.W_K.shape[0] == 2
    close(heads.by_head("W_K"), heads.W_K[[0, 1, 0, 1]])
    assert heads.by_head("W_Q") is heads.W_Q
    close(heads.QK.AB, heads.W_Q @ heads.W_K[[0, 1, 0, 1]].mT)
    close(heads.OV.AB, heads.W_V[[0, 1, 0, 1]] @ heads.W_O)
    some = heads[1:3]
    assert some.groups == (1, 0)
    assert some.W_Q.data_ptr() == heads.W_Q[1].data_ptr()
    assert some.W_K.data_ptr() == heads.W_K.data_ptr()
    assert heads[[2]].groups is None
    assert heads[["L0H1", "L0H3"]].groups == (0, 0)
    three = grouped(groups=(0, 1, 2, 2))
    assert three[1:].groups == (0, 1, 1)
    close(three[1:].by_head("W_K"), three.W_K[[1, 2, 2]])


def test_stacks_keep_groups_and_norms():
    norm = {
        "norm_Q": Norm(random(1, 4, 1, 4), None, 1e-2, False),
        "norm_K": Norm(random(2, 2, 1, 4), None, 1e-2, False),
    }
    one, x = grouped(**norm), random(5, 6, 5)
    two = dataclasses.replace(
        grouped(40, (1, 0, 0, 1), **norm), names=("a", "b", "c", "d"), layers=(1,) * 4
    )
    both = stack(one, two)
    assert both.groups == (0, 1, 0, 1, 3, 2, 2, 3)
    close(both.pattern(x), torch.cat([one.pattern(x), two.pattern(x)]), 1e-11)
    own = dataclasses.replace(one, groups=None, W_K=one.by_head("W_K"), W_V=one.by_head("W_V"), b_K=one.by_head("b_K"),
                              b_V=one.by_head("b_V"), norm_K=one.norm_K.take([0, 1, 0, 1]))  # fmt: skip
    close(stack(own, two).pattern(x), both.pattern(x), 1e-11)
    close(both.to(torch.float32).pattern(x.float()), both.pattern(x).float(), 1e-5)
    with pytest.raises(ValueError, match="only some have a norm_Q"):
        stack(one, dataclasses.replace(two, norm_Q=None))
    for name, value in (("cap", 3.0), ("window", 2), ("turn", turn())):
        with pytest.raises(ValueError, match=f"cannot stack heads whose {name} differ"):
            stack(one, dataclasses.replace(two, **{name: value}))


def test_groups_that_do_not_fit_are_refused():
    heads = grouped()
    with pytest.raises(ValueError, match=r"groups=\(0, 1\), .*a group for each of 4 heads"):
        dataclasses.replace(heads, groups=(0, 1))
    with pytest.raises(
        ValueError, match=r"W_K of shape \(2, 5, 4\), .*expected \[3, d_model, d_head\]"
    ):
        dataclasses.replace(heads, groups=(0, 1, 2, 1))
