"""Checkpoints: a model folder with the optimizer and counters beside the weights, all of it or nothing.

Written into a hidden folder, each file fsynced, the manifest (sizes and hashes) last, then renamed. A
folder without a manifest, or with a file of another size, is incomplete and is never resumed from.
"""

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.optim import AdamW
from transformers import Qwen3ForCausalLM

from trainer.policy.model import save_model

FOLDER = "checkpoints"
MANIFEST = "manifest.json"
STATE = "trainer.json"
OPTIMIZER = "optimizer.safetensors"
KEEP_NEWEST = 2


class CheckpointError(Exception):
    """A checkpoint is damaged; the message names the file."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Where the run is. `stage_step` steps of the stage are done, `step` RL steps of the run.

    `cursor` prompts of the stage's order are consumed; `recipe` is the resolved recipe, whose seed gives
    every other seed.
    """

    stage: int
    stage_name: str
    stage_step: int
    step: int
    policy_version: int
    cursor: int
    is_stage_end: bool
    recipe: dict[str, Any]

    @property
    def order(self) -> tuple[int, int, bool]:
        return (self.stage, self.stage_step, self.is_stage_end)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    path: Path
    counters: Counters
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Written:
    checkpoint: Checkpoint
    pruned: list[Path]


class CheckpointStore:
    """The checkpoints of one run, under `root`/checkpoints."""

    def __init__(self, root: Path) -> None:
        self.folder = root / FOLDER

    def write(self, model: Qwen3ForCausalLM, optimizer: AdamW | None, counters: Counters, source: Path) -> Written:
        """`source` is the folder whose tokenizer files come along. Prunes older checkpoints afterwards."""
        name = f"stage-{counters.stage:02d}-{_slug(counters.stage_name)}-step-{counters.stage_step:06d}"
        final, draft = self.folder / name, self.folder / f".{name}"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        save_model(model, draft, source)
        if optimizer is not None:
            save_file(_optimizer_tensors(model, optimizer), draft / OPTIMIZER)
        (draft / STATE).write_text(json.dumps(asdict(counters), indent=1, sort_keys=True))
        _write_manifest(draft)
        shutil.rmtree(final, ignore_errors=True)  # of a step that is done again after a resume
        os.replace(draft, final)
        _fsync(self.folder)
        checkpoint = Checkpoint(final, counters, _size(final))
        return Written(checkpoint, self._prune())

    def find_all(self) -> list[Checkpoint]:
        """The complete ones, oldest first."""
        if not self.folder.is_dir():
            return []
        found = [_read(path) for path in self.folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
        return sorted((c for c in found if c is not None), key=lambda c: c.counters.order)

    def latest(self) -> Checkpoint | None:
        return next(reversed(self.find_all()), None)

    def stage_end(self, stage_name: str) -> Checkpoint | None:
        """The newest checkpoint of the stage of that name."""
        return next((c for c in reversed(self.find_all()) if c.counters.stage_name == stage_name), None)

    def _prune(self) -> list[Path]:
        """All but the newest KEEP_NEWEST and each stage's last one go."""
        found = self.find_all()
        kept = {c.path for c in found[-KEEP_NEWEST:]} | {c.path for c in found if c.counters.is_stage_end}
        pruned = [c.path for c in found if c.path not in kept]
        for path in pruned:
            # Without its manifest a half-removed folder is incomplete, so a kill in between is harmless.
            (path / MANIFEST).unlink()
            shutil.rmtree(path)
        for path in set(self.folder.iterdir()) - kept:
            shutil.rmtree(path, ignore_errors=True)
        return pruned


def verify_checkpoint(path: Path) -> None:
    """Compare every file with the manifest's hash; CheckpointError names the first that differs."""
    for name, entry in json.loads((path / MANIFEST).read_text())["files"].items():
        if _hash(path / name) != entry["sha256"]:
            raise CheckpointError(f"{path / name} is damaged: its hash is not the manifest's")


def load_optimizer(model: Qwen3ForCausalLM, optimizer: AdamW, path: Path) -> None:
    """The moments and step counts of a checkpoint into a fresh optimizer of the same model."""
    tensors = load_file(path / OPTIMIZER)
    for name, parameter in model.named_parameters():
        if f"{name}.step" in tensors:
            optimizer.state[parameter] = {key: tensors[f"{name}.{key}"] for key in ("step", "exp_avg", "exp_avg_sq")}


def has_optimizer(path: Path) -> bool:
    return (path / OPTIMIZER).is_file()


def _optimizer_tensors(model: Qwen3ForCausalLM, optimizer: AdamW) -> dict[str, torch.Tensor]:
    return {
        f"{name}.{key}": value.contiguous()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def _write_manifest(folder: Path) -> None:
    files = {}
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        _fsync(file)
        files[str(file.relative_to(folder))] = {"size": file.stat().st_size, "sha256": _hash(file)}
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"files": files}, indent=1))
    _fsync(manifest)
    _fsync(folder)


def _read(path: Path) -> Checkpoint | None:
    """None when incomplete. Sizes are compared here, hashes when the checkpoint is loaded."""
    try:
        files = json.loads((path / MANIFEST).read_text())["files"]
        if any((path / name).stat().st_size != entry["size"] for name, entry in files.items()):
            return None
        counters = Counters(**json.loads((path / STATE).read_text()))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Checkpoint(path, counters, _size(path))


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _hash(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _slug(name: str) -> str:
    return name.replace(" ", "_")
