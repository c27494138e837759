"""Commands about graphs of jobs."""

from __future__ import annotations

from typing import IO
from uuid import UUID

import click

from dataloader.app.cli import text
from dataloader.app.cli.parsing import TEXT_FILE, parse_object
from dataloader.app.cli.service_options import RemoteGroup, RemoteService
from dataloader.app.cli.tables import Table
from dataloader.app.wording import format_count

_PATH = "/api/v1/graphs"
_GRAPHS = Table(
    "graph=graph_id, status, name, jobs, ended, failed, created=created_at",
    uncut="graph, status, jobs, ended, created",
    empty_message="No graphs match.",
)
graphs = RemoteGroup("graphs", help="Manage graphs: jobs that wait for other jobs.")
graph_argument = click.argument("graph_id", type=click.UUID)


@graphs.command("list", short_help="List the graphs.")
@click.option("--name", "name_text", help="Only graphs whose name has this text.")
@click.option("--limit", type=click.IntRange(1, 200), default=50, show_default=True, help="List at most this many.")
def graphs_list(service: RemoteService, *, name_text: str | None, limit: int) -> None:
    """List graphs with the number of their jobs: those with open jobs first, then the newest."""
    service.print_list(service.get(_PATH, name=name_text, limit=limit), "graphs", _GRAPHS)


@graphs.command("show", short_help="Show a graph.")
@graph_argument
def graphs_show(service: RemoteService, *, graph_id: UUID) -> None:
    """Show the jobs of a graph, their states, and what they wait for."""
    found = service.get(f"{_PATH}/{graph_id}")
    service.print_payload(found, *_graph_lines(found))


@graphs.command("trigger", short_help="Trigger a graph.")
@click.argument("file", type=TEXT_FILE)
def graphs_trigger(service: RemoteService, *, file: IO[str]) -> None:
    """Put all jobs of the graph in a JSON FILE into the queue; - is standard input.

    \b
      dataloader graphs trigger daily.json
    """
    try:
        body = parse_object(file.read())
    except ValueError as error:
        raise click.BadParameter(f"{file.name}: {error}", param_hint="FILE") from error
    made = service.post(_PATH, body, repeatable="idempotency_key" in body)
    state = "created" if made["created"] else "there already"
    lines = [f"Graph {made['graph_id']} is {state}: {format_count(len(made['jobs']), 'job')}."]
    service.print_payload(made, *lines, *(f"  {key}  {job_id}" for key, job_id in made["jobs"].items()))


@graphs.command("retry", short_help="Queue jobs again that did not succeed.")
@graph_argument
def graphs_retry(service: RemoteService, *, graph_id: UUID) -> None:
    """Queue the jobs of a graph again that did not succeed."""
    changed = service.post(f"{_PATH}/{graph_id}/retry", repeatable=True)
    service.print_payload(changed, f"{format_count(changed['jobs'], 'job')} queued again.")


@graphs.command("cancel", short_help="Cancel jobs that have not ended.")
@graph_argument
def graphs_cancel(service: RemoteService, *, graph_id: UUID) -> None:
    """Cancel the jobs of a graph that have not ended."""
    changed = service.post(f"{_PATH}/{graph_id}/cancel", repeatable=True)
    service.print_payload(changed, f"{format_count(changed['jobs'], 'job')} canceled.")


def _graph_lines(graph: text.Payload) -> list[str]:
    keys = {job["job_id"]: job["key"] for job in graph["jobs"]}
    parents: dict[str, list[str]] = {}
    for edge in graph["edges"]:
        on = "" if edge["on"] == "succeeded" else f" {edge['on']}"
        parents.setdefault(edge["child_id"], []).append(f"{keys.get(edge['parent_id'], edge['parent_id'])}{on}")
    lines = [f"Graph {text.one_line(graph['name'] or graph['graph_id'])}"]
    for job in graph["jobs"]:
        state = "not needed" if job["skipped"] else job["wait_state"] if job["status"] == "queued" else job["status"]
        after = f"  after {text.one_line(', '.join(parents[job['job_id']]))}" if job["job_id"] in parents else ""
        lines.append(f"  {text.one_line(job['key'])}  {state}  {job['job_id']}{after}")
    return lines
