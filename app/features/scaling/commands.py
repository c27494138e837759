"""Command scaling: how many threads the jobs ask for."""

from __future__ import annotations

from dataloader.app.cli.output import Table
from dataloader.app.cli.parsing import DURATION
from dataloader.app.cli.remote import RemoteCommand

_SCALING = Table(
    "queues",
    "queue!, wanted=wanted_threads!, busy=busy_threads!, idle=idle_threads!, ready, oldest=oldest_ready_sec, "
    "p95=wait_p95_sec, due=due_soon, draining",
    "No queues.",
)
scaling = RemoteCommand(
    "scaling", operation="get_scaling", prints=_SCALING, options={"target_wait_sec": {"type": DURATION}},
    short_help="Show how many threads the jobs ask for.",
    help="Show how many threads the jobs of each queue ask for, how long they wait, and what is due within 5 minutes.",
)  # fmt: skip

COMMANDS = {"Queues and workers": (scaling,)}
