"""Command workers: list the worker processes, or drain one, or those of a host."""

from __future__ import annotations

from uuid import UUID

import click

from dataloader.app.cli import text
from dataloader.app.cli.output import Table
from dataloader.app.cli.parsing import ID, option, without_none
from dataloader.app.cli.remote import RemoteService, remote_command

_WORKERS = Table(
    "workers",
    "worker=name!, id=worker_id!, state!, busy={busy}/{threads}!, memory=rss_bytes, version, release, listener, queues,"
    " labels",
    "No workers.",
    cells={"state": lambda worker: "gone" if not worker["alive"] else "draining" if worker["draining"] else "alive"},
)


def _drained_line(worker: text.Payload) -> str:
    return f"{worker['name']} {'is draining' if worker['draining'] else 'claims jobs again'}."


def _drained_lines(payload: text.Payload) -> list[str]:
    return [_drained_line(worker) for worker in payload["workers"]]


@remote_command(short_help="List the worker processes.")
@option("--drain", type=ID, help="Stop this process from claiming jobs.")
@option("--undrain", type=ID, help="Let this process claim jobs again.")
@option("--drain-host", metavar="HOST", help="Stop all processes of this host from claiming jobs.")
@option("--undrain-host", metavar="HOST", help="Let the processes of this host claim jobs again.")
def workers(service: RemoteService, **options: UUID | str | None) -> None:
    """List the worker processes with their version, threads and memory, or drain one, or those of a host."""
    given = without_none(options)
    if len(given) > 1:
        raise click.UsageError("give one of --drain, --undrain, --drain-host and --undrain-host")
    for option_name, value in given.items():
        if option_name.endswith("_host"):
            service.perform(option_name, _drained_lines, host=value, repeatable=True)
        else:
            service.perform(f"{option_name}_worker", _drained_line, worker_id=value, repeatable=True)
    if not given:
        service.perform("list_workers", _WORKERS)


COMMANDS = {"Queues and workers": (workers,)}
