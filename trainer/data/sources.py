"""Rows as they came: JSON lines, CSV, Parquet, folders of them, Hugging Face data sets. Every row that cannot be
read stays, with its place and what is wrong; only a file that cannot be opened at all ends the run."""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any

import httpx

from contracts.rows import Fault, FileRow, HeaderError, read_csv, read_json_lines
from trainer.store import iterate_rows

HUB = "hf:"
_HUB_NAME = re.compile(r"hf:(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<config>[\w.-]+))?(?::(?P<split>[\w.+\[\]%-]+))?")
MAX_LINE_BYTES = MAX_CELL_CHARS = 1 << 24
PROBLEM_FIELDS = ("problem", "question", "prompt")
ANSWER_FIELDS = ("answer", "expected_answer", "ground_truth", "solution")


class DataError(Exception):
    """A source cannot be used at all; the message names it and says what to do."""


@dataclass(frozen=True, slots=True)
class RawRow:
    """One row as it came. `line` counts from 1, the header of a CSV included; of Parquet and of the hub it is the
    row's number. `error`: it is no row, and `text` is what was read instead."""

    line: int
    values: dict[str, Any]
    error: str = ""
    text: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """One file or data set. `fingerprint`: SHA-256 of the file; of the name, where there is no file."""

    name: str
    fingerprint: str
    read: Callable[[], Iterable[RawRow]]


def open_source(name: str, resolve: Callable[[str], Path]) -> list[Source]:
    """The files a source of a recipe stands for. Raises DataError, and what `resolve` raises."""
    if name.startswith(HUB):
        return [Source(name, hash_text(name), lambda: read_hub(name))]
    path = resolve(name)
    if not path.is_dir():
        return [_open_file(name, path)]
    files = sorted(p for p in path.iterdir() if p.suffix.lower() in (".jsonl", ".csv", ".parquet"))
    if not files:
        raise DataError(f"{path} holds no file ending in .jsonl, .csv or .parquet")
    return [_open_file(f"{name}/{file.name}", file) for file in files]


def _open_file(name: str, path: Path) -> Source:
    try:
        with path.open("rb") as stream:
            fingerprint = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    return Source(name, fingerprint, lambda: read_rows(path))


def hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def gather_rows(sources: Iterable[Source], limit: int) -> tuple[list[RawRow], bool]:
    """At most `limit` rows, and whether there are more. Files come in the order of their content, so that the
    order in which a recipe names them changes nothing."""
    ordered = sorted(sources, key=lambda source: (source.fingerprint, source.name))
    rows = (replace(row, source=source.name) for source in ordered for row in source.read())
    found = list(islice(rows, limit + 1))
    return found[:limit], len(found) > limit


def read_rows(path: Path) -> Iterator[RawRow]:
    """Rows of a .csv or .parquet file, or of JSON lines for any other ending."""
    match path.suffix.lower():
        case ".csv":
            yield from _read_csv(path)
        case ".parquet":
            yield from _read_parquet(path)
        case _:
            yield from _read_json(path)


def _open(path: Path) -> BufferedReader:
    try:
        return path.open("rb")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def _read_json(path: Path) -> Iterator[RawRow]:
    with _open(path) as stream:
        if path.suffix.lower() == ".json" and stream.peek(64).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"[":
            raise DataError(f"{path} is one JSON list: write one JSON object a line instead (JSON lines)")
        yield from _raw_rows(read_json_lines(stream, MAX_LINE_BYTES))


def _read_csv(path: Path) -> Iterator[RawRow]:
    with _open(path) as stream:
        try:
            header, rows = read_csv(stream, MAX_CELL_CHARS)
        except HeaderError as error:
            raise DataError(f"{path}, line 1 is not CSV: {error}") from error
        for names in (PROBLEM_FIELDS, ANSWER_FIELDS):
            if not set(names) & set(header):
                raise DataError(
                    f"{path} has no column {names[0]!r} in its first line (nor {' nor '.join(map(repr, names[1:]))})"
                )
        yield from _raw_rows(rows)


def _raw_rows(rows: Iterable[FileRow]) -> Iterator[RawRow]:
    """Blank lines are no rows; of a row without a fault the text is not kept."""
    for row in rows:
        if row.fault is None:
            yield RawRow(row.line, row.values)
        elif row.fault is not Fault.EMPTY or row.text.strip():
            yield RawRow(row.line, {}, f"{row.fault.value}: {row.detail}", row.text)


def _read_parquet(path: Path) -> Iterator[RawRow]:
    try:
        for number, (values, fault) in enumerate(iterate_rows(path), start=1):
            yield RawRow(number, values, f"not readable: {fault}" if fault else "")
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is no readable Parquet file: {str(error)[:200]}") from error


def read_hub(name: str) -> Iterator[RawRow]:
    """Rows of `hf:OWNER/NAME[@CONFIG][:SPLIT]`, streamed. The split is 'train' where none is named."""
    match = _HUB_NAME.fullmatch(name)
    if match is None:
        raise DataError(f"{name!r} is no data set of the hub: write hf:OWNER/NAME, hf:OWNER/NAME@CONFIG:SPLIT")
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"{name} needs the package 'datasets', which is not installed: pip install datasets, "
            "or download the set and name its Parquet or JSONL file"
        ) from error
    try:
        split = match["split"] or "train"
        rows = datasets.load_dataset(match["name"], match["config"], split=split, streaming=True)
        for number, values in enumerate(rows, start=1):
            yield RawRow(number, dict(values))
    except (OSError, ValueError, RuntimeError, httpx.HTTPError) as error:
        raise DataError(
            f"{name} cannot be read from the Hugging Face hub ({type(error).__name__}: {str(error)[:200]}). "
            "Check the name and the network, or download the set and name its Parquet or JSONL file"
        ) from error
