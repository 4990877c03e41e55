"""Who may see and do what with a run."""

from uuid import UUID

from django.http import Http404

from webapp.accounts.access import AnyUser, projects_of, require_role
from webapp.accounts.models import Role
from webapp.runs.models import Run


def get_run(user: AnyUser, run_id: UUID | str, role: Role = Role.VIEWER) -> Run:
    """The run with its project; Http404 for strangers, PermissionDenied without the role."""
    try:
        wanted = run_id if isinstance(run_id, UUID) else UUID(run_id)
    except ValueError:
        raise Http404("no such run") from None
    run = Run.objects.select_related("project").filter(pk=wanted, project__in=projects_of(user)).first()
    if run is None:
        raise Http404("no such run")
    require_role(user, run.project, role)
    return run
