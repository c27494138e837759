"""The pages of tasks: what each did, what is wrong with it, and a form that starts a job of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from flask import Response, g, request
from pydantic import Field

from dataloader.app.acts.feature import load_all
from dataloader.app.acts.known_names import NameCheck
from dataloader.app.acts.matches import Match, match_names
from dataloader.app.acts.web import ActForms, Choice, refusing_form
from dataloader.app.errors import BreakerNotFound
from dataloader.app.features.jobs.start_form import StartForm, StartForms
from dataloader.app.features.limits.acts import delete_breaker, set_breaker
from dataloader.app.features.limits.breakers import Breakers, BreakerStatus
from dataloader.app.features.schedules.rows import Schedule, Schedules
from dataloader.app.features.tasks.routes import TaskInfo
from dataloader.app.features.tasks.run_chart import make_run_chart
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.auth.guard import CSRF_FIELD, current_actor
from dataloader.app.http.caches import RefreshingValue
from dataloader.app.http.jobs.acts import TriggerQuery, trigger_job
from dataloader.app.http.links import quote_name
from dataloader.app.http.options import WebOptions
from dataloader.app.http.problems import ProblemCode
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.schemas import InvalidJobId, parse_job_id
from dataloader.app.http.site import Site
from dataloader.app.http.standby_reads import allowing_standby
from dataloader.app.queue.job import Job
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.queue.queues import LiveWorker
from dataloader.app.state.queues import Queues
from dataloader.app.state.statistics import (
    MAX_RECENT_RUNS,
    JobCounts,
    PeriodStatistics,
    Statistics,
    TaskFailureGroup,
    WaitingCounts,
)
from dataloader.app.ui.base import FormModel, FormText, PageRenderer, redirect_to
from dataloader.app.ui.cells import run_cells
from dataloader.pipelines.contract import Pipelines

_FAILURES_PERIOD_SEC = 7 * 86_400
_COUNT_REFRESH_AFTER_SEC, _COUNT_MAX_AGE_SEC, _COUNT_TIMEOUT_SEC = 10.0, 300.0, 3.0


class TasksQuery(FormModel):
    q: FormText = Field("", description="Only tasks with this text in name, queue or description.")


class TaskQuery(FormModel):
    from_job: FormText = Field("", alias="from", description="Fill in the form with the values of this job.")
    args: FormText = Field("", description="json: write the args as JSON.")


_BREAKER_CHOICES = {
    "breaker": Choice(act=set_breaker),
    "pause": Choice(act=set_breaker, preset={"state": "open"}),
    "resume": Choice(act=set_breaker, preset={"state": "closed"}),
    "delete_breaker": Choice(act=delete_breaker),
}


@dataclass(frozen=True)
class TaskRow:
    """A task in the list."""

    name: str
    info: TaskInfo | None
    queue: str
    schedules: list[Schedule]
    breaker: BreakerStatus | None

    def matches(self, text: str) -> bool:
        texts = (self.name, self.queue, self.info.description if self.info else "")
        return any(text.casefold() in found.casefold() for found in texts)


@dataclass(frozen=True)
class _TaskCounts:
    """Queued jobs by task, and the statistics of each task."""

    waiting: WaitingCounts
    last_week: dict[str, PeriodStatistics]


class _TaskReader:
    """Reads what the pages of tasks show."""

    def __init__(self, queue: JobQueue, pipelines: Pipelines, options: WebOptions) -> None:
        self.statistics, self.schedules = Statistics(queue.executor), Schedules(queue.executor)
        self.breakers, self.queues = Breakers(queue.executor), Queues(queue.executor)
        self._pipelines, self.names = pipelines, NameCheck(queue.executor, pipelines)
        job_counts = JobCounts(queue.executor)

        def count() -> _TaskCounts:
            with allowing_standby():
                return _TaskCounts(job_counts.waiting_by_task(), self.statistics.by_task("7d"))

        self._counts = RefreshingValue(
            count, name="count-tasks", timeout_sec=_COUNT_TIMEOUT_SEC, retry_sec=_COUNT_TIMEOUT_SEC
        )

    def counts(self) -> _TaskCounts | None:
        """Recent counts, which all requests share; None: the database does not answer in time."""
        return self._counts.get_recent(refresh_after_sec=_COUNT_REFRESH_AFTER_SEC, max_age_sec=_COUNT_MAX_AGE_SEC)

    def waiting(self) -> WaitingCounts | None:
        counts = self.counts()
        return None if counts is None else counts.waiting

    def info(self, name: str) -> TaskInfo | None:
        task = self._pipelines.get(name)
        return None if task is None else TaskInfo.from_task(task)

    def breaker(self, name: str) -> BreakerStatus | None:
        with suppress(BreakerNotFound):
            return self.breakers.status(name)
        return None

    def rows(self, text: str) -> dict[str, Any]:
        counts, runs = self.counts(), self.statistics.recent_runs()
        by_task = counts.last_week if counts else {}
        breakers = {status.task: status for status in self.breakers.statuses()}
        schedules: dict[str, list[Schedule]] = {}
        for schedule in self.schedules.list_by_name():
            schedules.setdefault(schedule.task, []).append(schedule)
        names = sorted({*self._pipelines.names, *by_task, *runs, *schedules, *breakers})
        rows = [
            TaskRow(name, self.info(name), self.queue(name, runs), schedules.get(name, []), breakers.get(name))
            for name in names
            if current_actor().can_see_task(name)
        ]
        shown = [row for row in rows if row.matches(text)]
        return {
            "rows": shown,
            "total": len(rows),
            "statistics": by_task,
            "runs": runs,
            "waiting": counts and counts.waiting,
        }

    def queue(self, name: str, runs: Mapping[str, Any]) -> str:
        """The task's own queue, or else that of its last run."""
        task = self._pipelines.get(name)
        if task is not None and task.options.queue:
            return task.options.queue
        return str(runs[name][0].queue) if runs.get(name) else ""

    def known_to(self, name: str) -> int:
        workers: list[LiveWorker] = self.queues.live_workers()
        return sum(name in worker.tasks for worker in workers)


def find_tasks(site: Site, text: str) -> Iterator[Match]:
    return match_names(
        "task", "/tasks/", sorted({*site.pipelines.names, *Statistics(site.executor).task_names()}), text
    )


def create_tasks_page(site: Site) -> ApiBlueprint:
    queue, pipelines, options = site.queue, site.pipelines, site.options
    pages = PageRenderer("tasks_page", options)
    reader, forms = _TaskReader(queue, pipelines, options), StartForms(pipelines, options)
    task_notes = [make(site) for make in load_all(site.features, "task_note")]
    part_finders = tuple(load_all(site.features, "task_parts"))

    @pages.page("/tasks", query=TasksQuery)
    def show_tasks(query: TasksQuery) -> Response:
        """Show all tasks with their last runs, times and schedules."""
        return pages.render("tasks.html", query=query, run_cells=run_cells, **reader.rows(query.q.strip()))

    def render_task(name: str, *, query: TaskQuery | None = None) -> Response:
        info = reader.info(name)
        by_task = reader.statistics.by_task("7d", task=name)
        runs = reader.statistics.recent_runs(task=name, limit=MAX_RECENT_RUNS)
        if name not in runs and name not in by_task and reader.names.unknown(task=name):
            reason = f"No worker has run a task {name!r}, and this process does not know it."
            return pages.render("action_failed.html", status=HTTPStatus.NOT_FOUND, reason=reason, back_url="/tasks")
        last_runs = runs.get(name, [])
        failures = reader.statistics.failures_of_task(name, period_sec=_FAILURES_PERIOD_SEC)
        return pages.render(
            "task.html",
            run_cells=run_cells,
            name=name,
            url_name=quote_name(name),  # one segment of the path, also for a name with slashes
            task=info,
            queue=reader.queue(name, runs),
            known_to=reader.known_to(name),
            statistics=by_task.get(name),
            waiting=reader.waiting(),
            runs=last_runs,
            chart=make_run_chart(last_runs, time_limit_sec=info.options.time_limit_sec if info else None),
            task_notes=[note for note_of in task_notes if (note := note_of(name)) is not None],
            failures=failures,
            failure_rows=[(group, _jobs_query(name, group)) for group in failures.groups],
            breaker=reader.breaker(name),
            task_parts=[part for find in part_finders for part in find(site, name)],
            datasets=reader.statistics.datasets_of_runs(last_runs),
            start=_start_inputs(name, query, reader.queue(name, runs)),
            queue_names=sorted(reader.queues.settings().keys() | set(options.queues)),
            can_trigger=Scope.TRIGGER in current_actor().scopes,
        )

    def _start_inputs(name: str, query: TaskQuery | None, queue_name: str) -> Any:
        refused = g.get("refused_form")
        as_json = (query is not None and query.args == "json") or (refused is not None and "args" in refused.values)
        job = _visible_job(queue, name, "" if query is None else query.from_job)
        known_queue = queue_name or next(iter(options.queues), "")
        return forms.inputs(name, zone=pages.formatter.zone, queue=known_queue, job=job, as_json=as_json)

    @pages.page("/tasks/<path:name>", query=TaskQuery, problems=(ProblemCode.NOT_FOUND,))
    def show_task(query: TaskQuery, name: str) -> Response:
        """Show a task: its last runs, failures, slices, schedules and checks, and the form that starts a job of it."""
        return render_task(name, query=query)

    @pages.action(
        "/tasks/<path:name>",
        form=StartForm,
        page_url="/tasks/{name}",
        page=render_task,
        problems=(ProblemCode.NOT_FOUND, ProblemCode.OUTSIDE_KEY_LIMITS),
        scope=Scope.TRIGGER,
    )
    def submit_task_start(form: StartForm, name: str) -> Response:
        """Start a task with the args of the form."""
        values = {field: value for field, value in request.form.items() if field != CSRF_FIELD}
        original = _visible_job(queue, name, form.from_job)
        original_args = None if original is None else original.args
        with refusing_form(forms.input_of(values)):
            trigger = forms.parse(name, values, original_args, zone=pages.formatter.zone)
            made = site.runner.perform(trigger_job, {}, trigger, query=TriggerQuery())
        return redirect_to(f"/jobs/{made.job_id}")

    breaker_forms = ActForms(
        pages=pages, runner=site.runner, page=lambda task: render_task(name=task), page_url="/tasks/{task}"
    )
    breaker_forms.add("/breakers/<path:task>", "act_on_task", _BREAKER_CHOICES)
    return pages.blueprint


def _visible_job(queue: JobQueue, task: str, raw_id: str) -> Job | None:
    """The job of this task whose values the form has, if the caller may read it."""
    job_id: UUID | None = None
    with suppress(InvalidJobId):
        job_id = parse_job_id(raw_id)
    job = None if job_id is None else queue.get(job_id)
    actor = current_actor()
    can_read = job is not None and actor.has_scope((Scope.READ,)) and actor.can_see(job.task, job.queue)
    return job if job is not None and can_read and job.task == task else None


def _jobs_query(task: str, group: TaskFailureGroup) -> str:
    """The filter of the group's jobs, as in the address of the list of jobs."""
    fields = {"status": "failed,lost", "task": task, "fingerprint": group.fingerprint}
    return urlencode({name: value for name, value in fields.items() if value})
