import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.execution import MAX_CODE_BYTES, MAX_HISTORY_CELLS, Execution, ExecutionCall, ExecutionStatus
from contracts.recipe import ToolSettings
from contracts.trajectory import ToolCallRow, ToolStatus
from sandbox.client import SandboxUnavailable
from tests.trainer.fakes import TINY_BASE
from trainer.rollout.chat import Chat, load_tokenizer
from trainer.rollout.python_tool import PythonTool, history_of
from trainer.rollout.tool_calls import TOOL_NAMES, parse_tool_call

NAME = TOOL_NAMES[0]
CHAT = Chat(load_tokenizer(TINY_BASE))
CASES = Path(__file__).parents[3] / "shared" / "data" / "toolcall_cases.jsonl"
CASE_NAMES = ("python", "edit", "code_interpreter")
# Where the collection leaves a choice, ours: tc-09 (arguments as a JSON string) is refused with a clear text,
# as verifiers#1763 asks; tc-02 is a well-formed call of another tool, so 'code' is missing.
OURS = {"tc-02": ToolStatus.INVALID_CALL, "tc-06": None, "tc-09": ToolStatus.INVALID_CALL}


def wrap(body: str) -> str:
    return f"I will compute.\n<tool_call>\n{body}\n</tool_call>"


def call(**arguments: object) -> str:
    return wrap(json.dumps({"name": NAME, "arguments": arguments}))


def test_plain_call_and_its_span():
    text = call(code="print(2**10)", input="7\n")
    parsed = parse_tool_call(text)
    assert (parsed.name, parsed.code, parsed.stdin, parsed.status) == (NAME, "print(2**10)", "7\n", ToolStatus.OK)
    assert text[parsed.start : parsed.end].startswith("<tool_call>")
    assert text[parsed.start : parsed.end].endswith("</tool_call>")


@pytest.mark.parametrize("name", TOOL_NAMES)
def test_both_published_names_are_the_tool(name):
    assert parse_tool_call(wrap(json.dumps({"name": name, "arguments": {"code": "1"}}))).status is ToolStatus.OK


@pytest.mark.parametrize(
    "text",
    [
        "no call",
        "<tool_call>",
        '<tool_call>{"name": "x"',
        '<tool_call>{"name": "x", "arguments": {}}',
        "a <tool_call> b",
    ],
)
def test_no_call(text):
    assert parse_tool_call(text) is None


@pytest.mark.parametrize(
    ("text", "status", "word"),
    [
        (wrap('{"name": "x", "arguments": {"code": "1"}'), ToolStatus.INVALID_CALL, "JSON"),
        (wrap("{'name': 'x'}"), ToolStatus.INVALID_CALL, "JSON"),
        (wrap("print(1)"), ToolStatus.INVALID_CALL, "JSON"),
        (wrap("[" * 100_000), ToolStatus.INVALID_CALL, "nested"),
        (wrap("[1]"), ToolStatus.INVALID_CALL, "object"),
        (wrap('{"name": "WolframAlpha", "arguments": {}}'), ToolStatus.UNKNOWN_TOOL, "WolframAlpha"),
        (wrap('{"name": 3, "arguments": {}}'), ToolStatus.INVALID_CALL, "name"),
        (wrap(f'{{"name": "{NAME}"}}'), ToolStatus.INVALID_CALL, "arguments"),
        (wrap(f'{{"name": "{NAME}", "arguments": null}}'), ToolStatus.INVALID_CALL, "arguments"),
        (wrap(f'{{"name": "{NAME}", "arguments": [1]}}'), ToolStatus.INVALID_CALL, "arguments"),
        (wrap(f'{{"name": "{NAME}", "arguments": "{{}}"}}'), ToolStatus.INVALID_CALL, "arguments"),
        (call(), ToolStatus.INVALID_CALL, "code"),
        (call(code=5), ToolStatus.INVALID_CALL, "code"),
        (call(code="1", input=5), ToolStatus.INVALID_CALL, "input"),
        (call(code="print('\ud800')"), ToolStatus.INVALID_CALL, "Unicode"),
        (call(code="#" * (MAX_CODE_BYTES + 1)), ToolStatus.INVALID_CALL, "longer"),
        (wrap(f'{{"name": "{NAME}", "arguments": {{"code": "1"}}}} and more'), ToolStatus.INVALID_CALL, "between"),
    ],
)
def test_unusable_call_is_a_call_with_a_reason(text, status, word):
    parsed = parse_tool_call(text)
    assert parsed.status is status
    assert word in parsed.error


def test_a_mentioned_tag_does_not_hide_the_call():
    assert parse_tool_call("I could <tool_call> but wait.\n" + call(code="1")).code == "1"


def test_close_tag_inside_the_code_does_not_cut_it():
    code = "s = '</tool_call>'\nprint(s)"
    assert parse_tool_call(call(code=code)).code == code


def test_only_the_first_call_counts():
    assert parse_tool_call(call(code="1") + call(code="2")).code == "1"


@given(st.text(max_size=200), st.text(max_size=50))
def test_any_code_survives(code, stdin):
    parsed = parse_tool_call(call(code=code, input=stdin))
    assert (parsed.code, parsed.stdin) == (code, stdin)


@given(st.text(max_size=200))
def test_no_text_raises(text):
    parse_tool_call("<tool_call>" + text + "</tool_call>")


@pytest.mark.skipif(not CASES.exists(), reason="the collected cases are not here")
def test_collected_cases():
    for line in CASES.read_text().splitlines():
        case = json.loads(line)
        parsed = parse_tool_call(case["text"], CASE_NAMES)
        if case["id"] in OURS:
            assert (parsed and parsed.status) is OURS[case["id"]], case["id"]
        elif not case["expect"]:
            assert parsed is None, case["id"]
        elif isinstance(case["expect"], str):
            assert parsed.status.is_error and parsed.error, case["id"]
        else:
            assert (parsed.status, parsed.code) == (ToolStatus.OK, case["expect"][0]["code"]), case["id"]


class FakeClient:
    def __init__(self, **result: object) -> None:
        self.result = result
        self.calls: list[ExecutionCall] = []

    async def run(self, request: ExecutionCall) -> Execution:
        self.calls.append(request)
        return Execution(id=request.id, **self.result)


async def test_success_is_stdout_without_the_trailing_newline():
    client = FakeClient(status=ExecutionStatus.OK, stdout="an error word\n", exec_ms=3.0)
    response = await PythonTool(client, ToolSettings(), CHAT).respond(
        parse_tool_call(call(code="c", input="i")), "id", 2**62
    )
    assert (response.status, response.text) == (ToolStatus.OK, "an error word")
    assert (client.calls[0].code, client.calls[0].stdin, client.calls[0].id) == ("c", "i", "id")
    assert client.calls[0].seed < 2**32
    assert response.execution.exec_ms == 3.0


async def test_an_unusable_call_never_reaches_the_sandbox():
    client = FakeClient(status=ExecutionStatus.OK)
    response = await PythonTool(client, ToolSettings(), CHAT).respond(parse_tool_call(call(code=5)), "id", 1)
    assert response.status is ToolStatus.INVALID_CALL
    assert "code" in response.text
    assert client.calls == []


@pytest.mark.parametrize("status", [ExecutionStatus.REJECTED, ExecutionStatus.SANDBOX_ERROR])
async def test_a_failure_of_ours_is_raised_not_shown(status):
    tool = PythonTool(FakeClient(status=status, reason="full"), ToolSettings(), CHAT)
    with pytest.raises(SandboxUnavailable, match="full"):
        await tool.respond(parse_tool_call(call(code="1")), "id", 1)


def row(code: str, status: ToolStatus = ToolStatus.OK) -> ToolCallRow:
    places = {"call_start": 0, "call_end": 1, "response_start": 1, "response_end": 1, "response_text": ""}
    return ToolCallRow(turn=0, name=NAME, code=code, status=status, **places)


@pytest.mark.parametrize(("stateful", "history"), [(False, []), (True, ["x = 1", "1 / 0"])])
async def test_a_stateful_tool_replays_what_ran_to_its_end(stateful, history):
    client = FakeClient(status=ExecutionStatus.OK)
    killed = (ToolStatus.TIMEOUT, ToolStatus.MEMORY, ToolStatus.KILLED, ToolStatus.OUTPUT_LIMIT)
    refused = (ToolStatus.INVALID_CALL, ToolStatus.UNKNOWN_TOOL)
    earlier = [row("x = 1"), row("1 / 0", ToolStatus.ERROR), *(row("gone", s) for s in killed + refused)]
    tool = PythonTool(client, ToolSettings(stateful=stateful), CHAT)
    await tool.respond(parse_tool_call(call(code="x")), "id", 1, earlier)
    assert client.calls[0].history == history


def test_history_keeps_the_newest_cells_that_fit():
    assert history_of([row(str(i)) for i in range(70)]) == [str(i) for i in range(70 - MAX_HISTORY_CELLS, 70)]
    half = "#" * (MAX_CODE_BYTES // 2)
    assert history_of([row("old"), row(half), row(half)]) == [half, half]


async def test_a_cut_response_says_so():
    client = FakeClient(status=ExecutionStatus.OK, stdout="7" * 5000)
    response = await PythonTool(client, ToolSettings(), CHAT).respond(parse_tool_call(call(code="1")), "id", 1)
    assert response.is_cut and len(response.text) < 400
