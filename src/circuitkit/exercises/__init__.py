"""Exercises that say what went wrong: each `check_...` takes an answer and names the likely mistake.

Each compares with plain loops of its own, and shares no code with the rooms that it teaches. A mistake that somebody made
may be added at any time.
"""

from circuitkit.exercises._catalogue import catalogue as catalogue
from circuitkit.exercises._check import Result as Result
from circuitkit.exercises._circuits import check_attention_pattern as check_attention_pattern
from circuitkit.exercises._circuits import check_copying_head as check_copying_head
from circuitkit.exercises._circuits import check_copying_score as check_copying_score
from circuitkit.exercises._circuits import check_head_as_one_matrix as check_head_as_one_matrix
from circuitkit.exercises._circuits import check_k_composition as check_k_composition
from circuitkit.exercises._circuits import check_virtual_head as check_virtual_head
from circuitkit.exercises._conversion import check_mlp_as_heads as check_mlp_as_heads
from circuitkit.exercises._conversion import check_neuron_as_head as check_neuron_as_head
from circuitkit.exercises._conversion import check_norm_gain as check_norm_gain
from circuitkit.exercises._conversion import check_omega_window as check_omega_window
from circuitkit.exercises._conversion import check_two_places as check_two_places
from circuitkit.exercises._conversion import check_two_weights as check_two_weights
from circuitkit.exercises._exercise import Exercise as Exercise
from circuitkit.exercises._exercise import Mistake as Mistake
from circuitkit.exercises._induction import check_cut_wire as check_cut_wire
from circuitkit.exercises._induction import check_induction_head as check_induction_head
from circuitkit.exercises._induction import check_induction_target as check_induction_target
from circuitkit.exercises._induction import check_prefix_matching as check_prefix_matching
from circuitkit.exercises._induction import check_second_pass as check_second_pass
from circuitkit.exercises._induction import check_without_head as check_without_head
from circuitkit.exercises._residual import check_bigram_loss as check_bigram_loss
from circuitkit.exercises._residual import check_heard_part as check_heard_part
from circuitkit.exercises._residual import check_logit_in_parts as check_logit_in_parts
from circuitkit.exercises._residual import check_logit_through_norm as check_logit_through_norm
from circuitkit.exercises._residual import check_note_mover as check_note_mover
from circuitkit.exercises._residual import check_turned_stream as check_turned_stream
from circuitkit.exercises._superposition import check_gate_price as check_gate_price
from circuitkit.exercises._superposition import check_gated_pattern as check_gated_pattern
from circuitkit.exercises._superposition import check_labels as check_labels
from circuitkit.exercises._superposition import check_one_pair_gate as check_one_pair_gate
from circuitkit.exercises._superposition import check_strict_verdict as check_strict_verdict
from circuitkit.exercises._superposition import check_two_heads as check_two_heads

__all__ = [
    "Exercise",
    "Mistake",
    "Result",
    "catalogue",
    "check_attention_pattern",
    "check_bigram_loss",
    "check_copying_head",
    "check_copying_score",
    "check_cut_wire",
    "check_gate_price",
    "check_gated_pattern",
    "check_head_as_one_matrix",
    "check_heard_part",
    "check_induction_head",
    "check_induction_target",
    "check_k_composition",
    "check_labels",
    "check_logit_in_parts",
    "check_logit_through_norm",
    "check_mlp_as_heads",
    "check_neuron_as_head",
    "check_norm_gain",
    "check_note_mover",
    "check_omega_window",
    "check_one_pair_gate",
    "check_prefix_matching",
    "check_second_pass",
    "check_strict_verdict",
    "check_turned_stream",
    "check_two_heads",
    "check_two_places",
    "check_two_weights",
    "check_virtual_head",
    "check_without_head",
]
