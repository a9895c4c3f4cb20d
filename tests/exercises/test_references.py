"""The solutions agree with references that share no code with them: torch, slow loops, and the library."""

from itertools import combinations

import pytest
import torch
from torch.nn.functional import layer_norm, silu

from circuitkit import induction
from circuitkit.rows import Repeated
from circuitkit_book import exercises

BY_NAME = {exercise.name: exercise for exercise in exercises.catalogue()}


def right(name):
    """The cases of an exercise with what its solution gives."""
    exercise = BY_NAME[name]
    return [(case, exercise.solution(*exercise.given(case))) for case in exercise.all_cases()]


def same(found, expected, atol=1e-10):
    expected = torch.as_tensor(expected)
    torch.testing.assert_close(found.to(expected.dtype), expected, rtol=0, atol=atol)


def test_the_parts_of_a_logit_sum_to_the_logit_above_the_mean():
    for case, parts in right("logit_in_parts"):
        logits = case["parts"].sum(0) @ case["W_U"]
        same(parts.sum(), logits[case["token"]] - logits.mean())


def test_the_parts_through_a_norm_sum_to_the_logit_of_torch():
    for case, parts in right("logit_through_norm"):
        gain = case["gain"]
        whole = layer_norm(case["parts"].sum(0), gain.shape, gain, eps=case["eps"])
        same(parts.sum(), whole @ case["W_U"][:, case["token"]])


def test_the_readable_part_has_the_same_product_and_lies_in_the_column_space():
    for case, part in right("read_part"):
        same(part @ case["W"], case["x"] @ case["W"])
        assert torch.linalg.matrix_rank(torch.cat([part, case["W"].T])) == case["W"].shape[1]


def test_a_head_moves_notes_and_leaves_the_rest():
    for case, (W_V, W_O) in right("value_mover"):
        source, target = case["source"], case["target"]
        rest = torch.eye(source.shape[1], dtype=torch.float64) - source.T @ source
        for note in range(len(source)):
            same(source[note] + source[note] @ W_V @ W_O, target[note])
        same(rest + rest @ W_V @ W_O, rest)


def test_the_full_ov_circuit_of_the_copying_head_is_the_identity():
    for case, (W_V, W_O) in right("copying_head"):
        same(case["W_E"] @ W_V @ W_O @ case["W_U"], torch.eye(len(case["W_E"])).double())


def test_the_copying_score_is_that_of_the_whole_table():
    for case, score in right("copying_score"):
        values = torch.linalg.eigvals(case["W_E"] @ case["W_V"] @ case["W_O"] @ case["W_U"])
        same(score, values.real.sum() / values.abs().sum())


def test_k_composition_is_a_product_in_a_loop():
    for case, score in right("k_composition"):
        W_OV, W_QK = case["W_OV"], case["W_QK"]
        width, squares = len(W_OV), 0.0
        for i in range(width):
            for j in range(width):
                squares += float(sum(W_QK[i, m] * W_OV[j, m] for m in range(width))) ** 2
        same(score, squares**0.5 / (W_OV.norm() * W_QK.norm()))


@torch.no_grad()
def logits_by_hand(model, tokens, replace):
    """The logits of one row without a hook; `replace(layer, head, z)` returns the z that a head writes with."""
    x = (model.W_E[tokens[0]] + model.W_pos[: tokens.shape[1]]).double()
    for layer in range(model.cfg.n_layers):
        written = model.b_O[layer].double().expand_as(x).clone()
        for head in range(model.cfg.n_heads):
            q, k, v = (
                x @ W[layer, head].double() + b[layer, head].double()
                for W, b in zip(
                    (model.W_Q, model.W_K, model.W_V),
                    (model.b_Q, model.b_K, model.b_V),
                    strict=True,
                )
            )
            z = torch.zeros_like(q)
            for dst in range(len(x)):
                scores = k[: dst + 1] @ q[dst] / q.shape[1] ** 0.5
                z[dst] = scores.softmax(0) @ v[: dst + 1]
            written += replace(layer, head, z) @ model.W_O[layer, head].double()
        x = x + written
    return x @ model.W_U.double() + model.b_U.double()


def test_a_head_at_its_average_is_a_forward_pass_by_hand():
    for case, logits in right("average_out"):

        def average(layer, head, z, chosen=(case["layer"], case["head"])):
            return z.mean(0).expand_as(z) if (layer, head) == chosen else z

        same(logits[0], logits_by_hand(case["model"], case["tokens"], average), atol=1e-3)


def test_a_patch_is_a_forward_pass_by_hand():
    for case, logits in right("patch"):
        clean = {}
        chosen = (case["layer"], case["head"])

        def store(layer, head, z, clean=clean):
            clean[layer, head] = z
            return z

        def put(layer, head, z, clean=clean, chosen=chosen):
            return clean[chosen] if (layer, head) == chosen else z

        logits_by_hand(case["model"], case["clean"], store)
        patched = logits_by_hand(case["model"], case["corrupt"], put)
        same(logits, patched[-1], atol=1e-3)


def test_the_scores_of_induction_heads_are_those_of_the_library():
    compared = 0
    for case, found in right("find_induction"):
        span = case["tokens"][0, -case["period"] :].tolist()
        if len(set(span)) == case["period"]:  # the library counts every copy of a token
            repeated = Repeated(case["tokens"], case["period"], case["start"])
            table = induction.scores(case["model"], repeated)
            same(found.flatten(), table.values[:, 0].flatten(), atol=1e-6)
            compared += 1
    assert compared == 2


def test_the_pattern_after_a_cut_is_attention_of_torch():
    attention = torch.nn.functional.scaled_dot_product_attention
    for case, pattern in right("cut_wire"):
        x, keys = case["x"], case["x"] - case["r"]
        eye = torch.eye(len(x), dtype=torch.float64)
        same(pattern, attention(x @ case["W_Q"], keys @ case["W_K"], eye, is_causal=True))


def test_a_neuron_as_a_head_writes_silu():
    exercise = BY_NAME["neuron_as_head"]
    for case, answer in right("neuron_as_head"):
        wrote = exercise.outcome(answer, case)
        tokens = torch.Generator().manual_seed(4)
        d_model = len(case["w_in"])
        x = torch.randn(d_model + 2, d_model, generator=tokens, dtype=torch.float64)
        expected = torch.outer(silu(x @ case["w_in"] + case["b_in"]), case["w_out"])
        same(wrote[1:, :-1], expected)
        same(wrote[0], torch.zeros(d_model + 1).double())
        same(wrote[:, -1], torch.zeros(len(wrote)).double())


def test_an_mlp_of_one_silu_term_is_a_silu_layer():
    exercise = BY_NAME["mlp_as_heads"]
    for case in exercise.all_cases():
        case["terms"] = torch.tensor([[1.0, 0.0, 1.0, 0.0]], dtype=torch.float64)
        found = exercise.solution(*exercise.given(case))
        layer = silu(case["x"] @ case["W_in"] + case["b_in"]) @ case["W_out"] + case["b_out"]
        same(found, layer)


def test_both_errors_equal_the_tolerance_at_the_ends_of_the_window():
    for case, (smallest, largest) in right("omega_window"):
        leak = case["n_pos"] * torch.tensor(-2 * smallest).exp()
        assert float(leak) == pytest.approx(case["tolerance"], rel=1e-5)
        rounding = 2 * largest * case["eps"] / 2
        assert rounding / 4 == pytest.approx(case["tolerance"], rel=1e-12)


def test_the_gain_keeps_the_bias_token_and_rms_norm():
    for case, gain in right("norm_gain"):
        d_model = case["d_model"]
        rows = torch.eye(d_model + 1, dtype=torch.float64)
        normed = torch.nn.functional.rms_norm(rows, rows.shape[1:], gain, eps=0.0)
        assert normed[-1, -1] == pytest.approx(1.0)
        same(normed[:-1, :-1], d_model**0.5 * torch.eye(d_model).double())


def test_the_strict_verdict_is_a_loop_over_rows_and_sets():
    for case, rates in right("strict_verdict"):
        written, residual, has_source = case["written"], case["residual"], case["has_source"]
        for head in range(written.shape[1]):
            passed = {True: [], False: []}
            others = [other for other in range(written.shape[1]) if other != head]
            for row in range(len(written)):
                hits = []
                for count in range(len(others) + 1):
                    for rest in combinations(others, count):
                        logits = residual[row] + sum(written[row, index] for index in (head, *rest))
                        hits.append(int(logits.argmax()) == case["completion"])
                with_source = bool(has_source[row])
                passed[with_source].append(all(hits) if with_source else not any(hits))
            expected = [sum(passed[kind]) / len(passed[kind]) for kind in (True, False)]
            assert rates[head].tolist() == pytest.approx(expected)


def test_two_heads_write_the_gain_on_the_completion_after_a_source():
    exercise = BY_NAME["two_heads"]
    for case, answer in right("two_heads"):
        expected = torch.zeros(2 * case["n"] + 2)
        if 0 in case["prompt"] and 1 <= case["prompt"][-1] <= case["n"]:
            expected[case["prompt"][-1] + case["n"]] = case["gain"]
        same(exercise.outcome(answer, case), expected.double(), atol=1e-6)


def test_the_gate_opens_for_one_pair():
    exercise = BY_NAME["one_pair_gate"]
    for case, answer in right("one_pair_gate"):
        table = torch.zeros(len(case["W_E"]), len(case["W_E"])).double()
        table[case["query"], case["key"]] = 1.0
        same(exercise.outcome(answer, case), table, atol=1e-9)


def test_a_rotated_model_reads_and_writes_the_rotated_stream():
    for case, (W_E, W_V, W_O, W_U) in right("turned_stream"):
        R = case["R"]
        for old, new in ((case["W_E"], W_E), (case["W_O"], W_O)):
            same(new, torch.stack([sum(row[i] * R[i] for i in range(len(R))) for row in old]))
        for old, new in ((case["W_V"], W_V), (case["W_U"], W_U)):
            same(torch.linalg.solve(R.T, new), old)


def test_the_share_of_the_first_position_is_a_softmax_of_queries_and_keys():
    for case, shares in right("first_share"):
        model = case["model"]
        _, cache = model.run_with_cache(case["tokens"])
        for layer, head in ((0, 0), (model.cfg.n_layers - 1, model.cfg.n_heads - 1)):
            q, k = (cache[f"blocks.{layer}.attn.hook_{kind}"][0, :, head].double() for kind in "qk")
            first = []
            for dst in range(1, len(q)):
                weights = [
                    float(torch.exp(q[dst] @ k[src] / q.shape[1] ** 0.5)) for src in range(dst + 1)
                ]
                first.append(weights[0] / sum(weights))
            assert float(shares[layer, head]) == pytest.approx(sum(first) / len(first), abs=1e-5)


def test_an_induction_head_by_hand_continues_a_span_of_its_own():
    for case, heads in right("induction_head"):
        vocab, n_ctx = case["vocab"], case["n_ctx"]
        span = list(range(vocab - 1, 0, -1))[: (n_ctx - 1) // 2]
        tokens = [0, *span, *span]
        x = torch.zeros(len(tokens), 3 * vocab + n_ctx, dtype=torch.float64)
        for pos, token in enumerate(tokens):
            x[pos, token], x[pos, vocab + pos] = 1, 1
        for W_Q, W_K, W_V, W_O in heads:
            new = x.clone()
            for dst in range(len(x)):
                scores = torch.stack([(x[dst] @ W_Q) @ (x[src] @ W_K) for src in range(dst + 1)])
                weights = (scores / W_Q.shape[1] ** 0.5).softmax(0)
                new[dst] += sum(w * (x[src] @ W_V @ W_O) for src, w in enumerate(weights))
            x = new
        predicted = x[1 + len(span) : -1, -vocab:].argmax(1).tolist()
        assert predicted == tokens[2 + len(span) :]


def test_the_gap_of_a_neuron_is_the_largest_difference_of_what_it_reads():
    for case, gaps in right("where_they_part"):
        read = []
        for model in (case["one"], case["other"]):
            _, cache = model.run_with_cache(case["tokens"])
            mlps = [model.blocks[layer].mlp for layer in (0, 1)]
            inputs = [cache[f"blocks.{layer}.mlp.hook_in"][0] for layer in (0, 1)]
            read.append([x @ mlp.W_in + mlp.b_in for x, mlp in zip(inputs, mlps, strict=True)])
        for layer in (0, 1):
            differences = (read[0][layer] - read[1][layer]).detach()
            same(gaps[layer], torch.maximum(differences.amax(0), -differences.amin(0)), atol=1e-4)


def test_rates_with_and_without_a_source_are_counts_in_a_loop():
    for case, rates in right("without_source"):
        model, n = case["model"], case["model"].task.n_trigrams
        hits, due = [0, 0], 0
        for row in case["tokens"]:
            bare = torch.tensor([2 * n + 1 if token == 0 else token for token in row.tolist()])
            said = [model(prompt[None])[0].argmax(-1).tolist() for prompt in (row, bare)]
            is_open = follows = False  # after a source, and after a destination that it was for
            for pos, token in enumerate(row.tolist()):
                was_open, is_forced = is_open, is_open and 1 <= token <= n
                is_open = (was_open and not is_forced) or (token == 0 and not follows)
                follows = is_forced
                if is_forced:
                    due += 1
                    for kind in (0, 1):
                        hits[kind] += said[kind][pos] == token + n
        assert rates.tolist() == pytest.approx([hit / due for hit in hits])
