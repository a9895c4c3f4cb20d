"""Fit gates as sums of sigmoids, and store them with a proved error for the conversion of gated MLPs.

    python -m tools gates                       fit everything, some twelve processor minutes; writes the tables
    python -m tools gates --only silu           one function
    python -m tools gates --polish --jumps 60      only improve what is stored: 60 seconds of jumps for each function and number
    python -m tools gates --scatter 600 --heads 8 --only silu    look for other shapes: ten minutes of drawn starts, then neighbours
    python -m tools gates --check               prove the stored errors again
    python -m tools gates --least               how far other weights could bring them down at the same centres and widths

For each activation f, range R and number of heads k: free slopes b, centres m and weights w that make

    max over |g| <= R of | f(g) - sum_i w_i sigmoid(b_i (g - m_i)) |

small, with sum |w| <= 20 R, which bounds the digits that cancellation can cost. The best of 256 grids of centres (equal
steps of asinh) starts a Levenberg-Marquardt iteration on log b, asinh m and w, whose points gain weight where the error
is largest (Lawson), and a sequence of linear programmes on the maximum ends it (`polish`). Then *continuation*: the
solution of one range, its centres stretched, starts the next range, up the ladder and down again; and *jumps*: moved at
random, or with one head taken out and another put in, a solution starts its own range once more. Better solutions replace
worse ones, so running this again never loses. *Scattered* starts (`scattered`, `newton`) leave the grids: single sigmoids,
near-equal pairs and threes at drawn scales, and second derivatives, because a pair with opposite weights, which is a
difference quotient, lies in a curved valley where first-order steps stand still. ReLU is fitted on one range only, because s ReLU(g / s) = ReLU(g). No exchange
argument is run: the fits are good, not proved best.
"""

import argparse
import math
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from scipy.linalg import LinAlgError, solve_triangular
from scipy.optimize import linprog
from scipy.special import erf, expit

from tools.study import manifest

TARGET = Path(__file__).resolve().parents[2] / "src/circuitkit/conversion/data/gates.safetensors"
REACHES = (2, 4, 7, 10, 13, 16, 19, 20.5, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31.5, 33, 34.5, 36, 38, 40, 42, 44, 49, 54, 60, 68, 76, 84, 92, 100, 120, 140, 170, 180, 190, 200, 300, 500)
HEADS = (2, 4, 8, 16, 32)
MOST, STEEPEST = 20.0, 12.0
RIDGES = 10.0 ** np.arange(-11, -1, 0.5)
CURVED = 2 * math.sqrt(2 / math.pi)
FUNCTIONS = {
    "silu": lambda x: x * expit(x),
    "gelu": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
    "gelu_new": lambda x: x * expit(CURVED * (x + 0.044715 * x**3)),
    "relu": lambda x: np.maximum(x, 0),
}


def points(reach, n):
    """From -reach to reach, close together in the middle, where f bends, and at the ends."""
    a = np.arcsinh(2 * reach)
    return reach * np.sin(np.pi / 2 * np.sinh(a * np.linspace(-1, 1, n)) / np.sinh(a))


def sigmoids(x, shape):
    """`shape` holds log b and asinh m."""
    log_b, far = np.split(shape, 2)
    return expit(np.exp(log_b) * (x[:, None] - np.sinh(far)))


def starts(x, y, reach, k):
    """Grids of centres of many scales, weights by least squares; best first."""
    found = []
    for scale in (0.5, 1, 2, 4):
        for width in (0.6, 1.0, 1.5, 2.2):
            for left in (1.0, 0.6, 0.3, 0.1):
                t = np.linspace(-1, 1, k)
                m = scale * np.sinh(np.arcsinh(reach / scale) * 1.05 * np.where(t < 0, t * left, t))
                shape = np.r_[np.log(np.clip(1 / (width * np.gradient(m)), 0.02 / reach, STEEPEST)), np.arcsinh(m)]
                w, error = weighed(x, y, shape, reach)
                found.append((error, np.r_[shape, w]))
    return [p for _, p in sorted(found, key=lambda pair: pair[0])]


def weighed(x, y, shape, reach):
    """Weights by least squares, with the smallest ridge that keeps their sum within bounds; and the largest error."""
    A = sigmoids(x, shape)
    U, size, V = np.linalg.svd(A, full_matrices=False)
    for ridge in RIDGES * math.sqrt(len(x)):
        w = V.T @ (size / (size**2 + ridge**2) * (U.T @ y))
        if np.abs(w).sum() <= MOST * reach:
            break
    return w, np.abs(A @ w - y).max()


def improve(x, y, p, reach, steps=500, first=100, patience=120):
    """Levenberg-Marquardt, by QR; after `first` steps the weights of the points follow the error. The best p met."""
    n, k = len(x), len(p) // 3
    v, damp, ridge = np.ones(n), 1e-2, 1e-11 * math.sqrt(n)
    far = np.arcsinh(3 * reach)
    low = np.r_[np.full(k, math.log(0.02 / reach)), np.full(k, -far)]
    high = np.r_[np.full(k, math.log(STEEPEST)), np.full(k, far)]
    s = sigmoids(x, p[: 2 * k])
    e, best, since = s @ p[2 * k :] - y, (math.inf, p), 0
    for step in range(steps):
        worst, w = np.abs(e).max(), p[2 * k :]
        within = np.abs(w).sum() <= MOST * reach
        since = 0 if within and worst < 0.9999 * best[0] else since + 1
        if within and worst < best[0]:
            best = worst, p
        if step > first and since > patience:
            break
        ridge *= 1 if within else 2
        if step >= first and step % 4 == 0:
            v = v * np.sqrt(np.abs(e) / worst + 1e-2)
            v /= math.sqrt((v * v).mean())
        b, m = np.exp(p[:k]), np.sinh(p[k : 2 * k])
        slope = s * (1 - s) * (b * w)
        J = np.concatenate([slope * (x[:, None] - m), -slope * np.cosh(p[k : 2 * k]), s], 1) * v[:, None]
        size, cost = np.sqrt((J * J).sum(0)) + 1e-12, ((e * v) ** 2).sum() + ridge**2 * (w @ w)
        rows = np.zeros((n + 4 * k, 3 * k + 1))
        rows[:n] = np.c_[J, -e * v]
        rows[n : n + k, 2 * k :] = ridge * np.c_[np.eye(k), -w]
        for _ in range(6):
            rows[n + k :, :-1] = np.diag(math.sqrt(damp) * size)
            Q = np.linalg.qr(rows, mode="r")
            try:
                move = solve_triangular(Q[: 3 * k, :-1], Q[: 3 * k, -1])
            except (LinAlgError, ValueError):
                damp *= 10
                continue
            q = p + np.r_[np.clip(move[: 2 * k], -0.5, 0.5), move[2 * k :]]
            q[: 2 * k] = np.clip(q[: 2 * k], low, high)
            s_q = sigmoids(x, q[: 2 * k])
            e_q = s_q @ q[2 * k :] - y
            if ((e_q * v) ** 2).sum() + ridge**2 * (q[2 * k :] @ q[2 * k :]) < cost:
                p, s, e, damp = q, s_q, e_q, max(damp / 4, 1e-14)
                break
            damp = min(6 * damp, 1e3)
    return best


def polish(x, y, p, reach, steps=20):
    """Linear programmes on the largest error, each within a region that grows while it helps. The best (error, p)."""
    n, k, size = len(x), len(p) // 3, 1.0
    s = sigmoids(x, p[: 2 * k])
    e = s @ p[2 * k :] - y
    far, full = np.r_[np.full(k, math.log(STEEPEST)), np.full(k, np.arcsinh(3 * reach))], MOST * reach
    low = np.r_[np.full(k, math.log(0.02 / reach)), -far[k:]]
    for _ in range(steps):
        worst, (b, m, w) = np.abs(e).max(), (np.exp(p[:k]), np.sinh(p[k : 2 * k]), p[2 * k :])
        slope = s * (1 - s) * (b * w)
        J = np.concatenate([slope * (x[:, None] - m), -slope * np.cosh(p[k : 2 * k]), s], 1)
        column = np.sqrt((J * J).mean(0)) + 1e-12
        _, length, V = np.linalg.svd(J / column, full_matrices=False)  # steps that change the error by about `worst`
        T = V.T / np.sqrt(length**2 / n + (worst / size) ** 2) / column[:, None] * worst
        rows = np.r_[J @ T / worst, -J @ T / worst, T[: 2 * k], -T[: 2 * k], [np.sign(w) @ T[2 * k :] / full]]
        room = np.minimum(far - p[: 2 * k], 0.3), np.minimum(p[: 2 * k] - low, 0.3), [1 - np.abs(w).sum() / full]
        falls = np.r_[-np.ones(2 * n), np.zeros(4 * k + 1)][:, None]
        goal, sides = np.r_[np.zeros(3 * k), 1], [(-4 * size, 4 * size)] * (3 * k) + [(0, None)]
        most = np.concatenate([-e / worst, e / worst, *room]) + np.r_[np.zeros(2 * n), np.full(4 * k + 1, 1e-12)]
        found = linprog(goal, np.c_[rows, falls], most, bounds=sides, method="highs-ds", options={"time_limit": 20}).x
        q = p if found is None else p + T @ found[:-1]
        s_q = sigmoids(x, q[: 2 * k])
        e_q = s_q @ q[2 * k :] - y
        if np.abs(e_q).max() < worst and np.abs(q[2 * k :]).sum() <= full:
            p, s, e, size = q, s_q, e_q, 2 * size
        elif (size := size / 3) < 1e-3:
            break
    return np.abs(e).max(), p


def newton(x, y, p, reach, powers=(64, 200), steps=600):
    """Trust-region Newton steps on the mean of (e / max |e|)^P, for growing P, with a price on `sum |w|` beyond its bound. The (error, p)."""
    k, n, most = len(p) // 3, len(x), 0.999 * MOST * reach
    low = np.r_[np.full(k, math.log(0.02 / reach)), np.full(k, -np.arcsinh(3 * reach))]
    high = np.r_[np.full(k, math.log(STEEPEST)), np.full(k, np.arcsinh(3 * reach))]
    i, j, h = np.arange(k), k + np.arange(k), 2 * k + np.arange(k)

    def value(p, unit, power):
        with np.errstate(over="ignore"):  # a step too far, which is not taken
            e = ((sigmoids(x, p[: 2 * k]) @ p[2 * k :] - y) / unit) ** power
        return e.mean() + 1e3 * max(0, np.abs(p[2 * k :]).sum() / most - 1) ** 2

    def derivatives(p, unit, power):
        b, far, w = np.exp(p[:k]), p[k : 2 * k], p[2 * k :]
        z, at = b * (x[:, None] - np.sinh(far)), -b * np.cosh(far)
        s = expit(z)
        first, second, r = s * (1 - s), s * (1 - s) * (1 - 2 * s), (s @ w - y) / unit
        v, bend = power * r ** (power - 1) / unit / n, power * (power - 1) * r ** (power - 2) / unit**2 / n
        J = np.concatenate([first * z * w, first * at * w, s], 1)
        g, H = J.T @ v, (J * bend[:, None]).T @ J
        one, by_z, two, two_z, two_zz = v @ first, v @ (first * z), v @ second, v @ (second * z), v @ (second * z * z)
        H[i, i] += w * (two_zz + by_z)
        H[j, j] += w * (two * at * at - one * b * np.sinh(far))
        for rows, columns, values in ((i, j, w * at * (two_z + one)), (i, h, by_z), (j, h, one * at)):
            H[rows, columns] += values
            H[columns, rows] += values
        if (over := np.abs(w).sum() / most - 1) > 0:
            g[2 * k :] += 2e3 * over * np.sign(w) / most
            H[2 * k :, 2 * k :] += 2e3 * np.outer(np.sign(w), np.sign(w)) / most**2
        return g, H

    for power in powers:
        radius, now, last = 0.1, 0, math.inf
        for step in range(steps):
            if step % 25 == 0:
                if last - now < 1e-7 * now:
                    break
                unit = np.abs(sigmoids(x, p[: 2 * k]) @ p[2 * k :] - y).max()
                last = now = value(p, unit, power)
            size = np.r_[np.ones(2 * k), np.maximum(np.abs(p[2 * k :]), 1)]
            g, H = derivatives(p, unit, power)
            bends, U = np.linalg.eigh(H * size[:, None] * size)
            c = U.T @ (g * size)
            lift = less = max(0, -bends[0]) + 1e-14 * np.abs(bends).max()
            more = less + np.linalg.norm(c) / radius
            while np.linalg.norm(c / (bends + lift)) > radius or (less < 0.95 * more and lift != less):
                less, more = (lift, more) if np.linalg.norm(c / (bends + lift)) > radius else (less, lift)
                lift = math.sqrt(less * more) if less < 0.95 * more else more
            move = -c / (bends + lift)
            q = p + size * (U @ move)
            q[: 2 * k] = np.clip(q[: 2 * k], low, high)
            new = value(q, unit, power)
            if new < now:
                share = (now - new) / max(-(c @ move + (bends * move) @ move / 2), 1e-300)
                p, now, radius = q, new, min(3, 2 * radius) if share > 0.7 else radius / 2 if share < 0.2 else radius
            elif (radius := radius / 3) < 1e-9:
                break
    worst = np.abs(sigmoids(x, p[: 2 * k]) @ p[2 * k :] - y).max()
    return (worst if np.abs(p[2 * k :]).sum() <= MOST * reach else math.inf), p


def scattered(reach, k, rng):
    """Centres and widths of single sigmoids, of near-equal pairs and of threes, at scales drawn from 1 to the range."""
    parts = []
    while sum(parts) < k:
        parts.append(min(k - sum(parts), rng.choice([1, 2, 3], p=[0.5, 0.4, 0.1])))
    scales = np.exp(np.sort(rng.uniform(0, math.log(reach / 2.5), len(parts))))
    if rng.random() < 0.7:
        scales[0] = 1
    if rng.random() < 0.5:
        scales = np.exp(np.linspace(0, math.log(rng.uniform(0.15, 0.5) * reach), len(parts)) + rng.normal(0, 0.15, len(parts)))
    log_b, m = [], []
    for part, scale in zip(parts, scales, strict=True):
        centre = rng.normal(0, 0.7) * scale + 2 * scale * (rng.random() < 0.25)
        if rng.random() < (0.6 if scale == scales[-1] else 0.1):
            centre = reach * rng.uniform(0.7, 1.2)
        log_b += [rng.normal(0, 0.05) - math.log(scale) for _ in range(part)]
        m += [centre + (place - (part - 1) / 2) * scale * rng.uniform(0.1, 0.6) for place in range(part)]
    return np.r_[np.clip(log_b, math.log(0.02 / reach), math.log(STEEPEST)), np.arcsinh(m)]


def scatter(f, k, known, seconds, rng, few=(30, 60, 100, 200)):
    """Scattered starts on a few ranges in turn, for so many processor seconds; then along the ladder, down and up."""
    began, few = time.process_time(), [reach for reach in few if reach in known]
    while time.process_time() - began < seconds:
        for reach in few:
            x, thin = points(reach, 200 + 16 * k), points(reach, 200 + 6 * k)
            shape = scattered(reach, k, rng)
            p, best = np.r_[shape, weighed(thin, f(thin), shape, reach)[0]], known[reach][0]
            for power, steps, within in ((2, 120, 6), (6, 200, 2.2), (24, 300, 1.1)):
                error, p = newton(thin, f(thin), p, reach, (power,), steps)
                if error > within * best:
                    break
            else:
                known[reach] = min(known[reach], newton(x, f(x), p, reach), key=lambda fit: fit[0])
    reaches = sorted(known)
    for order in (reaches[::-1], reaches):
        for old, new in pairwise(order):
            x, shape = points(new, 200 + 16 * k), stretched(known[old][1], old, new)
            got = newton(x, f(x), np.r_[shape, weighed(x, f(x), shape, new)[0]], new, (6, 24, 64, 200), 150)
            known[new] = min(known[new], got, key=lambda fit: fit[0])


def jumped(p, reach, x, y, rng):
    """A start near a solution: shapes moved a little or far, perhaps one head taken out and another put in."""
    k = len(p) // 3
    shape = p[: 2 * k] + rng.normal(size=2 * k) * rng.choice([0.02, 0.1, 0.3])
    if rng.random() < 0.6:
        at = rng.integers(k)
        shape[k + at] = rng.uniform(-1, 1) * np.arcsinh(1.2 * reach)
        shape[at] = rng.normal(0, 0.7) - math.log(1 + abs(np.sinh(shape[k + at])))
    shape[:k] = np.clip(shape[:k], math.log(0.02 / reach), math.log(STEEPEST))
    return np.r_[shape, weighed(x, y, shape, reach)[0]]


def jumps(f, k, known, seconds, rng):
    """Every range in turn, for so many processor seconds: from its own best, or from a neighbour's."""
    reaches, began = sorted(known), time.process_time()
    while time.process_time() - began < seconds:
        for place, reach in enumerate(reaches):
            near = reaches[min(len(reaches) - 1, max(0, place + rng.choice([-1, 0, 0, 1])))]
            x = points(reach, 200 + 16 * k)
            start = jumped(stretched(known[near][1], near, reach), reach, x, f(x), rng)
            got = improve(x, f(x), start, reach, steps=150, first=50, patience=40)
            if got[0] < 4 * known[reach][0]:
                got = polish(x, f(x), got[1], reach)
            known[reach] = min(known[reach], got, key=lambda fit: fit[0])
            if time.process_time() - began > seconds:
                break


def neighbours(f, k, known):
    """Up and down the ladder once, from what is known; and a fit of a larger range serves a smaller one as it is."""
    reaches = sorted(known)
    for order in (reaches, reaches[::-1]):
        for old, new in zip(order[:1] + order, order, strict=False):
            x = points(new, 200 + 16 * k)
            shape = stretched(known[old][1], old, new)
            starts = [known[new][1], np.r_[shape, weighed(x, f(x), shape, new)[0]]]
            if old > new and np.abs(known[old][1][2 * k :]).sum() <= MOST * new:
                starts.append(known[old][1])
            tried = [polish(x, f(x), improve(x, f(x), p, new, steps=200)[1], new) for p in starts[1:]]
            known[new] = min([known[new], polish(x, f(x), starts[0], new), *tried], key=lambda fit: fit[0])


def between(f, k, known, reaches):
    """Ranges that have no fit yet start from the next smaller and the next larger one."""
    for new in (reach for reach in reaches if reach not in known):
        x, near = points(new, 200 + 16 * k), sorted(known, key=lambda old, new=new: abs(math.log(old / new)))[:2]
        shapes = [stretched(known[old][1], old, new) for old in near]
        tried = [improve(x, f(x), np.r_[shape, weighed(x, f(x), shape, new)[0]], new, steps=200) for shape in shapes]
        known[new] = min((polish(x, f(x), p, new) for _, p in tried), key=lambda fit: fit[0])


def stretched(p, old, new):
    """Centres moved as asinh of the range grows, slopes with them."""
    k, grow = len(p) // 3, np.arcsinh(new) / np.arcsinh(old)
    far = p[k : 2 * k] * grow
    log_b = p[:k] + np.log(np.cosh(p[k : 2 * k]) / np.cosh(far) / grow)
    return np.r_[np.clip(log_b, math.log(0.02 / new), math.log(STEEPEST)), far]


def ladder(f, reaches, k, known, sweeps):
    """`{reach: (error, p)}`: the best grids of each rung, of two rungs the four best; then up and down."""
    n = 200 + 16 * k

    def keep(reach, p):
        x = points(reach, n)
        got = polish(x, f(x), improve(x, f(x), p, reach)[1], reach)
        if reach not in known or got[0] < known[reach][0]:
            known[reach] = got

    for reach in reaches if sweeps else ():
        x = points(reach, n)
        for p in starts(x, f(x), reach, k)[: 4 if reach in (10, 100) else 1]:
            keep(reach, p)
    for sweep in range(sweeps):
        order = reaches if sweep % 2 == 0 else reaches[::-1]
        for old, new in zip(order, order[1:], strict=False):
            if old not in known:
                continue
            shape, x = stretched(known[old][1], old, new), points(new, n)
            keep(new, np.r_[shape, weighed(x, f(x), shape, new)[0]])
    return known


def borrowed(name, silu, reaches):
    """Starts for another function: s f(g / s) is close to SiLU far from 0, whatever s is; 1.702 is GELU's."""
    for reach in reaches:
        scale = 1.0 if name == "relu" else 1.702
        for near in sorted(silu, key=lambda r, goal=scale * reach: abs(math.log(r / goal)))[:2]:
            k = len(silu[near][1]) // 3
            shape = stretched(silu[near][1], near, scale * reach)
            x = points(reach, 200 + 16 * k)
            log_b = np.minimum(shape[:k] + math.log(scale), math.log(STEEPEST))
            shape = np.r_[log_b, np.arcsinh(np.sinh(shape[k:]) / scale)]
            yield reach, np.r_[shape, weighed(x, FUNCTIONS[name](x), shape, reach)[0]]


def proved_error(name, reach, b, c, d, n=400_001):
    """An upper bound of |f - S| on all of [-reach, reach], not on points alone.

    On a cell of width h with ends x, y let L be the line through (x, e(x)), (y, e(y)), e = f - S. Then e - L vanishes at
    both ends and has the second derivative e'', so |e - L| <= h^2/8 max |e''|, and |L| <= max(|e(x)|, |e(y)|): hence
    |e| <= max(|e(x)|, |e(y)|) + h^2/8 (max |f''| + sum |d_i| b_i^2 max |sigmoid''|) on the cell. There
    |sigmoid''(z)| = s(1-s)|1-2s| is at most 1/(6 sqrt 3) and at most exp(-|z|), and f = g sigmoid(u) has
    |f''| <= exp(-|u|) (2|u'| + |g| (u'^2 + |u''|)), with the exponential at the end of the cell nearer to 0 and the
    rest, which grows with |g|, at the farther. GELU has f'' = phi(g) (2 - g^2), and phi(g) (2 + g^2) falls with |g|. ReLU is straight
    on every cell, since 0 is one of the points. The last term is the rounding of this computation.
    """
    x = points(reach, n)
    x[n // 2] = 0.0
    near, far = np.minimum(*np.abs(np.stack([x[:-1], x[1:]]))), np.maximum(*np.abs(np.stack([x[:-1], x[1:]])))
    total, bend = np.zeros(n), curvature(name, near, far)
    for bi, ci, di in zip(b, c, d, strict=True):
        z = bi * x + ci
        total += di * expit(z)
        closest = np.where(z[:-1] * z[1:] < 0, 0, np.minimum(np.abs(z[:-1]), np.abs(z[1:])))
        bend += abs(di) * bi**2 * np.minimum(1 / (6 * math.sqrt(3)), np.exp(-closest))
    e = np.abs(total - FUNCTIONS[name](x))
    cells = np.maximum(e[:-1], e[1:]) + np.diff(x) ** 2 / 8 * bend
    return float(cells.max() + 4e-16 * (np.abs(d).sum() + reach) * (1 + len(b) / 4))


def curvature(name, near, far):
    if name == "relu":
        return np.zeros_like(near)
    if name == "gelu":
        return np.exp(-(near**2) / 2) / math.sqrt(2 * math.pi) * (2 + near**2)
    cubic, rate = (0.0, 1.0) if name == "silu" else (0.044715, CURVED)
    u, first, second = rate * (near + cubic * near**3), rate * (1 + 3 * cubic * far**2), rate * 6 * cubic * far
    return np.exp(-u) * (2 * first + far * (first**2 + second))


def least(f, reach, p):
    """What no weights with `sum |w| <= 20 R` go below at the centres and widths of `p`: the optimum of a linear programme.

    On points alone, which is a lower bound for the range. Other centres and widths may do better; for all of them no bound is known here.
    """
    k = len(p) // 3
    x = points(reach, 200 + 16 * k)
    A, w = sigmoids(x, p[: 2 * k]), p[2 * k :]
    e = A @ w - f(x)
    worst, one, none = np.abs(e).max(), np.eye(k), np.zeros((k, 1))
    U, size, V = np.linalg.svd(A / worst, full_matrices=False)  # moves of the weights, by what they do to the error
    T, falls = V.T / size, -np.ones((len(x), 1))
    wide = np.zeros((len(x), k))
    rows = np.block([[U, wide, falls], [-U, wide, falls], [T, -one, none], [-T, -one, none], [np.zeros((1, k)), np.ones((1, k)), 0]])
    most = np.concatenate([-e / worst, e / worst, -w, w, [MOST * reach]])
    goal, sides = np.r_[np.zeros(2 * k), 1], [(None, None)] * k + [(0, None)] * (k + 1)
    return worst * linprog(goal, rows, most, bounds=sides, method="highs-ds").x[-1]


def read(target):
    """`{name: {k: {reach: (error, p)}}}` of what is stored."""
    known = {name: {k: {} for k in HEADS} for name in FUNCTIONS}
    for key, columns in (load_file(target) if target.exists() else {}).items():
        name, k = key.rsplit(".", 1)
        for reach, error, *rest in columns.tolist():
            b, c, d = np.split(np.array(rest), 3)
            known[name][int(k)][reach] = error, np.r_[np.log(b), np.arcsinh(-c / b), d]
    return known


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=FUNCTIONS)
    parser.add_argument("--sweeps", type=int, default=3, help="how often to go along the ladder")
    parser.add_argument("--jumps", type=float, default=60, help="processor seconds of jumps for each function and number of heads")
    parser.add_argument("--polish", action="store_true", help="only improve what is stored")
    parser.add_argument("--scatter", type=float, default=0, help="processor seconds of scattered starts, and nothing else")
    parser.add_argument("--heads", type=int, nargs="*", default=HEADS, help="only these numbers of heads")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--least", action="store_true")
    parser.add_argument("--target", type=Path, default=TARGET)
    args = parser.parse_args()
    known, held = read(args.target), load_file(args.target) if args.target.exists() else {}
    for name in [args.only] if args.only else FUNCTIONS:
        for k in args.heads:
            if args.least:
                found = {reach: least(FUNCTIONS[name], reach, p) / error for reach, (error, p) in known[name][k].items()}
                print(f"{name:9s} k={k:2d}", *(f"{reach:g}: {share:.3f}" for reach, share in found.items() if reach in (10, 30, 100)))
                continue
            began = time.process_time()
            reaches = [1000.0] if name == "relu" else [float(reach) for reach in REACHES]
            args.polish |= args.scatter > 0
            if args.polish:
                between(FUNCTIONS[name], k, known[name][k], reaches if name == "silu" and k <= 16 else [])
            if args.polish or args.check:
                reaches = sorted(known[name][k])
            f, rng = FUNCTIONS[name], np.random.default_rng(k)
            if not args.check and not args.polish:
                for reach, p in () if name == "silu" else borrowed(name, known["silu"][k], reaches):
                    x = points(reach, 200 + 16 * k)
                    got = improve(x, FUNCTIONS[name](x), p, reach)
                    if got[0] < known[name][k].get(reach, got)[0] or reach not in known[name][k]:
                        known[name][k][reach] = got
                ladder(f, reaches, k, known[name][k], sweeps=args.sweeps if name == "silu" else 0)
            if not args.check:
                for reach, (_, p) in known[name][k].items():
                    x = points(reach, 200 + 16 * k)
                    known[name][k][reach] = min(known[name][k][reach], polish(x, f(x), p, reach), key=lambda fit: fit[0])
            if args.scatter:
                scatter(f, k, known[name][k], args.scatter, rng)
            elif not args.check and name != "relu" and args.jumps:
                neighbours(f, k, known[name][k])
                jumps(f, k, known[name][k], args.jumps, rng)
                neighbours(f, k, known[name][k])
            for small, large in [] if args.check else reversed([*pairwise(reaches)]):  # good on a range, good on a smaller one
                fit = known[name][k][large]
                if fit[0] < known[name][k][small][0] and np.abs(fit[1][2 * k :]).sum() <= MOST * small:
                    known[name][k][small] = fit
            proved, was = [], {row[0]: row.tolist() for row in held.get(f"{name}.{k}", ())}
            for reach in reaches:
                b, m, d = np.split(known[name][k][reach][1], 3)
                b, c = np.exp(b), -np.exp(b) * np.sinh(m)
                made = [reach, proved_error(name, reach, b, c, d), *b, *c, *d]
                proved.append(min(made, made if args.check else was.get(reach, made), key=lambda row: row[1]))
                known[name][k][reach] = proved[-1][1], known[name][k][reach][1]
            worst = max(np.abs(row[2 + 2 * k :]).sum() / row[0] for row in proved)
            at = {row[0]: row[1] for row in proved}
            print(
                f"{name:9s} k={k:2d}",
                *(f"{r:g}: {at[r]:.1e}" for r in (10, 30, 100, 500, 1000) if r in at),
                f"sum|w|/R <= {worst:.1f}, {time.process_time() - began:.0f} s",
                flush=True,
            )
            if not args.check:
                held[f"{name}.{k}"] = np.array(proved)
                save_file(held, args.target)
    if args.target == TARGET and not args.check:
        manifest.write("conversion")


if __name__ == "__main__":
    main()
