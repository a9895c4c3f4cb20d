"""Count skip trigrams in the training text: the evidence that chapter 2 shows. Run it again after new weights.

    python -m tools skip-trigram-statistics

Writes `src/circuitkit/circuits/data/skip_trigrams.safetensors`: evidence for the strongest skip trigrams of every head
of the shipped one-layer model, the frequent triples of word pieces, and which of their crossings the text holds.
The training tokens come from `tools/train/tokenizer.py` and do not ship.
"""

import argparse
import hashlib
import json
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

import circuitkit
from circuitkit.circuits import corpus_evidence, skip_trigrams
from circuitkit.models import corpus_statistics, load_tokenizer, model_card
from tools.study import manifest

OUT = Path(__file__).resolve().parents[2] / "src/circuitkit/circuits/data/skip_trigrams.safetensors"
WINDOW, PER_HEAD, MIN_TOKEN, MIN_TOGETHER, MIN_PAIR, MIN_SHARE = 32, 300, 1000, 100.0, 40, 0.3


def common_words(least: int = MIN_TOKEN) -> torch.Tensor:
    """Tokens of letters only that occur at least so often in the training text: what the page ranks triples among."""
    tokenizer, counts = load_tokenizer(), corpus_statistics().unigram
    return torch.tensor([tokenizer.decode([i]).strip().isalpha() and n >= least for i, n in enumerate(counts.tolist())])


def corpus_trigrams(tokens: torch.Tensor, distance: int = 1, min_count: int = MIN_PAIR, min_share: float = MIN_SHARE) -> torch.Tensor:
    """Triples that a text teaches: rows (source, destination, completion, n, hits), most frequent first.

    The source stands exactly `distance` tokens before the destination; the pair occurs `n >= min_count` times and the
    completion follows in `hits >= min_share * n` of them. Three ids make one number, so they are below 2^20.
    """
    size = int(tokens.max()) + 1
    source, destination, completion = tokens[: -distance - 1], tokens[distance:-1], tokens[distance + 1 :]
    keys, hits = torch.unique((source * size + destination) * size + completion, return_counts=True)
    pairs, which = torch.unique(keys // size, return_inverse=True)
    n = torch.zeros(len(pairs), dtype=torch.long).index_add_(0, which, hits)[which]
    kept = (n >= min_count) & (hits >= min_share * n)
    keys, n, hits = keys[kept], n[kept], hits[kept]
    table = torch.stack([keys // size**2, keys // size % size, keys % size, n, hits], dim=1)
    return table[torch.argsort(hits, descending=True, stable=True)]


def word_pieces(tokens: torch.Tensor) -> torch.Tensor:
    """Frequent triples where the source opens a word and destination and completion go on with it."""
    tokenizer = load_tokenizer()
    text = [tokenizer.decode([i]) for i in range(len(corpus_statistics().unigram))]
    opens = torch.tensor([piece[:1] == " " and piece[1:].isalpha() for piece in text])
    goes_on = torch.tensor([piece.isalpha() for piece in text])
    rows = corpus_trigrams(tokens)
    return rows[opens[rows[:, 0]] & goes_on[rows[:, 1]] & goes_on[rows[:, 2]]]


def crossings_in(tokens: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """(A, B', C, hits) for every A B -> C and A B' -> C' in `words` such that A B' C occurs."""
    size = 1 << 11
    keys, hits = torch.unique((tokens[:-2] * size + tokens[1:-1]) * size + tokens[2:], return_counts=True)
    found = dict(zip(keys.tolist(), hits.tolist(), strict=True))
    rows = set()
    for a in words[:, 0].unique().tolist():
        mine = words[words[:, 0] == a]
        rows |= {(a, b, c) for b in mine[:, 1].tolist() for c in mine[:, 2].tolist()}
    rows -= {tuple(row) for row in words[:, :3].tolist()}
    kept = [
        (a, b, c, found[(a * size + b) * size + c]) for a, b, c in sorted(rows) if (a * size + b) * size + c in found
    ]
    return torch.tensor(kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=Path, default=Path("data/tokenizer/train.npy"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    began, raw = time.process_time(), np.load(args.tokens)
    tokens = torch.from_numpy(raw.astype(np.int64))
    model, statistics = circuitkit.load_model("one-layer"), corpus_statistics()
    given = {"unigram": statistics.unigram.float(), "likelihood": statistics.log_probs().exp().float()}
    given |= {"among": common_words(), "window": WINDOW, "min_together": MIN_TOGETHER}
    triples = []
    for head in circuitkit.heads(model).names:
        triples += [row[:3] for row in skip_trigrams(model, head, PER_HEAD, **given)]
    triples = sorted(set(triples))
    evidence = corpus_evidence(triples, tokens, window=(1, WINDOW))
    words = word_pieces(tokens)
    weights = list(model_card("one-layer")["files"].values())[-1]["sha256"]
    provenance = {
        "window": WINDOW,
        "per_head": PER_HEAD,
        "min_token": MIN_TOKEN,
        "min_together": MIN_TOGETHER,
        "min_pair": MIN_PAIR,
        "min_share": MIN_SHARE,
        "tokens": len(tokens),
        "tokens_sha256": hashlib.sha256(raw.tobytes()).hexdigest(),
        "weights_sha256": weights,
    }
    tables = {
        "evidence": torch.tensor([[*t, *e] for t, e in zip(triples, evidence, strict=True)], dtype=torch.int32),
        "words": words.int(),
        "occurring": crossings_in(tokens, words).int(),
    }
    OUT.parent.mkdir(exist_ok=True)
    save_file(tables, OUT, metadata={"provenance": json.dumps(provenance, sort_keys=True)})
    OUT.chmod(0o644)  # save_file writes for the owner only
    manifest.write("circuits")
    rows = ", ".join(f"{len(table)} rows of {name}" for name, table in tables.items())
    print(f"{OUT.name}: {OUT.stat().st_size / 1e3:.0f} kB, {rows}, {time.process_time() - began:.0f} s")


if __name__ == "__main__":
    main()
