"""The pages of graphs: their list; of one its picture, its jobs by layer, and the actions on all of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from flask import Response
from pydantic import Field

from dataloader.app.acts.web import ActForms
from dataloader.app.features.graphs.acts import cancel_graph, retry_graph
from dataloader.app.features.graphs.rows import Graph, GraphEdge, GraphJob, Graphs, critical_path, layers
from dataloader.app.features.graphs.times import open_tasks, queue_sec, remaining
from dataloader.app.http.json_io import FieldError
from dataloader.app.http.problems import InvalidRequest, ProblemCode
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.site import Site
from dataloader.app.state.statistics import Statistics
from dataloader.app.ui.base import FormModel, FormText, PageRenderer
from dataloader.app.ui.formatter import Formatter

_MAX_JOBS_SHOWN = 300  # of more, a layer shows its tasks with counts
_PAGE_URL = "/graphs/{graph_id}"
_UNSUCCESSFUL = ("failed", "lost", "canceled", "not needed")
_SHOWN_AS = {"skipped": "not needed"}  # states of the picture whose word is another
_WORST_FIRST = ("failed", "lost", "running", "ready", "waiting", "canceled", "skipped", "succeeded")


class GraphsQuery(FormModel):
    """Which graphs to list."""

    name: FormText = Field("", description="Only graphs whose name has this text.")
    before: FormText = Field("", description="Only older ones, from the link of the page before.")


def create_graph_page(site: Site) -> ApiBlueprint:
    source, options = site.executor, site.options
    pages = PageRenderer("graph_page", options)
    graphs, statistics = Graphs(source), Statistics(source)
    unknown = (ProblemCode.GRAPH_NOT_FOUND,)

    @pages.page("/graphs", query=GraphsQuery)
    def list_graph_pages(query: GraphsQuery) -> Response:
        """List the graphs: those with open jobs first, then the newest."""
        before = None if not query.before else _parse_graph_id(query.before)
        page = graphs.newest(before=before, name=query.name or None)
        older = {"name": query.name} if query.name else {}
        return pages.render(
            "graphs.html",
            page=page,
            query=query,
            next=None if page.next is None else urlencode(older | {"before": page.next}),
        )

    @pages.page("/graphs/<uuid:graph_id>", standby=False, problems=unknown)
    def show_graph(graph_id: UUID) -> Response:
        """Show the jobs of a graph by layer, what each waits for, and the chain that took longest."""
        graph = graphs.get(graph_id)
        now = datetime.now(UTC)
        run_sec = {job.job_id: _run_sec(job, now) for job in graph.jobs}
        by_layer = layers(graph.jobs, graph.edges)
        path = critical_path(graph, run_sec)
        is_grouped = len(graph.jobs) > _MAX_JOBS_SHOWN
        drawn = _groups(by_layer, graph.edges) if is_grouped else _nodes(graph, run_sec, {*path}, pages.formatter)
        counts = Counter(_state(job) for job in graph.jobs)
        tasks = open_tasks(graph)
        return pages.render(
            "graph.html",
            graph=graph,
            state=_state_of_graph(graph.jobs),
            picture=json.dumps(drawn, ensure_ascii=False),
            legend=_legend(drawn),
            ended=sum(job.status.final for job in graph.jobs),
            layers=by_layer,
            parents=_parents_by_child(graph),
            run_sec=run_sec,
            queue_sec=queue_sec(graph, now),
            remaining=remaining(graph, statistics.usual_sec(tasks), now) if tasks else None,
            critical={*path},
            critical_sec=sum(run_sec[job_id] for job_id in path),
            started_at=min((job.started_at for job in graph.jobs if job.started_at is not None), default=None),
            counts=counts,
            retried_count=sum(counts[state] for state in _UNSUCCESSFUL),
            state_of=_state,
            css_state=_css_state,
            is_grouped=is_grouped,
            by_task=lambda layer: sorted(Counter((job.task, _state(job)) for job in layer).items()),
        )

    forms = ActForms(pages=pages, runner=site.runner, page=show_graph, page_url=_PAGE_URL)
    forms.add_button(retry_graph.path, "submit_graph_retry", retry_graph)
    forms.add_button(cancel_graph.path, "submit_graph_cancel", cancel_graph)
    return pages.blueprint


def _parse_graph_id(raw: str) -> UUID:
    try:
        return UUID(raw)
    except ValueError:
        raise InvalidRequest([FieldError("before", "is not the `before` of a page of this list")]) from None


def _parents_by_child(graph: Graph) -> dict[UUID, list[tuple[str, str, bool | None]]]:
    """The key of each parent, with what is asked of it and whether it is met."""
    keys = {job.job_id: job.key for job in graph.jobs}
    parents: dict[UUID, list[tuple[str, str, bool | None]]] = {}
    for edge in graph.edges:
        if edge.parent_id in keys:
            parents.setdefault(edge.child_id, []).append((keys[edge.parent_id], edge.on, edge.met))
    return parents


def _state_of_graph(jobs: Sequence[GraphJob]) -> str:
    """The state of the whole: open while a job is, then the worst of those that were needed."""
    states = {job.status.value for job in jobs if not job.skipped}
    if "queued" in states:
        return "running" if "running" in states else "waiting"
    return next((state for state in ("running", "failed", "lost", "canceled") if state in states), "succeeded")


def _state(job: GraphJob) -> str:
    """The status as people read it: a skipped job is not an error."""
    if job.skipped:
        return "not needed"
    return job.wait_state if job.status.value == "queued" else job.status.value


def _css_state(job: GraphJob) -> str:
    """One of the states that have a shape."""
    if job.skipped:
        return "skipped"
    if job.status.value == "queued":
        return "ready" if job.wait_state == "ready" else "waiting"
    return job.status.value


def _legend(drawn: Mapping[str, Any]) -> dict[str, Any]:
    """What is in the picture: the states with their words, and the kinds of lines."""
    nodes, edges = drawn["nodes"], drawn["edges"]
    states = {node["state"] for node in nodes}
    kinds = {
        "hot": any(node["hot"] for node in nodes),
        "off": any(edge["met"] is False and not edge["hot"] for edge in edges),
        "on_failed": any(edge["on"] == "failed" for edge in edges),
        "on_ended": any(edge["on"] == "ended" for edge in edges),
    }
    return {"states": [(state, _SHOWN_AS.get(state, state)) for state in _WORST_FIRST if state in states]} | kinds


def _nodes(graph: Graph, run_sec: Mapping[UUID, float], critical: set[UUID], formatter: Formatter) -> dict[str, Any]:
    """The picture's jobs and edges."""
    nodes = []
    awaited = Counter(edge.child_id for edge in graph.edges if edge.met is None)
    for job in graph.jobs:
        ran = formatter.duration(run_sec[job.job_id]) if run_sec[job.job_id] else ""
        nodes.append({
            "id": str(job.job_id), "label": job.key, "line": _node_line(job, ran, awaited[job.job_id]),
            "about": ", ".join(filter(None, (_state(job), ran, job.task))),
            "state": _css_state(job), "link": f"/jobs/{job.job_id}", "hot": job.job_id in critical,
        })  # fmt: skip
    ids = {job.job_id for job in graph.jobs}
    edges = [
        {
            "from": str(e.parent_id),
            "to": str(e.child_id),
            "on": e.on,
            "met": e.met,
            "hot": {e.parent_id, e.child_id} <= critical,
        }
        for e in graph.edges
        if e.parent_id in ids and e.child_id in ids
    ]
    return {"nodes": nodes, "edges": edges}


def _node_line(job: GraphJob, ran: str, awaited: int) -> str:
    """The second line of a job in the picture: its shape says that it succeeded, its first line may be its task."""
    if _state(job) == "waiting" and awaited:
        return f"waits for {Formatter.counted(awaited, 'job')}"
    did = f"ran {ran}" if _state(job) == "succeeded" and ran else ", ".join(filter(None, (_state(job), ran)))
    return did if job.key == job.task else f"{did}, {job.task}"


def _groups(by_layer: Sequence[Sequence[GraphJob]], edges: Sequence[GraphEdge]) -> dict[str, Any]:
    """The picture of a large graph: one node for the jobs of a task in a layer."""
    members: dict[str, list[GraphJob]] = {}
    group_of: dict[UUID, str] = {}
    for number, layer in enumerate(by_layer):
        for job in layer:
            group = group_of[job.job_id] = f"{number} {job.task}"
            members.setdefault(group, []).append(job)
    nodes = []
    for group, jobs in members.items():
        counts = Counter(_state(job) for job in jobs)
        states = {_css_state(job) for job in jobs}
        about = ", ".join(f"{Formatter.number(count)} {state}" for state, count in counts.most_common())
        worst = next(state for state in _WORST_FIRST if state in states)
        label = f"{jobs[0].task} × {Formatter.number(len(jobs))}"
        nodes.append({"id": group, "label": label, "about": about, "state": worst, "hot": False})
    pairs = {
        (group_of[e.parent_id], group_of[e.child_id]) for e in edges if {e.parent_id, e.child_id} <= group_of.keys()
    }
    drawn = [{"from": one, "to": other, "on": "succeeded", "met": None, "hot": False} for one, other in sorted(pairs)]
    return {"nodes": nodes, "edges": drawn}


def _run_sec(job: GraphJob, now: datetime) -> float:
    return 0.0 if job.started_at is None else ((job.finished_at or now) - job.started_at).total_seconds()
