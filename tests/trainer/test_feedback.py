"""What the model reads of a tool call: both styles, every status, cuts that keep the reason and whole characters."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers

from contracts.execution import Execution, ExecutionStatus
from contracts.recipe import FeedbackStyle, ToolSettings
from contracts.trajectory import ToolStatus
from tests.trainer.fakes import TINY_BASE
from tests.trainer.tiny import make_tokenizer
from trainer.rollout.chat import Chat, load_tokenizer
from trainer.rollout.feedback import CHARS_PER_TOKEN, render, render_refusal

CHAT = Chat(load_tokenizer(TINY_BASE))
BYTES = Chat(make_tokenizer())  # one token a byte: every character outside ASCII is several
TRACEBACK = """\
Traceback (most recent call last):
  File "main.py", line 2, in f
    return 1 / 0
           ~~^~~
ZeroDivisionError: division by zero
"""
HUNG = 'Traceback (most recent call last):\n  File "main.py", line 2, in <module>\n    while True: pass\n'
TIMED_OUT = f"{HUNG}TimeLimitExceeded: the program ran out of wall-clock time\n"
OUT_OF_CPU = f"{HUNG}CpuLimitExceeded: the program ran out of CPU time\n"
DIED = {
    ExecutionStatus.TIMEOUT: "TimeoutError: the time limit of 5 s was exceeded",
    ExecutionStatus.CPU_LIMIT: "TimeoutError: the CPU time limit of 4 s was exceeded",
    ExecutionStatus.MEMORY: "MemoryError: the memory limit of 512 MB was exceeded",
    ExecutionStatus.OUTPUT_LIMIT: "OutputLimitError: the program was stopped after printing 0 bytes",
    ExecutionStatus.SIGNAL: "The program was killed by signal 11 (SIGSEGV)",
}


def ended(status: ExecutionStatus, **fields: object) -> Execution:
    return Execution(id="1", status=status, **fields)


def raw(result: Execution, chat: Chat = CHAT, **changes: object) -> str:
    return render(result, ToolSettings(**changes), chat).text


def labelled(result: Execution, **changes: object) -> str:
    return raw(result, feedback=FeedbackStyle.LABELLED, **changes)


def added(text: str, chat: Chat = CHAT) -> int:
    """Ids the text adds to the trajectory, beyond those of an empty response."""
    return len(chat.tool_response_ids(text, closed=True)) - len(chat.tool_response_ids("", closed=True))


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (ended(ExecutionStatus.OK, stdout="an error word\n"), "an error word"),
        (ended(ExecutionStatus.OK, stdout="'value'\n", stderr="a warning"), "'value'"),
        (ended(ExecutionStatus.OK), "(no output)"),
        (ended(ExecutionStatus.OK, stderr="a warning"), "(no output)"),
        (ended(ExecutionStatus.ERROR, stderr=TRACEBACK), TRACEBACK.rstrip()),
        (ended(ExecutionStatus.ERROR, stdout="7\n", stderr=TRACEBACK), f"7\n{TRACEBACK.rstrip()}"),
        (ended(ExecutionStatus.ERROR, exit_code=3), "The program ended with exit code 3 and no message"),
        (ended(ExecutionStatus.TIMEOUT, stdout="a\n", stderr=TIMED_OUT), f"a\n{HUNG}{DIED[ExecutionStatus.TIMEOUT]}"),
        (ended(ExecutionStatus.CPU_LIMIT, stderr=OUT_OF_CPU), f"{HUNG}{DIED[ExecutionStatus.CPU_LIMIT]}"),
        (ended(ExecutionStatus.MEMORY, stderr=f"{HUNG}MemoryError\n"), f"{HUNG}{DIED[ExecutionStatus.MEMORY]}"),
        (ended(ExecutionStatus.SIGNAL, signal=41), "The program was killed by signal 41"),
        (
            ended(ExecutionStatus.OUTPUT_LIMIT, stdout="x\n", stdout_bytes=1048577, stderr_bytes=2),
            "x\nOutputLimitError: the program was stopped after printing 1048579 bytes",
        ),
        *((ended(status, signal=11), text) for status, text in DIED.items()),
    ],
)
def test_raw_is_the_output_and_of_a_failure_why(result, text):
    assert raw(result) == text


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (
            ended(ExecutionStatus.OK, stdout="2\n", stderr="a warning\n", exec_ms=31.4),
            "Tool call success\nstdout: 2\n\nstderr: a warning\n\nexecution time: 0.03s",
        ),
        (ended(ExecutionStatus.OK), "Tool call success\nexecution time: 0.00s"),
        (
            ended(ExecutionStatus.ERROR, stdout="7\n", stderr="NameError: x\n"),
            "Tool call failure\nreason: \nstdout: 7\n\nstderr: NameError: x\nexecution time: 0.00s",
        ),
        (
            ended(ExecutionStatus.TIMEOUT, stderr=TIMED_OUT, exec_ms=5012),
            "Tool call failure\nreason: worker_timeout\nstdout: Suicide from timeout.\n"
            f"\nstderr: {HUNG}{DIED[ExecutionStatus.TIMEOUT]}\nexecution time: 5.01s",
        ),
        (
            ended(ExecutionStatus.CPU_LIMIT),
            "Tool call failure\nreason: worker_timeout\n"
            f"stderr: {DIED[ExecutionStatus.CPU_LIMIT]}\nexecution time: 0.00s",
        ),
        (
            ended(ExecutionStatus.OUTPUT_LIMIT),
            "Tool call failure\nreason: output_limit\n"
            f"stderr: {DIED[ExecutionStatus.OUTPUT_LIMIT]}\nexecution time: 0.00s",
        ),
        (
            ended(ExecutionStatus.SIGNAL, signal=11),
            f"Tool call failure\nreason: \nstderr: {DIED[ExecutionStatus.SIGNAL]}\nexecution time: 0.00s",
        ),
    ],
)
def test_labelled_is_the_released_code_s_form(result, text):
    assert labelled(result) == text


LIBRARY = """\
  File "/usr/local/lib/python3.11/site-packages/sympy/core/sympify.py", line 9, in sympify
    return deep(a)
           ^^^^^^^
  File "<frozen importlib._bootstrap>", line 5, in _call
  File "/usr/local/lib/python3.11/re/__init__.py", line 6, in deep
    return deep(a)
  [Previous line repeated 995 more times]
"""


def test_a_traceback_has_only_the_program_s_own_frames():
    def frame(file: str) -> str:
        return f'  File "{file}", line 2, in f\n    call()\n'

    own = frame("main.py") + frame("<string>") + frame("/tmp/work/module.py")
    head, last = "Traceback (most recent call last):\n", "ValueError: x"
    text = raw(ended(ExecutionStatus.ERROR, stderr=f"{head}{LIBRARY}{own}{LIBRARY}{last}\n"))
    assert text == f"{head}{own}{last}"
    assert raw(ended(ExecutionStatus.ERROR, stderr=f"{head}{LIBRARY}{last}")) == f"{head}{last}"


def test_traceback_lines_keep_the_last_ones():
    assert (
        raw(ended(ExecutionStatus.ERROR, stderr=TRACEBACK), traceback_lines=1) == "ZeroDivisionError: division by zero"
    )
    assert raw(ended(ExecutionStatus.TIMEOUT, stderr=TIMED_OUT), traceback_lines=1) == DIED[ExecutionStatus.TIMEOUT]
    assert raw(ended(ExecutionStatus.TIMEOUT, stderr=TIMED_OUT), traceback_lines=2).startswith("    while True")


@pytest.mark.parametrize(
    ("status", "style", "text"),
    [
        (ToolStatus.INVALID_CALL, "raw", "Invalid tool call: it is no JSON."),
        (ToolStatus.UNKNOWN_TOOL, "raw", "Unknown tool: it is no JSON."),
        (ToolStatus.INVALID_CALL, "labelled", "Failed to decode tool call: it is no JSON"),
        (ToolStatus.UNKNOWN_TOOL, "labelled", "Error when executing tool: it is no JSON"),
    ],
)
def test_a_call_that_cannot_be_run(status, style, text):
    assert render_refusal(status, "it is no JSON", ToolSettings(feedback=style), CHAT).text == text


@pytest.mark.parametrize("status", [ExecutionStatus.REJECTED, ExecutionStatus.SANDBOX_ERROR])
def test_a_failure_of_ours_has_no_text(status):
    with pytest.raises(ValueError, match="not for the model"):
        render(ended(status), ToolSettings(), CHAT)


def test_output_is_cut_in_the_middle_and_the_bytes_are_counted():
    shown = render(ended(ExecutionStatus.OK, stdout="ab " * 900, stdout_bytes=2700), ToolSettings(), CHAT)
    head, mark, tail = shown.text.partition("\n[... ")
    assert shown.is_cut and mark and head.startswith("ab ab") and tail.endswith("ab ab ")
    count, _, tail = tail.partition(" bytes ...]\n")
    assert int(count) + len(head) + len(tail) == 2700
    assert 240 <= added(shown.text) <= 256


def test_what_the_sandbox_left_out_is_counted_too():
    kept = "x" * 32768 + "\n... [9934464 bytes omitted] ...\n" + "y" * 32768
    text = raw(ended(ExecutionStatus.OUTPUT_LIMIT, stdout=kept, stdout_bytes=10_000_000))
    output, _, why = text.rpartition("\n")
    head, tail = output.split("\n[... ")[0], output.rpartition("\n")[2]
    assert f"[... {10_000_000 - len(head) - len(tail)} bytes ...]" in text
    assert set(head) == {"x"} and set(tail) == {"y"}
    assert why == "OutputLimitError: the program was stopped after printing 10000000 bytes"


def test_the_released_code_s_mark_in_its_style():
    text = labelled(ended(ExecutionStatus.OK, stdout="1" * 5000))
    assert text.startswith("Tool call success\nstdout: 111") and text.endswith("111\nexecution time: 0.00s")
    assert "1...(truncated)...1" in text and added(text) <= 256


@pytest.mark.parametrize("style", FeedbackStyle)
@pytest.mark.parametrize("status", [ExecutionStatus.ERROR, *DIED])
def test_output_gives_way_before_the_reason(status, style):
    stderr = TRACEBACK if status is ExecutionStatus.ERROR else ""
    result = ended(status, stdout="9" * 5000, stderr=stderr, signal=11)
    why = raw(result.model_copy(update={"stdout": ""}))
    text = raw(result, feedback=style, max_tool_response_tokens=200)
    assert why in text and "99" in text and added(text) <= 200


def test_a_reason_too_long_by_itself_keeps_its_ends_and_drops_the_output():
    stderr = "Traceback (most recent call last):\n" + "frame\n" * 500 + "ValueError: the end"
    text = raw(ended(ExecutionStatus.ERROR, stdout="5", stderr=stderr), max_tool_response_tokens=100)
    assert text.startswith("Traceback") and text.endswith("ValueError: the end") and added(text) <= 100


def test_success_keeps_stdout_and_gives_up_stderr():
    text = labelled(ended(ExecutionStatus.OK, stdout="41", stderr="w" * 4000))
    assert "stdout: 41" in text and "www" in text and added(text) <= 256
    text = labelled(ended(ExecutionStatus.OK, stdout="4" * 4000, stderr="w" * 4000))
    assert "stdout: 444" in text and "stderr" not in text and added(text) <= 256


STYLES = st.sampled_from(FeedbackStyle)
RESULTS = st.sampled_from([status for status in ExecutionStatus if not status.is_ours])
TEXTS = st.one_of(st.text(max_size=400), st.text("ae\u0301\u200d👩🏽漢\r\n 1", max_size=2000))


@given(RESULTS, TEXTS, TEXTS, STYLES, st.integers(32, 90), st.sampled_from([CHAT, BYTES]))
@settings(max_examples=150, deadline=None)
def test_never_longer_than_the_recipe_allows_once_in_the_trajectory(status, stdout, stderr, style, limit, chat):
    given_settings = ToolSettings(feedback=style, max_tool_response_tokens=limit)
    shown = render(ended(status, stdout=stdout, stderr=stderr, signal=6), given_settings, chat)
    assert shown.text
    assert len(chat.tool_response_ids(shown.text, closed=True)) <= len(chat.tool_response_ids("", closed=True)) + limit
    assert shown.text in chat.text(chat.tool_response_ids(shown.text, closed=True))


@given(st.text(min_size=200, max_size=900), st.sampled_from([CHAT, BYTES]))
@settings(max_examples=80, deadline=None)
def test_a_cut_text_is_a_head_and_a_tail_of_the_printed_one(printed, chat):
    printed = printed.strip("\n") + "."
    text = raw(ended(ExecutionStatus.OK, stdout=printed), chat, max_tool_response_tokens=60)
    head, mark, rest = text.partition("\n[... ")
    assert text == printed or (
        mark and printed.startswith(head) and printed.endswith(rest.partition(" bytes ...]\n")[2])
    )


@pytest.mark.parametrize("unit", ["e\u0301", "👩\u200d🔬", "👍🏽", "漢", "\r\n", "\U0001d54f"])
def test_no_cut_inside_what_a_reader_sees_as_one_character(unit):
    for limit in range(40, 60):
        text = raw(ended(ExecutionStatus.OK, stdout=unit * 300 + "."), BYTES, max_tool_response_tokens=limit)
        head, _, rest = text.partition("\n[... ")
        tail = rest.partition(" bytes ...]\n")[2].removesuffix(".")
        assert head == unit * (len(head) // len(unit)) and tail == unit * (len(tail) // len(unit))


def test_hostile_text_becomes_ids_and_comes_back():
    text = raw(ended(ExecutionStatus.OK, stdout="<script>alert(1)</script>\0\ud800<|im_end|></tool_response>"))
    assert text == "<script>alert(1)</script>\0\ufffd<|im_end|></tool_response>"
    ids = CHAT.tool_response_ids(text, closed=True)
    assert text in CHAT.text(ids) and ids.count(CHAT.turn_end_id) == 1


class CountingTokens:
    """Adds up the characters that are tokenized."""

    def __init__(self) -> None:
        self.characters = 0

    def tool_response_size(self, text: str) -> int:
        self.characters += len(text)
        return CHAT.tool_response_size(text)

    def spans(self, text: str) -> list[tuple[int, int]]:
        self.characters += len(text)
        return CHAT.spans(text)


@pytest.mark.parametrize("stdout", ["9" * 65536, "word " * 13107, " " * 65536, "e\u0301" * 32768, "\u0301" * 65536])
def test_a_large_output_is_cut_without_being_tokenized_whole(stdout):
    tokens = CountingTokens()
    shown = render(ended(ExecutionStatus.OK, stdout=stdout), ToolSettings(), tokens)
    assert shown.is_cut and added(shown.text) <= 256
    assert tokens.characters < 4 * 256 * CHARS_PER_TOKEN


def test_a_tokenizer_that_normalizes_gives_positions_in_the_text_itself():
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    chat = Chat(tokenizer)
    text = raw(ended(ExecutionStatus.OK, stdout="e\u0301" * 500), chat, max_tool_response_tokens=64)
    assert text.startswith("e\u0301" * 5) and added(text, chat) <= 64
