import pytest

from contracts.events import TokenWindow
from contracts.scoring import Graded
from contracts.trajectory import (
    Decision,
    EntropyKind,
    StopReason,
    TokenClass,
    TokenMark,
    ToolCallRow,
    ToolStatus,
    TurnRow,
)
from tests.trainer.fakes import TINY_BASE
from trainer.analysis.classes import classify_turn, comment_spans
from trainer.analysis.report import MixedEntropies, entropy_metrics, token_report
from trainer.analysis.tokens import MarkSettings, analyze, find_windows, high_entropy
from trainer.rollout.chat import Chat, load_tokenizer
from trainer.rollout.rows import Credit, RowPlace, build_index, build_row
from trainer.rollout.trajectory import Problem, Trajectory

R, C, K, A, F, T = (
    TokenClass.REASONING,
    TokenClass.CODE,
    TokenClass.COMMENT,
    TokenClass.ANSWER,
    TokenClass.FORMAT,
    TokenClass.TOOL_RESPONSE,
)
LETTERS = {R: "r", C: "c", K: "k", A: "a", F: "f"}


def letters(text: str) -> str:
    """One token a character; spaces, of which a token's class does not matter, as a dot."""
    found = classify_turn(list(text))
    return "".join("." if c.isspace() else LETTERS[k] for c, k in zip(text, found, strict=True))


def test_reasoning_tags_and_answer():
    assert letters("ok</reason><answer>42</answer><|im_end|>") == "rr" + "f" * 17 + "aa" + "f" * 19


def test_the_code_of_a_call_is_code_and_the_rest_of_it_format():
    call = '{"name": "x", "arguments": {"code": "a=1", "input": ""}}'
    expected = "".join("." if c == " " else "f" for c in call)
    at = call.index("a=1")
    expected = expected[:at] + "ccc" + expected[at + 3 :]
    assert letters(f"hm<tool_call>{call}</tool_call>") == "rr" + "f" * 11 + expected + "f" * 12


def test_comments_in_code_with_escapes():
    code = 'x = \\"#no\\"  # yes \\u00e9\\ny=2'
    found = letters('<tool_call>{"code": "' + code + '"}</tool_call>')
    body = found[found.index("c") : found.rindex("c") + 1]
    assert body == "c.c.ccccccc..k.kkk.kkkkkkccccc"


def test_an_unclosed_call_reaches_to_the_end():
    assert letters('a<tool_call>{"code": "b = 1') == "r" + "f" * 19 + "." + "f" + "c.c.c"


def test_a_mentioned_tag_is_no_call():
    assert letters("a <tool_call> b") == "r." + "f" * 11 + ".r"


def test_tags_inside_code_are_code():
    assert "f" not in letters('<tool_call>{"code": "\'<answer>\'"}</tool_call>').split("c", 1)[1].rsplit("c", 1)[0]


def test_a_call_without_code_is_format():
    assert set(letters("<tool_call>{'a'}</tool_call>")) == {"f"}


def test_broken_code_has_the_comments_that_can_be_read():
    assert comment_spans("x = (1  # one\ny = '") == [(8, 13)]
    assert comment_spans("") == []


def test_tokens_of_several_characters():
    assert classify_turn(["so", "</reason>", "\n", "<answer>", "\\boxed", "{4}", "</answer>"]) == [R, F, R, F, A, A, F]


def make(
    entropies: list[float],
    turns: list[tuple[int, int]],
    calls: list[tuple[ToolStatus, int, int]],
    starts: tuple[int, ...] = (0, 0),
) -> Trajectory:
    """A trajectory of one-character tokens; calls: status and span of the response, `starts` where each begins."""
    length = len(entropies)
    mask = [int(any(a <= i < b for a, b in turns)) for i in range(length)]
    rows = [
        ToolCallRow(
            turn=i,
            name="x",
            code="",
            status=status,
            call_start=starts[i],
            call_end=starts[i] + 1,
            response_start=start,
            response_end=end,
            response_text="",
        )
        for i, (status, start, end) in enumerate(calls)
    ]
    return Trajectory(
        Problem("p", "What?" * 100, "4"),
        3,
        prompt_ids=[1, 2],
        response_ids=list(range(20, 20 + length)),
        mask=mask,
        logprobs=[-0.1] * length,
        entropies=entropies,
        turns=[TurnRow(turn=i, start=a, end=b) for i, (a, b) in enumerate(turns)],
        tool_calls=rows,
        policy_version=5,
        stop_reason=StopReason.ANSWERED,
        grade=Graded(reward=1.0, answer="4"),
    )


# Ten policy tokens 0-5 and 8-11, a tool response 6-7 between them.
ENTROPIES = [0.1, 0.9, 0.1, 0.1, 0.1, 0.1, 0.0, 0.0, 0.8, 0.3, 0.7, 0.2]
TWO_TURNS = make(ENTROPIES, [(0, 6), (8, 12)], [(ToolStatus.OK, 6, 8)])
TEXTS = list("abcdefTTghij")


def test_the_top_share_of_policy_tokens_by_entropy():
    assert high_entropy(TWO_TURNS, 0.2) == [1, 8]
    assert high_entropy(TWO_TURNS, 0.35) == [1, 8, 10]  # 3.5 rounded down
    assert high_entropy(TWO_TURNS, 0.05) == []


def test_ties_go_to_the_earlier_token_and_certain_tokens_are_never_marked():
    even = make([0.5] * 10, [(0, 10)], [])
    assert high_entropy(even, 0.3) == [0, 1, 2]
    assert high_entropy(make([0.0] * 10, [(0, 10)], []), 0.3) == []


def test_marks_are_disjoint_and_the_window_counts_policy_tokens():
    settings = MarkSettings(forking_share=0.3, reflection_window=2)
    found = analyze(TWO_TURNS, TEXTS, settings)
    assert {i: m for i, m in enumerate(found.marks) if m is not TokenMark.NONE} == {
        1: TokenMark.FORKING,
        8: TokenMark.REFLECTION,  # first token after the response
        10: TokenMark.FORKING,  # third one: outside a window of two
    }
    assert (found.forking_tokens, found.reflection_tokens) == (2, 1)
    assert found.classes[6:8] == [T, T]
    assert found.entropy.value == pytest.approx(3.4 / 10)
    assert found.windows == [(TokenWindow.BEFORE_OK, range(0, 0)), (TokenWindow.AFTER_OK, range(8, 10))]


def test_only_reasoning_reflects():
    texts = [*TEXTS[:8], "<answer>", "x", "y", "</answer>"]
    found = analyze(TWO_TURNS, texts, MarkSettings(0.3, 4))
    assert [found.marks[i] for i in (8, 10)] == [TokenMark.FORKING] * 2


def test_the_window_after_an_error():
    failed = make(ENTROPIES, [(0, 6), (8, 12)], [(ToolStatus.TIMEOUT, 6, 8)])
    values = entropy_metrics([analyze(failed, TEXTS, MarkSettings(0.2, 24))])
    assert values["entropy/after_error"] == pytest.approx(2.0 / 4)
    assert "entropy/after_ok" not in values


def test_a_response_that_was_not_shown_has_no_window():
    cut = make([0.1] * 6, [(0, 6)], [(ToolStatus.OK, 6, 6)])
    assert analyze(cut, list("abcdef"), MarkSettings()).windows == []


def test_an_empty_trajectory():
    empty = make([], [], [])
    found = analyze(empty, [], MarkSettings())
    assert found.entropy.value is None
    assert entropy_metrics([found]) == {}


def test_metrics_weigh_tokens_not_trajectories():
    one = make([1.0, 1.0], [(0, 2)], [])
    settings = MarkSettings(0.5, 24)
    values = entropy_metrics([analyze(TWO_TURNS, TEXTS, settings), analyze(one, ["a", "b"], settings)])
    assert values["entropy/mean"] == pytest.approx(5.4 / 12) == values["entropy/reasoning"]
    assert values["entropy/after_ok"] == pytest.approx(2.0 / 4)
    assert values["tokens/reflection_share"] == pytest.approx(4 / 12)  # 0.8, 0.3, 0.7, 0.2 of the top five
    assert values["tokens/forking_share"] == pytest.approx(2 / 12)
    assert "entropy/code" not in values and "entropy/after_error" not in values


def test_the_report_counts_and_ranks():
    texts = ["so", "but", *TEXTS[2:8], "wait", "h", "wait", "j"]
    settings = MarkSettings(0.3, 24)
    report = token_report([analyze(TWO_TURNS, texts, settings)], settings, stage=2, step=9)
    assert [(t.text, t.count, t.mean_entropy) for t in report.top_reflection] == [("wait", 2, pytest.approx(0.75))]
    assert [(t.text, t.count) for t in report.top_forking] == [("but", 1)]
    assert (report.policy_tokens, report.forking_tokens, report.reflection_tokens) == (10, 1, 2)
    assert report.tokens_by_class == {R: 10, T: 2}
    assert report.mean_entropy_by_class == {R: pytest.approx(0.34)}
    assert (report.stage, report.step, report.reflection_window) == (2, 9, 24)


def test_rows_hold_the_trajectory():
    chat = Chat(load_tokenizer(TINY_BASE))
    analysis = analyze(TWO_TURNS, chat.token_texts(TWO_TURNS.response_ids), MarkSettings(0.3, 2))
    place = RowPlace("run-1", 2, 1, "rl", 4, "shards/4.parquet")
    credit = Credit(Decision.KEPT_RIGHT, advantage=0.7, weight=2.0, p_err=0.0, p_format=0.5, draw_probability=0.1)
    row = build_row(TWO_TURNS, analysis, credit, place, 6, chat)
    assert row.index == build_index(TWO_TURNS, analysis, credit, place, 6)
    index = row.index
    assert (index.prompt_id, index.sample, index.row, index.shard) == ("p", 3, 6, "shards/4.parquet")
    assert (index.policy_tokens, index.response_tokens, index.prompt_tokens) == (10, 12, 2)
    assert (index.forking_tokens, index.reflection_tokens) == (analysis.forking_tokens, analysis.reflection_tokens)
    assert (index.answer, index.decision, index.weight, index.tool_calls, index.tool_errors) == (
        "4",
        Decision.KEPT_RIGHT,
        2.0,
        1,
        0,
    )
    assert len(index.problem) == 300
    assert len(row.token_texts) == len(row.response_ids) == len(row.token_classes) == len(row.token_marks) == 12
    assert type(row).model_validate_json(row.model_dump_json()) == row


# Two calls: turn 0-3 with a call at 2, response 4-5, turn 6-9 with a failed call at 8, response 10, turn 11-12.
TWO_CALLS = make(
    [0.1, 0.4, 0.2, 0.3, 0.0, 0.0, 0.5, 1.0, 0.6, 0.1, 0.0, 2.0, 1.5],
    [(0, 4), (6, 10), (11, 13)],
    [(ToolStatus.OK, 4, 6), (ToolStatus.ERROR, 10, 11)],
    (2, 8),
)


def test_windows_lie_before_the_call_and_after_its_response():
    assert find_windows(TWO_CALLS.turns, TWO_CALLS.tool_calls, 3) == [
        (TokenWindow.BEFORE_OK, range(0, 2)),  # the turn has but two tokens before it
        (TokenWindow.AFTER_OK, range(6, 9)),
        (TokenWindow.BEFORE_ERROR, range(6, 8)),
        (TokenWindow.AFTER_ERROR, range(11, 13)),
    ]
    assert find_windows(TWO_CALLS.turns, TWO_CALLS.tool_calls, 1)[0] == (TokenWindow.BEFORE_OK, range(1, 2))


def test_a_response_that_ends_the_trajectory_has_a_window_before_only():
    last = make([0.1] * 4 + [0.0], [(0, 4)], [(ToolStatus.OK, 4, 5)], (3,))
    assert find_windows(last.turns, last.tool_calls, 24) == [(TokenWindow.BEFORE_OK, range(0, 3))]


def test_before_and_after_success_and_failure():
    texts = [*"abcd", "T", "T", "so", "but", "x", "y", "T", "wait", "wait"]
    settings = MarkSettings(0.3, 3)  # the top 3 of 10 policy tokens: 2.0, 1.5, 1.0
    analysis = analyze(TWO_CALLS, texts, settings)
    values = entropy_metrics([analysis])
    assert values["entropy/before_ok"] == pytest.approx((0.1 + 0.4) / 2)
    assert values["entropy/after_ok"] == pytest.approx((0.5 + 1.0 + 0.6) / 3)
    assert values["entropy/before_error"] == pytest.approx((0.5 + 1.0) / 2)
    assert values["entropy/after_error"] == pytest.approx((2.0 + 1.5) / 2)
    windows = token_report([analysis, analysis], settings, stage=0, step=1).windows
    after = windows[TokenWindow.AFTER_ERROR]
    assert (after.responses, after.tokens, after.forking_tokens, after.reflection_tokens) == (2, 4, 0, 4)
    assert [(row.text, row.count, row.mean_entropy) for row in after.top] == [("wait", 4, pytest.approx(1.75))]
    before = windows[TokenWindow.BEFORE_ERROR]
    assert (before.tokens, before.reflection_tokens) == (4, 2)  # "but" lies after the one and before the other
    assert [row.text for row in before.top_by_entropy] == ["but"]
    assert windows[TokenWindow.BEFORE_OK].top == []


def test_tokens_are_ranked_by_count_and_by_entropy():
    often = make([0.5, 0.6, 0.7, 0.9, 0.9, 0.9, 3.0], [(0, 7)], [])
    texts = ["and", "and", "and", "but", "but", "but", "once"]
    report = token_report([analyze(often, texts, MarkSettings(0.999, 24))], MarkSettings(), stage=0, step=1)
    # 6 of 7 are marked: one "and" (0.5) is not, so "but" alone is seen three times
    assert [row.text for row in report.top_forking] == ["but", "and", "once"]
    assert [row.text for row in report.top_forking_by_entropy] == ["but"]
    rare = token_report([analyze(often, list("abcdefg"), MarkSettings(0.3, 24))], MarkSettings(), stage=0, step=1)
    assert [row.text for row in rare.top_forking_by_entropy] == ["g", "d"]  # all seen once: the highest first


def test_a_report_stays_small_whatever_the_tokens():
    many = make([float(i % 97) for i in range(4000)], [(0, 4000)], [])
    analysis = analyze(many, [f"{i} " * 300 for i in range(4000)], MarkSettings(0.5, 24))
    report = token_report([analysis] * 3, MarkSettings(0.5, 24), stage=0, step=1)
    assert len(report.top_forking) == len(report.top_forking_by_entropy) == 20
    assert len(report.model_dump_json()) < 16_000


def test_entropies_of_two_kinds_are_never_mixed():
    bound = make([0.1] * 10, [(0, 10)], [])
    bound.entropy_kind = EntropyKind.TOPK_BOUND
    analyses = [analyze(t, list("abcdefghijkl")[: len(t.mask)], MarkSettings()) for t in (TWO_TURNS, bound)]
    with pytest.raises(MixedEntropies):
        token_report(analyses, MarkSettings(), stage=0, step=1)
    with pytest.raises(MixedEntropies, match="over the full vocabulary"):
        entropy_metrics(analyses[1:])
    report = token_report(analyses[1:], MarkSettings(), stage=0, step=1)
    assert report.entropy_kind is EntropyKind.TOPK_BOUND
