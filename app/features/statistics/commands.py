"""Command task-numbers: the statistics of tasks."""

from __future__ import annotations

from dataloader.app.cli.output import Table
from dataloader.app.cli.remote import RemoteService, remote_command
from dataloader.app.wording import format_duration

_OUTCOME_LETTERS = {"succeeded": ".", "failed": "F", "lost": "L", "canceled": "c", "retried": "r"}
_COUNTS = "recent"  # the counts of a task's jobs in the period
_TASKS = Table(
    "statistics",
    "task=name, succeeded, failed, failure_rate, p50, p95, last",
    {
        "succeeded": lambda task: task[_COUNTS]["succeeded"],
        "failed": lambda task: task[_COUNTS]["failed"] + task[_COUNTS]["lost"],
        "failure_rate": lambda task: None if (rate := task[_COUNTS]["failure_rate"]) is None else f"{rate:.1%}",
        "p50": lambda task: format_duration(task[_COUNTS]["run_time"]["p50"]),
        "p95": lambda task: format_duration(task[_COUNTS]["run_time"]["p95"]),
        "last": lambda task: "".join(_OUTCOME_LETTERS.get(run["outcome"], "?") for run in task["last_runs"]),
    },
    uncut="task",
    empty_message="No job has run yet.",
)


@remote_command("task-numbers", operation="list_tasks", only="period", short_help="Show the statistics of tasks.")
def task_numbers(service: RemoteService, *, period: str | None) -> None:
    """Show the statistics of tasks: jobs, failures, durations, and the last outcomes, newest first."""
    _TASKS.print({"statistics": service.send("list_tasks", period=period)["statistics"]})


COMMANDS = {"Watch": (task_numbers,)}
