"""Commands about jobs that exist: from status, cancel, retry, jobs and failures to edit, clone and delete."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, TextIO
from urllib.parse import quote
from uuid import UUID

import click

from dataloader.app.cli import text, watch
from dataloader.app.cli.exit_codes import ExitCode
from dataloader.app.cli.invocation import dataloader_command
from dataloader.app.cli.parsing import (
    DURATION,
    NOT_NEGATIVE,
    OBJECT,
    POSITIVE,
    TIME,
    JobId,
    PartOfId,
    filter_options,
    limit_option,
    parse_job_id,
    without_none,
)
from dataloader.app.cli.service_options import OutageNotice, RemoteService, remote_command
from dataloader.app.cli.tables import Table
from dataloader.app.wording import format_attempt, format_count, format_duration
from dataloader.errors import NotFound, Refused, ServiceUnavailable

_PAGE_LINES = 1000
_NO_REASON = "Nothing holds up the task {}. `dataloader why JOB_ID` explains one job that waits."
_NO_QUEUE_REASON = "Nothing holds up the queue {}. `dataloader why JOB_ID` explains one job that waits."
_PROGRESS_INTERVAL_SEC = 1.0
# The last columns are the first that a narrow terminal does without.
_JOBS = Table(
    "job=job_id, status, task, queue, attempts, progress, created=created_at, error",
    {
        "status": text.format_status,
        "attempts": lambda job: f"{job['attempt']}/{job['max_attempts']}",
        "progress": lambda job: text.format_progress(job["progress"]),
        "error": lambda job: text.format_error(job["error"]),
    },
    uncut="job, status, attempts, created",
    empty_message="No jobs match.",
)
_FAILURES = Table(
    "task, fingerprint, jobs, first=first_at, last=last_at, job=job_id, error",
    {"error": lambda group: text.format_error(group["error"])},
    uncut="fingerprint, jobs, last, job",
    empty_message="No failed or lost jobs.",
)
_EVENTS = Table(
    "time=ts, event=kind, details",
    {"details": lambda event: event["payload"] or None},
    uncut="time, event",
    empty_message="No events yet.",
)
_NOT_SHOWN = (
    *("attempts", "traceback", "checkpoint", "follow_up_jobs", "parent", "lock_holder", "version"),
    *("args", "progress", "result"),  # shown last
)
job_argument = click.argument("job_id", type=JobId())


@remote_command(short_help="Show the status of a job.")
@job_argument
@click.option("--watch", "watching", is_flag=True, help="Show every change until the job is final.")
def status(service: RemoteService, *, job_id: UUID, watching: bool) -> None:
    """Show status, attempt, times, progress and last error of a job.

    With --watch the exit code is that of the job: 0 if it succeeded, 1 if not.
    """
    if watching:
        watch.watch_and_exit(service, job_id)
    else:
        state = service.client.status(job_id)
        service.print_payload(state, *text.state_lines(state))


@remote_command(short_help="Cancel a job.")
@job_argument
def cancel(service: RemoteService, *, job_id: UUID) -> None:
    """Cancel a job: at once if it is queued, at its next safe point if it runs. A finished job stays as it is."""
    state = service.client.cancel(job_id)
    messages = {
        "queued": f"Job {job_id} is queued, and will be canceled.",
        "running": f"Job {job_id} is running and will be canceled; it ends at its next safe point, "
        "or with its process if it has one of its own.",
        "canceled": f"Job {job_id} is canceled.",
    }
    service.print_payload(state, messages.get(state["status"], f"Job {job_id} had already ended: {state['status']}."))


@remote_command(short_help="Queue a failed, canceled or lost job again.")
@job_argument
def retry(service: RemoteService, *, job_id: UUID) -> None:
    """Queue a failed, canceled or lost job again, under the same id, with all its attempts."""
    state = service.client.retry(job_id)
    service.print_payload(state, f"Job {job_id} is {state['status']} again.")


@remote_command(short_help="List jobs, newest first.")
@filter_options
@limit_option
def jobs(service: RemoteService, *, limit: int, **options: Any) -> None:
    """List jobs, newest first: a table on a terminal, whole aligned lines in a pipe.

    Jobs with an id, an idempotency key or a lock key are found at once. Any other search continues until it has found
    as many jobs as --limit or has searched all; Ctrl-C prints what it has found.
    """
    found: list[text.Payload] = []
    page: text.Payload = {"scanned_to": None}
    is_interrupted, next_progress_at = False, 0.0
    try:
        for page in service.client.job_pages(limit=limit, **options):
            found += page["jobs"]
            if page["next"] is not None and len(found) < limit and time.monotonic() >= next_progress_at:
                next_progress_at = time.monotonic() + _PROGRESS_INTERVAL_SEC
                searched_to = text.format_time(page["scanned_to"])
                click.echo(f"Searched back to {searched_to}: {format_count(len(found), 'job')} so far.", err=True)
    except KeyboardInterrupt:
        is_interrupted = True
    if found or not is_interrupted:
        service.print_list({**page, "jobs": found}, "jobs", _JOBS)
    if is_interrupted:
        if page["scanned_to"] is not None:
            click.echo(f"Jobs older than {text.format_time(page['scanned_to'])} were not searched.", err=True)
        click.get_current_context().exit(ExitCode.INTERRUPTED)


@remote_command(short_help="Group failed and lost jobs by their error.")
@click.option("--task", help="Only jobs of this task.")
@click.option("--queue", help="Only jobs in this queue.")
@limit_option
def failures(service: RemoteService, *, limit: int, **options: Any) -> None:
    """List failed and lost jobs, grouped by task and fingerprint of the error, largest group first, with the last job
    of each. `jobs --fingerprint` lists the jobs of a group, `bulk redrive --fingerprint` retries them.

    Of the newest ten thousand unsuccessful jobs.
    """
    page = service.get("/api/v1/failures", **options, limit=limit)
    service.print_list(page, "failures", _FAILURES)
    if not service.as_json and page["scanned_to"] is not None:
        click.echo(f"Jobs older than {text.format_time(page['scanned_to'])} were not read.", err=True)


@remote_command(short_help="List the events of a job.")
@job_argument
def events(service: RemoteService, *, job_id: UUID) -> None:
    """List the events of a job with their times, oldest first."""
    service.print_list({"events": service.client.events(job_id)}, "events", _EVENTS)


@remote_command(short_help="Show the log of a job.")
@job_argument
@click.option("-f", "--follow", "following", is_flag=True, help="Show lines as they come, until the job has ended.")
@click.option("--tail", type=click.IntRange(1, 1000), help="Only the last so many lines, and those that follow.")
@click.option("--level", type=click.Choice(text.LEVELS, case_sensitive=False), help="Only this level and above.")
@click.option("--attempt", type=POSITIVE, help="Only lines of this attempt.")
@click.option("--stream", type=click.Choice(["log", "stdout", "stderr", "note"]), help="Only lines of this stream.")
@click.option("-o", "--output", type=click.File("w", encoding="utf-8", lazy=True), default="-",
              help="Write the log to this file.")  # fmt: skip
def logs(
    service: RemoteService, *, job_id: UUID, following: bool, tail: int | None, output: TextIO, **query: Any
) -> None:
    """Show the log of a job: what its pipeline logged and printed, and what its command wrote, of all attempts.

    \b
      dataloader logs JOB_ID --tail 100
      dataloader logs JOB_ID -f --level WARNING
      dataloader logs JOB_ID --attempt 2 -o attempt-2.log

    With --json each line is a JSON document of its own.
    """
    notice = OutageNotice("still following", lambda line: click.echo(line, err=True))
    follow = service.client.follow_logs(job_id, tail=tail, on_outage=notice, **query) if following else None
    is_empty = True
    try:
        for line in follow or _read_pages(service, job_id, tail, query):
            attempt = format_attempt(line["attempt"], line.get("run", 1))
            head = f"{text.format_time(line['ts'])}  {attempt}  {text.one_line(line['level']):<8}"
            shown = text.json_line(line) if service.as_json else f"{head} {text.printable(line['line'])}".rstrip()
            click.echo(shown, file=output)
            is_empty = False
    except KeyboardInterrupt:
        click.get_current_context().exit(ExitCode.INTERRUPTED)
    if is_empty and not service.as_json:
        is_filtered = any(value is not None for value in query.values())
        click.echo("No log output matches." if is_filtered else "No log output.", err=True)
        _print_where_error_is(service, job_id)


def _print_where_error_is(service: RemoteService, job_id: UUID) -> None:
    """What failed in a job that ended badly without a message of its own, and the command that shows all of it."""
    with suppress(Refused, ServiceUnavailable):
        state = service.client.status(job_id)
        if state["status"] in ("failed", "lost"):
            error = f": {text.format_error(state['error'])}" if state["error"] else ""
            command = f"{dataloader_command()} show {job_id}{service.url_hint}"
            click.echo(f"The job {'failed' if state['status'] == 'failed' else 'was lost'}{error}", err=True)
            click.echo(f"  its error and traceback:  {command}", err=True)


def _read_pages(service: RemoteService, job_id: UUID, tail: int | None, query: Any) -> Iterator[text.Payload]:
    page = service.client.logs(job_id, tail=tail, **query)
    yield from page["lines"]
    while tail is None and len(page["lines"]) == _PAGE_LINES:
        page = service.client.logs(job_id, after=page["next"], **query)
        yield from page["lines"]


@remote_command(short_help="Show everything about a job.")
@job_argument
def show(service: RemoteService, *, job_id: UUID) -> None:
    """Show everything about a job: its fields, args and result, and each attempt with its error and traceback."""
    job = service.client.job(job_id)
    fields = {name: value for name, value in job.items() if name not in _NOT_SHOWN}
    fields |= {name: job[name] for name in ("args", "progress", "result")}
    if job["status"] != "queued":
        fields.pop("wait_state", None)  # how it waited before it was claimed
    lines = [f"{name:<18} {text.format_field(name, value)}" for name, value in without_none(fields).items()]
    for attempt in job["attempts"]:
        started, ended = text.format_time(attempt["started_at"]), text.format_time(attempt["finished_at"])
        outcome = "running" if attempt["outcome"] is None else f"{attempt['outcome']} at {ended}"
        worker = text.format_value(attempt["worker"])
        number = format_attempt(attempt["attempt"], attempt.get("run", 1))
        lines.append(f"attempt {number:<10} from {started} on {worker}: {outcome}")
        lines += [f"  {text.format_message(attempt['error'])}"] if attempt["error"] else []
        lines += [f"    {text.printable(line)}" for line in (attempt.get("traceback") or "").splitlines()]
    service.print_payload(job, *lines)


@remote_command(short_help="Explain why a job waits, or a task or queue does not run.")
@click.argument("subject", metavar="JOB_ID|TASK|QUEUE")
def why(service: RemoteService, *, subject: str) -> None:
    """Explain why a job waits, runs for so long, or ended as it did; what keeps jobs of a task from being made or from
    starting; or what keeps those of a queue from starting.

    A name that both a task and a queue have gets the reasons of both.
    """
    job_id = parse_job_id(subject)
    if isinstance(job_id, PartOfId):  # or the name of a task or queue that looks like one
        found = service.find_jobs(job_id)
        job_id = UUID(found[0]["job_id"]) if len(found) == 1 else None
    if job_id is None:
        _explain_name(service, subject)
        return
    payload = service.get(f"/api/v1/jobs/{job_id}/why")
    lines = [text.format_message(reason["message"]) for reason in payload["reasons"]]
    if payload["position"] is not None:
        lines.append(f"Position in queue: {'' if payload['position_exact'] else 'beyond '}{payload['position']}.")
    if (estimate := payload["estimate"]) is not None:
        start_in = format_duration(estimate["start_in_sec"])
        lines.append(f"It may start in {start_in}: {text.format_message(estimate['basis'])}.")
    service.print_payload(payload, *lines)


def _explain_name(service: RemoteService, name: str) -> None:
    path = quote(name, safe="")
    queue = None
    with suppress(NotFound):
        queue = service.get(f"/api/v1/queues/{path}/why")
    task = service.get(f"/api/v1/tasks/{path}/why")
    if queue is not None and [reason["code"] for reason in task["reasons"]] == ["task_unknown"]:
        task = None  # only a queue has this name
    parts = [(part, nothing) for part, nothing in ((task, _NO_REASON), (queue, _NO_QUEUE_REASON)) if part is not None]
    reasons, lines = [], []
    for part, nothing in parts:
        reasons += part["reasons"]
        messages = [text.format_message(reason["message"]) for reason in part["reasons"]]
        lines += messages or [nothing.format(text.one_line(name))]
    payload = {**(queue or {}), **(task or {}), "reasons": reasons}
    service.print_payload(payload, *dict.fromkeys(lines))


@remote_command(short_help="Change a job that waits.")
@job_argument
@click.option("--priority", type=NOT_NEGATIVE, help="The priority; smaller numbers run first.")
@click.option("--available-at", type=TIME, help="Run it not before this time, or `in 5m`.")
@click.option("--args", "args", type=OBJECT, help="Replace all its arguments by a JSON object.")
@click.option("--max-attempts", type=POSITIVE, help="How many attempts it has.")
@click.option("--lease-ttl", "lease_ttl_sec", type=DURATION, help="How long its worker may be without a heartbeat.")
@click.option("--time-limit", "time_limit_sec", type=DURATION, help="How long an attempt may take.")
def edit(service: RemoteService, *, job_id: UUID, **changes: Any) -> None:
    """Change a job that waits. Its events keep the former values."""
    job = service.patch(f"/api/v1/jobs/{job_id}", changes)
    service.print_payload(job, f"Job {job_id} is changed: {', '.join(sorted(without_none(changes)))}.")


@remote_command(short_help="Create a job like another one.")
@job_argument
@click.option("--args", "args", type=OBJECT, help="Replace all its arguments by a JSON object.")
@click.option("--queue", help="Put it into another queue.")
@click.option("--priority", type=NOT_NEGATIVE, help="Give it another priority.")
@click.option("--idempotency-key", help="Create no second job when the command is repeated.")
def clone(service: RemoteService, *, job_id: UUID, **changes: Any) -> None:
    """Create a job like another one, of any status, with the options as differences."""
    job = service.post(f"/api/v1/jobs/{job_id}/clone", without_none(changes))
    service.print_payload(job, f"Job {job['job_id']} is {job['status']}.")


@remote_command(short_help="Delete a finished job.")
@job_argument
def delete(service: RemoteService, *, job_id: UUID) -> None:
    """Delete a finished job, with its events and its log."""
    service.print_payload(service.delete(f"/api/v1/jobs/{job_id}"), f"Job {job_id} is deleted.")
