"""Effects beside their drawn sets: every number of every row is in the figure, in its place."""

from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pytest

from circuitkit import figures, handmade, induction
from circuitkit.figures import _picture

ALT = "The cut costs all accuracy and drawn sets cost none of it"
#: Two effects by hand: whole, after, drawn sets, each on four rows.
CUT = np.array(
    [[0.5, 0.7, 0.6, 0.6], [0.0, 0.2, 0.0, 0.0], [0.6, 0.6, 0.6, 0.6], [0.4, 0.6, 0.5, 0.5]]
)
MILD = CUT[[0, 2]]


@pytest.fixture
def axes(monkeypatch):
    """The axes as they were drawn, with the alt text under which they were shown."""
    shown = []
    monkeypatch.setattr(_picture, "show", lambda fig, alt: shown.append((fig.axes[0], alt)))
    yield lambda **found: (
        figures.effects(
            {k: SimpleNamespace(values=v) for k, v in found.items()}, alt=ALT, label="accuracy"
        ),
        shown.pop(),
    )[1]
    plt.close("all")


def test_every_number_has_its_place(axes):
    ax, alt = axes(cut=CUT, mild=MILD)
    assert alt == ALT
    points = {group.get_label(): np.asarray(group.get_offsets()) for group in ax.collections}
    assert points["the whole model"] == pytest.approx(np.array([[0.6, 0], [0.6, 1]]))
    assert points["drawn sets"] == pytest.approx(np.array([[0.6, 0], [0.5, 0]]))
    assert points["after the change, 95 %"] == pytest.approx(np.array([[0.05, 0], [0.6, 1]]))
    (bars,) = ax.containers
    change = CUT[1] - CUT[0]  # -.5, -.5, -.6, -.6: it spreads less than what is left does
    margin = 1.96 * np.sqrt(((change - change.mean()) ** 2).sum() / 3) / 2
    ends = [line.get_xdata()[0] for line in bars[1]]
    assert ends == pytest.approx([0.05 - margin, 0.05 + margin])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["cut", "mild"]
    assert ax.get_xlabel() == "accuracy"
    assert ax.yaxis_inverted()  # the first one stands at the top


def test_a_real_effect_on_one_row(monkeypatch):
    made = []
    monkeypatch.setattr(
        _picture, "show", lambda fig, alt: made.append(figures.picture(fig, alt=alt))
    )
    rows = induction.repeated_tokens(20, 8, batch=1)
    cut = induction.effect(
        handmade.build_induction_model(20, 16), rows, "L0H0->L1H0.K", measure="accuracy", draws=2
    )
    figures.effects({"the wire": cut}, alt=ALT)
    said = repr(made[0])
    assert said.startswith(f"Figure: {ALT}")
    assert f"points 'the whole model': 2 values, largest {float(cut.values[0]):.3g}," in said
    assert "points 'drawn sets'" not in said  # there is no other wire of its kind in this model


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"a": 3.0},
        {"a": SimpleNamespace(values=[1.0])},
        {"a": SimpleNamespace(values=[[1.0, 2.0]])},
        {"a": SimpleNamespace(values=[[1.0], [float("nan")]])},
        {"a": SimpleNamespace(values=CUT), "b": None},
    ],
)
def test_what_is_no_effect_is_refused_in_words(found):
    with pytest.raises(ValueError, match="each with finite values"):
        figures.effects(found, alt=ALT)
