"""A model in one file: the numbers of the page against PyTorch, and what is refused."""

import base64

import pytest
import torch

import circuitkit as ck
from circuitkit.lab_file import lab
from tests.support import lab_models

# The page computes in double precision; Llama's norms and rotations are in single precision in PyTorch.
TOLERANCE = 1e-4
SHAPES = ("gpt2", "llama", "gpt2 heads", "llama heads")


def question(model, tokens: torch.Tensor, cut_sets: list[list[str]]) -> tuple[dict, list]:
    """What the page is asked about a model, and what the library answers."""
    page = lab(model, tokens)
    text = " ".join(map(str, tokens[0].tolist()))
    asked = [{"text": text, "cuts": cuts} for cuts in cut_sets]
    theirs = [ck.run(model, tokens, without=cuts).logits[0] for cuts in cut_sets]
    weights = base64.b64encode(page.weights).decode()
    return {"weights": weights, "asked": asked}, theirs


def cuts_of(model, choose) -> list[list[str]]:
    """No cut, a head, a wire, and several of both."""
    n_layers, n_heads = len(model.blocks), model.cfg.n_heads
    heads = [f"L{layer}H{head}" for layer in range(n_layers) for head in range(n_heads)]
    wires = [f"{a}->{b}.{side}" for a in heads for b in heads if a[1] < b[1] for side in "QKV"]
    some = choose.sample(wires, min(len(wires), 5))
    return [[], [choose.choice(heads)], some[:1], [choose.choice(heads), *some]]


def largest_difference(seeds, tmp_path) -> tuple[float, int]:
    """Of a logit of the page from one of PyTorch, as a share of the model's largest logit."""
    questions, references = [], []
    for shape in SHAPES:
        for seed in seeds:
            model, choose = lab_models.random_model(shape, seed, tmp_path / f"{shape} {seed}")
            tokens = torch.randint(30, (1, choose.choice([7, 15])))
            asked, theirs = question(model, tokens, cuts_of(model, choose))
            questions.append(asked)
            references.append(theirs)
    worst = 0.0
    for answer, theirs in zip(lab_models.computed_by_the_lab(questions), references, strict=True):
        assert "error" not in answer, answer
        largest = max(float(logits.abs().max()) for logits in theirs)
        for ours, logits in zip(answer["logits"], theirs, strict=True):
            difference = torch.tensor(ours).view_as(logits) - logits
            worst = max(worst, float(difference.abs().max()) / largest)
    return worst, len(questions)


@pytest.mark.filterwarnings("ignore")
def test_logits_of_the_page_are_those_of_pytorch(tmp_path):
    worst, count = largest_difference(range(2), tmp_path)
    assert count == 8
    assert worst < TOLERANCE


@pytest.mark.weekly
@pytest.mark.filterwarnings("ignore")
def test_logits_of_200_random_models_are_those_of_pytorch(tmp_path):
    worst, count = largest_difference(range(100, 150), tmp_path)
    print(f"{count} models: the largest difference is {worst:.2g} of the largest logit")
    assert count == 200
    assert worst < TOLERANCE
