import pytest

from trainer.reward.answer import count_answer_tags, extract_answer, last_boxed


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
