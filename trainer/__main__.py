"""The command line: `python -m trainer run RECIPE --out DIR`; `analyse`, `explain`, `simulate-scheduler` report."""

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from contracts.events import Outcome
from contracts.old_recipes import upgrade
from contracts.recipe import Recipe
from sandbox.client import SandboxClient
from trainer.analysis.shard import format_report, read_report
from trainer.cluster import agent_urls, sandbox_urls
from trainer.delivery import Target
from trainer.doctor import Verdict, examine, format_findings
from trainer.explain import AssumptionError, explain, read_assumptions, read_shape
from trainer.explain_text import format_explanation
from trainer.pipeline import Parts, prepare_libraries, run_pipeline
from trainer.policy.gguf import GgufError, import_gguf
from trainer.refusal import RunRefused, check_recipe
from trainer.reporter import Reporter
from trainer.reward.pool import GraderPool
from trainer.rollout.python_tool import PythonTool
from trainer.rollout.scheduler_grid import (
    KV_TOKENS,
    TOOL_S,
    Grid,
    format_table,
    run_grid,
    run_timeline,
    write_grid,
    write_timeline,
)
from trainer.store import Places, ShardError

PROJECT = Path(__file__).resolve().parent.parent
EXIT_CODES = {Outcome.FINISHED: 0, Outcome.CANCELLED: 0, Outcome.FAILED: 1}
_ONLY_KINDS = {"curate": ("curate",), "sft": ("curate", "sft"), "rl": ("curate", "rl"), "evaluate": ("evaluate",)}
_log = logging.getLogger("trainer")


class RecipeError(Exception):
    """The recipe cannot be used: file, field, what was wrong."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    if options.command in _REPORTS:
        return _print_report(options)
    if options.command == "doctor":
        return _doctor(options)
    if options.command == "import-gguf":
        return _import_gguf(options)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname).1s %(message)s", datefmt="%H:%M:%S"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        recipe = load_recipe(options.recipe, options.set, options.seed, options.command)
        places = Places(options.out.resolve(), options.artifacts, PROJECT)
        check_recipe(recipe, places, resume=options.resume)
    except (RecipeError, RunRefused) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    prepare_libraries(int(os.environ.get("TRAINER_THREADS", "1")))
    return EXIT_CODES[_run(recipe, places)]


def _print_report(options: argparse.Namespace) -> int:
    try:
        sys.stdout.write(_REPORTS[options.command](options))
    except (RecipeError, ShardError, AssumptionError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def _doctor(options: argparse.Namespace) -> int:
    findings = examine(options.folder, with_sandbox=not options.no_sandbox)
    sys.stdout.write(format_findings(findings))
    return 1 if any(finding.verdict is Verdict.FAILED for finding in findings) else 0


def _import_gguf(options: argparse.Namespace) -> int:
    try:
        parameters = import_gguf(options.file, options.out, options.template)
    except GgufError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"{options.out}: a model of {parameters:,} parameters\n")
    return 0


def _analyse(options: argparse.Namespace) -> str:
    return "\n".join(format_report(read_report(path, options.window)) for path in options.shard)


def _explain(options: argparse.Namespace) -> str:
    recipe = load_recipe(options.recipe, options.set)
    shape = read_shape(recipe.model, PROJECT, options.config)
    return format_explanation(explain(recipe, shape, read_assumptions(options.assume, options.shard)))


def _simulate_scheduler(options: argparse.Namespace) -> str:
    grid = Grid(tuple(options.engines), tuple(options.kv), tuple(options.tool_s), options.seeds)
    rows = []
    for row in run_grid(grid):
        rows.append(row)
        sys.stderr.write(
            f"{row.engines} engines, KV {row.kv}, tool {row.tool_s:g} s, {row.policy}: {row.seconds:.0f} s\n"
        )
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        write_grid(rows, options.out / "grid.csv")
        write_timeline(run_timeline(*next(grid.cells())[1:]), options.out / "timeline.json")
    return format_table(rows)


_REPORTS: dict[str, Callable[[argparse.Namespace], str]] = {
    "analyse": _analyse,
    "explain": _explain,
    "simulate-scheduler": _simulate_scheduler,
}


def _run(recipe: Recipe, places: Places) -> Outcome:
    run = os.environ.get("ASTROLABE_RUN_ID") or places.out.name
    urls = sandbox_urls()
    attempt = os.environ.get("ASTROLABE_ATTEMPT")
    reporter = Reporter(places.out, run, attempt=int(attempt) if attempt else None, target=_read_target(run))
    _stop_on_signals(reporter)
    try:
        with asyncio.Runner() as runner:
            client, grader = SandboxClient(urls, run_id=run, find_urls=agent_urls), GraderPool()
            try:
                parts = Parts(lambda chat: PythonTool(client, recipe.tool, chat), grader)
                outcome = run_pipeline(recipe, places, reporter, parts=parts, runner=runner)
            finally:
                runner.run(grader.close())
                runner.run(client.aclose())
    finally:
        reporter.close()
    _log.info("the run %s; everything is in %s", outcome.value, places.out)
    return outcome


def _stop_on_signals(reporter: Reporter) -> None:
    """SIGTERM and the first Ctrl-C ask for a stop at the next safe point; the second Ctrl-C does not wait."""

    def ask(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        reporter.request_stop()

    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGINT, ask)


def _read_target(run: str) -> Target | None:
    url = os.environ.get("ASTROLABE_URL")
    token = os.environ.get("ASTROLABE_RUN_TOKEN")
    return Target(url, run, token) if url and token else None


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m trainer", description="Runs a recipe of Astrolabe.")
    commands = parser.add_subparsers(dest="command", required=True)
    help_texts = {"run": "all stages of the recipe"} | {
        kind: f"only the {' and '.join(kinds)} stages" for kind, kinds in _ONLY_KINDS.items()
    }
    for name, text in help_texts.items():
        command = commands.add_parser(name, help=text)
        command.add_argument("recipe", type=Path, help="a recipe, .yaml or .json")
        command.add_argument("--out", type=Path, required=True, help="the run's artifact folder")
        command.add_argument("--artifacts", type=Path, help="root of the artifact store, for paths artifacts:...")
        command.add_argument("--resume", action="store_true", help="continue the run in --out, if there is one")
        command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="e.g. stages.1.steps=5")
        command.add_argument("--seed", type=int, help="another seed than the recipe's")
    _add_reports(commands)
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise ValueError(text)
    return value


_positive.__name__ = "number above 0"  # argparse names the type in its message


def _add_reports(commands: Any) -> None:
    analyse = commands.add_parser("analyse", help="what the trajectories of a shard show: ledger, tool use, tokens")
    analyse.add_argument("shard", type=Path, nargs="+", help="trajectories/stage-XX/step-XXXXX.parquet of a run")
    analyse.add_argument(
        "--window", type=_positive, default=24, help="policy tokens beside a tool response (default 24)"
    )
    doctor = commands.add_parser("doctor", help="is this node fit to train: devices, libraries, sandbox, disk")
    doctor.add_argument("--folder", type=Path, default=PROJECT / "var", help="where runs are written (default var/)")
    doctor.add_argument("--no-sandbox", action="store_true", help="leave out the sandbox's own doctor (a minute)")
    imported = commands.add_parser("import-gguf", help="a GGUF file made a model folder: float32 weights and tokenizer")
    imported.add_argument("file", type=Path, help="a Llama or Qwen3 model, quantised or not")
    imported.add_argument("--out", type=Path, required=True, help="the model folder to write")
    imported.add_argument("--template", type=Path, help="a chat template (Jinja) instead of this project's")
    explained = commands.add_parser("explain", help="what a recipe would need, without running it")
    explained.add_argument("recipe", type=Path, help="a recipe, .yaml or .json")
    explained.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="e.g. stages.1.steps=5")
    explained.add_argument("--shard", type=Path, help="measure the bytes of a stored token on this shard")
    explained.add_argument("--config", type=Path, help="the model's config.json, where its folder is not here")
    explained.add_argument(
        "--assume", action="append", default=[], metavar="NAME=VALUE", help="another value of a named assumption"
    )
    simulated = commands.add_parser("simulate-scheduler", help="rollout scheduling in virtual time: ours and others")
    simulated.add_argument("--engines", type=_positive, nargs="+", default=[8, 64])
    simulated.add_argument("--kv", nargs="+", choices=list(KV_TOKENS), default=list(KV_TOKENS))
    simulated.add_argument("--tool-s", type=float, nargs="+", default=list(TOOL_S), help="mean latency of a tool call")
    simulated.add_argument("--seeds", type=_positive, default=3)
    simulated.add_argument("--out", type=Path, help="folder for grid.csv, and timeline.json of the first cell")


def load_recipe(path: Path, overrides: Sequence[str] = (), seed: int | None = None, command: str = "run") -> Recipe:
    """The recipe of a file with `--set` overrides; RecipeError names file, field and fault."""
    try:
        text = path.read_text()
        is_stored = path.suffix == ".json"  # machine-written, perhaps by an earlier version
        values = json.loads(text) if is_stored else yaml.safe_load(text)
    except OSError as error:
        raise RecipeError(f"{path}: {error.strerror}") from error
    except (ValueError, yaml.YAMLError) as error:
        raise RecipeError(f"{path}: not valid {'JSON' if path.suffix == '.json' else 'YAML'}: {error}") from error
    if not isinstance(values, dict):
        raise RecipeError(f"{path}: not a mapping of fields")
    if is_stored:
        values = upgrade(values)
    for override in overrides:
        key, found, value = override.partition("=")
        if not found:
            raise RecipeError(f"--set {override}: expected KEY=VALUE")
        _override(values, key, yaml.safe_load(value))
    if seed is not None:
        values["seed"] = seed
    if command in _ONLY_KINDS and isinstance(values.get("stages"), list):
        kinds = _ONLY_KINDS[command]
        values["stages"] = [s for s in values["stages"] if not isinstance(s, dict) or s.get("kind") in kinds]
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        faults = [f"{path}: {'.'.join(map(str, e['loc'])) or 'recipe'}: {e['msg']}" for e in error.errors()]
        raise RecipeError("\n".join(faults)) from error


def _override(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted path; numbers index lists."""
    *parents, last = key.split(".")
    place: Any = values
    try:
        for part in parents:
            place = place[int(part)] if isinstance(place, list) else place.setdefault(part, {})
        if isinstance(place, list):
            place[int(last)] = value
        else:
            place[last] = value
    except (IndexError, ValueError, TypeError, AttributeError) as error:
        raise RecipeError(f"--set {key}: there is no such place in the recipe") from error


if __name__ == "__main__":
    sys.exit(main())
