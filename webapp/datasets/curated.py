"""The files a curate stage left in its run's artifact folder: read page by page, and kept as a data set."""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO
from uuid import UUID

from contracts.text import clean
from webapp.datasets.models import Funnel
from webapp.datasets.store import MAX_COLUMNS, PROBLEMS, REJECTED, folder_of
from webapp.trajectories.shards import ShardError, confine, run_folder

MAX_TEXT = 200
_SEARCHED = ("id", "source", "problem", "answer", "reason", "match", "row")


@dataclass(frozen=True, slots=True)
class Page:
    """Rows `start` to `start + len(rows)` of `total` that match."""

    rows: list[dict[str, Any]]
    start: int
    total: int


@dataclass(slots=True)
class Kept:
    accepted: int
    size_bytes: int
    extra_columns: list[str]


def open_file(run_id: UUID, path: str) -> BinaryIO:
    """ShardError, in words for the page, where it cannot be opened."""
    found = confine(run_folder(run_id), path)
    try:
        return found.open("rb")
    except OSError as error:
        raise ShardError(f"the file {path} is not in the run's artifact folder") from error


def read_page(stream: BinaryIO, start: int, size: int, *, check: str = "", text: str = "") -> Page:
    """The rows of one check ('' for all) that hold a text somewhere, whatever its case. The file is read once,
    and only lines that may match are parsed. A line that is no JSON object is left out."""
    rows: list[dict[str, Any]] = []
    total = 0
    for line in _candidates(stream, check, text):
        is_shown = start <= total < start + size
        if text or is_shown:
            row = _parse(line)
            if row is None or not _holds(row, text):
                continue
            if is_shown:
                rows.append(clean(row))
        total += 1
    return Page(rows, start, total)


def _candidates(stream: BinaryIO, check: str, text: str) -> Iterator[bytes]:
    """Inside a JSON text a quote is escaped, so the name of a check with its quotes is found in its own field only."""
    field = f'"filter": {json.dumps(check, ensure_ascii=False)}'.encode() if check else b""
    needle = _escape(text) if text.isascii() else b""  # case folding of other letters may change their bytes
    for line in stream:
        if field in line and needle in line.lower():
            yield line


def _escape(text: str) -> bytes:
    """A text as it stands inside a JSON text of the `row` column at least: with its backslashes doubled."""
    return json.dumps(text.lower())[1:-1].encode()


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _holds(row: dict[str, Any], text: str) -> bool:
    return not text or any(text.casefold() in str(row.get(name, "")).casefold() for name in _SEARCHED)


def copy(funnel: Funnel, dataset_id: UUID) -> Kept:
    """Both files of a data set from those of a curation, or none: the folder gets its name when they are complete."""
    folder = folder_of(dataset_id)
    draft = folder.with_name(f".{folder.name}.tmp")
    draft.mkdir(parents=True)
    try:
        kept = _copy_problems(funnel, draft / PROBLEMS)
        with open_file(funnel.run_id, funnel.rejected_path) as source, (draft / REJECTED).open("wb") as target:
            for line in source:
                if row := _parse(line):
                    target.write(_line(_as_rejected(row)))
        os.rename(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return kept


def _copy_problems(funnel: Funnel, path: Path) -> Kept:
    columns: dict[str, None] = {}
    accepted = 0
    with path.open("wb") as target:
        for name in (funnel.train_path, funnel.held_out_path):
            with open_file(funnel.run_id, name) as source:
                for row in map(clean, filter(None, map(_parse, source))):
                    main = {key: row.pop(key, "") for key in ("id", "problem", "answer")}
                    target.write(_line({**main, "extra": row}))
                    columns |= dict.fromkeys(islice(row, max(0, MAX_COLUMNS - len(columns))))
                    accepted += 1
    return Kept(accepted, path.stat().st_size, [name[:80] for name in columns])


def _as_rejected(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "line": row.get("line", 0),
        "reason": row.get("filter", ""),
        "detail": row.get("reason", ""),
        "text": row.get("row", ""),
    }


def _line(row: dict[str, Any]) -> bytes:
    return json.dumps(clean(row), ensure_ascii=False).encode() + b"\n"
