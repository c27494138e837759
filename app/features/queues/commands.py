"""Commands queues and queue."""

from __future__ import annotations

from typing import Any

import click

from dataloader.app.cli import text
from dataloader.app.cli.output import Table, print_payload
from dataloader.app.cli.parsing import NUMBER, option
from dataloader.app.cli.remote import CREATE, RemoteCommand, RemoteService, remote_command
from dataloader.app.wording import format_duration

_QUEUES = Table(
    "queues",
    "queue, state, ready, running, oldest, scheduled, blocked, limited, waiting, workers, done/h, failed/h, p95",
    {
        "ready": lambda queue: f"{queue['ready']}{'' if queue['ready_exact'] else '+'}",
        "oldest": lambda queue: format_duration(queue["oldest_ready_sec"]),
        "done/h": lambda queue: queue["last_hour"]["succeeded"],
        "failed/h": lambda queue: queue["last_hour"]["failed"] + queue["last_hour"]["lost"],
        "p95": lambda queue: format_duration(queue["last_hour"]["run_time"]["p95"]),
    },
    uncut="queue, state, ready, running",
    empty_message="No queues.",
)

queues = RemoteCommand(
    "queues", operation="list_queues", prints=_QUEUES, only="", short_help="List the queues.",
    help="List the queues: their jobs by state, how long the oldest ready job waits, and the last hour's outcomes.",
)  # fmt: skip


@remote_command(
    operation="change_queue_settings", omit="weights", short_help="Pause, drain, open or limit a queue.",
    options={
        "strict": CREATE,
        "concurrency": {"type": NUMBER, "help": "Running jobs in all processes; 0: no limit."},
        "per_worker": {"type": NUMBER, "help": "Running jobs in each process; 0: no limit."},
        "share": {"type": click.FloatRange(0, 1),
                  "help": "The part of the threads that one tenant may have while others wait; 0: half."},
        "fair": {"metavar": "RULE",
                 "help": "Serve tenants in turn: by partition_key, producer or args.NAME; none: by age."},
    },
)  # fmt: skip
@click.argument("queue", metavar="NAME")
@option("--pause", "state", flag_value="paused", help="Claim no more jobs from it.")
@option("--drain", "state", flag_value="draining", help="Claim no more jobs, and reject new ones over HTTP.")
@option("--open", "state", flag_value="open", help="Resume it.")
@option("--weight", "weights", multiple=True, metavar="TENANT=N",
        help="How many jobs of a tenant run for each of another; 0: as others. Repeatable.")  # fmt: skip
def queue(service: RemoteService, *, queue: str, weights: tuple[str, ...], strict: bool | None, **options: Any) -> None:
    """Pause, drain or open the queue NAME, change how many of its jobs run at once, or serve its tenants in turn.

    A queue that has had no job, worker or setting is refused, as its name may be misspelt, unless --create is given.

    \b
      dataloader queue etl.default --fair args.tenant --share 0.5 --weight acme=3
    """
    if options["fair"] == "none":
        options["fair"] = ""
    changes: dict[str, Any] = {key: (value or None) for key, value in options.items() if value is not None}
    if weights:
        changes["weights"] = dict(map(_parse_weight, weights))
    if not changes:
        raise click.UsageError("nothing to change; `dataloader queues` shows the queues, --help the options")
    settings = service.send("change_queue_settings", strict=strict, body={"queue": queue, **changes})
    print_payload(settings, f"Queue {text.one_line(queue)} is {settings['state']}{_queue_limits(settings)}.")


def _queue_limits(settings: text.Payload) -> str:
    parts = {"concurrency": "{} at once", "per_worker": "{} in each process", "fair": "tenants in turn, by {}"}
    shown = [words.format(text.one_line(str(settings[name]))) for name, words in parts.items() if settings[name]]
    return f": {', '.join(shown)}" if shown else ""


def _parse_weight(raw: str) -> tuple[str, int | None]:
    tenant, separator, number = raw.rpartition("=")
    if not separator or not number.isdecimal():
        raise click.BadParameter(f"{raw!r} is not TENANT=N with a whole number", param_hint="--weight")
    return tenant, int(number) or None


COMMANDS = {"Queues and workers": (queues, queue)}
