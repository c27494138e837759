"""The pages of backfills, with the forms that create and change them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from flask import Response, g
from pydantic import Field

from dataloader.app.acts.reasons import Explainer, JobExplanation, load_explainer
from dataloader.app.acts.web import ActForms, Choice, refusing_form
from dataloader.app.errors import JobNotFound
from dataloader.app.features.backfills import acts
from dataloader.app.features.backfills.forms import NewBackfillForm, ended_count, extent
from dataloader.app.features.backfills.plan import BackfillPlan
from dataloader.app.features.backfills.reader import BackfillReader
from dataloader.app.features.backfills.rows import Backfill, BackfillState, SliceError
from dataloader.app.features.backfills.slices_page import GridFields, grid_or_problem
from dataloader.app.http.links import quote_name
from dataloader.app.http.problems import ProblemCode
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.site import Site
from dataloader.app.log.masking import mask_secret_fields
from dataloader.app.queue.job import Status
from dataloader.app.ui.base import FormText, InvalidForm, PageRenderer, can_operate, redirect_to

_BACKFILLS_SHOWN = 50
_SLICES_LISTED = 24
_PAGE_URL = "/backfills/{backfill_id}"
_MODES = {
    "unfinished": "without a success, or whose last job did not succeed",
    "missing": "without a success",
    "failed": "whose last job did not succeed",
    "all": "all, also what has been loaded",
}


class BackfillsFields(NewBackfillForm):
    """Which backfills are listed, those of `task`, and the fields of a preview."""

    open: FormText = Field("", description="yes: only those that have not ended.")


_CHOICES = {
    "pause": Choice(act=acts.pause_backfill),
    "resume": Choice(act=acts.resume_backfill),
    "retry": Choice(act=acts.retry_backfill),
    "change": Choice(act=acts.change_backfill),
    "cancel": Choice(act=acts.cancel_backfill),
}


@dataclass(frozen=True)
class Pace:
    """How fast a backfill is: slices a second on average, and how long the others take; None: not known yet."""

    per_second: float | None
    left_sec: float | None
    until: datetime | None


def create_backfills_page(site: Site) -> ApiBlueprint:
    pages = PageRenderer("backfills_page", site.options)
    reader = BackfillReader(site.executor, site.pipelines, site.options)
    runner, explainer = site.runner, load_explainer(site.features, site.executor, site.options.features)

    @pages.page("/backfills", query=BackfillsFields)
    def show_backfills(query: BackfillsFields) -> Response:
        """List the backfills with their progress, and show a form that creates one."""
        return render_backfills(query)

    def render_backfills(query: BackfillsFields) -> Response:
        plan: BackfillPlan | None = None
        problem = None
        if can_operate() and query.task and (query.first or query.keys) and g.get("refused_form") is None:
            try:
                with refusing_form(query.form_field):
                    plan = runner.perform(acts.create_backfill, {}, query.to_request(dry_run=True)).plan
            except InvalidForm as error:
                problem = error
        found = reader.newest(task=query.task or None, is_open=query.open == "yes", limit=_BACKFILLS_SHOWN)
        return pages.render(
            "backfills.html",
            backfills=found,
            query=query,
            plan=plan,
            problem=problem,
            modes=_MODES,
            ended_count=ended_count,
            extent=extent,
            task_names=site.pipelines.names,
            partitioned=[task.name for task in site.pipelines if task.options.partitions is not None],
        )

    @pages.action(
        "/backfills",
        form=NewBackfillForm,
        page_url="/backfills",
        page=lambda: render_backfills(BackfillsFields()),
        problems=(ProblemCode.OUTSIDE_KEY_LIMITS,),
    )
    def create_backfill_from_form(form: NewBackfillForm) -> Response:
        """Create a backfill."""
        with refusing_form(form.form_field):
            created = runner.perform(acts.create_backfill, {}, form.to_request(dry_run=False))
        return redirect_to(f"/backfills/{created.backfill.backfill_id}")

    @pages.page("/backfills/<uuid:backfill_id>", query=GridFields, problems=(ProblemCode.BACKFILL_NOT_FOUND,))
    def show_backfill(query: GridFields, backfill_id: UUID) -> Response:
        """Show a backfill: its progress, its slices, what runs and what failed."""
        return render_backfill(backfill_id, query)

    def render_backfill(backfill_id: UUID, query: GridFields) -> Response:
        backfill = reader.get(backfill_id)
        partitions = reader.partitions_of(backfill)
        grid, problem = (None, "") if partitions is None else grid_or_problem(reader, backfill.task, partitions, query)
        return pages.render(
            "backfill.html",
            backfill=backfill,
            args=mask_secret_fields(backfill.template.get("args", {})),
            problem=problem,
            modes=_MODES,
            extent=extent(backfill),
            ended=ended_count(backfill),
            grid=grid,
            bad=_bad_slices(reader, backfill),
            running=reader.backfills.slices(backfill_id=backfill_id, state=Status.RUNNING, limit=_SLICES_LISTED),
            pace=_pace(backfill, datetime.now(UTC)),
            loaded=reader.backfills.loaded_rows(backfill_id),
            limits=reader.limits_of(backfill),
            waiting=_oldest_waiting(reader, explainer, backfill_id),
            path=f"/backfills/{backfill_id}",
            slices_path=f"/slices/{quote_name(backfill.task)}",
        )

    forms = ActForms(
        pages=pages, runner=runner, page=lambda backfill_id: render_backfill(backfill_id, GridFields()),
        page_url=_PAGE_URL, problems=(ProblemCode.BACKFILL_NOT_FOUND,),
    )  # fmt: skip
    summary = "Pause, resume, retry, change or cancel a backfill."
    forms.add("/backfills/<uuid:backfill_id>/act", "act_on_backfill", _CHOICES, summary=summary)
    return pages.blueprint


def _bad_slices(reader: BackfillReader, backfill: Backfill) -> list[tuple[Any, SliceError | None]]:
    """Slices whose last job failed or was lost, with the error of the job, if it still exists."""
    found = [
        part
        for state in (Status.FAILED, Status.LOST)
        for part in reader.backfills.slices(backfill_id=backfill.backfill_id, state=state, limit=_SLICES_LISTED)
    ][:_SLICES_LISTED]
    errors = reader.backfills.errors_of([part.job_id for part in found])
    return [(part, errors.get(part.job_id)) for part in found]


def _oldest_waiting(reader: BackfillReader, explainer: Explainer | None, backfill_id: UUID) -> JobExplanation | None:
    """Explain the oldest of the waiting jobs of the first slices that wait; None if none does."""
    if explainer is None:
        return None
    waiting = reader.backfills.slices(backfill_id=backfill_id, state=Status.QUEUED, limit=_SLICES_LISTED)
    job_ids = sorted(part.job_id for part in waiting)  # ids are ordered by time
    if not job_ids:
        return None
    try:
        explanation = explainer.explain(job_ids[0])
    except JobNotFound:  # deleted since
        return None
    return explanation if explanation.status is Status.QUEUED else None


def _pace(backfill: Backfill, now: datetime) -> Pace:
    """The pace so far."""
    ended = ended_count(backfill) - backfill.skipped
    since_sec = (now - backfill.created_at).total_seconds()
    left = backfill.total - ended_count(backfill)
    if backfill.state is not BackfillState.OPEN or not ended or left <= 0 or since_sec <= 0:
        return Pace(None, None, None)
    left_sec = left * since_sec / ended
    return Pace(ended / since_sec, left_sec, now + timedelta(seconds=left_sec))
