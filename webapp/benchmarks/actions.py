"""Evaluations as the journal brings them; share links made and revoked."""

import hashlib
import secrets
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction
from django.utils import timezone
from django.utils.text import slugify

from contracts.events import EvaluationFinished
from contracts.text import clean_text
from webapp.benchmarks.models import Evaluation, Leaderboard, Share
from webapp.runs.models import Run
from webapp.trajectories.upsert import upsert_newest

TOKEN_BYTES = 32


def make_slug(name: str) -> str:
    """Readable and one for each name, whatever alphabet the name is in."""
    return f"{slugify(name)[:60] or 'board'}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def record_evaluation(run: Run, attempt: int, payloads: Sequence[tuple[int, EvaluationFinished]]) -> None:
    """Called inside ingest's transaction; sending the same events again changes nothing."""
    boards = _boards(run, {clean_text(p.board) for _, p in payloads if p.board})
    ordered = [payload for _, payload in sorted(payloads, key=lambda item: item[0])]
    rows = [_to_row(run, attempt, payload, boards.get(clean_text(payload.board))) for payload in ordered]
    upsert_newest(Evaluation, ("run_id", "stage", "step"), rows)


def _boards(run: Run, names: set[str]) -> dict[str, int]:
    """Board name -> id, the missing ones made."""
    if not names:
        return {}
    found = [Leaderboard(project_id=run.project_id, name=name[:80], slug=make_slug(name)) for name in sorted(names)]
    Leaderboard.objects.bulk_create(found, ignore_conflicts=True)
    ids = dict(
        Leaderboard.objects.filter(project_id=run.project_id, slug__in=[b.slug for b in found]).values_list(
            "slug", "pk"
        )
    )
    return {name: ids[make_slug(name)] for name in names}


def _to_row(run: Run, attempt: int, payload: EvaluationFinished, leaderboard: int | None) -> dict[str, Any]:
    avg = payload.avg
    return {
        **payload.model_dump(mode="json", exclude={"kind", "board", "avg"}),
        "run_id": str(run.pk),
        "attempt": attempt,
        "leaderboard_id": leaderboard,
        "created_at": timezone.now().isoformat(),
        "avg": avg.value if avg else None,
        "half_width": avg.half_width if avg else None,
        "problems": len(payload.correct_by_problem),
        "samples": avg.samples if avg else 0,
        "ungraded": avg.ungraded if avg else len(payload.correct_by_problem) * payload.k,
    }


@transaction.atomic
def create_share(leaderboard: Leaderboard, *, by: AbstractBaseUser, note: str = "", days: int | None = None) -> str:
    """The token, which nobody can be told again: the row keeps its hash only."""
    token = secrets.token_urlsafe(TOKEN_BYTES)
    Share.objects.create(
        leaderboard=leaderboard,
        token_hash=hash_token(token),
        note=clean_text(note)[:80],
        created_by=by,
        expires_at=timezone.now() + timedelta(days=days) if days else None,
    )
    return token


def revoke_share(share: Share) -> bool:
    """False when it was revoked before."""
    return bool(Share.objects.filter(pk=share.pk, revoked_at__isnull=True).update(revoked_at=timezone.now()))


def hash_token(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
