"""Command task-numbers: the statistics of tasks."""

from __future__ import annotations

from dataloader.app.cli.output import Table
from dataloader.app.cli.remote import RemoteService, remote_command

_OUTCOME_LETTERS = {"succeeded": ".", "failed": "F", "lost": "L", "canceled": "c", "retried": "r"}
_TASKS = Table(
    "statistics",
    "task=name!, succeeded=recent.succeeded, failed, failure_rate=recent.failure_rate, p50=recent.run_time.p50, "
    "p95=recent.run_time.p95, last",
    "No job has run yet.",
    cells={
        "failed": lambda task: task["recent"]["failed"] + task["recent"]["lost"],
        "last": lambda task: "".join(_OUTCOME_LETTERS.get(run["outcome"], "?") for run in task["last_runs"]),
    },
)


@remote_command("task-numbers", operation="list_tasks", only="period", short_help="Show the statistics of tasks.")
def task_numbers(service: RemoteService, *, period: str | None) -> None:
    """Show the statistics of tasks: jobs, failures, durations, and the last outcomes, newest first."""
    _TASKS.print({"statistics": service.send("list_tasks", period=period)["statistics"]})


COMMANDS = {"Watch": (task_numbers,)}
