"""Fit an activation function by sums of sigmoid heads, and store the fits with the package.

python -m studies.activation_fit softplus                        prints fits of 1 to 5 heads
python -m studies.activation_fit softplus --store                stores them in activations.json
python -m studies.activation_fit softplus --gate 10 30 --store   stores fits for gates

The function is an entry of `ACTIVATIONS` in `src/circuitkit/conversion/activations.py`. A sum on the
whole line, `sum_i sigmoid(b_i x + c_i) (a_i x + d_i)` with positive b, tends to 0 on the left and to a
line on the right, so the function must do so, too. A sum for a gate has a = 0 and follows any
function on a finite range. Each fit starts at random points with a least-squares fit. Then points with
a large error gain weight, so that the largest error falls. The stored fits of GELU come from
`studies/edition-2/train`, whose scripts search longer. About ten seconds for each number of heads.
"""

import argparse
import json

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from scipy.optimize import least_squares
from scipy.special import expit

from circuitkit.conversion.activations import ACTIVATIONS
from circuitkit.data import DATA

FOLDER = DATA / "conversion"
END = 40.0  # beyond it, sums on the whole line equal their two lines


def values(name: str, x: np.ndarray) -> np.ndarray:
    """The activation function at some points."""
    return ACTIVATIONS[name](torch.from_numpy(x)).numpy()


def line_on_the_right(name: str) -> tuple[float, float]:
    """Slope and intercept of the line to which the function tends; an error if it has no such ends."""
    left, first, middle, last = values(name, np.array([-END, END, 2 * END, 3 * END]))
    slope = (middle - first) / END
    is_straight = abs(last - middle - slope * END) < 1e-9
    if abs(left) > 1e-9 or not is_straight:
        raise ValueError(
            f"{name!r} does not tend to 0 on the left and to a line on the right, so no sum of heads "
            "follows it on the whole line. As a gate it can be followed on a range: --gate 30."
        )
    return slope, first - slope * END


def coefficients(theta: np.ndarray, line: tuple[float, float] | None) -> np.ndarray:
    """b, c, a and d of each head, `[4, head]`; without a line, those of a gate."""
    if line is None:
        b, c, d = theta.reshape(3, -1)
        return np.stack([b, c, np.zeros_like(b), d])
    k = (len(theta) + 2) // 4
    b, c, a, d = np.split(theta, [k, 2 * k, 3 * k - 1])
    # the last head has what is missing to the line on the right
    return np.stack([b, c, np.append(a, line[0] - a.sum()), np.append(d, line[1] - d.sum())])


def sum_of_heads(rows: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The sum at some points."""
    b, c, a, d = rows[:, :, None]
    return (expit(b * x + c) * (a * x + d)).sum(0)


def fit(name: str, n_heads: int, reach: float | None, starts: int, seed: int) -> np.ndarray:
    """The best coefficients from some random starts, `[4, head]`; on the whole line without a reach."""
    line = line_on_the_right(name) if reach is None else None
    generator = np.random.default_rng([seed, n_heads])
    x = np.linspace(-14, 14, 561) if reach is None else reach * np.linspace(-1, 1, 561) ** 3
    target, far = values(name, x), 12.0 if reach is None else 2 * reach
    n_free = n_heads if reach else n_heads - 1
    largest = np.abs(target).max() if reach else 3.0
    widths = [n_heads, n_heads] + ([n_free] if reach else [n_free, n_free])
    low = np.repeat([0.05, -far, -largest, -largest][: len(widths)], widths)
    high = np.repeat([12.0, far, largest, largest][: len(widths)], widths)

    def weighted_error(theta: np.ndarray, weights: np.ndarray) -> np.ndarray:
        return weights * (sum_of_heads(coefficients(theta, line), x) - target)

    best, least_error = np.zeros(0), np.inf
    for _ in range(starts):
        theta = generator.uniform(np.maximum(low, -3), np.minimum(high, 3))
        weights = np.ones_like(x)
        for _ in range(25):
            found = least_squares(
                weighted_error, theta, bounds=(low, high), args=(weights,), max_nfev=15
            )
            theta = found.x
            error = np.abs(weighted_error(theta, np.ones_like(x)))
            if error.max() < least_error:
                best, least_error = theta, error.max()
            if error.max() > 20 * least_error:
                break
            weights = weights * np.sqrt(error / error.max() + 1e-2)
            weights = weights / weights.mean()
    return coefficients(best, line)


def largest_error(name: str, rows: np.ndarray, reach: float | None) -> float:
    """The largest error on a fine grid, and what a parabola could add between two points of it."""
    x = np.linspace(-1, 1, 800_001) * (reach or END)
    error = sum_of_heads(rows, x) - values(name, x)
    return float(np.abs(error).max() + np.abs(np.diff(error, 2)).max() / 8 + 1e-13)


def store(name: str, rows: np.ndarray, error: float, reach: float | None) -> None:
    """Add a fit to the shipped file, in the place of an older one of the same size and range."""
    n_heads = rows.shape[1]
    if reach is None:
        path = FOLDER / "activations.json"
        table = json.loads(path.read_text("utf-8"))
        entry = dict(zip("bcad", rows.tolist(), strict=True)) | {"error": error}
        table["fits"].setdefault(name, {})[str(n_heads)] = entry
        path.write_text(json.dumps(table, indent=1) + "\n", "utf-8")
        return
    path = FOLDER / "gates.safetensors"
    tables = load_file(path)
    b, c, _, d = rows
    row = torch.from_numpy(np.concatenate([[reach, error], b, c, d]))[None]
    old = tables.get(f"{name}.{n_heads}", row[:0])
    tables[f"{name}.{n_heads}"] = torch.cat([old[old[:, 0] != reach], row])
    save_file(tables, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=ACTIVATIONS)
    parser.add_argument("--heads", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--gate", type=float, nargs="+", default=[None], help="ranges of a gate")
    parser.add_argument("--starts", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", action="store_true")
    args = parser.parse_args()
    for reach in args.gate:
        for n_heads in args.heads:
            rows = fit(args.name, n_heads, reach, args.starts, args.seed)
            error = largest_error(args.name, rows, reach)
            where = "on the whole line" if reach is None else f"up to {reach:g}"
            print(f"{args.name} {where}, {n_heads} heads: error {error:.2e}", flush=True)
            if args.store:
                store(args.name, rows, error, reach)
    if args.store:
        print("Now run: python -m tools manifest")


if __name__ == "__main__":
    main()
