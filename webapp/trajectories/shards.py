"""One trajectory of a Parquet shard. The only file of the web app that imports pyarrow."""

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
from django.conf import settings
from pydantic import ValidationError

from contracts.trajectory import TrajectoryRow

MAX_GROUP_BYTES = 1 << 30  # a row group is read whole; the trainer writes 32 rows a group
_JSON_COLUMNS = ("index", "turns", "tool_calls")


class ShardError(Exception):
    """The row cannot be shown; the message says why in words for the page."""


def run_folder(run_id: UUID) -> Path:
    return settings.ASTROLABE_ARTIFACTS / "runs" / str(run_id)


def confine(root: Path, path: str) -> Path:
    """The file under `root`; ShardError where the path or a link on the way leads out of it."""
    if "\0" in path or not path or Path(path).is_absolute():
        raise ShardError("its path is not one under the run's artifact folder")
    base = root.resolve()
    try:
        found = (base / path).resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise ShardError("its path cannot be followed") from error
    if not found.is_relative_to(base) or found == base:
        raise ShardError("its path leads out of the run's artifact folder")
    return found


def read_row(run_id: UUID, shard: str, row: int) -> TrajectoryRow:
    """The row, reading only its row group."""
    path = confine(run_folder(run_id), shard)
    if not path.is_file():
        raise ShardError(f"the file {shard} is not in the run's artifact folder: it was pruned, or not copied here")
    try:
        values = _read(path, row)
    except (OSError, pa.ArrowException) as error:
        raise ShardError(f"{shard} cannot be read as Parquet: {str(error)[:200]}") from error
    try:
        return TrajectoryRow.model_validate(values | {name: json.loads(values[name]) for name in _JSON_COLUMNS})
    except (KeyError, TypeError, ValueError) as error:
        raise ShardError(f"row {row} of {shard} is not a trajectory: {_first_line(error)}") from error


def _read(path: Path, row: int) -> dict[str, Any]:
    with pq.ParquetFile(path) as file:
        offset = row
        for group in range(file.num_row_groups):
            meta = file.metadata.row_group(group)
            if 0 <= offset < meta.num_rows:
                if meta.total_byte_size > MAX_GROUP_BYTES:
                    raise ShardError(f"the rows around it hold {meta.total_byte_size / 1e9:.1f} GB, too much to show")
                return file.read_row_group(group).slice(offset, 1).to_pylist()[0]
            offset -= meta.num_rows
    raise ShardError(f"{path.name} has no row {row}: it was written again with fewer rows")


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:3])
    return str(error)[:200]
