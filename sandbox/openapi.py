"""The HTTP API of a node as an OpenAPI 3.1 document, made from the models that parse and write it."""

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from contracts.execution import Execution, ExecutionBatch, NodeHealth
from sandbox import compat

INTRODUCTION = (
    "Runs untrusted Python in gVisor. A program that fails is an answer; a service that fails answers with a status "
    "of its own (`rejected`, `sandbox_error`), and then nothing is known about the program."
)
RUN = (
    "The answer is NDJSON: one Execution a line, in the order the calls end, each as soon as it is there. Every call "
    "is answered exactly once. Ids are the caller's and must differ within a batch. A call that finds the queue full, "
    "or could not begin before `deadline_s`, is answered `rejected` with `retry_after_s`. Waiting counts as "
    "`queue_ms`, never against a limit of the program. Hang up to drop what still waits."
)
JUDGE = "As code-judge has it. Programs get the limits of the node's judge profile."


@dataclass(frozen=True)
class Endpoint:
    """One endpoint as the document shows it."""

    method: str
    path: str
    group: str
    summary: str
    answer: type[BaseModel] | None = None  # None: text
    body: type[BaseModel] | None = None
    media_type: str = "application/json"
    description: str = ""


ENDPOINTS = (
    Endpoint(
        "post", "/v1/run", "sandbox", "Run programs", Execution, ExecutionBatch, "application/x-ndjson", RUN
    ),
    Endpoint("get", "/v1/health", "sandbox", "The node as it is now", NodeHealth),
    Endpoint("get", "/metrics", "sandbox", "Metrics for Prometheus", media_type="text/plain"),
    Endpoint("get", "/openapi.json", "sandbox", "This document"),
    Endpoint("get", "/docs", "sandbox", "This document as a page", media_type="text/html"),
    Endpoint("post", "/run", "code-judge", "Run one program", compat.RunResult, compat.Submission, description=JUDGE),
    Endpoint("post", "/run/batch", "code-judge", "Run programs; what has not begun after 4 s is not run",
             compat.BatchRunResult, compat.BatchSubmission, description=JUDGE),
    Endpoint("post", "/run/long-batch", "code-judge", "Run programs, however long the queue",
             compat.BatchRunResult, compat.BatchSubmission, description=JUDGE),
    Endpoint("post", "/judge", "code-judge", "Run one program, answer without its output",
             compat.JudgeResult, compat.Submission, description=JUDGE),
    Endpoint("post", "/judge/batch", "code-judge", "Run programs, answer without their output",
             compat.BatchJudgeResult, compat.BatchSubmission, description=JUDGE),
    Endpoint("post", "/judge/long-batch", "code-judge", "The same, however long the queue",
             compat.BatchJudgeResult, compat.BatchSubmission, description=JUDGE),
    Endpoint("get", "/status", "code-judge", "Length of the queue, number of boxes", compat.JudgeStatus),
    Endpoint("get", "/ping", "code-judge", "Answers pong"),
    Endpoint("post", "/run_code", "SandboxFusion", "Run one program", compat.RunCodeResponse, compat.RunCodeRequest,
             description="As SandboxFusion has it, for python. At most 120 s; without `memory_limit_MB` 1024 MiB."),
    Endpoint("get", "/v1/ping", "SandboxFusion", "Answers pong"),
)  # fmt: skip


def describe_api() -> dict[str, Any]:
    """The document."""
    bodies = [(endpoint.body, "validation") for endpoint in ENDPOINTS if endpoint.body]
    answers = [(endpoint.answer, "serialization") for endpoint in ENDPOINTS if endpoint.answer]
    refs, schemas = models_json_schema([*bodies, *answers], ref_template="#/components/schemas/{model}")  # type: ignore[list-item]
    paths: dict[str, Any] = {}
    for endpoint in ENDPOINTS:
        paths[endpoint.path] = {endpoint.method: _operation(endpoint, refs)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Astrolabe sandbox node", "version": "1", "description": INTRODUCTION},
        "paths": paths,
        "components": {"schemas": {**schemas["$defs"], "Refusal": _REFUSAL}},
    }


def _operation(endpoint: Endpoint, refs: Any) -> dict[str, Any]:
    schema = refs[endpoint.answer, "serialization"] if endpoint.answer else {}
    reads = "one a line" if endpoint.media_type.endswith("ndjson") else "the answer"
    operation: dict[str, Any] = {
        "tags": [endpoint.group],
        "summary": endpoint.summary,
        "operationId": f"{endpoint.method}{endpoint.path.replace('/', '_').replace('.', '_')}",
        "responses": {"200": {"description": reads, "content": {endpoint.media_type: {"schema": schema}}}},
    }
    if endpoint.description:
        operation["description"] = endpoint.description
    if endpoint.body:
        body = {"application/json": {"schema": refs[endpoint.body, "validation"]}}
        operation["requestBody"] = {"required": True, "content": body}
        refusal = {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}
        for status, why in (("413", "the body is too large"), ("422", "the body does not fit the schema")):
            operation["responses"][status] = {"description": why, "content": refusal}
    return operation


_REFUSAL = {
    "title": "Refusal",
    "description": "Why a request is not taken: a sentence, or what is wrong with which field.",
    "type": "object",
    "required": ["detail"],
    "properties": {"detail": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}},
}
