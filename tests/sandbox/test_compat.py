"""code-judge's and SandboxFusion's clients find what they expect."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from contracts.execution import ExecutionCall, LimitProfile
from sandbox.service import build_app
from tests.sandbox.conftest import RunningNode
from tests.sandbox.fake_boxes import LIGHT, FakeBox, FakePool, calls

FORMS = [("/run", True), ("/judge", False)]


class Scripted(FakeBox):
    """A box whose answer is the JSON in the first line of the program, a comment."""

    async def run(self, call: ExecutionCall, **options: Any) -> dict[str, Any]:
        self._pool.seen.append(call)
        first = call.code.splitlines()[0]
        said = json.loads(first[1:]) if first.startswith("#") else {}
        return {**await super().run(call, **options), **said}


class ScriptedPool(FakePool):
    """One box, and the calls it saw."""

    def __init__(self) -> None:
        super().__init__({LIGHT: 1})
        self.seen: list[ExecutionCall] = []

    async def start_box(self, tier: Any) -> Any:
        return Scripted(self, tier)


@pytest.fixture
async def pool() -> AsyncIterator[ScriptedPool]:
    async with ScriptedPool() as pool:
        yield pool


@pytest.fixture
async def http(pool: FakePool) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(build_app(pool, judge_profile=LimitProfile.PAPER))
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as http:
        yield http


def says(**reply: Any) -> str:
    return f"#{json.dumps(reply)}\n"


def submission(solution: str, **fields: Any) -> dict[str, Any]:
    return {"type": "python", "solution": solution, **fields}


async def post(http: httpx.AsyncClient, path: str, body: Any) -> Any:
    return (await http.post(path, json=body)).raise_for_status().json()


async def test_a_submission_that_prints_what_is_expected(pool: ScriptedPool, http: httpx.AsyncClient) -> None:
    said = says(stdout=" 42 \n", stderr="w", exec_ms=1500.0)
    body = submission(said, sub_id="s1", input="in", expected_output="42", options={"a": "b"})
    assert await post(http, "/run", body) == {
        "sub_id": "s1", "success": True, "run_success": True, "cost": 1.5, "stdout": " 42 \n", "stderr": "w",
        "reason": "",
    }  # fmt: skip
    assert await post(http, "/judge", body) == {
        "sub_id": "s1", "success": True, "run_success": True, "cost": 1.5, "reason": "",
    }  # fmt: skip
    assert (pool.seen[0].stdin, pool.seen[0].limits) == ("in", LimitProfile.PAPER.limits)


@pytest.mark.parametrize(
    ("reply", "expected", "outcome"),
    [
        ({"stdout": "41"}, "42", (False, True, "")),
        ({"stdout": "41"}, None, (True, True, "")),
        ({"stdout": ""}, "", (True, True, "")),
        ({"status": "error", "exit_code": 1, "stdout": "42"}, "42", (False, False, "")),
        ({"status": "timeout", "exit_code": None}, None, (False, False, "worker_timeout")),
        ({"status": "cpu_limit", "exit_code": None}, None, (False, False, "worker_timeout")),
        ({"status": "memory"}, None, (False, False, "")),
    ],
)
async def test_success_and_reason(
    http: httpx.AsyncClient, reply: dict[str, Any], expected: str | None, outcome: tuple[bool, bool, str]
) -> None:
    found = await post(http, "/run", submission(says(**reply), expected_output=expected))
    assert (found["success"], found["run_success"], found["reason"]) == outcome
    assert found["sub_id"]


@pytest.mark.parametrize(("form", "has_output"), FORMS)
@pytest.mark.parametrize("kind", ["batch", "long-batch"])
async def test_a_batch_answers_in_order(http: httpx.AsyncClient, form: str, has_output: bool, kind: str) -> None:
    wanted = [submission(says(stdout=str(number)), sub_id="same") for number in range(60)]
    found = await post(http, f"{form}/{kind}", {"type": "batch", "sub_id": "b", "submissions": wanted})
    assert found["sub_id"] == "b"
    assert len(found["results"]) == 60
    assert all(("stdout" in result) is has_output for result in found["results"])
    if has_output:
        assert [result["stdout"] for result in found["results"]] == [str(number) for number in range(60)]


async def test_output_is_cut_as_they_cut_it_but_compared_whole(http: httpx.AsyncClient) -> None:
    body = submission(says(stdout="x" * 3000), expected_output="x" * 3000)
    found = await post(http, "/run", body)
    assert (found["success"], len(found["stdout"])) == (True, 1000)


@pytest.mark.parametrize("language", ["cpp", "math"])
async def test_another_language_is_invalid_input(pool: ScriptedPool, http: httpx.AsyncClient, language: str) -> None:
    wanted = [submission("1"), {"type": language, "solution": "int main(){}"}]
    results = (await post(http, "/run/batch", {"submissions": wanted}))["results"]
    assert [result["reason"] for result in results] == ["", "invalid_input"]
    assert results[1]["stderr"] == f"this node runs python, not {language}"
    assert len(pool.seen) == 1


async def test_our_failures_are_theirs_and_not_the_programs(pool: ScriptedPool, http: httpx.AsyncClient) -> None:
    assert (await post(http, "/run", submission("die")))["reason"] == "internal_error"
    failed = await post(http, "/run_code", {"language": "python", "code": "die"})
    assert (failed["status"], failed["run_result"]) == ("SandboxError", None)
    assert "boxes failed under this call" in failed["message"]
    pool.queue.max_calls = 0
    assert (await post(http, "/run", submission("1")))["reason"] == "queue_timeout"
    assert (await post(http, "/run_code", {"language": "python", "code": "1"}))["message"].startswith("rejected")


async def test_a_short_batch_does_not_wait_and_a_long_one_does(pool: ScriptedPool, http: httpx.AsyncClient) -> None:
    pool.tally.mean_call_s[LIGHT] = 5.0
    holding = pool.submit(calls("hold", prefix="h"))
    await pool.settle()
    body = {"submissions": [submission("1")]}
    assert (await post(http, "/run/batch", body))["results"][0]["reason"] == "queue_timeout"
    long = asyncio.create_task(post(http, "/run/long-batch", body))
    while not len(pool.queue):
        await asyncio.sleep(0)
    pool.held["h0"].release()
    assert (await long)["results"][0]["success"]
    pool.abandon(holding)


@pytest.mark.parametrize(
    "body", [{}, {"type": "python"}, {"type": "perl", "solution": ""}, {"type": "batch", "submissions": []}]
)
async def test_a_bad_submission_is_refused(http: httpx.AsyncClient, body: dict[str, Any]) -> None:
    assert (await http.post("/run", json=body)).status_code == 422
    assert (await http.post("/run/batch", json=body)).status_code == 422


async def test_status_and_ping(http: httpx.AsyncClient) -> None:
    assert (await http.get("/status")).json() == {"queue": 0, "num_workers": 1}
    assert (await http.get("/ping")).json() == (await http.get("/v1/ping")).json() == "pong"


async def test_run_code(pool: ScriptedPool, http: httpx.AsyncClient) -> None:
    body = {"language": "python", "code": says(stdout="4\n", exec_ms=12.0), "run_timeout": 3, "memory_limit_MB": 256,
            "compile_timeout": 1, "stdin": "x", "files": {}, "fetch_files": []}  # fmt: skip
    assert await post(http, "/run_code", body) == {
        "status": "Success", "message": "", "compile_result": None, "executor_pod_name": "n", "files": {},
        "run_result": {
            "status": "Finished", "execution_time": 0.012, "return_code": 0, "stdout": "4\n", "stderr": "",
        },
    }  # fmt: skip
    (seen,) = pool.seen
    assert (seen.stdin, seen.limits.wall_s, seen.limits.memory_mb) == ("x", 3, 256)
    assert seen.limits.cpu_s < seen.limits.wall_s


@pytest.mark.parametrize(
    ("reply", "status", "return_code"),
    [
        ({"status": "error", "exit_code": 3}, "Finished", 3),
        ({"status": "signal", "exit_code": None, "signal": 11}, "Finished", -11),
        ({"status": "output_limit", "exit_code": None}, "Finished", -9),
        ({"status": "timeout", "exit_code": None}, "TimeLimitExceeded", None),
    ],
)
async def test_run_code_that_fails(
    http: httpx.AsyncClient, reply: dict[str, Any], status: str, return_code: int | None
) -> None:
    found = await post(http, "/run_code", {"language": "python", "code": says(**reply)})
    assert found["status"] == "Failed"
    assert (found["run_result"]["status"], found["run_result"]["return_code"]) == (status, return_code)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"language": "cpp"}, "this node runs python, not cpp"),
        ({"fetch_files": ["a"]}, "fetch_files is not supported"),
        ({"files": {"a": "%%%"}}, "'a' is not base64"),
    ],
)
async def test_what_is_not_offered_is_said(http: httpx.AsyncClient, fields: dict[str, Any], message: str) -> None:
    found = await post(http, "/run_code", {"language": "python", "code": "1", **fields})
    assert found["status"] == "SandboxError"
    assert message in found["message"]


async def test_files_are_written_by_an_earlier_cell(
    pool: ScriptedPool, http: httpx.AsyncClient, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = base64.b64encode(b"a\0b").decode()
    files = {"in/data.bin": content, "skipped": None}
    await post(http, "/run_code", {"language": "python", "code": "1", "files": files})
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(pool.seen[0].history[0], names)  # noqa: S102 - as the box would
    assert (tmp_path / "in/data.bin").read_bytes() == b"a\0b"
    assert set(names) == {"__builtins__"}


@pytest.mark.runsc
async def test_a_real_node(node: RunningNode) -> None:
    async with httpx.AsyncClient(base_url=node.url, timeout=30) as http:
        wanted = [
            submission("print(int(input()) * 2)", input="21", expected_output="42"),
            submission("import sys\nsys.stdout.write('x')", expected_output="x"),
            submission("raise SystemExit(3)"),
            submission("while True: pass"),
        ]
        results = (await post(http, "/run/long-batch", {"type": "batch", "submissions": wanted}))["results"]
        assert [result["success"] for result in results] == [True, True, False, False]
        assert [result["reason"] for result in results] == ["", "", "", "worker_timeout"]
        found = await post(http, "/run_code", {"language": "python", "code": "import sys\nsys.exit(int(input()))",
                                               "stdin": "5"})  # fmt: skip
        assert (found["status"], found["run_result"]["return_code"]) == ("Failed", 5)
        late = await post(http, "/run_code", {"language": "python", "code": "while 1: pass", "run_timeout": 0.5})
        assert late["run_result"]["status"] == "TimeLimitExceeded"
        stored = {"data/n.txt": base64.b64encode(b"17").decode()}
        read = await post(
            http, "/run_code", {"language": "python", "code": "print(open('data/n.txt').read())", "files": stored}
        )
        assert read["run_result"] | {"execution_time": 0} == {
            "status": "Finished",
            "execution_time": 0,
            "return_code": 0,
            "stdout": "17\n",
            "stderr": "",
        }
        unwritable = await post(http, "/run_code", {"language": "python", "code": "1", "files": {"/etc/n": ""}})
        assert unwritable["status"] == "SandboxError"
        assert unwritable["message"].startswith("the files could not be written: [Errno ")
