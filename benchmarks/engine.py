"""Engines side by side on one tiny model: `make bench-engine`, or `python -m benchmarks.engine --rounds 5`.

Ours, transformers' generate and vLLM for CPUs (its LLM in process, and our engine over AsyncLLM) get the same random
Qwen3, the same prompts and lengths, and answer with token ids and their log-probabilities. Each lives in a process of
its own and is measured in turn, round by round; the others wait meanwhile. A number is the median over the rounds; CPU
seconds are those of the whole process tree. Parity is the largest difference of a log-probability from transformers'
forward over the same ids. Ends with code 1 when the bar is missed. Without vLLM (`make vllm`) its rows say so.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TextIO, cast

import psutil
import torch
from transformers import Qwen3ForCausalLM

from benchmarks.models import THREE_MILLION, make_qwen3
from trainer.cluster import CPU_ENGINE, ENGINE_PYTHON

BATCHES = (1, 16, 64)
BAR_BATCH, BAR_TOKENS_S = 64, 8000.0
PROMPT_TOKENS = 4
OURS, BASELINE = "torch (ours)", "transformers"


@dataclass(frozen=True)
class Sample:
    """One batch: seconds and CPU seconds for `tokens` sampled tokens."""

    tokens: int
    wall_s: float
    cpu_s: float


@dataclass
class Row:
    """An engine's samples by batch size, or why there are none."""

    name: str
    samples: dict[int, list[Sample]] = field(default_factory=dict)
    parity: float | None = None
    reason: str = ""

    def tokens_s(self, batch: int) -> float | None:
        found = self.samples.get(batch)
        return statistics.median(s.tokens / s.wall_s for s in found) if found else None

    def cpu_s_per_1000(self, batch: int) -> float | None:
        found = self.samples.get(batch)
        return statistics.median(1000 * s.cpu_s / s.tokens for s in found) if found else None


class Contestant:
    """A child process that holds one engine and is asked over its pipes."""

    def __init__(self, row: Row, python: str, engine: str, model: Path, environment: dict[str, str]) -> None:
        self.row = row
        self._child = subprocess.Popen(
            [python, "-m", "benchmarks.engine_child", engine, str(model)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )
        self._questions, self._answers = cast(TextIO, self._child.stdin), cast(TextIO, self._child.stdout)
        self._tree = psutil.Process(self._child.pid)

    def ask(self, batch: int, tokens: int, seed: int) -> dict[str, list[list[float]]]:
        """Generate and note the sample; what the child answered: prompts, ids, logprobs."""
        before = self._cpu_s()
        self._questions.write(json.dumps([batch, PROMPT_TOKENS, tokens, seed]) + "\n")
        self._questions.flush()
        line = self._answers.readline()
        if not line:
            raise ChildProcessError(f"the process of {self.row.name} ended with status {self._child.wait()}")
        answer: dict[str, list[list[float]]] = json.loads(line)
        sample = Sample(batch * tokens, float(answer["wall_s"][0][0]), self._cpu_s() - before)
        self.row.samples.setdefault(batch, []).append(sample)
        return answer

    def close(self) -> None:
        """With what it started: vLLM's engine process outlives the one that is told to end."""
        try:
            tree = [*self._tree.children(recursive=True), self._tree]
        except psutil.NoSuchProcess:
            tree = []
        for process in tree:
            process.terminate()
        for process in psutil.wait_procs(tree, timeout=20)[1]:
            process.kill()
        self._child.communicate()

    def _cpu_s(self) -> float:
        total = 0.0
        for process in (self._tree, *self._tree.children(recursive=True)):
            times = process.cpu_times()
            total += times.user + times.system
        return total


def measure(model: Qwen3ForCausalLM, folder: Path, rows: Sequence[Row], rounds: int, tokens: int, threads: int) -> None:
    """All rounds, engine after engine in each."""
    contestants = []
    for row, (python, engine, environment) in zip(rows, _commands(threads), strict=True):
        if python is None:
            row.reason = "vLLM is not installed here: `make vllm`"
            continue
        contestants.append(Contestant(row, python, engine, folder, environment))
    try:
        for contestant in list(contestants):
            try:
                answer = contestant.ask(16, tokens, seed=0)  # the first batch of a size is slower
                contestant.row.parity = compare(model, answer)
                contestant.row.samples.clear()
            except (ChildProcessError, BrokenPipeError) as error:
                contestant.row.reason = str(error)
                contestants.remove(contestant)
        for number in range(rounds):
            for batch in BATCHES:
                for contestant in contestants:
                    contestant.ask(batch, tokens, seed=1 + number)
            sys.stderr.write(f"round {number + 1} of {rounds}\n")
    finally:
        for contestant in contestants:
            contestant.close()


def _commands(threads: int) -> list[tuple[str | None, str, dict[str, str]]]:
    usual = {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": os.getcwd(), "HF_HUB_OFFLINE": "1"}
    vllm = str(ENGINE_PYTHON) if ENGINE_PYTHON.exists() else None
    on_cpu = {**CPU_ENGINE, **usual, "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    return [
        (sys.executable, "torch", usual),
        (sys.executable, "transformers", usual),
        (vllm, "vllm-in-process", on_cpu | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}),
        (vllm, "vllm", on_cpu),
    ]


@torch.no_grad()
def compare(model: Qwen3ForCausalLM, answer: dict[str, list[list[float]]]) -> float:
    """The largest |difference| of the answer's log-probabilities from the model's own forward, nats."""
    worst = 0.0
    for prompt, ids, logprobs in zip(answer["prompts"], answer["ids"], answer["logprobs"], strict=True):
        sequence = torch.tensor([prompt + ids], dtype=torch.long)
        expected = torch.log_softmax(model(sequence).logits[0, len(prompt) - 1 : -1], dim=-1)
        found = expected.gather(1, sequence[0, len(prompt) :, None])[:, 0]
        worst = max(worst, float((found - torch.tensor(logprobs)).abs().max()))
    return worst


def format_table(rows: Sequence[Row]) -> str:
    """Markdown: an engine a line."""
    head = [f"tok/s at {b}" for b in BATCHES] + [f"CPU s/1000 at {b}" for b in BATCHES]
    lines = [
        "| engine | " + " | ".join(head) + f" | × {BASELINE} at {BAR_BATCH} | parity |",
        "|---" * (len(head) + 3) + "|",
    ]
    base = next((row.tokens_s(BAR_BATCH) for row in rows if row.name == BASELINE), None)
    for row in rows:
        if row.reason:
            lines.append(f"| {row.name} | {row.reason} |" + " |" * (len(head) + 1))
            continue
        speeds = [_number(row.tokens_s(b), "{:,.0f}") for b in BATCHES]
        costs = [_number(row.cpu_s_per_1000(b), "{:.3f}") for b in BATCHES]
        own = row.tokens_s(BAR_BATCH)
        ratio = _number(own / base if own and base else None, "{:.2f}")
        lines.append(f"| {' | '.join([row.name, *speeds, *costs, ratio, _number(row.parity, '{:.1e}')])} |")
    return "\n".join(lines)


def _number(value: float | None, style: str) -> str:
    return "-" if value is None else style.format(value)


def judge(rows: Sequence[Row]) -> tuple[bool, str]:
    """Whether the bar is met, and a sentence."""
    found = next((row.tokens_s(BAR_BATCH) for row in rows if row.name == OURS), None)
    if found is None:
        return False, f"bar: {OURS} was not measured"
    is_met = found >= BAR_TOKENS_S
    word = "met" if is_met else "NOT met"
    return is_met, f"bar: {OURS} at batch {BAR_BATCH}, {found:,.0f} tok/s of {BAR_TOKENS_S:,.0f}: {word}"


def describe_machine(threads: int, load_before: float) -> str:
    model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), flags=re.MULTILINE)
    return (
        f"{len(os.sched_getaffinity(0))} cores of {model[1] if model else platform.machine()}, {threads} threads, "
        f"load {load_before:.1f} before and {os.getloadavg()[0]:.1f} after, torch {torch.__version__}, "
        f"transformers {version('transformers')}, Python {platform.python_version()}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description="engines side by side")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=110, help="sampled by each request (default 110)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--vocabulary", type=int, default=896, help="default: that of models/tiny-base")
    options = parser.parse_args()
    torch.set_num_threads(1)  # the parent only compares
    load, started = os.getloadavg()[0], time.monotonic()
    rows = [Row(OURS), Row(BASELINE), Row("vLLM in process"), Row("vLLM AsyncLLM")]
    with tempfile.TemporaryDirectory() as folder:
        model = make_qwen3(options.vocabulary, **THREE_MILLION)
        model.save_pretrained(folder)
        measure(model, Path(folder), rows, options.rounds, options.tokens, options.threads)
    is_met, sentence = judge(rows)
    parameters = sum(p.numel() for p in model.parameters()) / 1e6
    print(
        f"{parameters:.1f} M parameters, {PROMPT_TOKENS} + {options.tokens} tokens, {options.rounds} rounds, medians\n"
    )
    print(format_table(rows))
    print(f"\n{sentence}\n{describe_machine(options.threads, load)}, {time.monotonic() - started:.0f} s")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
