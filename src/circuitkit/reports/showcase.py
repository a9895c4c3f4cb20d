"""The prompt of a report, and what the model predicts there without the heads of its circuits."""

import torch
from torch import Tensor

from circuitkit.bridge import Model
from circuitkit.effects import effect
from circuitkit.reports.lines import Line
from circuitkit.reports.measures import Subject, speller
from circuitkit.rows import read_rows
from circuitkit.runs import Run

TEXT = (
    "The house belonged to Mr. Dorling. Nobody in the village had spoken to Mr. Dorling for a year. "
    "One evening a letter came to the house, and it was for Mr."
)
"""The prompt, if none is given: its next token is the one that followed the last word twice before."""
LONGEST = 24
"""The prompt of a model without a tokenizer has at most so many tokens."""


def prompt_ids(model: Model, prompt: str | None) -> list[int]:
    """Return the token ids of a prompt; without a tokenizer, random tokens of which half come twice."""
    if prompt is not None:
        return read_rows(model, prompt).tokens[0].tolist()
    if model.tokenizer is not None:
        return read_rows(model, list(model.to_tokens(TEXT))).tokens[0].tolist()
    n_tokens = min(LONGEST, model.cfg.n_ctx)
    generator = torch.Generator().manual_seed(0)
    once = torch.randperm(model.cfg.d_vocab, generator=generator)[: n_tokens // 2 + 1]
    return once.repeat(n_tokens)[:n_tokens].tolist()


def without_heads(subject: Subject, names: list[str]) -> list[Line]:
    """Ablate some heads, and give the probability of the token that the whole model predicts.

    The control is the median over ten random sets of as many heads of the same layers.
    """
    model, tokens = subject.load(), subject.tokens()
    answer = int(model(tokens.tokens)[0, -1].argmax())

    def probability(result: Run) -> Tensor:
        return result.logits[:, -1].float().softmax(-1)[:, answer]

    found = effect(model, tokens, names, measure=probability, draws=10)
    control = float((found.controls + found.values[0]).median())
    spelled = speller(model)(answer)
    value = float(found.values[1])
    return [Line(", ".join(names), "probability without", value, control=control, text=spelled)]
