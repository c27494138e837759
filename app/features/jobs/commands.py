"""Commands about jobs: trigger (in `trigger_command.py`), status, cancel, retry, jobs, failures, events, logs, watch,
show, edit, clone and delete."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, TextIO
from uuid import UUID

import click

from dataloader._job_filter import FILTER_FIELDS
from dataloader.app.cli import text, watch
from dataloader.app.cli.exit_codes import ExitCode
from dataloader.app.cli.invocation import dataloader_command
from dataloader.app.cli.output import Table, is_json
from dataloader.app.cli.parsing import option, without_none
from dataloader.app.cli.remote import OutageNotice, RemoteCommand, RemoteService, remote_command
from dataloader.app.features.jobs.trigger_command import trigger
from dataloader.app.wording import format_attempt, format_count
from dataloader.errors import Refused, ServiceUnavailable

FILTER_NAMES = " ".join(FILTER_FIELDS)
FILTER_OPTIONS = {"warnings": {"help": "Only jobs that succeeded with data checks that did not pass."}}
_PAGE_LINES = 1000
_PROGRESS_INTERVAL_SEC = 1.0
# The last columns are the first that a narrow terminal does without.
_JOBS = Table(
    "jobs",
    "job=job_id!, status!, task, queue, attempts={attempt}/{max_attempts}!, progress, created=created_at!, error",
    "No jobs match.",
    cells={"status": text.format_status},
)
_FAILURES = Table(
    "failures",
    "task, fingerprint!, jobs!, first=first_at, last=last_at!, job=job_id!, error",
    "No failed or lost jobs.",
)
_NOT_SHOWN = (
    *("attempts", "traceback", "checkpoint", "follow_up_jobs", "parent", "lock_holder", "version"),
    *("args", "progress", "result"),  # shown last
)


@remote_command(operation="get_job_status", only="", short_help="Show the status of a job.")
@option("--watch", "watching", is_flag=True, help="Show every change until the job is final.")
def status(service: RemoteService, *, job_id: UUID, watching: bool) -> int:
    """Show status, attempt, times, progress and last error of a job.

    With --watch the exit code is that of the job: 0 if it succeeded, 1 if not.
    """
    if watching:
        return watch.watch_job(service, job_id)
    service.perform("get_job_status", text.state_lines, job_id=job_id)
    return ExitCode.OK


def _canceled_line(state: text.Payload) -> str:
    job = f"Job {state['job_id']}"
    messages = {
        "queued": f"{job} is queued, and will be canceled.",
        "running": f"{job} is running and will be canceled; it ends at its next safe point, "
        "or with its process if it has one of its own.",
        "canceled": f"{job} is canceled.",
    }
    return messages.get(state["status"], f"{job} had already ended: {state['status']}.")


cancel = RemoteCommand(
    "cancel", operation="cancel_job", prints=_canceled_line, repeatable=True,
    help="Cancel a job: at once if it is queued, at its next safe point if it runs. A finished job stays as it is.",
)  # fmt: skip
retry = RemoteCommand(
    "retry", operation="retry_job", prints="Job {job_id} is {status} again.",
    short_help="Queue a failed, canceled or lost job again.",
)  # fmt: skip


def _event_lines(payload: text.Payload) -> Iterator[str]:
    """A line an event, and below it the text of an error: it has lines of its own."""
    for event in payload["events"]:
        values = dict(event["payload"] or {})
        error, traceback = values.pop("error", None), values.pop("traceback", None)
        details = " ".join(f"{name}={text.format_field(name, value)}" for name, value in values.items())
        yield f"{text.format_time(event['ts'])}  {event['kind']:<16} {details}".rstrip()
        for value in (error, traceback):
            yield from (f"    {line}" for line in str(value or "").splitlines())
    if not payload["events"]:
        yield "No events yet."


events = RemoteCommand(
    "events", operation="list_job_events", prints=_event_lines, only="after limit",
    help="List a job's events, oldest first, each with its error and traceback.",
)  # fmt: skip
edit = RemoteCommand(
    "edit", operation="edit_job", omit="retry partition_key",
    prints=lambda job: f"Job {job['job_id']} is changed: {', '.join(sorted(_changed_fields()))}.",
)  # fmt: skip
clone = RemoteCommand(
    "clone", operation="clone_job", only="args queue priority idempotency_key", prints="Job {job_id} is {status}."
)
delete = RemoteCommand("delete", operation="delete_job", prints="Job {job_id} is deleted.")


def _changed_fields() -> Iterator[str]:
    """The fields of the options that were given."""
    values = click.get_current_context().params.items()
    return (name for name, value in values if value is not None and name != "job_id")


@remote_command(operation="list_jobs", only=f"{FILTER_NAMES} limit", options=FILTER_OPTIONS)
def jobs(service: RemoteService, *, limit: int, **options: Any) -> int:
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
        _JOBS.print({**page, "jobs": found})
    if is_interrupted and page["scanned_to"] is not None:
        click.echo(f"Jobs older than {text.format_time(page['scanned_to'])} were not searched.", err=True)
    return ExitCode.INTERRUPTED if is_interrupted else ExitCode.OK


@remote_command(operation="list_failures", short_help="Group failed and lost jobs by their error.")
def failures(service: RemoteService, **options: Any) -> None:
    """List failed and lost jobs, grouped by task and fingerprint of the error, largest group first, with the last job
    of each. `jobs --fingerprint` lists the jobs of a group, `bulk redrive --fingerprint` retries them.

    Of the newest ten thousand unsuccessful jobs.
    """
    page = service.perform("list_failures", _FAILURES, **options)
    if not is_json() and page["scanned_to"] is not None:
        click.echo(f"Jobs older than {text.format_time(page['scanned_to'])} were not read.", err=True)


@remote_command("watch", operation="stream_events", only="queue kind", short_help="Follow the events of all jobs.")
def watch_events(service: RemoteService, **query: Any) -> None:
    """Follow the events of all jobs until Ctrl-C. With --json each event is a JSON document of its own."""
    for event in service.client.stream(**query):
        reason = event["payload"].get("error") or event["payload"].get("reason") or ""
        head = f"{text.format_time(event['ts'])}  {event['kind']:<16} {event['job_id']}"
        line = f"{head}  {text.one_line(event['queue'])}  {text.one_line(reason)}".rstrip()
        click.echo(text.json_line(event) if is_json() else line)


@remote_command(
    operation="get_job_logs", omit="after limit wait",
    options={"tail": {"help": "Only the last so many lines, and those that follow."}},
)  # fmt: skip
@option("-f", "--follow", "following", is_flag=True, help="Show lines as they come, until the job has ended.")
@option("-o", "--output", type=click.File("w", encoding="utf-8", lazy=True), default="-",
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
    for line in follow or _read_pages(service, job_id, tail, query):
        attempt = format_attempt(line["attempt"], line.get("run", 1))
        head = f"{text.format_time(line['ts'])}  {attempt}  {text.one_line(line['level']):<8}"
        shown = text.json_line(line) if is_json() else f"{head} {text.printable(line['line'])}".rstrip()
        click.echo(shown, file=output)
        is_empty = False
    if is_empty and not is_json():
        click.echo("No log output matches." if without_none(query) else "No log output.", err=True)
        _print_where_error_is(service, job_id)


def _print_where_error_is(service: RemoteService, job_id: UUID) -> None:
    """What failed in a job that did not succeed without a message of its own, and the command that shows all of it."""
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


def _job_lines(job: text.Payload) -> Iterator[str]:
    fields = {name: value for name, value in job.items() if name not in _NOT_SHOWN}
    fields |= {name: job[name] for name in ("args", "progress", "result")}
    if job["status"] != "queued":
        fields.pop("wait_state", None)  # how it waited before it was claimed
    for name, value in without_none(fields).items():
        yield f"{name:<18} {text.format_field(name, value)}"
    for attempt in job["attempts"]:
        started, ended = text.format_time(attempt["started_at"]), text.format_time(attempt["finished_at"])
        outcome = "running" if attempt["outcome"] is None else f"{attempt['outcome']} at {ended}"
        worker = text.format_value(attempt["worker"])
        number = format_attempt(attempt["attempt"], attempt.get("run", 1))
        release = f", release {attempt['release']}" if attempt.get("release") else ""
        yield f"attempt {number:<10} from {started} on {worker}{release}: {outcome}"
        yield from [f"  {attempt['error']}"] if attempt["error"] else []
        yield from (f"    {line}" for line in (attempt.get("traceback") or "").splitlines())


show = RemoteCommand(
    "show", operation="get_job", prints=_job_lines,
    help="Show everything about a job: its fields, args and result, and each attempt with its error and traceback.",
)  # fmt: skip

COMMANDS = {
    "Jobs": (trigger, status, logs, show, events, cancel, retry, edit, clone, delete, jobs, failures),
    "Watch": (watch_events,),
}
