"""One job: what it is, what happened to it, why it waits; and what can be done to it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID
from zoneinfo import ZoneInfo

from flask import Response
from pydantic import Field, ValidationError

from app.errors import DataloaderError, JobNotFound
from app.queue.edits import Edit, Edits
from app.queue.jobqueue import JobQueue
from app.queue.keys import Scope
from app.queue.lists import Lists
from app.queue.why import Explanation, Why
from app.web.auth import current_actor
from app.web.models import faults_of, trigger_request
from app.web.operations import HTML, Subject
from app.web.pages.frame import FormModel, Frame, Unreadable, acting, go, job_id_of, masked, progress_of, restored
from app.web.problems import Code
from app.web.strictjson import NotJson, read
from app.web.tasks import args_faults, defaults_of
from pipelines.contract import Pipelines

LINES = 500  # of the log's end that the page shows
MOST_EVENTS = 200
_Text = Annotated[str, Field(max_length=1000)]  # but args, which are as long as a body may be


class CloneForm(FormModel):
    """A job like this one, with other args."""

    args: str = Field(description="The args, as a JSON object.")
    queue: _Text = Field("", description="Another queue.")
    lock_key: _Text = Field("", description="Another lock_key.")
    priority: _Text = Field("", description="Another priority.")


class EditForm(FormModel):
    """What a waiting job shall have instead; empty: as it is."""

    version: _Text = Field(description="The version of the job that was seen.")
    priority: _Text = Field("", description="Its priority.")
    available_at: _Text = Field("", description="Not before, in the zone of the page.")
    args: str = Field("", description="The args, as a JSON object.")


def _still(explanation: Explanation) -> float | None:
    """Since how many seconds the progress has not changed, if that is long."""
    for reason in explanation.reasons:
        if reason.code == "progress_old":
            return float(reason.facts["progress_age_sec"])
    return None


class NotUnderstood(ValueError):
    """What somebody wrote cannot be meant."""


def job(queue: JobQueue, pipelines: Pipelines, frame: Frame) -> Subject:
    subject = Subject("job_page", "", frame.options.max_json_depth)
    lists, why, edits = Lists(queue.source), Why(queue.source), Edits(queue.source)

    @subject.get("/jobs/<job:job_id>", answer=str, media_type=HTML, problems=(Code.JOB_NOT_FOUND,), scope=Scope.READ)
    def job_page(job_id: str) -> Response:
        """See everything about a job."""
        wanted = job_id_of(job_id)
        try:
            story, explanation = lists.story(wanted), why.explain(wanted)
            events, log = lists.last_events(wanted, limit=MOST_EVENTS), queue.logs(wanted, tail=True, limit=LINES).lines
        except Unreadable as error:
            return frame.away("The job", error)
        it = story.job
        began = story.tries[-1].started_at if story.tries else it.started_at
        return frame.show(
            "job.html",
            began=began,
            job=it,
            story=story,
            explanation=explanation,
            args=masked(it.args),
            result=masked(it.result),
            told=masked(it.progress),
            progress=progress_of(it.progress, began, ended=it.finished_at, still=_still(explanation)),
            events=events,
            more_events=len(events) == MOST_EVENTS,
            log=log,
            more_log=len(log) == LINES,
            may_operate=current_actor().may((Scope.OPERATE,)),
            may_clone=current_actor().may((Scope.OPERATE,)) and current_actor().may_trigger(it.task, it.queue),
        )

    @acting(subject, "/jobs/<job:job_id>/cancel", problems=(Code.JOB_NOT_FOUND,))
    def cancel_here(job_id: str) -> Response:
        """Cancel this job."""
        return _done(job_id, queue.cancel)

    @acting(subject, "/jobs/<job:job_id>/retry", problems=(Code.JOB_NOT_FOUND,))
    def retry_here(job_id: str) -> Response:
        """Queue this job again."""
        return _done(job_id, queue.retry)

    @acting(subject, "/jobs/<job:job_id>/delete", problems=(Code.JOB_NOT_FOUND,))
    def delete_here(job_id: str) -> Response:
        """Delete this finished job."""
        return _done(job_id, edits.delete, then="/jobs")

    @acting(subject, "/jobs/<job:job_id>/edit", form=EditForm, problems=(Code.JOB_NOT_FOUND,))
    def edit_here(asked: EditForm, job_id: str) -> Response:
        """Change this job while it waits."""
        wanted = job_id_of(job_id)
        found = queue.get(wanted)
        if found is None:
            raise JobNotFound(wanted)
        try:
            edit = Edit(
                priority=_number(asked.priority),
                available_at=_time(asked.available_at, frame.words.zone),
                args=_args(asked.args, frame, found.args) if asked.args else None,
            )
            edits.edit(wanted, edit, seen=asked.version)
        except (DataloaderError, NotUnderstood) as error:
            return frame.refused(error, back=f"/jobs/{wanted}")
        return go(f"/jobs/{wanted}")

    def _done(job_id: str, act: Callable[[UUID], object], *, then: str | None = None) -> Response:
        wanted = job_id_of(job_id)
        try:
            act(wanted)
        except JobNotFound:
            raise
        except DataloaderError as error:
            return frame.refused(error, back=f"/jobs/{wanted}")
        return go(then or f"/jobs/{wanted}")

    _clone(subject, queue, pipelines, frame)
    return subject


def _clone(subject: Subject, queue: JobQueue, pipelines: Pipelines, frame: Frame) -> None:
    request_model, filled = trigger_request(frame.options, pipelines), defaults_of(pipelines)

    @acting(subject, "/jobs/<job:job_id>/clone", form=CloneForm, problems=(Code.JOB_NOT_FOUND, Code.OUTSIDE_KEY_LIMITS))
    def clone_here(asked: CloneForm, job_id: str) -> Response:
        """Put a job like this one into the queue, with other args."""
        wanted = job_id_of(job_id)
        found = queue.get(wanted)
        if found is None:
            raise JobNotFound(wanted)
        current_actor().must_trigger(found.task, asked.queue or found.queue)
        try:
            said = {
                "queue": asked.queue or found.queue,
                "task": found.task,
                "lock_key": asked.lock_key or found.lock_key,
                "args": _args(asked.args, frame, found.args),
                "partition_key": found.partition_key,
                "priority": found.priority if not asked.priority else _number(asked.priority),
                "max_attempts": found.max_attempts,
                "lease_ttl_sec": found.lease_ttl_sec,
                "producer": current_actor().name,
                "time_limit_sec": found.time_limit_sec,
                "retry": found.retry,
            }
            new = request_model.model_validate(filled(said))
        except ValidationError as error:
            told = "; ".join(f"{fault.field}: {fault.message}" for fault in faults_of(error))
            return frame.refused(NotUnderstood(told), back=f"/jobs/{wanted}")
        except NotUnderstood as error:
            return frame.refused(error, back=f"/jobs/{wanted}")
        faults = args_faults(pipelines.get(new.task), new.args)
        if faults:
            told = "; ".join(f"{fault.field}: {fault.message}" for fault in faults)
            return frame.refused(NotUnderstood(told), back=f"/jobs/{wanted}")
        return go(f"/jobs/{queue.enqueue(new.new_job()).job_id}")


def _args(told: str, frame: Frame, before: dict[str, Any]) -> dict[str, Any]:
    """The args as somebody wrote them. What was masked for him is what it was."""
    try:
        reading = read(told.encode("utf-8", "replace"), max_depth=frame.options.max_json_depth)
    except NotJson as error:
        raise NotUnderstood(f"args: {error}".replace("the body", "it")) from None
    if reading.faults:
        raise NotUnderstood("; ".join(f"args: {fault.message}" for fault in reading.faults))
    if not isinstance(reading.value, dict):
        raise NotUnderstood("args: is no JSON object; send one, as in {}")
    return dict(restored(reading.value, before))


def _number(told: str) -> int | None:
    if not told.strip():
        return None
    if not told.strip().isdecimal():
        raise NotUnderstood(f"priority: {told!r} is no whole number from 0 on")
    return int(told)


def _time(told: str, zone: str) -> datetime | None:
    if not told.strip():
        return None
    try:
        at = datetime.fromisoformat(told.strip())
    except ValueError:
        raise NotUnderstood(f"available_at: {told!r} is no time; 2026-11-21T18:30 would do") from None
    return at if at.tzinfo is not None else at.replace(tzinfo=ZoneInfo(zone))
