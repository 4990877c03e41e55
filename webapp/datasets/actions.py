"""Changes to data sets: stored on upload or kept of a curation, registered as a benchmark, archived; and funnels as
the journal brings them."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from django.contrib.auth.models import AbstractBaseUser
from django.core.files.uploadedfile import UploadedFile
from django.db import IntegrityError, transaction
from django.utils import timezone

from contracts.events import Funnel as FunnelEvent
from contracts.text import clean_text
from webapp.accounts.models import Project
from webapp.datasets import curated, store
from webapp.datasets.models import Dataset, Funnel, Use
from webapp.datasets.reading import guess_is_csv
from webapp.runs.models import Run
from webapp.trajectories.upsert import upsert_newest


class NameTaken(ValueError):
    """The project has a benchmark of that name."""


@dataclass(frozen=True, slots=True)
class Uploaded:
    dataset: Dataset
    is_new: bool


def upload_dataset(project: Project, upload: UploadedFile, *, name: str, by: AbstractBaseUser) -> Uploaded:
    """Store the file and its rows; the same content again gives the data set that is there. Raises FileError."""
    content_hash = store.hash_of(upload)
    same = Dataset.objects.filter(project=project, content_hash=content_hash, archived_at__isnull=True)
    if existing := same.first():
        return Uploaded(existing, is_new=False)
    file_name = clean_text(upload.name or "upload")
    upload.seek(0)
    is_csv = guess_is_csv(file_name, upload.read(4096))
    dataset_id = uuid.uuid4()
    summary = store.write(dataset_id, upload, is_csv=is_csv)
    try:
        with transaction.atomic():
            dataset = Dataset.objects.create(
                id=dataset_id,
                project=project,
                name=clean_text(name or file_name.rpartition(".")[0] or file_name)[:80],
                file_name=file_name[:200],
                is_csv=is_csv,
                content_hash=content_hash,
                size_bytes=upload.size or 0,
                accepted=summary.accepted,
                rejected=sum(summary.rejected_by_reason.values()),
                rejected_by_reason=dict(summary.rejected_by_reason.most_common()),
                extra_columns=list(summary.extra_columns),
                created_by=by,
            )
    except IntegrityError:  # the same file was uploaded twice at once
        store.remove(dataset_id)
        return Uploaded(same.get(), is_new=False)
    return Uploaded(dataset, is_new=True)


def keep_curated(funnel: Funnel, *, name: str, by: AbstractBaseUser) -> Uploaded:
    """A curation's accepted problems, training and held-out ones, as a data set of the run's project; one version
    gives one data set. Raises ShardError where its files are not there."""
    project = funnel.run.project
    same = Dataset.objects.filter(project=project, content_hash=funnel.version, archived_at__isnull=True)
    if existing := same.first():
        return Uploaded(existing, is_new=False)
    dataset_id = uuid.uuid4()
    kept = curated.copy(funnel, dataset_id)
    try:
        with transaction.atomic():
            dataset = Dataset.objects.create(
                id=dataset_id,
                project=project,
                name=clean_text(name)[:80] or "curated",
                file_name="",
                is_csv=False,
                content_hash=funnel.version,
                size_bytes=kept.size_bytes,
                accepted=kept.accepted,
                rejected=sum(funnel.refused.values()),
                rejected_by_reason=funnel.refused,
                extra_columns=kept.extra_columns,
                run=funnel.run,
                created_by=by,
            )
    except IntegrityError:  # kept twice at once
        store.remove(dataset_id)
        return Uploaded(same.get(), is_new=False)
    return Uploaded(dataset, is_new=True)


def register_benchmark(dataset: Dataset, name: str) -> None:
    """From now on a benchmark of its project, under this name. Raises NameTaken."""
    try:
        with transaction.atomic():
            Dataset.objects.filter(pk=dataset.pk).update(use=Use.BENCHMARK, name=clean_text(name)[:80])
    except IntegrityError as error:
        raise NameTaken(f"there is a benchmark called {name!r} in this project already") from error


def use_for_training(dataset: Dataset) -> None:
    Dataset.objects.filter(pk=dataset.pk).update(use=Use.TRAINING)


def archive_dataset(dataset: Dataset) -> None:
    """It leaves the lists; its files stay, because the recipes of old runs name them."""
    Dataset.objects.filter(pk=dataset.pk, archived_at__isnull=True).update(archived_at=timezone.now())


def record_funnel(run: Run, attempt: int, payloads: Sequence[tuple[int, FunnelEvent]]) -> None:
    """Called inside ingest's transaction; sending the same events again changes nothing."""
    rows = [
        {**payload.model_dump(mode="json", exclude={"kind"}), "run_id": str(run.pk), "attempt": attempt}
        for _, payload in sorted(payloads, key=lambda item: item[0])
    ]
    upsert_newest(Funnel, ("run_id", "stage"), rows)
