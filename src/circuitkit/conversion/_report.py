"""What a conversion promises and what was measured."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerReport:
    """One converted MLP layer: heads it became, the promised `bound` on its output, the `measured` error beside it.

    **Source**: see `to_attention_only`.
    """

    layer: int
    activation: str
    neurons: int
    heads_per_neuron: float
    """On average: gated neurons within a `max_error` have as many as each needs."""
    attention_heads: int
    """Heads the layer had before."""
    activation_error: float
    """Largest error of the activation: on the whole line, or on `[-reach, reach]` for a gate."""
    bound: float
    """Promised: no output entry of this layer is wrong by more, for the same input, in exact arithmetic."""
    measured: float
    """The largest such error seen on the probe tokens, rounding in the model's precision included."""
    rounding: float
    """The largest part of the promise that rounding takes on the probe tokens, in the model's precision."""
    reach: float | None = None
    """Gated layers: the range the bound holds on; by the layer's norm no input leaves it, unless it was given."""
    measured_reach: float | None = None

    @property
    def neuron_heads(self) -> int:
        return round(self.neurons * self.heads_per_neuron)


@dataclass(frozen=True)
class Report:
    """Heads, parameters, promised bounds and measured errors of a converted model. `str(report)` is a table.

    **Source**: see `to_attention_only`.
    """

    layers: tuple[LayerReport, ...]
    parameters: int
    """Independent numbers in the converted model: as many as before, since `W_Q`, `W_V` come from one `W_in`."""
    logit_error: float
    """Largest difference of any logit from the original model's on the probe tokens."""

    @property
    def bound(self) -> float:
        """The largest promised bound of any layer."""
        return max(layer.bound for layer in self.layers)

    @property
    def heads(self) -> int:
        """All heads of the converted model."""
        return sum(layer.neuron_heads + layer.attention_heads for layer in self.layers)

    def __str__(self) -> str:
        lines = [
            f"{'layer':>5} {'activation':>10} {'heads before':>12} {'neuron-heads':>12} {'promised':>9} {'+ rounding':>10} {'measured':>9}"
        ]
        for row in self.layers:
            lines.append(
                f"{row.layer:>5} {row.activation:>10} {row.attention_heads:>12} {row.neuron_heads:>12} "
                f"{row.bound:>9.1e} {row.rounding:>10.1e} {row.measured:>9.1e}"
            )
            if row.reach is not None and row.measured_reach is not None and row.measured_reach > row.reach:
                lines.append(
                    f"{row.layer:>5} a gate met {row.measured_reach:.2g}, beyond the stated range {row.reach:.2g}: the bound "
                    "does not hold here; give a larger gate_range, or leave it out"
                )
        lines.append(f"{self.heads} heads, {self.parameters} parameters; largest logit error {self.logit_error:.1e}")
        return "\n".join(lines)
