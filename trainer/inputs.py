"""What a run reads from outside its folder: noted by content hash at the first start, compared at every resume.

A run that goes on with other problems, another base model or edited curated files would not be the run that
was started; it is refused with the difference shown. Other versions of the libraries are only warned of.
"""

import hashlib
import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from contracts.recipe import CurateStage, EvaluateStage, Recipe
from trainer.store import PathError, Places, write_atomically

FILE = "inputs.json"
_LIBRARIES = ("torch", "transformers", "numpy", "pyarrow", "math-verify")
_WITHOUT_FILE = ("synthetic", "held_out")
_OF_A_MODEL = ("config", "generation_config", "tokenizer", "vocab", "merges", "special_tokens", "added_tokens")


def list_inputs(recipe: Recipe) -> dict[str, str]:
    """Field of the recipe -> path as it is written there."""
    found = {"model": recipe.model}
    for index, stage in enumerate(recipe.stages):
        at = f"stages.{index}"
        if isinstance(stage, CurateStage):
            found[f"{at}.source"] = stage.source
            found |= {f"{at}.more_sources.{i}": path for i, path in enumerate(stage.more_sources)}
            found |= {f"{at}.decontaminate.{i}": path for i, path in enumerate(stage.decontaminate)}
        if isinstance(stage, EvaluateStage):
            found[f"{at}.benchmark"] = stage.benchmark
    return {field: path for field, path in found.items() if path not in _WITHOUT_FILE}


def check_inputs(recipe: Recipe, places: Places) -> list[str]:
    """'field: path: old -> new' of each input whose content changed since the run first read it.

    New ones are noted. A path that leads nowhere is left to the stage that needs it.
    """
    path = places.out / FILE
    noted: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    seen = _describe_inputs(recipe, places) | _describe_curated(places.out, noted)
    changed = [
        f"{field}: {_say(noted[field])} -> {_say(now)}"
        for field, now in seen.items()
        if field in noted and noted[field] != now
    ]
    if not changed:
        write_atomically(path, json.dumps(seen | noted, indent=1).encode())
    return changed


def note_curated(out: Path, files: list[str]) -> None:
    """Remember files a stage has made under the run's folder, which later stages and resumes read."""
    path = out / FILE
    noted = json.loads(path.read_text()) if path.exists() else {}
    noted |= {file: {"path": file} | describe(out / file) for file in files}
    write_atomically(path, json.dumps(noted, indent=1).encode())


def describe(path: Path) -> dict[str, Any]:
    """sha256, bytes and, of a file of lines, rows; of a folder the hash of its files, in a model's of those it is
    loaded from."""
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))
        if (path / "config.json").exists():
            files = [p for p in files if p.suffix in (".safetensors", ".jinja") or p.name.startswith(_OF_A_MODEL)]
        digest = hashlib.sha256()
        for file in files:
            digest.update(f"{file.relative_to(path)} {_hash(file)}\n".encode())
        return {"sha256": digest.hexdigest(), "bytes": sum(file.stat().st_size for file in files)}
    facts = {"sha256": _hash(path), "bytes": path.stat().st_size}
    if path.suffix == ".jsonl":
        with path.open("rb") as stream:
            facts["rows"] = sum(1 for line in stream if line.strip())
    return facts


def list_versions() -> dict[str, str]:
    """What numbers may depend on beside the recipe: libraries, threads, instruction set."""
    return (
        {"python": platform.python_version()}
        | {name: version(name) for name in _LIBRARIES}
        | {"threads": str(torch.get_num_threads()), "instructions": torch.backends.cpu.get_cpu_capability()}
    )


def _describe_inputs(recipe: Recipe, places: Places) -> dict[str, Any]:
    described = {}
    for field, path in list_inputs(recipe).items():
        try:
            described[field] = {"path": path} | describe(places.resolve(path))
        except (PathError, OSError):
            continue
    return described


def _describe_curated(out: Path, noted: dict[str, Any]) -> dict[str, Any]:
    own = [field for field in noted if field.startswith("problems/")]
    missing = {"sha256": "", "bytes": 0}
    return {f: {"path": f} | (describe(out / f) if (out / f).exists() else missing) for f in own}


def _say(facts: dict[str, Any]) -> str:
    if not facts["sha256"]:
        return "missing"
    rows = f"{facts['rows']:,} rows, " if "rows" in facts else ""
    return f"{facts['path']} ({rows}{facts['bytes']:,} bytes, sha256 {facts['sha256'][:12]})"


def _hash(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
