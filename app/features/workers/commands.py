"""Command workers: list the worker processes, or drain one."""

from __future__ import annotations

from uuid import UUID

from dataloader.app.cli.output import Table, print_payload
from dataloader.app.cli.parsing import ID, option
from dataloader.app.cli.remote import RemoteService, remote_command
from dataloader.app.queue.labels import format_labels

_WORKERS = Table(
    "workers",
    "worker=name, id=worker_id, state, busy, memory, version, listener, queues, labels",
    {
        "state": lambda worker: "gone" if not worker["alive"] else "draining" if worker["draining"] else "alive",
        "busy": lambda worker: f"{worker['busy']}/{worker['threads']}",
        "memory": lambda worker: worker["rss_bytes"] and f"{worker['rss_bytes'] / 2**20:.0f} MB",
        "queues": lambda worker: ", ".join(worker["queues"]),
        "labels": lambda worker: format_labels(worker["labels"]),
    },
    uncut="worker, id, state, busy",
    empty_message="No workers.",
)


@remote_command(short_help="List the worker processes.")
@option("--drain", type=ID, help="Stop this process from claiming jobs.")
@option("--undrain", type=ID, help="Let this process claim jobs again.")
def workers(service: RemoteService, *, drain: UUID | None, undrain: UUID | None) -> None:
    """List the worker processes with their version, threads and memory, or drain one."""
    worker_id = drain or undrain
    if worker_id is None:
        _WORKERS.print(service.send("list_workers"))
        return
    worker = service.send("drain_worker" if drain else "undrain_worker", worker_id=worker_id, repeatable=True)
    print_payload(worker, f"{worker['name']} {'is draining' if worker['draining'] else 'claims jobs again'}.")


COMMANDS = {"Queues and workers": (workers,)}
