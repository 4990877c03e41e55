"""Which test proves which public bug: cases h.2 and h.3 of the study of rStar2-Agent, traps 1 to 67 of trainers.

A name is `file::test` of this repository, or `hostile:name` for a program of the sandbox's catalogue, which runs twice
on real gVisor. Numbers that are missing are missing in the studies. "Not here" says what we do not have, and why.
"""

import re
from pathlib import Path

import pytest

from tests.sandbox.hostile_programs import PROGRAMS

TESTS = Path(__file__).parents[1]
BUGS, GROUPS = "trainer/test_public_bugs.py", "trainer/test_public_bugs_groups.py"
GUEST, FEEDBACK, CLIENT = "sandbox/test_public_bugs.py", "sandbox/test_feedback.py", "sandbox/test_client.py"
RESAMPLE, RESUME, VERIFY = "trainer/test_resample.py", "trainer/test_resume.py", "trainer/test_verify.py"
ENGINE, POOL, LOSS = "trainer/test_torch_engine.py", "trainer/test_engine_pool.py", "trainer/test_loss.py"
VLLM = "vllm/test_engine.py"

H2 = {  # item: tests
    1: [f"{BUGS}::test_a_reward_trains_the_tokens_of_its_own_trajectory"],
    2: [f"{BUGS}::test_each_of_130_samples_has_its_own_reward"],
    3: [
        f"{RESAMPLE}::test_negatives_are_never_ranked",
        "trainer/test_resample_properties.py::test_penalties_of_wrong_rollouts_play_no_part",
    ],
    4: [f"{BUGS}::test_a_call_that_cannot_be_used_is_answered_once_counted_and_the_rollout_goes_on"],
    5: [f"{BUGS}::test_a_model_that_repeats_one_call_ends_at_the_turn_limit_and_is_wrong"],
    6: [
        f"{BUGS}::test_the_newline_after_a_turn_is_written_and_not_trained_on",
        "trainer/test_chat.py::test_every_boundary_of_two_tool_turns_equals_one_shot_rendering",
    ],
    7: [f"{BUGS}::test_ids_whose_text_encodes_otherwise_are_kept_as_sampled"],
    8: [f"{BUGS}::test_a_tool_response_is_appended_once"],
    10: [f"{BUGS}::test_a_turn_may_use_what_the_turns_before_it_left"],
    11: [f"{BUGS}::test_tool_output_is_cut_by_tokens_whatever_its_characters"],
    12: [f"{POOL}::test_turns_are_spread_and_come_back"],
    13: [  # what has no room waits, none is evicted in mid-turn
        f"{ENGINE}::test_more_requests_than_rows",
        f"{POOL}::test_turns_wait_here_and_not_in_an_engine_that_is_full",
    ],
    15: [f"{BUGS}::test_a_hung_comparison_ends_at_its_limit_and_touches_no_other"],
    16: [f"{BUGS}::test_two_hundred_answers_at_once_give_no_false_timeout"],
    17: [f"{BUGS}::test_padding_behind_a_truncated_rollout_is_not_trained_on"],
    18: [f"{BUGS}::test_prompt_and_tool_tokens_have_no_gradient"],
    19: [f"{BUGS}::test_prompt_and_tool_tokens_have_no_gradient"],
    21: [f"{GROUPS}::test_numbers_of_a_parquet_column_are_plain_and_stored"],
    22: [f"{GROUPS}::test_a_stored_trajectory_is_read_as_text_turn_by_turn"],
    23: [
        f"{GROUPS}::test_what_is_watched_live_is_bounded_whatever_a_step_generates",
        "trainer/test_agent.py::test_an_unwatched_rollout_sends_nothing",
    ],
    25: [f"{GROUPS}::test_each_rollout_is_graded_by_the_answer_of_its_own_problem"],
    27: [
        f"{GUEST}::test_a_child_left_running_is_waited_for_as_python_does_and_ends_at_the_limit",
        *("hostile:child-forever", "hostile:orphans"),
    ],
    28: [
        f"{GUEST}::test_a_module_the_program_did_not_import_is_no_name_of_it",
        f"{GUEST}::test_a_variable_may_have_any_name",
        f"{FEEDBACK}::test_nothing_of_ours_is_importable",
        "hostile:climb-our-frames",
    ],
    29: ["hostile:walls", "hostile:system-calls", "hostile:upwards", "hostile:nowhere-else-to-write"],
    30: [f"{FEEDBACK}::test_exits", "hostile:exit-none", "hostile:exit-object", "hostile:os-exit"],
}

H3 = {
    "A": [
        f"{BUGS}::test_what_a_program_prints_does_not_change_its_status",
        *("hostile:markers", "hostile:frames-on-stdout"),
    ],
    "B": [f"{GUEST}::test_output_before_an_exception_and_bytes_that_are_no_text_are_kept", "hostile:not-utf-8"],
    "C": [f"{FEEDBACK}::test_stdout_before_the_exception_is_kept", "hostile:buffered-before-a-kill"],
    "E": ["hostile:alarm-off", "hostile:alarm-storm"],
    "F": ["hostile:setsid-daemon", "hostile:grandchild-holds-the-pipe"],
    "G": ["hostile:thread-forever"],
    "I": [
        f"{CLIENT}::test_only_unanswered_calls_are_sent_again",
        f"{CLIENT}::test_ids_come_back_even_when_they_repeat",
        f"{CLIENT}::test_rejected_is_tried_again_and_never_returned",
    ],
    "J": [
        "sandbox/test_service.py::test_a_bad_body_is_refused_and_not_echoed",
        f"{CLIENT}::test_only_the_call_that_is_not_understood_is_refused",
    ],
    "K": [f"{FEEDBACK}::test_input_reads_stdin_and_then_ends", "hostile:input-of-nothing"],
    "L": ["hostile:science", "hostile:numpy-under-a-limit", "sandbox/test_tiers.py::test_choice"],
    "O": [
        f"{BUGS}::test_only_a_box_in_the_answer_tag_is_an_answer",
        f"{BUGS}::test_a_box_in_a_tool_response_or_an_earlier_turn_is_no_answer",
    ],
    "P": [f"{BUGS}::test_only_a_box_in_the_answer_tag_is_an_answer"],
    "R": [f"{BUGS}::test_a_hung_comparison_ends_at_its_limit_and_touches_no_other"],
    "S": [
        f"{GROUPS}::test_the_sandbox_is_where_the_environment_says_and_grading_needs_no_service",
        "sandbox/test_ray_node.py::test_agents_are_found_and_a_killed_node_is_back_and_costs_no_answer",
    ],
    "U": [f"{BUGS}::test_watching_a_trajectory_changes_nothing_of_it"],
}

NOT_HERE = {48: "there is no pass@k advantage to choose"}

TRAPS = {
    1: [f"{BUGS}::test_ids_whose_text_encodes_otherwise_are_kept_as_sampled"],
    2: [f"{BUGS}::test_the_newline_after_a_turn_is_written_and_not_trained_on"],
    3: [f"{BUGS}::test_a_turn_is_closed_exactly_once"],
    4: [f"{BUGS}::test_a_turn_that_ended_on_another_stop_token_is_closed_with_mask_0"],
    5: [f"{BUGS}::test_every_request_extends_the_one_before"],
    6: [f"{BUGS}::test_white_space_at_the_end_of_a_turn_is_kept"],
    7: [f"{BUGS}::test_a_turn_of_nothing_but_a_call_is_a_turn"],
    8: [f"{BUGS}::test_the_end_of_a_turn_is_trained_on_though_it_may_be_the_padding_token"],
    9: [
        "trainer/test_packing.py::test_a_trained_token_is_predicted_one_position_before_it",
        f"{ENGINE}::test_parity_over_turns_of_one_trajectory",
    ],
    10: [f"{BUGS}::test_the_last_token_of_a_row_does_not_predict_the_first_of_the_next"],
    11: [
        "trainer/test_feedback.py::test_output_is_cut_in_the_middle_and_the_bytes_are_counted",
        "trainer/test_feedback.py::test_a_cut_text_is_a_head_and_a_tail_of_the_printed_one",
        "sandbox/test_output.py::test_the_middle_is_cut_and_counted",
    ],
    12: [f"{GROUPS}::test_a_short_row_scores_the_same_beside_a_long_one"],
    14: [
        f"{BUGS}::test_a_prompt_that_fills_the_context_gives_no_tokens_and_reward_0",
        f"{GROUPS}::test_a_rollout_without_a_token_is_counted_and_not_learned_from",
    ],
    15: [f"{BUGS}::test_generation_stops_where_template_tokenizer_or_generation_config_end"],
    16: [f"{ENGINE}::test_stop_id_ends_the_turn_and_is_its_last_token"],  # there are stop ids only, no stop strings
    17: [  # one call a turn, so there are never two tool messages in a row
        "trainer/test_tool_calls.py::test_only_the_first_call_counts",
        f"{BUGS}::test_a_tool_response_is_appended_once",
    ],
    19: [f"{BUGS}::test_a_call_that_cannot_be_used_is_answered_once_counted_and_the_rollout_goes_on"],
    20: [f"{BUGS}::test_a_closing_tag_in_the_code_does_not_end_the_call"],
    21: [f"{BUGS}::test_raw_newlines_and_tabs_in_the_code_are_read"],
    22: [f"{BUGS}::test_a_call_that_cannot_be_used_is_answered_once_counted_and_the_rollout_goes_on"],
    23: [f"{BUGS}::test_a_call_is_never_evaluated"],
    24: [f"{BUGS}::test_a_call_is_kept_as_the_model_wrote_it"],
    25: [f"{BUGS}::test_what_a_program_prints_does_not_change_its_status"],
    26: [f"{BUGS}::test_a_cancelled_rollout_is_cancelled_in_the_middle_of_a_tool_call"],
    28: ["trainer/test_advantage.py::test_equal_rewards_give_exact_zeros"],
    29: [f"{GROUPS}::test_a_length_penalty_makes_no_group_of_right_answers_informative"],
    30: [
        "trainer/test_advantage.py::test_equal_rewards_give_exact_zeros",
        f"{RESAMPLE}::test_fewer_than_two_graded_are_too_few",
    ],
    31: ["trainer/test_advantage.py::test_sample_standard_deviation"],
    32: [f"{GROUPS}::test_a_group_is_the_rollouts_of_one_prompt_wherever_they_stand"],
    34: ["trainer/test_ledger.py::test_masked_rollouts_count_in_the_mean_and_have_no_advantage"],
    35: [f"{BUGS}::test_each_of_130_samples_has_its_own_reward"],
    36: [f"{BUGS}::test_a_reward_trains_the_tokens_of_its_own_trajectory"],
    37: [
        "trainer/test_loss_split.py::test_any_split_gives_the_same_gradient",
        "trainer/test_loss_split.py::test_the_mean_of_micro_batch_means_would_be_another",
    ],
    39: [f"{LOSS}::test_an_empty_micro_batch_is_zero_with_a_graph", f"{LOSS}::test_a_huge_ratio_stays_finite"],
    42: ["trainer/test_loss_split.py::test_any_split_gives_the_same_gradient"],
    43: ["trainer/test_sharded.py::test_two_steps_leave_the_same_policy_and_report"],
    44: ["trainer/test_sharded.py::test_the_gradient_is_the_same_on_any_number_of_ranks"],
    45: ["trainer/test_packing.py::test_the_first_ratio_is_one"],
    46: ["trainer/test_packing.py::test_rows_are_split_under_the_budget_first_fit_decreasing"],
    47: [f"{BUGS}::test_a_reward_trains_the_tokens_of_its_own_trajectory"],  # one trajectory is one sample
    49: [
        f"{ENGINE}::test_parity_with_transformers_in_a_mixed_batch",
        f"{ENGINE}::test_entropy_of_a_known_distribution_and_temperature",
    ],
    50: [f"{GROUPS}::test_truncated_sampling_cannot_be_asked_for"],
    51: [
        "trainer/test_loss_terms.py::test_importance_weights_are_truncated_from_above",
        "trainer/test_loss_terms.py::test_mismatch_of_engine_and_trainer",
    ],
    52: [
        f"{ENGINE}::test_an_update_of_the_weights_is_seen_when_its_version_is_set",
        f"{POOL}::test_an_engine_with_other_weights_stops_the_run",
        f"{VLLM}::test_the_guard_finds_a_head_that_was_not_updated",
    ],
    53: [f"{POOL}::test_all_engines_pause_before_one_is_updated_and_resume_after_all_are"],
    54: [
        f"{ENGINE}::test_an_update_in_mid_turn_leaves_no_stale_row",
        f"{VLLM}::test_after_an_update_the_weights_are_the_learner_s",
    ],
    55: [f"{VLLM}::test_logprobs_are_the_learner_s_and_entropies_a_bound"],
    57: [
        "trainer/test_seeds.py::test_samples_of_a_group_differ",
        f"{ENGINE}::test_twins_of_a_prompt_are_computed_once_and_differ",
    ],
    58: [
        f"{RESUME}::test_killed_in_each_of_six_consecutive_steps",
        f"{RESUME}::test_killed_with_steps_to_do_again",
        "trainer/test_pipeline.py::test_changed_problems_are_refused_by_their_content",
    ],
    59: [  # the learning rate is a metric, and metrics are compared
        f"{RESUME}::test_killed_in_each_of_six_consecutive_steps",
        f"{RESUME}::test_sft_goes_on_from_the_step_it_was_killed_in",
    ],
    60: [
        f"{RESUME}::test_killed_at_the_boundary_of_two_stages",
        f"{POOL}::test_a_rebuilt_engine_has_the_newest_weights_before_a_turn",
    ],
    61: [
        f"{ENGINE}::test_a_failing_step_fails_its_requests_and_not_the_engine",
        "trainer/test_agent.py::test_engine_failure_is_ungraded",
        f"{POOL}::test_turns_of_a_dead_engine_are_done_again_and_no_other",
    ],
    62: ["trainer/test_reporter.py::test_an_outage_loses_nothing"],
    63: [f"{GROUPS}::test_ratios_are_of_sums_and_over_all_that_was_generated"],
    64: [
        f"{BUGS}::test_verification_works_though_the_trainer_calls_it_from_a_thread",
        f"{VERIFY}::test_what_would_hang_is_refused_at_once",
        f"{VERIFY}::test_a_comparison_without_memory_has_no_grade",
    ],
    65: [
        f"{BUGS}::test_a_reference_that_cannot_be_read_is_no_reward_at_all",
        f"{VERIFY}::test_other_answers",
    ],
    66: [f"{VERIFY}::test_numbers_in_digits_are_compared_exactly", f"{VERIFY}::test_other_answers"],
    67: [f"{BUGS}::test_an_answer_that_the_budget_cut_is_wrong"],
}
NUMBERS_WITHOUT_A_TRAP = {13, 18, 27, 33, 38, 40, 41, 56}  # of the study
ITEMS_OF_H2 = {*range(1, 9), 10, 11, 12, 13, *range(15, 20), 21, 22, 23, 25, *range(27, 31)}
ITEMS_OF_H3 = set("ABCEFGIJKLOPRSU")


@pytest.mark.parametrize("index", [H2, H3, TRAPS], ids=["h.2", "h.3", "traps"])
def test_every_test_of_the_index_exists(index: dict[object, list[str]]) -> None:
    programs = {program.name for program in PROGRAMS}
    for case, names in index.items():
        assert names, case
        for name in names:
            kind, _, rest = name.partition(":")
            if kind == "hostile":
                assert rest in programs, f"{case}: {name}"
                continue
            file, _, test = name.partition("::")
            found = re.search(rf"^(?:async )?def {test}\b", (TESTS / file).read_text(), re.MULTILINE)
            assert found, f"{case}: {name}"


def test_every_item_of_the_study_has_its_test_or_a_reason() -> None:
    assert (set(H2), set(H3)) == (ITEMS_OF_H2, ITEMS_OF_H3)
    assert TRAPS.keys() & NOT_HERE.keys() == set()
    assert TRAPS.keys() | NOT_HERE.keys() | NUMBERS_WITHOUT_A_TRAP == set(range(1, 68))
