"""status, cancel, retry, jobs, events, logs: questions to a running service about jobs that are there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import click

from app.cli import text, watch
from app.cli.exits import Exit
from app.cli.service import Service, asks_service
from app.cli.words import filter_of, filters
from app.client import FULL_PAGE, Client, JobLogLine
from app.client.answers import read_line
from app.queue.job import Status

job_argument = click.argument("job_id", type=click.UUID)


@click.command(short_help="How one job does.")
@job_argument
@click.option("--watch", "watching", is_flag=True, help="Show every change until the job is final.")
@asks_service
def status(service: Service, *, job_id: UUID, watching: bool) -> None:
    """How one job does: its status, attempt, times, progress and last error.

    With --watch the exit code tells how it ended: 0 if it succeeded, 1 if not.
    """
    if watching:
        follow(service, job_id)
    else:
        state = service.client.status(job_id)
        service.show(state.said, text.state_lines(state))


@click.command(short_help="Cancel a job.")
@job_argument
@asks_service
def cancel(service: Service, *, job_id: UUID) -> None:
    """Cancel a job: at once if it is queued, at its next safe point if it runs. A finished job is left as it is."""
    state = service.client.cancel(job_id)
    told = {
        Status.QUEUED: f"Job {job_id} is queued and asked to stop.",
        Status.RUNNING: f"Job {job_id} is running and was asked to stop; it ends at its next safe point, "
        "or with its process if it has one of its own.",
        Status.CANCELED: f"Job {job_id} is canceled.",
    }
    service.show(state.said, [told.get(state.status, f"Job {job_id} had already ended: {state.status}.")])


@click.command(short_help="Queue a failed, canceled or lost job again.")
@job_argument
@asks_service
def retry(service: Service, *, job_id: UUID) -> None:
    """Queue a failed, canceled or lost job again, under the same id, with all its attempts before it."""
    state = service.client.retry(job_id)
    service.show(state.said, [f"Job {job_id} is {state.status} again."])


@click.command(short_help="List jobs, newest first.")
@filters
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="At most this many.")
@asks_service
def jobs(service: Service, *, limit: int, **which: Any) -> None:
    """List jobs, newest first: a table on a terminal, whole aligned lines in a pipe.

    A search that takes long ends with what it has found, and says how far back it has looked.
    """
    found = service.client.api.job_list(**filter_of(which), limit=limit)
    service.table(
        found,
        text.JOB_COLUMNS,
        text.job_rows(read_line(job) for job in found["jobs"]),
        whole=("job", "status", "try", "created"),
        empty="No job fits.",
    )
    if not service.as_json and found["next"] is not None and len(found["jobs"]) < limit:
        click.echo(
            f"Older jobs than {text.local_time(found['looked_to'])} were not looked at; narrow it with --created-to.",
            err=True,
        )


@click.command(short_help="A job's journal.")
@job_argument
@asks_service
def events(service: Service, *, job_id: UUID) -> None:
    """A job's journal: every move it made and when, oldest first."""
    found = service.client.events(job_id)
    service.table(
        {"events": [event.said for event in found]},
        text.EVENT_COLUMNS,
        text.event_rows(found),
        whole=("time", "event"),
        empty="Nothing is written about this job yet.",
    )


@click.command(short_help="What a job said.")
@job_argument
@click.option("-f", "--follow", "following", is_flag=True, help="Show lines as they come, until the job has ended.")
@click.option("--tail", type=click.IntRange(1, 1000), help="Only the last so many lines, and what follows.")
@click.option("--level", type=click.Choice(text.LEVELS, case_sensitive=False), help="Only this level and above.")
@click.option("--attempt", type=click.IntRange(min=1), help="Only what this try said.")
@click.option("--stream", type=click.Choice(["log", "stdout", "stderr", "note"]), help="Only lines that came this way.")
@asks_service
def logs(
    service: Service,
    *,
    job_id: UUID,
    following: bool,
    tail: int | None,
    level: str | None,
    attempt: int | None,
    stream: str | None,
) -> None:
    """What a job said: what its pipeline logged and printed, and what its command wrote, of all its tries.

    \b
      dataloader logs JOB_ID --tail 100
      dataloader logs JOB_ID -f --level WARNING

    With --json each line is a JSON document of its own.
    """
    which: dict[str, Any] = {"level": level, "attempt": attempt, "stream": stream}
    if following:
        lines = service.client.follow(job_id, tail=tail, on_outage=watch.outage_note(), **which)
    else:
        lines = _pages(service.client, job_id, tail, which)
    shown = False
    try:
        for line in lines:
            click.echo(text.json_line(line.said) if service.as_json else text.log_line(line))
            shown = True
    except KeyboardInterrupt:
        click.get_current_context().exit(Exit.INTERRUPTED)
    if not shown and not service.as_json:
        narrowed = any(value is not None for value in which.values())
        click.echo("No log output fits." if narrowed else "No log output.", err=True)


def _pages(client: Client, job_id: UUID, tail: int | None, which: dict[str, Any]) -> Iterator[JobLogLine]:
    page = client.logs(job_id, tail=tail, **which)
    yield from page.lines
    while tail is None and len(page.lines) == FULL_PAGE:
        page = client.logs(job_id, after=page.next, **which)
        yield from page.lines


def follow(service: Service, job_id: UUID, **more: str) -> None:
    """Watch a job, and end the command with a code that tells how the job ended. `more` goes into the JSON answer."""
    with_face = watch.face(as_json=service.as_json)
    state = watch.until_final(service.client, job_id, with_face, url_hint=service.url_hint)
    result = None if state is None else watch.result(service.client, state)
    if state is not None and service.as_json:
        click.echo(text.json_text({**state.said, **({} if result is None else {"result": result}), **more}))
    elif result is not None:
        click.echo(f"result: {text.json_line(result)}")
    click.get_current_context().exit(watch.outcome(state))
