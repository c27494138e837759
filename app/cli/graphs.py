"""Commands about graphs: graph, graphs."""

from __future__ import annotations

from urllib.parse import quote

import click

from app.cli import text
from app.cli.parsing import parse_object
from app.cli.service_options import RemoteService, remote_command
from app.cli.tables import Table
from app.wording import format_count


@remote_command(short_help="Show, retry or cancel a graph of jobs, or trigger one.")
@click.argument("action", type=click.Choice(["show", "trigger", "retry", "cancel"]))
@click.argument("graph", metavar="GRAPH_ID|FILE")
def graph(service: RemoteService, *, action: str, graph: str) -> None:
    """Show the jobs of a graph and what they wait for, queue those again that did not succeed, or cancel what has not
    ended. `trigger FILE` triggers the graph in a JSON file; - is standard input.

    \b
      dataloader graph trigger daily.json
      dataloader graph show 01a2083e-6192-73ae-b444-7cd51949ff54
    """
    if action == "trigger":
        with click.open_file(graph, encoding="utf-8") as file:
            body = parse_object(file.read())
        made = service.post("/api/v1/graphs", body, repeatable="idempotency_key" in body)
        state = "created" if made["created"] else "there already"
        lines = [f"Graph {made['graph_id']} is {state}: {format_count(len(made['jobs']), 'job')}."]
        service.print_payload(made, *lines, *(f"  {key}  {job_id}" for key, job_id in made["jobs"].items()))
        return
    path = f"/api/v1/graphs/{quote(graph, safe='')}"
    if action == "show":
        found = service.get(path)
        service.print_payload(found, *_graph_lines(found))
        return
    changed = service.post(f"{path}/{action}", repeatable=True)
    done = "queued again" if action == "retry" else "canceled"
    service.print_payload(changed, f"{format_count(changed['jobs'], 'job')} {done}.")


_GRAPHS = Table(
    "graph=graph_id, status, name, jobs, ended, failed, created=created_at",
    uncut="graph, status, jobs, ended, created",
    empty_message="No graphs match.",
)


@remote_command(short_help="List graphs of jobs.")
@click.option("--name", "name_text", help="Only graphs whose name has this text.")
@click.option("--limit", type=click.IntRange(1, 200), default=50, show_default=True, help="List at most this many.")
def graphs(service: RemoteService, *, name_text: str | None, limit: int) -> None:
    """List graphs with the number of their jobs: those with open jobs first, then the newest."""
    service.print_list(service.get("/api/v1/graphs", name=name_text, limit=limit), "graphs", _GRAPHS)


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
