"""Following one job until it is final, on a terminal or in a log."""

from __future__ import annotations

import sys
from contextlib import closing, suppress
from typing import TYPE_CHECKING
from uuid import UUID

import click

from dataloader.app.cli import text
from dataloader.app.cli.exit_codes import ExitCode
from dataloader.app.cli.invocation import dataloader_command
from dataloader.app.cli.output import is_json
from dataloader.app.cli.remote import OutageNotice, RemoteService
from dataloader.errors import Refused, ServiceUnavailable

if TYPE_CHECKING:
    from dataloader import Client
    from dataloader.app.cli.render import BarView


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
        from dataloader.app.cli import render  # noqa: PLC0415 - rich is loaded only where it draws

        if render.can_redraw():
            return render.BarView()
    return LineView(quiet=as_json)


def watch_until_final(client: Client, job_id: UUID, view: LineView | BarView) -> text.Payload:
    """Show the job until it is final, and return its last state."""
    notice = OutageNotice("still watching", view.print_notice)
    with closing(view):
        for state in client.watch(job_id, on_outage=notice):
            notice.last_reason = ""
            view.show(state)
    return state


def watch_job(service: RemoteService, job_id: UUID, **extra: str) -> ExitCode:
    """Watch a job, and return the exit code of its outcome. `extra` goes into the JSON answer."""
    try:
        state = dict(watch_until_final(service.client, job_id, choose_view(as_json=is_json())))
    except KeyboardInterrupt:  # it leaves the job alone
        command = dataloader_command()
        click.echo(
            f"\nStopped watching; job {job_id} continues.\n"
            f"  watch it again:  {command} status {job_id} --watch{service.url_hint}\n"
            f"  cancel it:       {command} cancel {job_id}{service.url_hint}",
            err=True,
        )
        return ExitCode.INTERRUPTED
    if has_succeeded := state["status"] == "succeeded":
        with suppress(Refused, ServiceUnavailable):  # a key with the scope `trigger` alone cannot read more
            state["result"] = service.client.job(state["job_id"]).get("result")
    if state.get("result") is None:
        state.pop("result", None)
    elif not is_json():
        click.echo(f"result: {text.json_line(state['result'])}")
    if is_json():
        click.echo(text.json_text({**state, **extra}))
    return ExitCode.OK if has_succeeded else ExitCode.FAILURE
