"""Commands about data checks and datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import click

from dataloader.app.cli import text
from dataloader.app.cli.output import Table, is_json, print_payload
from dataloader.app.cli.remote import RemoteService, remote_command

_DATASETS = Table(
    "datasets",
    "dataset, updated=updated_at, task, rows, producers, consumers, state",
    {"state": lambda dataset: "stale" if dataset["stale"] else None},
    uncut="dataset, updated",
    empty_message="No job has reported a dataset.",
)


def _number(field: str) -> Callable[[text.Payload], str | None]:
    return lambda result: text.format_number(result[field], ".15g") or None


_CHECKS = Table(
    "results",
    "check=name, time=at, outcome, value, low, high, median, partition=partition_key, job=job_id",
    {field: _number(field) for field in ("value", "low", "high", "median")},
    uncut="check, time, outcome, value",
    empty_message="No job of the task has made a data check.",
)


@remote_command(operation="list_datasets", only="limit", short_help="List datasets, or show one.")
@click.argument("name", required=False)
def datasets(service: RemoteService, *, name: str | None, limit: int) -> None:
    """List the datasets that jobs have reported, by name; with a NAME show its updates and the tasks that use it."""
    if name is None:
        _DATASETS.print(service.send("list_datasets", limit=limit))
        return
    found = service.send("get_dataset", name=name, limit=limit)
    print_payload(found, *_dataset_lines(name, found))


def _dataset_lines(name: str, found: text.Payload) -> Iterator[str]:
    updated = "never updated" if found["updated_at"] is None else f"updated {text.format_time(found['updated_at'])}"
    yield f"{text.one_line(name)}: {updated}{'  (stale)' if found['stale'] else ''}"
    for label, events in (("produced by", found["producers"]), ("read by", found["consumers"])):
        yield from (f"  {label} {text.one_line(e['task'])}, last {text.format_time(e['at'])}" for e in events)
    yield from ["Updates:"] if found["updates"] else []
    for event in found["updates"]:
        rows = "" if event["rows"] is None else f"  {event['rows']} rows"
        partition = f"  {text.one_line(event['partition_key'])}" if event["partition_key"] else ""
        yield f"  {text.format_time(event['at'])}  {event['job_id']}{partition}{rows}"


@remote_command(operation="list_task_checks", short_help="List the data checks of a task.")
def checks(service: RemoteService, **values: Any) -> None:
    found = service.send("list_task_checks", **values)
    if is_json():
        print_payload(found)
        return
    _CHECKS.print({"results": [result for check in found["checks"] for result in check["results"]]})


COMMANDS = {"Tasks, schedules and data": (datasets, checks)}
