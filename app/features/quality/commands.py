"""Commands about data checks and datasets."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import click

from dataloader.app.cli import text
from dataloader.app.cli.output import Table, is_json, print_payload
from dataloader.app.cli.remote import RemoteService, remote_command

_DATASETS = Table(
    "datasets",
    "dataset!, updated=updated_at!, task, rows, producers, consumers, state",
    "No job has reported a dataset.",
    cells={"state": lambda dataset: "stale" if dataset["stale"] else None},
)
_CHECKS = Table(
    "results",
    "check=name!, time=at!, outcome!, value!, low, high, median, partition=partition_key, job=job_id",
    "No job of the task has made a data check.",
)


@remote_command(operation="list_datasets", only="limit", short_help="List datasets, or show one.")
@click.argument("name", required=False)
def datasets(service: RemoteService, *, name: str | None, limit: int) -> None:
    """List the datasets that jobs have reported, by name; with a NAME show its updates and the tasks that use it."""
    if name is None:
        service.perform("list_datasets", _DATASETS, limit=limit)
    else:
        service.perform("get_dataset", partial(_dataset_lines, name), name=name, limit=limit)


def _dataset_lines(name: str, found: text.Payload) -> Iterator[str]:
    updated = "never updated" if found["updated_at"] is None else f"updated {text.format_time(found['updated_at'])}"
    yield f"{name}: {updated}{'  (stale)' if found['stale'] else ''}"
    for label, events in (("produced by", found["producers"]), ("read by", found["consumers"])):
        yield from (f"  {label} {event['task']}, last {text.format_time(event['at'])}" for event in events)
    yield from ["Updates:"] if found["updates"] else []
    for event in found["updates"]:
        rows = "" if event["rows"] is None else f"  {event['rows']} rows"
        partition = f"  {event['partition_key']}" if event["partition_key"] else ""
        yield f"  {text.format_time(event['at'])}  {event['job_id']}{partition}{rows}"


@remote_command(operation="list_task_checks", short_help="List the data checks of a task.")
def checks(service: RemoteService, **values: Any) -> None:
    found = service.send("list_task_checks", **values)
    results = [result for check in found["checks"] for result in check["results"]]
    if is_json():
        print_payload(found)
    elif values["name"] is not None and not results:
        click.echo("No job of the task has made this data check.", err=True)
    else:
        _CHECKS.print({"results": results})


COMMANDS = {"Tasks, schedules and data": (datasets, checks)}
