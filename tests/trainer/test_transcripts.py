"""Demonstrations: every habit has its form, its share and its genuine tool responses."""

import json
import re
from collections import Counter

import pytest

from trainer.data.snippets import response_text, run_snippet
from trainer.data.synthetic import SyntheticProblem, generate_problems
from trainer.data.transcripts import Demonstration, Habit, HabitMix, demonstrations
from trainer.rollout.tool_calls import parse_tool_call

PROBLEMS = generate_problems(400, 11)
BY_ID = {p.id: p for p in PROBLEMS}


def demonstrate_all(**shares: float) -> list[Demonstration]:
    mix = HabitMix(**({h.value: 0.0 for h in Habit} | shares)) if shares else None
    return demonstrations(PROBLEMS, 1, mix=mix)


def answers(demonstration: Demonstration) -> list[str]:
    texts = [m.content for m in demonstration.messages if m.role == "assistant"]
    return re.findall(r"<answer>\n\\boxed\{(.*?)\}\n</answer>", "".join(texts))


def codes(demonstration: Demonstration) -> list[str]:
    calls = [parse_tool_call(m.content) for m in demonstration.messages if m.role == "assistant"]
    return [call.code for call in calls if call is not None]


def problem_of(demonstration: Demonstration) -> SyntheticProblem:
    return BY_ID[demonstration.problem_id]


def test_habits_come_in_the_shares_of_the_mix() -> None:
    counts = Counter(d.habit for d in demonstrate_all())
    for habit, share in HabitMix().shares().items():
        assert counts[habit] / len(PROBLEMS) == pytest.approx(share, abs=0.06)


def test_shares_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(ValueError, match="must add up to 1"):
        HabitMix(proper=0.9)


def test_the_same_seed_gives_the_same_demonstrations() -> None:
    assert demonstrations(PROBLEMS[:50], 4) == demonstrations(PROBLEMS[:50], 4)
    assert demonstrations(PROBLEMS[:50], 4) != demonstrations(PROBLEMS[:50], 5)


def test_only_what_the_model_writes_is_trained() -> None:
    for demonstration in demonstrate_all():
        assert all(m.trained == (m.role == "assistant") for m in demonstration.messages)


def test_messages_alternate_and_end_with_the_only_answer() -> None:
    for demonstration in demonstrate_all():
        roles = [m.role for m in demonstration.messages]
        assert roles == (["user", "assistant"] + ["tool", "assistant"] * len(roles))[: len(roles)]
        assert len(answers(demonstration)) == 1
        assert demonstration.messages[-1].content.endswith("</answer>")


def test_every_assistant_turn_closes_its_reason_once() -> None:
    for demonstration in demonstrate_all():
        for message in demonstration.messages:
            if message.role == "assistant":
                words, _, rest = message.content.partition("</reason>\n")
                assert words
                assert "reason>" not in words + rest
                assert rest.startswith(("<tool_call>\n{", "<answer>\n\\boxed{"))


def test_a_call_is_json_of_the_one_tool() -> None:
    demonstration = demonstrate_all(proper=1.0)[0]
    body = demonstration.messages[1].content.split("<tool_call>\n")[1].removesuffix("\n</tool_call>")
    call = json.loads(body)
    assert call["name"] == "execute_python_code_with_standard_io"
    assert set(call["arguments"]) == {"code", "input"}


def test_tool_responses_are_the_output_of_the_code_above_them() -> None:
    for demonstration in demonstrate_all():
        shown = [m.content for m in demonstration.messages if m.role == "tool"]
        assert shown == [response_text(run_snippet(code)) for code in codes(demonstration)]


def test_responses_are_written_by_the_one_who_is_asked_to() -> None:
    plain, shouted = demonstrations(PROBLEMS[:50], 4), demonstrations(PROBLEMS[:50], 4, respond=lambda r: f"{r.ok}!")
    for one, other in zip(plain, shouted, strict=True):
        assert [m for m in one.messages if m.trained] == [m for m in other.messages if m.trained]
        assert {m.content for m in other.messages if m.role == "tool"} <= {"True!", "False!"}


@pytest.mark.parametrize("habit", [Habit.PROPER, Habit.DOUBLE_CHECK])
def test_good_habits_answer_right_without_an_error(habit: Habit) -> None:
    for demonstration in demonstrate_all(**{habit.value: 1.0}):
        assert answers(demonstration) == [str(problem_of(demonstration).answer)]
        assert all(run_snippet(code).ok for code in codes(demonstration))
        assert len(codes(demonstration)) >= (1 if habit is Habit.PROPER else 2)


def test_a_mistake_fails_first_and_is_repaired_or_given_up() -> None:
    right = 0
    for demonstration in demonstrate_all(mistake=1.0):
        first, *rest = codes(demonstration)
        assert not run_snippet(first).ok
        assert all(run_snippet(code).ok for code in rest)
        if rest:
            right += answers(demonstration) == [str(problem_of(demonstration).answer)]
    assert right / len(PROBLEMS) == pytest.approx(1 - HabitMix().give_up, abs=0.05)


def test_a_wrong_program_runs_and_answers_wrong() -> None:
    done = demonstrate_all(wrong_program=1.0)
    assert all(run_snippet(code).ok for d in done for code in codes(d))
    right = [answers(d) == [str(problem_of(d).answer)] for d in done]
    assert sum(right) / len(right) < 0.05


def test_a_direct_answer_calls_nothing_and_is_rarely_right() -> None:
    done = demonstrate_all(direct=1.0)
    assert all(len(d.messages) == 2 for d in done)
    right = [answers(d) == [str(problem_of(d).answer)] for d in done]
    assert 0.03 < sum(right) / len(right) < 0.25


def test_two_part_problems_use_the_number_they_saw() -> None:
    two_calls = [d for d in demonstrate_all(proper=1.0) if len(codes(d)) == 2]
    assert len(two_calls) > 10
    for demonstration in two_calls:
        seen = demonstration.messages[2].content
        assert seen in codes(demonstration)[1]
