"""Held-out loss of smoothed unigram, bigram and trigram models of the same corpus, in nats a token.

    python -m tools baselines --tokens data/tokenizer

Interpolated Kneser-Ney smoothing with one absolute discount an order, chosen on the first half of the held-out text
and scored on all of it. Documents begin with `<|endoftext|>`, which is a context but never a scored target.
"""

import argparse
import json
from pathlib import Path

import numpy as np

V = 2048


def counted(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.unique(keys, return_counts=True)


def look_up(table: tuple[np.ndarray, np.ndarray], keys: np.ndarray) -> np.ndarray:
    values, counts = table
    at = np.minimum(np.searchsorted(values, keys), len(values) - 1)
    return np.where(values[at] == keys, counts[at], 0).astype(np.float64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=Path, default=Path("data/tokenizer"))
    folder = parser.parse_args().tokens
    train, held = (np.load(folder / f"{split}.npy").astype(np.int64) for split in ("train", "heldout"))

    bi, tri = counted(train[:-1] * V + train[1:]), counted((train[:-2] * V + train[1:-1]) * V + train[2:])
    uni = np.bincount(train, minlength=V).astype(np.float64)
    # Kneser-Ney: lower orders count types, not tokens.
    ends = np.bincount(bi[0] % V, minlength=V).astype(np.float64)
    middle = counted(tri[0] % (V * V))  # bigram types as continuations of a token
    middle_total = np.bincount(middle[0] // V, weights=middle[1], minlength=V)
    middle_kinds = np.bincount(middle[0] // V, minlength=V)
    bi_kinds = np.bincount(bi[0] // V, minlength=V)
    bi_total = np.bincount(bi[0] // V, weights=bi[1], minlength=V)
    tri_context = tri[0] // V
    context, start = np.unique(tri_context, return_index=True)
    tri_total = (context, np.add.reduceat(tri[1], start))
    tri_kinds = (context, np.diff(np.append(start, len(tri_context))))

    a, b, c = held[:-2], held[1:-1], held[2:]
    scored = c != 0
    half = np.arange(len(c)) < len(c) // 2
    loss = lambda p, rows: float(-np.log(p[rows & scored]).mean())  # noqa: E731
    unigram = (uni + 0.5) / (uni + 0.5).sum()
    base = (ends + 0.5) / (ends + 0.5).sum()

    def bigram(d: float) -> np.ndarray:
        total = np.maximum(bi_total[b], 1)
        return (
            np.maximum(look_up(bi, b * V + c) - d, 0) / total
            + np.where(bi_total[b] > 0, d * bi_kinds[b] / total, 1) * base[c]
        )

    def trigram(d2: float, d3: float) -> np.ndarray:
        total2 = np.maximum(middle_total[b], 1)
        low = np.maximum(look_up(middle, b * V + c) - d2, 0) / total2
        low += np.where(middle_total[b] > 0, d2 * middle_kinds[b] / total2, 1) * base[c]
        # a document boundary gives no three-token context
        seen = look_up(tri_total, a * V + b)
        total3 = np.maximum(seen, 1)
        high = np.maximum(look_up(tri, (a * V + b) * V + c) - d3, 0) / total3
        return high + np.where(seen > 0, d3 * look_up(tri_kinds, a * V + b) / total3, 1) * low

    grid = np.arange(0.3, 1.0, 0.05)
    d = min(grid, key=lambda d: loss(bigram(d), half))
    d2, d3 = min(((x, y) for x in grid for y in grid), key=lambda pair: loss(trigram(*pair), half))
    everywhere = np.ones_like(half)
    report = {
        "unigram": round(loss(unigram[c], everywhere), 4),
        "bigram": round(loss(bigram(d), everywhere), 4),
        "trigram": round(loss(trigram(d2, d3), everywhere), 4),
        "discounts": {"bigram": round(float(d), 2), "trigram": [round(float(d2), 2), round(float(d3), 2)]},
        "tokens": int(scored.sum()),
    }
    (folder / "baselines.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
