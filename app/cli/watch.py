"""Following one job until it is final, on a terminal or in a log."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self
from uuid import UUID

import click

from app.cli import text
from app.cli.exits import Exit
from app.cli.invocation import dataloader_command
from app.client import Client, JobState, Refused, ServiceUnavailable
from app.queue.job import Status


class Face(Protocol):
    """Where a watched job is shown."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, state: JobState) -> None: ...

    def say(self, line: str) -> None: ...


class Lines:
    """A line for every change."""

    def __init__(self) -> None:
        self._last = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def show(self, state: JobState) -> None:
        line = text.state_line(state)
        if line != self._last:
            click.echo(line)
            self._last = line

    def say(self, line: str) -> None:
        click.echo(line, err=True)


class Silence(Lines):
    """Nothing until the end: a program reads the answer."""

    def show(self, state: JobState) -> None:
        return None


def face(*, as_json: bool) -> Face:
    if as_json:
        return Silence()
    if sys.stdout.isatty():
        from app.cli import draw  # noqa: PLC0415 - rich is loaded where it draws, and only there

        if draw.can_move():
            return draw.Bar()
    return Lines()


def outage_note() -> Callable[[ServiceUnavailable], None]:
    """Says why nothing comes, each reason once."""
    told: set[str] = set()

    def say(outage: ServiceUnavailable) -> None:
        if str(outage) not in told:
            told.add(str(outage))
            click.echo(f"{outage}; still following", err=True)

    return say


def until_final(client: Client, job_id: UUID, face: Face, *, url_hint: str = "") -> JobState | None:
    """Show the job until it is final. None: the person at the keyboard has seen enough; the job goes on."""
    told = ""

    def on_outage(outage: ServiceUnavailable) -> None:
        nonlocal told
        if str(outage) != told:  # once, not at every look
            told = str(outage)
            face.say(f"{told}; still watching")

    last: JobState | None = None
    try:
        with face:
            for last in client.watch(job_id, on_outage=on_outage):
                told = ""
                face.show(last)
    except KeyboardInterrupt:
        click.echo(
            f"\nNo longer watching; job {job_id} goes on.\n"
            f"  watch it again:  {dataloader_command()} status {job_id} --watch{url_hint}\n"
            f"  stop it:         {dataloader_command()} cancel {job_id}{url_hint}",
            err=True,
        )
        return None
    return last


def result(client: Client, state: JobState) -> Any:
    """What the job returned; None if that was nothing, or if the caller's key may not read it."""
    if state.status is not Status.SUCCEEDED:
        return None
    try:
        return client.api.job_detail(state.job_id).get("result")
    except (Refused, ServiceUnavailable):
        return None  # how it ended is known and shown; a key for triggering alone may not see more


def outcome(state: JobState | None) -> Exit:
    if state is None:
        return Exit.INTERRUPTED
    return Exit.OK if state.status is Status.SUCCEEDED else Exit.NOT_DONE
