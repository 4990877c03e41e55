from typing import Any
from uuid import UUID

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import FileResponse, Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from webapp.accounts.access import has_role, require_role
from webapp.accounts.models import Role
from webapp.datasets import actions, queries, store
from webapp.datasets.forms import BenchmarkForm, UploadForm
from webapp.datasets.models import Dataset
from webapp.datasets.reading import MAX_PROBLEM_CHARS, FileError
from webapp.pages.current import current_project, require_project

ROWS_PAGE = 25


@login_required
@require_safe
def index(request: HttpRequest) -> HttpResponse:
    project = current_project(request)
    datasets, before = queries.page_of_datasets(project, request.GET.get("before", "")) if project else ([], "")
    context = {
        "project": project,
        "place": "datasets",
        "datasets": datasets,
        "before": before,
        "can_upload": project is not None and has_role(request.user, project, Role.OPERATOR),
    }
    return render(request, "datasets/list.html", context)


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def upload(request: HttpRequest) -> HttpResponse:
    project = require_project(request)
    require_role(request.user, project, Role.OPERATOR)
    form = UploadForm(request.POST or None, request.FILES or None) if request.method == "POST" else UploadForm()
    if request.method == "POST" and form.is_valid():
        file, name = form.cleaned_data["file"], form.cleaned_data["name"]
        try:
            stored = actions.upload_dataset(project, file, name=name, by=request.user)
        except FileError as error:
            form.add_error("file", str(error))
        else:
            if not stored.is_new:
                messages.warning(request, f"The same file was uploaded before, as {stored.dataset.name}: here it is.")
            return redirect("datasets:detail", stored.dataset.pk)
    context = {"project": project, "place": "datasets", "form": form, "max_chars": MAX_PROBLEM_CHARS}
    return render(request, "datasets/upload.html", context, status=422 if form.errors else 200)


@login_required
@require_safe
def detail(request: HttpRequest, pk: UUID) -> HttpResponse:
    return _detail(request, queries.get_dataset(request.user, pk))


@login_required
@require_safe
def rejected(request: HttpRequest, pk: UUID) -> HttpResponse:
    dataset = queries.get_dataset(request.user, pk)
    context = _page(request, dataset, store.REJECTED, dataset.rejected)
    return render(request, "datasets/rejected.html", context)


@login_required
@require_safe
def download(request: HttpRequest, pk: UUID, which: str) -> HttpResponse:
    """A file as a download: never shown by the browser, whatever it holds."""
    dataset = queries.get_dataset(request.user, pk)
    original = store.original_name(dataset.is_csv)
    names = {"problems": store.PROBLEMS, "rejected": store.REJECTED, "original": original}
    if which not in names:
        raise Http404("no such file")
    try:
        stream = (store.folder_of(dataset.pk) / names[which]).open("rb")
    except FileNotFoundError as error:
        raise Http404("the file is not in the artifact store") from error
    response = FileResponse(stream, as_attachment=True, filename=names[which], content_type="application/octet-stream")
    response["X-Content-Type-Options"] = "nosniff"
    return response


@login_required
@require_POST
def benchmark(request: HttpRequest, pk: UUID) -> HttpResponse:
    dataset = queries.get_dataset(request.user, pk, Role.OPERATOR)
    form = BenchmarkForm(request.POST)
    if form.is_valid():
        try:
            actions.register_benchmark(dataset, form.cleaned_data["name"])
        except actions.NameTaken as error:
            form.add_error("name", str(error))
        else:
            messages.success(request, "Registered: evaluate stages can choose it now.")
            return redirect("datasets:detail", dataset.pk)
    return _detail(request, dataset, form)


@login_required
@require_POST
def training(request: HttpRequest, pk: UUID) -> HttpResponse:
    dataset = queries.get_dataset(request.user, pk, Role.OPERATOR)
    actions.use_for_training(dataset)
    return redirect("datasets:detail", dataset.pk)


@login_required
@require_POST
def archive(request: HttpRequest, pk: UUID) -> HttpResponse:
    dataset = queries.get_dataset(request.user, pk, Role.OPERATOR)
    actions.archive_dataset(dataset)
    messages.success(request, f"{dataset.name} was archived. Runs that used it keep its files.")
    return redirect("datasets:list")


def _detail(request: HttpRequest, dataset: Dataset, form: BenchmarkForm | None = None) -> HttpResponse:
    can_change = has_role(request.user, dataset.project, Role.OPERATOR) and dataset.archived_at is None
    context = {
        **_page(request, dataset, store.PROBLEMS, dataset.accepted),
        "form": form or BenchmarkForm(initial={"name": dataset.name}),
        "can_change": can_change,
        "checkpoints": queries.checkpoints_of(dataset.project) if can_change and dataset.use == "benchmark" else [],
    }
    return render(request, "datasets/detail.html", context, status=422 if form else 200)


def _page(request: HttpRequest, dataset: Dataset, name: str, total: int) -> dict[str, Any]:
    text = request.GET.get("start", "0")
    start = min(int(text), total) if text.isdecimal() and len(text) < 10 else 0
    rows = store.read_page(dataset.pk, name, start, ROWS_PAGE)
    return {
        "project": dataset.project,
        "place": "datasets",
        "dataset": dataset,
        "rows": rows,
        "start": start,
        "end": start + len(rows),
        "total": total,
        "previous": max(0, start - ROWS_PAGE) if start else None,
        "following": start + ROWS_PAGE if start + ROWS_PAGE < total else None,
    }
