"""Commands queues and queue."""

from __future__ import annotations

from typing import Any

import click

from dataloader.app.cli import text
from dataloader.app.cli.output import Table
from dataloader.app.cli.parsing import NUMBER, Parsed, option
from dataloader.app.cli.remote import CREATE, RemoteCommand, RemoteService, remote_command

_QUEUES = Table(
    "queues",
    "queue!, state!, ready!, running!, oldest=oldest_ready_sec, scheduled, blocked, limited, waiting, workers, "
    "done/h=last_hour.succeeded, failed/h, p95=last_hour.run_time.p95",
    "No queues.",
    cells={"failed/h": lambda queue: queue["last_hour"]["failed"] + queue["last_hour"]["lost"]},
)
queues = RemoteCommand(
    "queues", operation="list_queues", prints=_QUEUES, only="",
    help="List the queues: their jobs by state, how long the oldest ready job waits, and the last hour's outcomes.",
)  # fmt: skip


def _parse_weight(raw: str) -> tuple[str, int | None]:
    tenant, separator, number = raw.rpartition("=")
    if not separator or not number.isdecimal():
        raise ValueError(f"{raw!r} is not TENANT=N with a whole number")
    return tenant, int(number) or None


def _settings_line(settings: text.Payload) -> str:
    parts = {"concurrency": "{} at once", "per_worker": "{} in each process", "fair": "tenants in turn, by {}"}
    limits = ", ".join(words.format(settings[name]) for name, words in parts.items() if settings[name])
    return f"Queue {settings['queue']} is {settings['state']}{': ' if limits else ''}{limits}."


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
@option("--weight", "weights", type=Parsed("tenant=n", _parse_weight), multiple=True,
        help="How many jobs of a tenant run for each of another; 0: as others. Repeatable.")  # fmt: skip
def queue(
    service: RemoteService, *, queue: str, weights: tuple[tuple[str, int | None], ...], strict: bool | None,
    **options: Any,
) -> None:  # fmt: skip
    """Pause, drain or open the queue NAME, change how many of its jobs run at once, or serve its tenants in turn.

    A queue that has had no job, worker or setting is refused, as its name may be misspelt, unless --create is given.

    \b
      dataloader queue etl.default --fair args.tenant --share 0.5 --weight acme=3
    """
    given = {name: value for name, value in {**options, "weights": dict(weights) or None}.items() if value is not None}
    if not given:
        raise click.UsageError("nothing to change; `dataloader queues` shows the queues, --help the options")
    changes = {name: None if value in (0, "", "none") else value for name, value in given.items()}
    service.perform("change_queue_settings", _settings_line, strict=strict, body={"queue": queue, **changes})


COMMANDS = {"Queues and workers": (queues, queue)}
