import pytest

from contracts.scoring import Graded
from contracts.trajectory import Decision, StopReason, TokenClass, TokenMark, ToolCallRow, ToolStatus, TurnRow
from tests.trainer.fakes import TINY_BASE
from trainer.analysis.classes import classify_turn, comment_spans
from trainer.analysis.tokens import MarkSettings, analyze, entropy_metrics, high_entropy, token_report
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


def make(entropies: list[float], turns: list[tuple[int, int]], calls: list[tuple[ToolStatus, int, int]]) -> Trajectory:
    """A trajectory of one-character tokens; calls: status and span of the response."""
    length = len(entropies)
    mask = [int(any(a <= i < b for a, b in turns)) for i in range(length)]
    rows = [
        ToolCallRow(
            turn=i,
            name="x",
            code="",
            status=status,
            call_start=0,
            call_end=1,
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
    assert found.after_ok.value == pytest.approx((0.8 + 0.3) / 2)
    assert found.after_error.value is None


def test_only_reasoning_reflects():
    texts = [*TEXTS[:8], "<answer>", "x", "y", "</answer>"]
    found = analyze(TWO_TURNS, texts, MarkSettings(0.3, 4))
    assert [found.marks[i] for i in (8, 10)] == [TokenMark.FORKING] * 2


def test_the_window_after_an_error():
    failed = make(ENTROPIES, [(0, 6), (8, 12)], [(ToolStatus.TIMEOUT, 6, 8)])
    found = analyze(failed, TEXTS, MarkSettings(0.2, 24))
    assert found.after_error.value == pytest.approx(2.0 / 4)
    assert found.after_ok.count == 0


def test_a_response_that_was_not_shown_has_no_window():
    cut = make([0.1] * 6, [(0, 6)], [(ToolStatus.OK, 6, 6)])
    assert analyze(cut, list("abcdef"), MarkSettings()).after_ok.count == 0


def test_an_empty_trajectory():
    empty = make([], [], [])
    found = analyze(empty, [], MarkSettings())
    assert found.entropy.value is None
    assert entropy_metrics([(empty, found)]) == {}


def test_metrics_weigh_tokens_not_trajectories():
    one = make([1.0, 1.0], [(0, 2)], [])
    settings = MarkSettings(0.5, 24)
    pairs = [(TWO_TURNS, analyze(TWO_TURNS, TEXTS, settings)), (one, analyze(one, ["a", "b"], settings))]
    values = entropy_metrics(pairs)
    assert values["entropy/mean"] == pytest.approx(5.4 / 12) == values["entropy/reasoning"]
    assert values["entropy/after_ok"] == pytest.approx(2.0 / 4)
    assert values["tokens/reflection_share"] == pytest.approx(4 / 12)  # 0.8, 0.3, 0.7, 0.2 of the top five
    assert values["tokens/forking_share"] == pytest.approx(2 / 12)
    assert "entropy/code" not in values and "entropy/after_error" not in values


def test_the_report_counts_and_ranks():
    texts = ["so", "but", *TEXTS[2:8], "wait", "h", "wait", "j"]
    settings = MarkSettings(0.3, 24)
    report = token_report([(TWO_TURNS, analyze(TWO_TURNS, texts, settings))], settings, stage=2, step=9)
    assert [(t.text, t.count, t.mean_entropy) for t in report.top_reflection] == [("wait", 2, pytest.approx(0.75))]
    assert [(t.text, t.count) for t in report.top_forking] == [("but", 1)]
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
