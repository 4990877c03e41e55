import time

import pytest

from trainer.reward.answer import MAX_ANSWER_CHARS, count_answer_tags, extract_answer, last_boxed


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so</reason>\n<answer>\n\\boxed{42}\n</answer><|im_end|>", "42"),
        ("<answer>\\boxed{1} no, \\boxed{2}</answer>", "2"),
        ("<answer>\\boxed{1}</answer> better <answer>\\boxed{2}</answer>", "2"),
        ("<answer>\\boxed{\\frac{1}{2}}</answer>", "\\frac{1}{2}"),
        ("<answer>\\boxed{\\{1,2\\}}</answer>", "\\{1,2\\}"),
        ("<answer>\\fbox{ 12 }</answer>", "12"),
        ("<answer>\\boxed{}</answer>", ""),
        ("<answer>\\boxed{7</answer>", None),
        ("<answer>\\boxed{3} or \\boxed{7</answer>", "3"),
        ("<answer>\\boxed{7}", None),
        ("\\boxed{7}", None),
        ("\\boxed{7} <answer>7</answer>", None),
        ("<reason>\\boxed{7}</reason>", None),
        ("</answer>\\boxed{7}<answer>", None),
        ("", None),
    ],
)
def test_only_the_last_balanced_box_in_the_last_answer_counts(text, answer):
    assert extract_answer(text) == answer


def test_nested_box_is_read_from_outside():
    assert last_boxed("\\boxed{x = \\boxed{3}}") == "x = \\boxed{3}"


def test_answer_tags_are_counted_over_turns():
    assert count_answer_tags(["<answer>1</answer>", "<answer>2", "</answer>"]) == 2


@pytest.mark.parametrize("part", ["\\boxed{", "{", "}", "\\", "\\boxed {x}", "<answer>", "a"])
def test_twenty_megabytes_are_read_in_a_moment(part):
    huge = part * (20_000_000 // len(part))
    started = time.perf_counter()
    assert extract_answer(f"<answer>{huge}</answer>") is None
    assert extract_answer(f"{huge}<answer>\\boxed{{7}}</answer>") == "7"
    last_boxed(part * (MAX_ANSWER_CHARS // len(part)))
    assert time.perf_counter() - started < 2


def test_an_integer_of_thousands_of_digits_is_an_answer():
    assert extract_answer(f"<answer>\\boxed{{{'9' * 50_000}}}</answer>") == "9" * 50_000
