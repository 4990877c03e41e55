"""Trajectory shards: Parquet (zstd), one row a trajectory, row groups of 32 so that one row is cheap to read.

Columns, exactly (readers outside this room need pyarrow and `contracts.trajectory` only):
run: string · attempt: int32 · index: string, JSON of TrajectoryIndex · problem: string · prompt_text: string ·
prompt_ids: list<int32> · response_ids: list<int32> · token_texts: list<string> · response_mask: list<int8> ·
sampling_logprobs: list<float32> · entropies: list<float32> · entropy_kind: string · token_classes: list<string> ·
token_marks: list<string> · turns: string, JSON list of TurnRow · tool_calls: string, JSON list of ToolCallRow ·
version_spans: list<struct<version, start, end: int32>>, which older shards do not have.
Lone surrogates and NUL become U+FFFD: neither UTF-8 nor Postgres text can hold them.
"""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from contracts.text import clean_text
from contracts.trajectory import TrajectoryIndex, TrajectoryRow

ROW_GROUP = 32
ARTIFACTS = "artifacts:"
_IDS, _TEXTS = pa.list_(pa.int32()), pa.list_(pa.string())
SCHEMA = pa.schema(
    [
        ("run", pa.string()),
        ("attempt", pa.int32()),
        ("index", pa.string()),
        ("problem", pa.string()),
        ("prompt_text", pa.string()),
        ("prompt_ids", _IDS),
        ("response_ids", _IDS),
        ("token_texts", _TEXTS),
        ("response_mask", pa.list_(pa.int8())),
        ("sampling_logprobs", pa.list_(pa.float32())),
        ("entropies", pa.list_(pa.float32())),
        ("entropy_kind", pa.string()),
        ("token_classes", _TEXTS),
        ("token_marks", _TEXTS),
        ("turns", pa.string()),
        ("tool_calls", pa.string()),
        ("version_spans", pa.list_(pa.struct([(name, pa.int32()) for name in ("version", "start", "end")]))),
    ]
)
_NEWER_COLUMNS = {"version_spans"}
_JSON_COLUMNS = ("index", "turns", "tool_calls")


class PathError(Exception):
    """A path of the recipe leads nowhere, or out of where it may lead."""


def clean_index(index: TrajectoryIndex) -> TrajectoryIndex:
    """The index row with its texts cleaned."""
    return TrajectoryIndex.model_validate(_plain(index))


def write_shard(path: Path, rows: Sequence[TrajectoryRow]) -> None:
    """Atomically: the file is complete or absent, whatever is killed when."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist([_encode(row) for row in rows], schema=SCHEMA)
    draft = path.with_name(f".{path.name}.tmp")
    pq.write_table(table, draft, compression="zstd", row_group_size=ROW_GROUP)
    fsync(draft)
    os.replace(draft, path)
    fsync(path.parent)


def read_row(path: Path, row: int) -> TrajectoryRow:
    """One row, reading only its row group. IndexError where there is no such row."""
    with pq.ParquetFile(path) as file:
        group, offset = divmod(row, ROW_GROUP)
        if row < 0 or group >= file.num_row_groups:
            raise IndexError(f"{path} has no row {row}")
        values = file.read_row_group(group).slice(offset, 1).to_pylist()
    if not values:
        raise IndexError(f"{path} has no row {row}")
    return _decode(values[0])


class ShardError(Exception):
    """The file is no trajectory shard that can be read; the message names it and says why."""


def iter_rows(path: Path) -> Iterator[TrajectoryRow]:
    """All rows in order, a row group in memory at a time. ShardError names file and fault."""
    try:
        with path.open("rb") as stream, pq.ParquetFile(stream) as file:
            if missing := sorted(set(SCHEMA.names) - _NEWER_COLUMNS - set(file.schema_arrow.names)):
                raise ShardError(f"{path}: a Parquet file, but no trajectory shard: it has no column {missing[0]!r}")
            for group in range(file.num_row_groups):
                yield from map(_decode, file.read_row_group(group, columns=SCHEMA.names).to_pylist())
    except OSError as error:
        raise ShardError(f"{path}: {error.strerror or 'cannot be read: it is cut short or damaged'}") from error
    except (pa.ArrowException, ValueError) as error:  # pydantic's and JSON's errors are ValueErrors
        raise ShardError(f"{path}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:300]


def _decode(values: dict[str, Any]) -> TrajectoryRow:
    return TrajectoryRow.model_validate(values | {name: json.loads(values[name]) for name in _JSON_COLUMNS})


def iterate_rows(path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """(values, fault) of each row of any Parquet file; a row that cannot be read has a fault and no values.
    ValueError where the file is no Parquet."""
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=1024):
            for i in range(batch.num_rows):
                try:
                    yield batch.slice(i, 1).to_pylist()[0], ""
                except ValueError as error:  # text that is not UTF-8, a time out of range
                    yield {}, str(error)


def write_atomically(path: Path, data: bytes) -> None:
    """A small file, complete or as it was before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.tmp")
    with draft.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(draft, path)
    fsync(path.parent)


def fsync(path: Path) -> None:
    """Make a file's content, or the names in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _encode(row: TrajectoryRow) -> dict[str, Any]:
    values = {name: _plain(getattr(row, name)) for name in SCHEMA.names}
    return values | {name: json.dumps(values[name], ensure_ascii=False) for name in _JSON_COLUMNS}


def _plain(value: Any) -> Any:
    """JSON-ready and clean: models to dicts, texts cleaned, everywhere inside."""
    match value:
        case str():
            return clean_text(value)
        case BaseModel():
            return _plain({name: getattr(value, name) for name in type(value).model_fields})
        case dict():
            return {key: _plain(inner) for key, inner in value.items()}
        case list() if value and not isinstance(value[0], (int, float)):
            return [_plain(inner) for inner in value]
    return value


class Places:
    """What the paths of a recipe mean: see `contracts.recipe`."""

    def __init__(self, out: Path, artifacts: Path | None, project: Path) -> None:
        self.out = out
        self._artifacts = artifacts
        self._project = project

    def resolve(self, path: str) -> Path:
        """An existing file or folder; PathError says where it was looked for."""
        if path.startswith(ARTIFACTS):
            if self._artifacts is None:
                raise PathError(f"{path!r} is under the artifact store: say where that is with --artifacts")
            candidates = [_inside(self._artifacts, path.removeprefix(ARTIFACTS))]
        elif Path(path).is_absolute():
            candidates = [Path(path)]
        elif path.startswith("models/"):
            candidates = [_inside(self._project, path), _inside(self.out, path)]
        else:
            candidates = [_inside(self.out, path)]
        for candidate in candidates:
            if candidate.exists():
                return candidate
        raise PathError(f"{path!r} does not exist (looked for {', '.join(map(str, candidates))})")


def _inside(root: Path, path: str) -> Path:
    candidate = (root / path).resolve()
    if not candidate.is_relative_to(root.resolve()):
        raise PathError(f"{path!r} leads out of {root}")
    return candidate
