"""The prompt of a report, and what the model predicts there without the heads of its circuits."""

from math import nan

import torch
from torch import Tensor

from circuitkit.bridge import Model
from circuitkit.effects import effect
from circuitkit.reports import rules
from circuitkit.reports.lines import Line
from circuitkit.reports.measures import Subject, speller
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
    n_ctx, d_vocab = model.cfg.n_ctx, model.cfg.d_vocab
    if model.tokenizer is not None:
        ids = model.to_tokens(TEXT if prompt is None else prompt, truncate=prompt is None)[0]
    elif prompt is None:
        n_tokens = min(LONGEST, n_ctx)
        generator = torch.Generator().manual_seed(0)
        once = torch.randperm(d_vocab, generator=generator)[: n_tokens // 2 + 1]
        ids = once.repeat(n_tokens)[:n_tokens]
    else:
        raise ValueError(
            "The model has no tokenizer, so it cannot read a prompt. Leave prompt out, or save the "
            "tokenizer with the weights: tokenizer.save_pretrained(folder)."
        )
    if not 0 < len(ids) <= n_ctx:
        raise ValueError(
            f"The prompt has {len(ids)} tokens, and this model reads 1 to {n_ctx}. "
            "Write another prompt."
        )
    largest = max([*ids.tolist(), *rules.opening_tokens(model)])
    if largest >= d_vocab:
        raise ValueError(
            f"The tokenizer gives the token id {largest}, and the model has {d_vocab} tokens, 0 to "
            f"{d_vocab - 1}. Load the model with the tokenizer with which it was trained."
        )
    return ids.tolist()


def without_heads(subject: Subject, names: list[str]) -> list[Line]:
    """Ablate some heads, and give the probability of the token that the whole model predicts.

    The control is the median over ten random sets of as many heads of the same layers.
    """
    model, tokens = subject.load(), subject.tokens()
    answer = int(model(tokens.tokens)[0, -1].argmax())

    def probability(result: Run) -> Tensor:
        return result.logits[:, -1].float().softmax(-1)[:, answer]

    found = effect(model, tokens, names, measure=probability, draws=10)
    control = float((found.controls + found.values[0]).median()) if len(found.controls) else nan
    spelled = speller(model)(answer)
    value = float(found.values[1])
    return [Line(", ".join(names), "probability without", value, control=control, text=spelled)]
