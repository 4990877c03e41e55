"""Checkpoints: a model folder with the optimizer and counters beside the weights, all of it or nothing.

Written into a hidden folder, each file fsynced, the manifest (sizes and hashes) last, then renamed. A
folder without a manifest, or with a file of another size or content, is never resumed from: the one before is.
There is no state of a random generator to save: every seed derives from the recipe's and the counters.

Weights are a file in transformers format whatever the number of ranks. The optimizer of a sharded model is written by
torch's distributed checkpoint, each rank its part; it is read again on any number of ranks, or by none but one process.
"""

import hashlib
import json
import os
import shutil
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch.distributed.fsdp import FSDPModule
from torch.optim import AdamW
from transformers import Qwen3ForCausalLM

from trainer.policy.model import save_model
from trainer.policy.parallel import ranks_of, shard_like
from trainer.store import fsync, write_atomically

FOLDER = "checkpoints"
MANIFEST = "manifest.json"
STATE = "trainer.json"
OPTIMIZER = "optimizer.safetensors"
SHARDED_OPTIMIZER = "optimizer"  # a folder
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")
WRITTEN = "written.json"  # names of the checkpoints that should be there, so that a missing one is noticed
KEEP_NEWEST = 2  # beside each stage's last one, which later stages, evaluations and other runs start from


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


@dataclass(frozen=True, slots=True)
class Recovery:
    """The checkpoint to go on from, None for a start from the base model, and why newer ones were passed over."""

    checkpoint: Checkpoint | None
    faults: list[str]


class CheckpointStore:
    """The checkpoints of one run, under `root`/checkpoints."""

    def __init__(self, root: Path) -> None:
        self.folder = root / FOLDER

    def write(self, model: Qwen3ForCausalLM, optimizer: AdamW | None, counters: Counters, source: Path) -> Written:
        """`source` is the folder whose tokenizer files come along. Prunes older checkpoints afterwards.

        Ranks that share the model call it together, on a file system they share; the first one tells what was pruned.
        """
        ranks = ranks_of(model)
        name = f"stage-{counters.stage:02d}-{_slug(counters.stage_name)}-step-{counters.stage_step:06d}"
        final, draft = self.folder / name, self.folder / f".{name}"
        if ranks.rank == 0:
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
        ranks.wait()
        save_model(model, draft, source)
        if optimizer is not None:
            _save_optimizer(model, optimizer, draft)
        ranks.wait()
        pruned = self._publish(draft, final, counters) if ranks.rank == 0 else []
        ranks.wait()
        return Written(Checkpoint(final, counters, _size(final)), pruned)

    def _publish(self, draft: Path, final: Path, counters: Counters) -> list[Path]:
        (draft / STATE).write_text(json.dumps(asdict(counters), indent=1, sort_keys=True))
        _write_manifest(draft)
        self._set_aside(final)  # of a step that is done again after a resume
        os.replace(draft, final)
        fsync(self.folder)
        return self._prune()

    def find_all(self) -> list[Checkpoint]:
        """The complete ones, oldest first."""
        found = [_read(path) for path in self._folders()]
        return sorted((c for c in found if c is not None), key=lambda c: c.counters.order)

    def latest(self) -> Checkpoint | None:
        return next(reversed(self.find_all()), None)

    def stage_end(self, stage_name: str) -> Checkpoint | None:
        """The newest checkpoint of the stage of that name."""
        return next((c for c in reversed(self.find_all()) if c.counters.stage_name == stage_name), None)

    def recover(self) -> Recovery:
        """The newest sound checkpoint, each of its files compared with its hash. A torn or damaged one is set
        aside and named with what is wrong with it, and so is one that was written and is gone."""
        faults = [f"checkpoint {name} is missing" for name in self._written() if not (self.folder / name).exists()]
        complete = self.find_all()
        torn = set(self._folders()) - {c.path for c in complete}
        for path in [*sorted(torn), *(c.path for c in reversed(complete))]:
            fault = find_fault(path)
            if not fault:
                return Recovery(_read(path), faults)
            faults.append(f"checkpoint {path.name} is damaged: {fault}")
            self._set_aside(path)
        return Recovery(None, faults)

    def _folders(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        return sorted(path for path in self.folder.iterdir() if path.is_dir() and not path.name.startswith("."))

    def _set_aside(self, path: Path) -> None:
        """Out of sight, until the next pruning removes it."""
        if path.exists():
            hidden = path.with_name(f".old-{path.name}")
            shutil.rmtree(hidden, ignore_errors=True)
            os.replace(path, hidden)

    def _prune(self) -> list[Path]:
        """All but the newest KEEP_NEWEST and each stage's last one go."""
        found = self.find_all()
        kept = {c.path for c in found[-KEEP_NEWEST:]} | {c.path for c in found if c.counters.is_stage_end}
        pruned = [c.path for c in found if c.path not in kept]
        names = sorted(path.name for path in kept)
        write_atomically(self.folder / WRITTEN, json.dumps(names).encode())
        for path in pruned:
            self._set_aside(path)  # renamed first: a kill in between leaves no half of a checkpoint in sight
        for path in {p for p in self.folder.iterdir() if p.is_dir()} - kept:
            shutil.rmtree(path, ignore_errors=True)
        return pruned

    def _written(self) -> list[str]:
        try:
            return [str(name) for name in json.loads((self.folder / WRITTEN).read_text())]
        except (OSError, ValueError, TypeError):
            return []


def find_fault(path: Path) -> str:
    """What is wrong with the files of a checkpoint, by the sizes and hashes of its manifest; '' for nothing."""
    try:
        files = json.loads((path / MANIFEST).read_text())["files"]
        for name, entry in files.items():
            size = (path / name).stat().st_size
            if size != entry["size"]:
                return f"{name} has {size} of {entry['size']} bytes"
        for name, entry in files.items():
            if _hash(path / name) != entry["sha256"]:
                return f"the content of {name} is not what was written"
        Counters(**json.loads((path / STATE).read_text()))
    except OSError as error:
        return f"{Path(error.filename or path).name}: {error.strerror}"
    except (ValueError, KeyError, TypeError) as error:
        return f"its {MANIFEST} or {STATE} cannot be read ({type(error).__name__})"
    return ""


def verify_checkpoint(path: Path) -> None:
    """CheckpointError names the first file that is not as it was written."""
    if fault := find_fault(path):
        raise CheckpointError(f"{path} is damaged: {fault}")


def load_optimizer(model: Qwen3ForCausalLM, optimizer: AdamW, path: Path) -> None:
    """The moments and step counts of a checkpoint into a fresh optimizer of the same model.

    Neither has to be sharded as it was when it was written.
    """
    parameters = dict(model.named_parameters())
    if (path / OPTIMIZER).is_file():
        tensors = load_file(path / OPTIMIZER)
        kept = [name for name in parameters if f"{name}.step" in tensors]
        for name, key in ((name, key) for name in kept for key in _MOMENTS[1:]):
            tensors[f"{name}.{key}"] = shard_like(tensors[f"{name}.{key}"], parameters[name])
    else:
        reader = dcp.FileSystemReader(path / SHARDED_OPTIMIZER)
        known = reader.read_metadata().state_dict_metadata
        kept = [name for name in parameters if f"{name}.step" in known]
        tensors = {f"{name}.{key}": torch.zeros_like(parameters[name]) for name in kept for key in _MOMENTS[1:]}
        tensors |= {f"{name}.step": torch.zeros(()) for name in kept}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # one process is meant
            dcp.load(tensors, storage_reader=reader, no_dist=not isinstance(model, FSDPModule))
    for name in kept:
        optimizer.state[parameters[name]] = {key: tensors[f"{name}.{key}"].detach() for key in _MOMENTS}


def has_optimizer(path: Path) -> bool:
    return (path / OPTIMIZER).is_file() or (path / SHARDED_OPTIMIZER).is_dir()


def _save_optimizer(model: Qwen3ForCausalLM, optimizer: AdamW, folder: Path) -> None:
    tensors = {
        f"{name}.{key}": value.contiguous()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }
    if isinstance(model, FSDPModule):
        dcp.save(tensors, checkpoint_id=folder / SHARDED_OPTIMIZER)
    else:
        save_file(tensors, folder / OPTIMIZER)


def _write_manifest(folder: Path) -> None:
    files = {}
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        fsync(file)
        files[str(file.relative_to(folder))] = {"size": file.stat().st_size, "sha256": _hash(file)}
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"files": files}, indent=1))
    fsync(manifest)
    fsync(folder)


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


def _slug(name: str) -> str:
    return name.replace(" ", "_")
