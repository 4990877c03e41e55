"""The files of a data set: the upload as it came, `problems.jsonl`, `rejected.jsonl`. One folder, made at once."""

import hashlib
import json
import os
import shutil
from collections import Counter
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO
from uuid import UUID

from django.conf import settings
from django.core.files.uploadedfile import UploadedFile

from webapp.datasets.reading import Rejected, read_file

PROBLEMS, REJECTED = "problems.jsonl", "rejected.jsonl"
MAX_COLUMNS = 50


@dataclass(slots=True)
class Summary:
    accepted: int = 0
    rejected_by_reason: Counter[str] = field(default_factory=Counter)
    extra_columns: dict[str, None] = field(default_factory=dict)  # in the order they were met


def folder_of(dataset_id: UUID) -> Path:
    return settings.ASTROLABE_ARTIFACTS / "datasets" / str(dataset_id)


def original_name(is_csv: bool) -> str:
    return "original.csv" if is_csv else "original.jsonl"


def hash_of(upload: UploadedFile) -> str:
    digest = hashlib.sha256()
    for chunk in upload.chunks():
        digest.update(chunk)
    return digest.hexdigest()


def write(dataset_id: UUID, upload: UploadedFile, *, is_csv: bool) -> Summary:
    """All three files, or none: the folder gets its name when they are complete."""
    folder = folder_of(dataset_id)
    draft = folder.with_name(f".{folder.name}.tmp")
    draft.mkdir(parents=True)
    try:
        original = draft / original_name(is_csv)
        with original.open("wb") as stream:
            for chunk in upload.chunks():
                stream.write(chunk)
        with original.open("rb") as stream:
            summary = _split(stream, draft, is_csv=is_csv)
        os.rename(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return summary


def remove(dataset_id: UUID) -> None:
    shutil.rmtree(folder_of(dataset_id), ignore_errors=True)


def read_page(dataset_id: UUID, name: str, start: int, count: int) -> list[dict[str, Any]]:
    """Rows `start` to `start + count` of one of the two lists; empty where the file is gone."""
    try:
        with (folder_of(dataset_id) / name).open("rb") as stream:
            return [json.loads(line) for line in islice(stream, start, start + count)]
    except FileNotFoundError:
        return []


def _split(stream: BinaryIO, folder: Path, *, is_csv: bool) -> Summary:
    summary = Summary()
    with (folder / PROBLEMS).open("wb") as accepted, (folder / REJECTED).open("wb") as rejected:
        for row in read_file(stream, is_csv=is_csv):
            if isinstance(row, Rejected):
                summary.rejected_by_reason[row.reason.value] += 1
                rejected.write(_line(asdict(row)))
                continue
            summary.accepted += 1
            for name in islice(row.extra, max(0, MAX_COLUMNS - len(summary.extra_columns))):
                summary.extra_columns[name[:80]] = None
            accepted.write(_line({k: v for k, v in asdict(row).items() if k != "line"}))
    return summary


def _line(row: dict[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"
