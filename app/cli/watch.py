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
from dataloader.errors import Refused, ServiceFault, ServiceUnavailable

if TYPE_CHECKING:
    from dataloader import Client
    from dataloader.app.cli.render import BarView


class LineView:
    """Prints a line for every change; `quiet`: none, because a program reads the final answer."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet, self._last_line = quiet, ""

    def show(self, state: text.Payload, estimate: str = "") -> None:
        line = text.state_line(state)
        if not self._quiet and line != self._last_line:
            click.echo(", ".join(part for part in (line, estimate) if part))
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


class ProgressSource:
    """The rate of a job and the time left, from a service that knows them: one of an older version does not. Its worker
    saves progress more often while it is read."""

    def __init__(self, client: Client, job_id: UUID) -> None:
        self._client, self._job_id = client, job_id
        self._is_known = True

    def estimate(self, state: text.Payload) -> str:
        """What is known of a running job that reports progress; empty without."""
        if not self._is_known or state["status"] != "running" or not state["progress"]:
            return ""
        try:
            return text.format_estimate(self._client.progress(self._job_id, limit=1))
        except ServiceUnavailable:
            return ""
        except (Refused, ServiceFault):
            self._is_known = False
            return ""


def watch_until_final(client: Client, job_id: UUID, view: LineView | BarView) -> text.Payload:
    """Show the job until it is final, and return its last state."""
    notice = OutageNotice("still watching", view.print_notice)
    progress = ProgressSource(client, job_id)
    with closing(view):
        for state in client.watch(job_id, on_outage=notice):
            notice.last_reason = ""
            view.show(state, progress.estimate(state))
    return state


def watch_job(service: RemoteService, job_id: UUID, **extra: str | None) -> ExitCode:
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
