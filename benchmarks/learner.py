"""Our GRPO step and TRL's on the same model, prompts and lengths, in turns: `python -m benchmarks.learner`.

A step is eight prompts with eight rollouts each: generate (our engine, or transformers inside TRL), reward, advantages,
loss, one AdamW update; float32. `given` takes the rollouts as given, of unlike lengths, on both sides, and so compares
the learners alone. TRL runs in its own environment (made here if there is none) in a process of its own, and so do we;
one computes while the other waits. Peak memory is what a process holds at most above what it held before its first
step, with libraries and model loaded. Ends with code 1 when a bar is missed.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
TRL = ("trl==1.16.*", "torch==2.13.0")
MIN_SPEEDUP, MAX_MEMORY_SHARE, BAR_VOCABULARY = 2.0, 0.5, 32_000
PAD, EOS = "<pad>", "<eos>"
GROUPS, GROUP_SIZE, NEW_TOKENS, PROMPT_TOKENS = 8, 8, 110, 20


@dataclass(frozen=True)
class Task:
    """What both sides do. `lengths`: tokens of each rollout, if `given` drawn from `words` ids, not generated.

    `micro_batch`: rows TRL passes through the model at once, 0 for all of them, its default.
    """

    folder: str
    prompts: list[str]
    lengths: list[int]
    given: bool
    words: int
    threads: int
    group_size: int = GROUP_SIZE
    micro_batch: int = 0


@dataclass(frozen=True)
class Step:
    step_s: float
    generate_s: float
    learn_s: float
    peak_mb: float


class Contestant:
    """A process that does a step each time it is asked."""

    def __init__(self, name: str, command: list[str], task: Task) -> None:
        self.name, self.steps = name, list[Step]()
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115  open as long as the process
        self.process = subprocess.Popen(
            [*command, json.dumps(asdict(task))],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": str(task.threads), "HOME": task.folder},
        )

    def read(self) -> str:
        """Its next line of ours; other output (TRL's) is passed over. SystemExit with its errors when it has ended."""
        for line in self.process.stdout or ():
            if line == "ready\n" or line.startswith('{"step_s"'):
                return line
        self.log.seek(0)
        raise SystemExit(f"{self.name} ended: {self.log.read()[-2000:]}")

    def step(self, *, counts: bool) -> None:
        print("go", file=self.process.stdin, flush=True)
        step = Step(**json.loads(self.read()))
        self.read()
        if counts:
            self.steps.append(step)

    def close(self) -> None:
        if self.process.stdin:
            self.process.stdin.close()  # its sign to end
        self.process.wait(60)

    def median(self, field: str) -> float:
        return median(getattr(step, field) for step in self.steps)

    @property
    def peak_mb(self) -> float:
        return max(step.peak_mb for step in self.steps)


def make_folder(folder: Path, vocabulary: int) -> None:
    """A random Qwen3 of 3.2 M parameters without its embedding, whose words are its token ids."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from benchmarks.models import THREE_MILLION, make_qwen3

    words = {f"w{i}": i for i in range(vocabulary - 2)} | {PAD: vocabulary - 2, EOS: vocabulary - 1}
    tokenizer = Tokenizer(models.WordLevel(words, PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"eos_token": EOS, "pad_token": PAD}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    ids = {"bos_token_id": None, "eos_token_id": vocabulary - 1, "pad_token_id": vocabulary - 2}
    make_qwen3(vocabulary, **THREE_MILLION, **ids).save_pretrained(folder)


def make_task(folder: str, vocabulary: int, *, given: bool, threads: int) -> Task:
    draw = random.Random(vocabulary)
    prompts = [" ".join(f"w{draw.randrange(300)}" for _ in range(PROMPT_TOKENS)) for _ in range(GROUPS)]
    rollouts = GROUPS * GROUP_SIZE
    spread = [NEW_TOKENS * (2 * i + 1) // rollouts for i in range(rollouts)]  # 1 to 218, the same mean
    lengths = draw.sample(spread, rollouts) if given else [NEW_TOKENS] * rollouts
    return Task(folder, prompts, [max(2, n) for n in lengths], given, vocabulary - 2, threads)


def find_trl(folder: Path) -> Path:
    """The Python of TRL's environment, which is made if it is not there. SystemExit when it cannot be."""
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"making {folder} with {' '.join(TRL)}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        made = subprocess.run([python, "-m", "pip", "install", "-q", *TRL])
        if made.returncode:
            raise SystemExit(f"TRL could not be installed into {folder}; there is nothing to compare with")
    return python.absolute()


def compare(task: Task, trl: Path, *, rounds: int, micro_batches: list[int]) -> list[Contestant]:
    """Ours first, then TRL in each of its micro-batches: `rounds` steps each in turns, after an uncounted one."""
    ours = Contestant("ours", [sys.executable, "-m", "benchmarks.learner_ours"], task)
    contestants = [ours]
    try:
        for rows in micro_batches:
            name = f"TRL, {rows} rows at once" if rows else "TRL"
            script = str(ROOT / "benchmarks" / "learner_trl.py")
            contestants.append(Contestant(name, [str(trl), script], replace(task, micro_batch=rows)))
        for contestant in contestants:
            contestant.read()
        for number in range(rounds + 1):
            for contestant in contestants:
                contestant.step(counts=number > 0)
    finally:
        for contestant in contestants:
            contestant.close()
    return contestants


def print_rows(title: str, contestants: list[Contestant]) -> None:
    """Medians in seconds and peak memory, each with its multiple of ours."""
    ours = contestants[0]
    for c in contestants:
        pairs = [(c.median(field), ours.median(field)) for field in ("step_s", "generate_s", "learn_s")]
        shown = [f"{own:.2f} ({own / of_ours:.2f}x)" if of_ours > 0.01 else "-" for own, of_ours in pairs]
        print(f"| {title} | {c.name} | {' | '.join(shown)} | {c.peak_mb:.0f} ({c.peak_mb / ours.peak_mb:.2f}x) |")


def check_bars(contestants: list[Contestant]) -> list[str]:
    """The bars that are missed, for the whole step at the large vocabulary."""
    ours, trl = contestants[:2]
    speedup, share = trl.median("step_s") / ours.median("step_s"), ours.peak_mb / trl.peak_mb
    print(f"bars: {speedup:.2f}x faster (>= {MIN_SPEEDUP}), {share:.2f} of the memory (<= {MAX_MEMORY_SHARE})")
    bars = {"speed": speedup >= MIN_SPEEDUP, "memory": share <= MAX_MEMORY_SHARE}
    return [name for name, is_met in bars.items() if not is_met]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl", type=Path, default=ROOT / "var" / "trl", help="TRL's virtual environment")
    parser.add_argument("--vocabulary", type=int, nargs="+", default=[320, BAR_VOCABULARY])
    parser.add_argument("--modes", nargs="+", choices=["whole", "given"], default=["whole", "given"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[0, 16], help="TRL's rows at once; 0: all")
    options = parser.parse_args()
    trl, missed = find_trl(options.trl), list[str]()
    print("| rollouts | | step s | generate s | learn s | peak memory MB |\n|---|---|---|---|---|---|")
    for vocabulary in options.vocabulary:
        with tempfile.TemporaryDirectory() as folder:
            make_folder(Path(folder), vocabulary)
            for mode in options.modes:
                task = make_task(folder, vocabulary, given=mode == "given", threads=options.threads)
                contestants = compare(task, trl, rounds=options.rounds, micro_batches=options.micro_batches)
                print_rows(f"{mode}, vocabulary {vocabulary:,}", contestants)
                if mode == "whole" and vocabulary >= BAR_VOCABULARY:
                    missed += check_bars(contestants)
    print(f"missed: {', '.join(missed)}" if missed else "no bar missed")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
