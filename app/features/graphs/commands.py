"""Commands about graphs of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

import click

from dataloader.app.cli import text
from dataloader.app.cli.output import Table, print_payload
from dataloader.app.cli.parsing import TEXT_FILE, parse_object
from dataloader.app.cli.remote import RemoteGroup, RemoteService
from dataloader.app.wording import format_count

_GRAPHS = Table(
    "graphs",
    "graph=graph_id, status, name, jobs, ended, failed, created=created_at",
    uncut="graph, status, jobs, ended, created",
    empty_message="No graphs match.",
)


def _graph_lines(graph: text.Payload) -> Iterator[str]:
    keys = {job["job_id"]: job["key"] for job in graph["jobs"]}
    parents: dict[str, list[str]] = {}
    for edge in graph["edges"]:
        on = "" if edge["on"] == "succeeded" else f" {edge['on']}"
        parents.setdefault(edge["child_id"], []).append(f"{keys.get(edge['parent_id'], edge['parent_id'])}{on}")
    yield f"Graph {text.one_line(graph['name'] or graph['graph_id'])}"
    for job in graph["jobs"]:
        state = "not needed" if job["skipped"] else job["wait_state"] if job["status"] == "queued" else job["status"]
        after = f"  after {text.one_line(', '.join(parents[job['job_id']]))}" if job["job_id"] in parents else ""
        yield f"  {text.one_line(job['key'])}  {state}  {job['job_id']}{after}"


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
    try:
        body = parse_object(file.read())
    except ValueError as error:
        raise click.BadParameter(f"{file.name}: {error}", param_hint="FILE") from error
    made = service.send("trigger_graph", body=body, repeatable="idempotency_key" in body)
    state = "created" if made["created"] else "there already"
    lines = [f"Graph {made['graph_id']} is {state}: {format_count(len(made['jobs']), 'job')}."]
    print_payload(made, *lines, *(f"  {key}  {job_id}" for key, job_id in made["jobs"].items()))


COMMANDS = {"Jobs": (graphs,)}
