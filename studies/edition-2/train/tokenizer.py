"""Train the byte-level BPE tokenizer of the shipped models and encode the corpus with it.

    python -m tools tokenizer --corpus data/corpus --out data/tokenizer

Writes `tokenizer.json` (Hugging Face `tokenizers` format, 2,048 entries, `<|endoftext|>` is id 0) and the encoded
splits `train.npy`, `heldout.npy` (uint16): the chunks one after another, each opened by `<|endoftext|>`.
"""

import argparse
import hashlib
import json
import time
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

D_VOCAB = 2_048
BOS = "<|endoftext|>"


def texts(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.open()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=Path("data/corpus"))
    parser.add_argument("--out", type=Path, default=Path("data/tokenizer"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    began = time.time()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=D_VOCAB,
        special_tokens=[BOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(args.corpus / "train.jsonl"), trainer)
    tokenizer.save(str(args.out / "tokenizer.json"))
    report = {"d_vocab": tokenizer.get_vocab_size()}
    for split in ("train", "heldout"):
        pieces = texts(args.corpus / f"{split}.jsonl")
        ids = [[0, *encoded.ids] for encoded in tokenizer.encode_batch(pieces)]
        flat = np.concatenate([np.asarray(row, dtype=np.uint16) for row in ids])
        np.save(args.out / f"{split}.npy", flat)
        report[split] = {
            "tokens": int(flat.size),
            "characters_per_token": round(sum(map(len, pieces)) / flat.size, 3),
            "sha256": hashlib.sha256(flat.tobytes()).hexdigest(),
        }
    report["tokenizer_sha256"] = hashlib.sha256((args.out / "tokenizer.json").read_bytes()).hexdigest()
    report["seconds"] = round(time.time() - began, 1)
    (args.out / "tokenizer-report.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
