"""Following one job until it is final, on a terminal or in a log."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from app.cli import text
from app.cli.exit_codes import ExitCode
from app.cli.invocation import dataloader_command
from dataloader.errors import Refused, ServiceUnavailable

if TYPE_CHECKING:
    from app.cli.render import BarView
    from dataloader import Client


class LineView:
    """Prints a line for every change; `quiet`: none, because a program reads the final answer."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet, self._last_line = quiet, ""

    def show(self, state: text.Payload) -> None:
        line = text.state_line(state)
        if not self._quiet and line != self._last_line:
            click.echo(line)
            self._last_line = line

    def print_notice(self, line: str) -> None:
        click.echo(line, err=True)

    def close(self) -> None:
        return None


def choose_view(*, as_json: bool) -> LineView | BarView:
    if sys.stdout.isatty() and not as_json:
        from app.cli import render  # noqa: PLC0415 - rich is loaded only where it draws

        if render.can_redraw():
            return render.BarView()
    return LineView(quiet=as_json)


class OutageNotice:
    """Prints why the service does not answer, each new reason once: a silent prompt looks like a hang."""

    def __init__(self, ending: str, print_line: Callable[[str], None]) -> None:
        self._ending, self._print_line, self._last_reason = ending, print_line, ""

    def __call__(self, outage: ServiceUnavailable) -> None:
        if str(outage) != self._last_reason:
            self._last_reason = str(outage)
            self._print_line(f"{outage}; {self._ending}")

    def clear(self) -> None:
        self._last_reason = ""


def watch_until_final(
    client: Client, job_id: UUID, view: LineView | BarView, *, url_hint: str = ""
) -> text.Payload | None:
    """Show the job until it is final, and return its last state; None after Ctrl-C, which leaves the job alone."""
    notice = OutageNotice("still watching", view.print_notice)
    state: text.Payload | None = None
    try:
        with closing(view):
            for state in client.watch(job_id, on_outage=notice):
                notice.clear()
                view.show(state)
    except KeyboardInterrupt:
        click.echo(
            f"\nStopped watching; job {job_id} continues.\n"
            f"  watch it again:  {dataloader_command()} status {job_id} --watch{url_hint}\n"
            f"  cancel it:       {dataloader_command()} cancel {job_id}{url_hint}",
            err=True,
        )
        return None
    return state


def fetch_result(client: Client, state: text.Payload) -> Any:
    """Return the result of a succeeded job; None if it has none, or if the caller's key may not read it."""
    if state["status"] != "succeeded":
        return None
    try:
        return client.job(state["job_id"]).get("result")
    except (Refused, ServiceUnavailable):
        return None  # the status is known and shown; a key with the scope `trigger` alone cannot read more


def exit_code_of(state: text.Payload | None) -> ExitCode:
    if state is None:
        return ExitCode.INTERRUPTED
    return ExitCode.OK if state["status"] == "succeeded" else ExitCode.FAILURE
