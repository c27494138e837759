"""Commands about data checks and datasets."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from dataloader.app.cli import text
from dataloader.app.cli.parsing import limit_option, limit_option_to
from dataloader.app.cli.service_options import RemoteService, remote_command
from dataloader.app.cli.tables import Table

_DATASETS = Table(
    "dataset, updated=updated_at, task, rows, producers, consumers, state",
    {"state": lambda dataset: "stale" if dataset["stale"] else None},
    uncut="dataset, updated",
    empty_message="No job has reported a dataset.",
)


def _number(field: str) -> Any:
    return lambda result: text.format_number(result[field], ".15g") or None


_CHECKS = Table(
    "check=name, time=at, outcome, value, low, high, median, partition=partition_key, job=job_id",
    {field: _number(field) for field in ("value", "low", "high", "median")},
    uncut="check, time, outcome, value",
    empty_message="No job of the task has made a data check.",
)


@remote_command(short_help="List datasets, or show one.")
@click.argument("name", required=False)
@limit_option
def datasets(service: RemoteService, *, name: str | None, limit: int) -> None:
    """List the datasets that jobs have reported, by name; with a NAME show its updates and the tasks that use it."""
    if name is None:
        service.print_list(service.get("/api/v1/datasets", limit=limit), "datasets", _DATASETS)
        return
    found = service.get(f"/api/v1/datasets/{quote(name, safe='')}", limit=limit)
    state = "  (stale)" if found["stale"] else ""
    updated = "never updated" if found["updated_at"] is None else f"updated {text.format_time(found['updated_at'])}"
    lines = [f"{text.one_line(name)}: {updated}{state}"]
    for label, events in (("produced by", found["producers"]), ("read by", found["consumers"])):
        lines += [f"  {label} {text.one_line(e['task'])}, last {text.format_time(e['at'])}" for e in events]
    lines += ["Updates:"] if found["updates"] else []
    for event in found["updates"]:
        rows = "" if event["rows"] is None else f"  {event['rows']} rows"
        partition = f"  {text.one_line(event['partition_key'])}" if event["partition_key"] else ""
        lines.append(f"  {text.format_time(event['at'])}  {event['job_id']}{partition}{rows}")
    service.print_payload(found, *lines)


@remote_command(short_help="List the data checks of a task.")
@click.argument("task")
@click.option("--name", metavar="NAME", help="Only this check.")
@limit_option_to(365)
def checks(service: RemoteService, *, task: str, limit: int, name: str | None) -> None:
    """List the last results of each data check of a TASK, newest first."""
    found = service.get(f"/api/v1/tasks/{quote(task, safe='')}/checks", name=name, limit=limit)
    if service.as_json:
        service.print_payload(found)
        return
    service.print_list({"results": [r for check in found["checks"] for r in check["results"]]}, "results", _CHECKS)
