"""Fit the coefficients shipped in src/circuitkit/conversion/data/activations.json.

For each activation f in {gelu, gelu_new} and each k in 1..8, find b, c, a, d that minimise

    max over the whole line of | f(x) - sum_i sigmoid(b_i x + c_i) (a_i x + d_i) |,

one term per attention head. Both functions satisfy f(x) - f(-x) = x, so the terms come in mirrored pairs
(b, c, a, d), (b, -c, a, -d) with at most a few centred terms (c = d = 0); with sum a = 1 every such sum has the same
symmetry, tends to 0 on the left and to x on the right. Only x >= 0 has to be fitted.

Method: many random starts of a least-squares fit, then sequential linear programming on the maximum itself.
`sum |a|` and `sum |d|` are bounded, so that no fit lives on the cancellation of huge coefficients.

    python -m tools activations                 # all of them, a few minutes each, writes the json
    python -m tools activations --check         # only verifies what is shipped
"""

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares, linprog
from scipy.special import erf, expit

from tools.study import manifest

TARGET = Path(__file__).resolve().parents[2] / "src/circuitkit/conversion/data/activations.json"
MAX_SUM_A, MAX_D, MAX_B, MAX_C = 3.0, 3.0, 12.0, 12.0


def gelu(x):
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def gelu_new(x):
    return x * expit(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


FUNCTIONS = {"gelu": gelu, "gelu_new": gelu_new}


def unpack(theta, centres, pairs):
    """Parameter vector -> per-group b, c, a, d and multiplicity; the first group's slope makes sum a = 1."""
    b, a_free = theta[: centres + pairs], theta[centres + pairs : 2 * (centres + pairs) - 1]
    c, d = theta[2 * (centres + pairs) - 1 :].reshape(2, pairs)
    weight = np.array([1.0] * centres + [2.0] * pairs)
    first = (1 - weight[1:] @ a_free) / weight[0]
    zero = np.zeros(centres)
    return b, np.concatenate([zero, c]), np.concatenate([[first], a_free]), np.concatenate([zero, d]), weight


def value_and_jacobian(theta, x, centres, pairs):
    b, c, a, d, weight = unpack(theta, centres, pairs)
    n, x = centres + pairs, x[:, None]
    up, down = expit(b * x + c), expit(b * x - c)
    slope_up, slope_down = up * (1 - up), down * (1 - down)
    half = weight / 2
    value = half * (up * (a * x + d) + down * (a * x - d))
    d_b = half * x * (slope_up * (a * x + d) + slope_down * (a * x - d))
    d_a = half * x * (up + down)
    d_c = half * (slope_up * (a * x + d) - slope_down * (a * x - d))
    d_d = half * (up - down)
    free = d_a[:, 1:] - d_a[:, :1] * (weight[1:] / weight[0])
    assert d_b.shape[1] == n
    return value.sum(1), np.concatenate([d_b, free, d_c[:, centres:], d_d[:, centres:]], 1)


def bounds(centres, pairs):
    n = centres + pairs
    low = [0.3] * n + [-MAX_SUM_A] * (n - 1) + [-MAX_C] * pairs + [-MAX_D] * pairs
    high = [MAX_B] * n + [MAX_SUM_A] * (n - 1) + [MAX_C] * pairs + [MAX_D] * pairs
    return np.array(low), np.array(high)


def minimax(theta, x, target, centres, pairs, steps=250):
    """Sequential linear programming on the maximal error, with a trust region that adapts."""
    low, high = bounds(centres, pairs)
    value, jac = value_and_jacobian(theta, x, centres, pairs)
    best, radius = np.abs(target - value).max(), 0.1
    for _ in range(steps):
        residual = target - value
        keep = np.abs(residual) > 0.2 * best
        r, j = residual[keep], jac[keep]
        one = np.ones((len(r), 1))
        answer = linprog(
            np.r_[np.zeros(len(theta)), 1.0],
            A_ub=np.block([[-j, -one], [j, -one]]),
            b_ub=np.r_[-r, r],
            bounds=[(max(-radius, lo - t), min(radius, hi - t)) for t, lo, hi in zip(theta, low, high, strict=True)]
            + [(0, None)],
            method="highs",
        )
        if answer.x is None:
            radius /= 4
            continue
        trial = theta + answer.x[:-1]
        trial_value, trial_jac = value_and_jacobian(trial, x, centres, pairs)
        error = np.abs(target - trial_value).max()
        sum_a = np.abs(unpack(trial, centres, pairs)[2]) @ unpack(trial, centres, pairs)[4]
        if error < best and sum_a <= MAX_SUM_A:
            theta, value, jac, best, radius = trial, trial_value, trial_jac, error, min(2 * radius, 0.5)
        else:
            radius /= 3
        if radius < 1e-9:
            break
    return theta, best


def fit(name, k, restarts, rng):
    """Best coefficients found for k heads, over all ways to split k into centred terms and pairs."""
    x = np.concatenate([np.linspace(0, 6, 481), np.linspace(6, 14, 81)[1:]])
    target = FUNCTIONS[name](x)
    best = (math.inf, None, None)
    for centres in [c for c in (k % 2, k % 2 + 2) if c <= k]:
        pairs = (k - centres) // 2
        low, high = bounds(centres, pairs)
        starts = []
        for _ in range(restarts):
            n = centres + pairs
            guess = np.r_[
                rng.uniform(0.8, 5, n), rng.normal(0, 0.5, n - 1), rng.uniform(0, 5, pairs), rng.normal(0, 0.5, pairs)
            ]
            run = least_squares(
                lambda t, s=(centres, pairs): value_and_jacobian(t, x, *s)[0] - target,
                np.clip(guess, low + 1e-6, high - 1e-6),
                jac=lambda t, s=(centres, pairs): value_and_jacobian(t, x, *s)[1],
                bounds=(low, high),
                max_nfev=300,
            )
            b, c, a, d, weight = unpack(run.x, centres, pairs)
            if np.abs(a) @ weight <= MAX_SUM_A and np.abs(d) @ weight <= 2 * MAX_D:
                starts.append((np.abs(run.fun).max(), run.x))
        seen = []
        for error, theta in sorted(starts, key=lambda pair: pair[0]):
            if any(abs(error - other) < 1e-3 * other for other in seen) or len(seen) >= 6:
                continue
            seen.append(error)
            theta, error = minimax(theta, x, target, centres, pairs)
            if error < best[0]:
                best = (error, theta, (centres, pairs))
    return heads_of(best[1], *best[2])


def heads_of(theta, centres, pairs):
    """One row (b, c, a, d) per head; slopes rounded so that they still sum to 1."""
    b, c, a, d, _ = unpack(theta, centres, pairs)
    rows = [(b[i], 0.0, a[i], 0.0) for i in range(centres)]
    for i in range(centres, centres + pairs):
        rows += [(b[i], c[i], a[i], d[i]), (b[i], -c[i], a[i], -d[i])]
    return [[float(v) for v in column] for column in zip(*rows, strict=True)]


def certified_error(name, b, c, a, d, step=5e-5, reach=40.0):
    """An upper bound on the maximal error over the whole line, not only on a grid.

    Between two grid points a step h apart the error exceeds the larger of its ends by at most h^2/8 times a bound on
    its second derivative; beyond `reach` both functions are within exponentially small distances of the asymptote.
    """
    b, c, a, d = map(np.array, (b, c, a, d))
    worst = 0.0
    for start in np.arange(-reach, reach, 4.0):
        x = np.arange(start, start + 4.0 + step, step)
        approx = sum(expit(bi * x + ci) * (ai * x + di) for bi, ci, ai, di in zip(b, c, a, d, strict=True))
        worst = max(worst, float(np.abs(FUNCTIONS[name](x) - approx).max()))
    second = 2.0 + float((np.abs(a) * b / 2 + b**2 / 10 * (np.abs(a) * (12 + np.abs(c)) / b + np.abs(d))).sum())
    tail = float((expit(-(b * reach - np.abs(c))) * (np.abs(a) * reach + np.abs(d))).sum()) + reach * abs(1 - a.sum())
    return max(worst + second * step**2 / 8 + 1e-14, tail + 1e-14)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--restarts", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs=2, metavar=("NAME", "K"), help="refit one entry, keep it if it is better")
    args = parser.parse_args()
    table = json.loads(TARGET.read_text()) if TARGET.exists() else {"fits": {name: {} for name in FUNCTIONS}}
    wanted = [(name, k) for name in FUNCTIONS for k in range(1, 9)]
    if args.only:
        wanted = [(args.only[0], int(args.only[1]))]
    for name, k in wanted:
        began, old = time.time(), table["fits"][name].get(str(k))
        if not args.check:
            columns = fit(name, k, args.restarts, np.random.default_rng([args.seed, k, len(name)]))
            entry = dict(zip("bcad", columns, strict=True)) | {"seed": args.seed, "restarts": args.restarts}
            entry["error"] = certified_error(name, *columns)
            if old is None or entry["error"] < old["error"]:
                table["fits"][name][str(k)] = old = entry
            TARGET.write_text(json.dumps(table, indent=1) + "\n")
            manifest.write("conversion")
        error = certified_error(name, *(old[key] for key in "bcad"))
        assert error <= old["error"] * (1 + 1e-12), f"{name} k={k}: recorded {old['error']}, found {error}"
        cost = sum(map(abs, old["a"])), sum(map(abs, old["d"]))
        print(
            f"{name:9s} k={k} error {error:.4e}  sum|a| {cost[0]:.2f} sum|d| {cost[1]:.2f}  {time.time() - began:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
