"""Exercises that say what went wrong: each `check_...` takes an answer and names the likely mistake.

Each compares with plain loops of its own, and shares no code with the rooms that it teaches. A mistake that somebody made
may be added at any time.
"""

from circuitkit.exercises._1_1_logit_in_parts import check_logit_in_parts as check_logit_in_parts
from circuitkit.exercises._1_2_logit_through_norm import (
    check_logit_through_norm as check_logit_through_norm,
)
from circuitkit.exercises._1_3_heard_part import check_heard_part as check_heard_part
from circuitkit.exercises._1_4_note_mover import check_note_mover as check_note_mover
from circuitkit.exercises._1_6_turned_stream import check_turned_stream as check_turned_stream
from circuitkit.exercises._1_7_average_out import check_average_out as check_average_out
from circuitkit.exercises._2_2_first_share import check_first_share as check_first_share
from circuitkit.exercises._2_3_copying_head import check_copying_head as check_copying_head
from circuitkit.exercises._2_4_copying_score import check_copying_score as check_copying_score
from circuitkit.exercises._2_5_k_composition import check_k_composition as check_k_composition
from circuitkit.exercises._3_2_find_induction import check_find_induction as check_find_induction
from circuitkit.exercises._3_3_patch import check_patch as check_patch
from circuitkit.exercises._3_4_induction_head import check_induction_head as check_induction_head
from circuitkit.exercises._3_5_cut_wire import check_cut_wire as check_cut_wire
from circuitkit.exercises._4_2_where_they_part import check_where_they_part as check_where_they_part
from circuitkit.exercises._4_3_neuron_as_head import check_neuron_as_head as check_neuron_as_head
from circuitkit.exercises._4_4_mlp_as_heads import check_mlp_as_heads as check_mlp_as_heads
from circuitkit.exercises._4_5_omega_window import check_omega_window as check_omega_window
from circuitkit.exercises._4_6_norm_gain import check_norm_gain as check_norm_gain
from circuitkit.exercises._5_2_strict_verdict import check_strict_verdict as check_strict_verdict
from circuitkit.exercises._5_3_two_heads import check_two_heads as check_two_heads
from circuitkit.exercises._5_4_without_source import check_without_source as check_without_source
from circuitkit.exercises._5_5_one_pair_gate import check_one_pair_gate as check_one_pair_gate
from circuitkit.exercises._check import Result as Result
from circuitkit.exercises._exercise import Exercise as Exercise
from circuitkit.exercises._exercise import Mistake as Mistake
from circuitkit.exercises._exercise import catalogue as catalogue
from circuitkit.exercises._mystery import mystery as mystery
from circuitkit.exercises._mystery import try_claim as try_claim
from circuitkit.exercises._picture import picture as picture
from circuitkit.exercises._picture import predict as predict
from circuitkit.exercises._toolkit import toolkit as toolkit

# isort: split
from circuitkit.exercises._earlier import (  # isort: skip
    check_attention_pattern, check_bigram_loss, check_gate_price, check_gated_pattern, check_head_as_one_matrix,
    check_induction_target, check_labels, check_prefix_matching, check_second_pass, check_two_places,
    check_two_weights, check_virtual_head, check_without_head,
)  # fmt: skip

__all__ = [
    "Exercise", "Mistake", "Result", "catalogue", "check_attention_pattern", "check_average_out",
    "check_bigram_loss", "check_copying_head", "check_copying_score", "check_cut_wire", "check_find_induction",
    "check_first_share", "check_gate_price", "check_gated_pattern", "check_head_as_one_matrix", "check_heard_part",
    "check_induction_head", "check_induction_target", "check_k_composition", "check_labels", "check_logit_in_parts",
    "check_logit_through_norm", "check_mlp_as_heads", "check_neuron_as_head", "check_norm_gain", "check_note_mover",
    "check_omega_window", "check_one_pair_gate", "check_patch", "check_prefix_matching", "check_second_pass",
    "check_strict_verdict", "check_turned_stream", "check_two_heads", "check_two_places", "check_two_weights",
    "check_virtual_head", "check_where_they_part", "check_without_head", "check_without_source", "mystery",
    "picture", "predict", "toolkit", "try_claim",
]  # fmt: skip
