"""Commands about graphs of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

import click

from dataloader.app.cli import text
from dataloader.app.cli.output import Table
from dataloader.app.cli.parsing import TEXT_FILE, read_object
from dataloader.app.cli.remote import RemoteGroup, RemoteService
from dataloader.app.wording import format_count

_GRAPHS = Table(
    "graphs", "graph=graph_id!, status!, name, jobs!, ended!, failed, created=created_at!", "No graphs match."
)


def _graph_lines(graph: text.Payload) -> Iterator[str]:
    keys = {job["job_id"]: job["key"] for job in graph["jobs"]}
    parents: dict[str, list[str]] = {}
    for edge in graph["edges"]:
        on = "" if edge["on"] == "succeeded" else f" {edge['on']}"
        parents.setdefault(edge["child_id"], []).append(f"{keys.get(edge['parent_id'], edge['parent_id'])}{on}")
    yield f"Graph {graph['name'] or graph['graph_id']}"
    for job in graph["jobs"]:
        state = "not needed" if job["skipped"] else job["wait_state"] if job["status"] == "queued" else job["status"]
        after = f"  after {', '.join(parents[job['job_id']])}" if job["job_id"] in parents else ""
        yield f"  {job['key']}  {state}  {job['job_id']}{after}"


def _made_lines(made: text.Payload) -> Iterator[str]:
    state = "created" if made["created"] else "there already"
    yield f"Graph {made['graph_id']} is {state}: {format_count(len(made['jobs']), 'job')}."
    yield from (f"  {key}  {job_id}" for key, job_id in made["jobs"].items())


graphs = RemoteGroup("graphs", help="Manage graphs: jobs that wait for other jobs.")
graphs.add("list", "list_graphs", _GRAPHS, only="name limit")
graphs.add("show", "get_graph", _graph_lines)
graphs.add("retry", "retry_graph", lambda made: f"{format_count(made['jobs'], 'job')} queued again.", repeatable=True)
graphs.add("cancel", "cancel_graph", lambda made: f"{format_count(made['jobs'], 'job')} canceled.", repeatable=True)


@graphs.command("trigger")
@click.argument("file", type=TEXT_FILE)
def trigger_graph(service: RemoteService, *, file: IO[str]) -> None:
    """Put all jobs of the graph in a JSON FILE into the queue; - is standard input.

    \b
      dataloader graphs trigger daily.json
    """
    body = read_object(file, "FILE")
    service.perform("trigger_graph", _made_lines, body=body, repeatable="idempotency_key" in body)


COMMANDS = {"Jobs": (graphs,)}
