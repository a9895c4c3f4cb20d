"""The checks of the exercises: each `check_...` tries an answer and says which mistake it makes.

An answer is a function. A check compares what it returns with the right result on a few generated
cases. If it differs, the check looks for a known mistake that gives the same result, and shows the
hint for it. `predict` notes a prediction, `picture` draws numbers, `mystery` and `try_claim` belong to
the last exercise of each chapter, and `toolkit` returns the functions that a reader has written.
"""

from circuitkit_book.exercises.average_out import check_average_out as check_average_out
from circuitkit_book.exercises.checking import Result as Result
from circuitkit_book.exercises.contents import catalogue as catalogue
from circuitkit_book.exercises.copying_head import check_copying_head as check_copying_head
from circuitkit_book.exercises.copying_score import check_copying_score as check_copying_score
from circuitkit_book.exercises.cut_wire import check_cut_wire as check_cut_wire
from circuitkit_book.exercises.exercise import Exercise as Exercise
from circuitkit_book.exercises.find_induction import check_find_induction as check_find_induction
from circuitkit_book.exercises.first_share import check_first_share as check_first_share
from circuitkit_book.exercises.heard_part import check_heard_part as check_heard_part
from circuitkit_book.exercises.induction_head import check_induction_head as check_induction_head
from circuitkit_book.exercises.k_composition import check_k_composition as check_k_composition
from circuitkit_book.exercises.logit_in_parts import check_logit_in_parts as check_logit_in_parts
from circuitkit_book.exercises.logit_through_norm import (
    check_logit_through_norm as check_logit_through_norm,
)
from circuitkit_book.exercises.mlp_as_heads import check_mlp_as_heads as check_mlp_as_heads
from circuitkit_book.exercises.mysteries import mystery as mystery
from circuitkit_book.exercises.neuron_as_head import check_neuron_as_head as check_neuron_as_head
from circuitkit_book.exercises.norm_gain import check_norm_gain as check_norm_gain
from circuitkit_book.exercises.note_mover import check_note_mover as check_note_mover
from circuitkit_book.exercises.omega_window import check_omega_window as check_omega_window
from circuitkit_book.exercises.one_pair_gate import check_one_pair_gate as check_one_pair_gate
from circuitkit_book.exercises.patch import check_patch as check_patch
from circuitkit_book.exercises.pictures import picture as picture
from circuitkit_book.exercises.pictures import predict as predict
from circuitkit_book.exercises.short_induction import (
    check_possible_writer as check_possible_writer,
)
from circuitkit_book.exercises.short_induction import (
    check_rescaled_score as check_rescaled_score,
)
from circuitkit_book.exercises.short_induction import (
    check_second_match as check_second_match,
)
from circuitkit_book.exercises.short_induction import (
    check_tied_wires as check_tied_wires,
)
from circuitkit_book.exercises.short_induction import (
    check_two_tokens_later as check_two_tokens_later,
)
from circuitkit_book.exercises.short_mlp import check_bias_row as check_bias_row
from circuitkit_book.exercises.short_mlp import check_n_paths as check_n_paths
from circuitkit_book.exercises.short_mlp import check_row_of_scores as check_row_of_scores
from circuitkit_book.exercises.short_mlp import check_second_neuron as check_second_neuron
from circuitkit_book.exercises.short_mlp import check_sharpness as check_sharpness
from circuitkit_book.exercises.short_mlp import check_smallest_omega as check_smallest_omega
from circuitkit_book.exercises.short_qk_ov import check_column_of_ash as check_column_of_ash
from circuitkit_book.exercises.short_qk_ov import check_constant_head as check_constant_head
from circuitkit_book.exercises.short_qk_ov import check_odds_of_mind as check_odds_of_mind
from circuitkit_book.exercises.short_qk_ov import check_rank_of_ov as check_rank_of_ov
from circuitkit_book.exercises.short_qk_ov import check_row_of_he as check_row_of_he
from circuitkit_book.exercises.short_qk_ov import check_score_of_itself as check_score_of_itself
from circuitkit_book.exercises.short_stream import (
    check_head_with_the_name as check_head_with_the_name,
)
from circuitkit_book.exercises.short_stream import check_second_wire as check_second_wire
from circuitkit_book.exercises.short_superposition import (
    check_cancelling_writes as check_cancelling_writes,
)
from circuitkit_book.exercises.short_superposition import check_n_subsets as check_n_subsets
from circuitkit_book.exercises.short_superposition import check_shared_write as check_shared_write
from circuitkit_book.exercises.short_superposition import check_six_gates as check_six_gates
from circuitkit_book.exercises.short_superposition import check_three_gates as check_three_gates
from circuitkit_book.exercises.strict_verdict import check_strict_verdict as check_strict_verdict
from circuitkit_book.exercises.toolkits import toolkit as toolkit
from circuitkit_book.exercises.turned_stream import check_turned_stream as check_turned_stream
from circuitkit_book.exercises.two_heads import check_two_heads as check_two_heads
from circuitkit_book.exercises.verdicts import try_claim as try_claim
from circuitkit_book.exercises.where_they_part import check_where_they_part as check_where_they_part
from circuitkit_book.exercises.without_source import check_without_source as check_without_source

__all__ = [
    "Exercise", "Result", "catalogue", "check_average_out", "check_copying_head", "check_copying_score",
    "check_cut_wire", "check_find_induction", "check_first_share", "check_heard_part", "check_induction_head",
    "check_k_composition", "check_logit_in_parts", "check_logit_through_norm", "check_mlp_as_heads",
    "check_neuron_as_head", "check_norm_gain", "check_note_mover", "check_omega_window", "check_one_pair_gate",
    "check_patch", "check_strict_verdict", "check_turned_stream", "check_two_heads", "check_where_they_part",
    "check_without_source", "mystery", "picture", "predict", "toolkit", "try_claim",
    "check_bias_row", "check_n_paths", "check_row_of_scores", "check_second_neuron",
    "check_sharpness", "check_smallest_omega",
    "check_cancelling_writes", "check_n_subsets", "check_shared_write", "check_six_gates", "check_three_gates",
    "check_possible_writer", "check_rescaled_score", "check_second_match", "check_tied_wires", "check_two_tokens_later",
    "check_head_with_the_name", "check_second_wire",
    "check_column_of_ash", "check_constant_head", "check_odds_of_mind",
    "check_rank_of_ov", "check_row_of_he", "check_score_of_itself",
]  # fmt: skip
