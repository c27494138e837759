"""The page of one job: status, attempts, log and events; the actions on it; and its full log, by pages."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from flask import Response
from pydantic import Field

from dataloader.app.acts.reasons import ERROR_REASONS, ExplanationReason, ReasonCode, load_explainer
from dataloader.app.acts.web import ActForms, Choice
from dataloader.app.features.graphs.rows import Graphs
from dataloader.app.features.jobs.acts import JobEditRequest, clone_job, delete_job, edit_job
from dataloader.app.features.jobs.job_attempts import attempt_cards
from dataloader.app.features.jobs.job_detail import AttemptRecord, JobDetail, JobReader, run_at
from dataloader.app.features.jobs.job_history import describe_event, link_job_ids, reason_links
from dataloader.app.features.jobs.job_timeline import build_timeline
from dataloader.app.features.jobs.log_routes import LEVELS, levels_from
from dataloader.app.features.jobs.log_search import JobLogSearch, LogFilter
from dataloader.app.features.jobs.progress_chart import RATE_HEIGHT, ProgressChart, build_chart
from dataloader.app.features.jobs.progress_history import ProgressReader, estimate
from dataloader.app.features.jobs.run_follower import make_run_follower
from dataloader.app.features.targets.rows import JobTargets
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.auth.guard import current_actor
from dataloader.app.http.jobs.acts import cancel_job, retry_job
from dataloader.app.http.problems import ProblemCode
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.schemas import parse_job_id
from dataloader.app.http.site import Site
from dataloader.app.log.masking import mask_secret_fields
from dataloader.app.queue.job import Status
from dataloader.app.queue.job_records import JobLogLine
from dataloader.app.ui.base import (
    FormModel,
    PageRenderer,
    can_operate,
    progress_summary,
    redirect_to,
)
from dataloader.app.ui.formatter import Formatter
from dataloader.app.wording import format_attempt

MAX_LOG_LINES = 200
MAX_EVENTS = 200
PAGE_LINES = 500  # of the full log
_PAGE_URL = "/jobs/{job_id}"
_QUIET_REASONS = frozenset(
    {ReasonCode.RUNNING, ReasonCode.SUCCEEDED, ReasonCode.FAILED, ReasonCode.CANCELED, ReasonCode.LOST}
)
_LOG_SEARCH_BUDGET_SEC = 0.02
_TARGET_WAIT_SEC = 1.0  # a target that answers later is shown by the next refresh
_NOT_FOUND = (ProblemCode.JOB_NOT_FOUND,)
_LineId = Annotated[int | None, Field(ge=0, le=2**63 - 1)]


class LogPageQuery(FormModel):
    """The filter of the log page. Without `after` and `before` it shows the last lines."""

    search: Annotated[str, Field(max_length=200, description="Only lines that contain this text.")] = ""
    level: Annotated[
        Literal["", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], Field(description="The lowest level to show.")
    ] = ""
    attempt: Annotated[str, Field(pattern=r"^[0-9]{0,9}$", description="Only lines of this attempt.")] = ""
    after: Annotated[_LineId, Field(description="Lines after this one, from the link of the page before.")] = None
    before: Annotated[_LineId, Field(description="Lines before this one, likewise.")] = None


def create_job_page(site: Site) -> ApiBlueprint:
    queue, options = site.queue, site.options
    pages = PageRenderer("job_page", options)
    reader, explainer = JobReader(queue.executor), load_explainer(site.features, queue.executor, options.features)
    log_search, graphs = JobLogSearch(queue.executor), Graphs(queue.executor)
    progress_reader, follower = ProgressReader(queue.executor), site.shared(make_run_follower)
    job_targets = JobTargets(queue.executor, options.features.get("targets"))
    panels = [panel for feature in site.features for panel in feature.job_panels]

    @pages.page("/jobs/<job:job_id>", standby=False, problems=_NOT_FOUND)
    def show_job(job_id: str) -> Response:
        """Show a job with its attempts, log and events."""
        parsed_id = parse_job_id(job_id)
        job, explanation = reader.detail(parsed_id), None if explainer is None else explainer.explain(parsed_id)
        reasons = [] if explanation is None else explanation.reasons
        events, summary = reader.last_events(parsed_id, limit=MAX_EVENTS), log_search.summary(parsed_id)
        formatter = pages.formatter
        follower.follow(job.status, job.run_id)
        progress, chart = _progress(job, progress_reader, _stalled_sec(reasons), formatter)
        started_at = _started_at(job)
        is_in_graph = job.graph_id is not None
        return pages.render(
            "job.html",
            started_at=started_at,
            job=job,
            state=_state_of(job),
            notes=_notes(job, reasons),
            error_reasons=ERROR_REASONS,
            can_start=_can_start(job, reasons),
            explanation=explanation,
            waiting_since=_waiting_since(job),
            timeline=build_timeline(job, datetime.now(UTC), formatter.pattern, formatter.duration),
            cards=attempt_cards(job, summary),
            args=mask_secret_fields(job.args),
            result=mask_secret_fields(job.result),
            checkpoint=mask_secret_fields(job.checkpoint),
            progress_values=mask_secret_fields(job.progress),
            progress=progress,
            chart=chart,
            rate_height=RATE_HEIGHT,
            history=[describe_event(event, formatter) for event in reversed(events)],
            has_more_events=len(events) == MAX_EVENTS,
            log=queue.logs(parsed_id, tail=True, limit=MAX_LOG_LINES).lines,
            summary=summary,
            levels=LEVELS,
            attempt_label=_attempt_labels(job.attempts),
            parents=graphs.parents(parsed_id) if is_in_graph else [],
            children=graphs.children(parsed_id) if is_in_graph else [],
            targets=job_targets.of_job(parsed_id, is_live=not job.status.final, wait_sec=_TARGET_WAIT_SEC),
            can_clone=can_operate() and current_actor().can_trigger(job.task, job.queue),
            panels=[panel for panel in panels if job.status.value in panel.statuses],
            reason_links=reason_links,
            link_job_ids=link_job_ids,
        )

    forms = ActForms(pages=pages, runner=site.runner, page=show_job, page_url=_PAGE_URL, problems=_NOT_FOUND)
    forms.add_button("/jobs/<job:job_id>/cancel", "submit_job_cancel", cancel_job)
    forms.add_button("/jobs/<job:job_id>/retry", "submit_job_retry", retry_job)
    forms.add_button(
        "/jobs/<job:job_id>/delete", "submit_job_delete", delete_job, respond=lambda _: redirect_to("/jobs")
    )

    @pages.action("/jobs/<job:job_id>/start", page_url=_PAGE_URL, page=show_job, problems=_NOT_FOUND)
    def submit_job_start(job_id: str) -> None:
        """Let this scheduled job start at once."""
        now = JobEditRequest.model_validate({"available_at": datetime.now(UTC).isoformat()})
        site.runner.perform(edit_job, {"job_id": job_id}, now)

    return pages.blueprint


def create_job_forms(site: Site) -> ApiBlueprint:
    queue, options = site.queue, site.options
    pages = PageRenderer("job_forms", options)
    reader = JobReader(queue.executor)

    @pages.page("/jobs/<job:job_id>/edit", standby=False, problems=_NOT_FOUND, scope=Scope.OPERATE)
    def show_edit_form(job_id: str) -> Response:
        """Show the form that changes a queued job."""
        job = reader.detail(parse_job_id(job_id))
        return pages.render("job_edit.html", job=job, args=mask_secret_fields(job.args))

    @pages.page("/jobs/<job:job_id>/clone", standby=False, problems=_NOT_FOUND, scope=Scope.OPERATE)
    def show_clone_form(job_id: str) -> Response:
        """Show the form that creates a job like this one."""
        job = reader.detail(parse_job_id(job_id))
        return pages.render("job_clone.html", job=job, args=mask_secret_fields(job.args))

    problems = (*_NOT_FOUND, ProblemCode.OUTSIDE_KEY_LIMITS)
    for name, page, choice in (
        ("edit", show_edit_form, Choice(act=edit_job)),
        ("clone", show_clone_form, Choice(act=clone_job, respond=lambda made: redirect_to(f"/jobs/{made.job_id}"))),
    ):
        forms = ActForms(pages=pages, runner=site.runner, page=page, page_url=_PAGE_URL, problems=problems)
        forms.add(f"/jobs/<job:job_id>/{name}", f"submit_job_{name}", choice)
    return pages.blueprint


def create_log_page(site: Site) -> ApiBlueprint:
    executor, options = site.executor, site.options
    pages = PageRenderer("log_page", options)
    reader, log_search = JobReader(executor), JobLogSearch(executor)

    @pages.page("/jobs/<job:job_id>/log", query=LogPageQuery, problems=_NOT_FOUND)
    def show_job_log(query: LogPageQuery, job_id: str) -> Response:
        """Show and search the full log of a job."""
        job = reader.get_with_version(parse_job_id(job_id)).job
        attempt = int(query.attempt) if query.attempt else None
        log_filter = LogFilter(text=query.search or None, levels=levels_from(query.level), attempt=attempt)
        page = log_search.page(
            job.id,
            log_filter,
            after=query.after,
            before=query.before,
            limit=PAGE_LINES,
            time_budget_sec=_LOG_SEARCH_BUDGET_SEC,
        )
        named = (("search", query.search), ("level", query.level), ("attempt", query.attempt))
        filters = {name: value for name, value in named if value}
        return pages.render(
            "log.html",
            job=job,
            query=query,
            page=page,
            attempt_label=_attempt_labels(reader.attempts(job.id)),
            summary=log_search.summary(job.id),
            levels=LEVELS,
            filters=urlencode(filters),
            previous=None if page.previous is None else urlencode(filters | {"before": page.previous}),
            next=None if page.next is None else urlencode(filters | {"after": page.next}),
            first=urlencode(filters | {"after": 0}),
            is_last_page=query.after is None and query.before is None,
        )

    return pages.blueprint


def _attempt_labels(attempts: list[AttemptRecord]) -> Callable[[JobLogLine], str]:
    return lambda line: format_attempt(line.attempt, run_at(attempts, line.attempt, line.ts))


def _state_of(job: JobDetail) -> str:
    """The state with its shape: where a queued job waits, or how the job ended."""
    if job.skipped:
        return "skipped"
    if job.status is not Status.QUEUED:
        return job.status.value
    return "ready" if job.wait_state == "scheduled" and job.available_at <= datetime.now(UTC) else job.wait_state


def _notes(job: JobDetail, reasons: list[ExplanationReason]) -> list[ExplanationReason]:
    """What is worth a note: why the job waits, or what is wrong with its run. How it ended the attempts say."""
    if job.status is Status.QUEUED or job.skipped:
        return reasons
    return [reason for reason in reasons if reason.code not in _QUIET_REASONS]


def _can_start(job: JobDetail, reasons: list[ExplanationReason]) -> bool:
    """Whether a scheduled job would start if its time were now."""
    is_served = ERROR_REASONS.isdisjoint(reason.code for reason in reasons)
    return is_served and _state_of(job) == "scheduled"


def _waiting_since(job: JobDetail) -> datetime | None:
    """Since when a queued job waits: since its time, or since its last attempt ended."""
    if job.status is not Status.QUEUED:
        return None
    ended_at = job.attempts[-1].finished_at if job.attempts else None
    since = max(job.created_at, ended_at or job.created_at)
    return since if job.wait_state == "scheduled" else max(since, min(job.available_at, datetime.now(UTC)))


def _started_at(job: JobDetail) -> datetime | None:
    return job.attempts[-1].started_at if job.attempts else job.started_at


def _progress(
    job: JobDetail, reader: ProgressReader, stalled_sec: float | None, formatter: Formatter
) -> tuple[dict[str, Any] | None, ProgressChart | None]:
    """The progress of the last attempt, as its bar and as its picture. What its history says of rate and time left
    takes the place of the mean since the start."""
    now, last = datetime.now(UTC), job.attempts[-1] if job.attempts else None
    points = [] if last is None else reader.points(job.job_id, last, last_progress=job.progress)
    reported = job.progress
    if points:  # the bar and the picture show the same
        reported = {"processed": points[-1].done, "total": points[-1].total, "unit": points[-1].unit}
    summary = progress_summary(reported, _started_at(job), finished_at=job.finished_at, stalled_sec=stalled_sec)
    if summary is None or last is None or not points:
        return summary, None
    summary |= vars(estimate(points, now=now, has_ended=last.finished_at is not None))
    chart = build_chart(
        points, started_at=last.started_at, finished_at=last.finished_at, now=now, format_time=formatter.pattern
    )
    return summary, chart


def _stalled_sec(reasons: list[ExplanationReason]) -> float | None:
    """Seconds since the last change of the progress, if that is long."""
    for reason in reasons:
        if reason.code == "progress_old":
            return float(reason.details["progress_age_sec"])
    return None
