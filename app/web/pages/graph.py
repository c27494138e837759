"""The page of a graph: its picture, its jobs by layer, and the actions on all of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from flask import Response

from app.db.statements import Executor
from app.queue.graphs import Graph, GraphEdge, GraphJob, Graphs, critical_path, layers
from app.web.options import WebOptions
from app.web.pages.base import FormModel, PageRenderer
from app.web.pages.formatter import Formatter
from app.web.problems import ProblemCode
from app.web.routing import ApiBlueprint

_MAX_JOBS_SHOWN = 300  # of more, a layer shows its tasks with counts
_WORST_FIRST = ("failed", "lost", "running", "waiting", "canceled", "skipped", "succeeded")


class GraphForm(FormModel):
    """The action has no fields."""


def create_graph_page(source: Executor, options: WebOptions) -> ApiBlueprint:
    pages = PageRenderer("graph_page", options)
    graphs = Graphs(source)
    unknown = (ProblemCode.GRAPH_NOT_FOUND,)

    @pages.page("/graphs/<uuid:graph_id>", problems=unknown)
    def show_graph(graph_id: UUID) -> Response:
        """Show the jobs of a graph by layer, what each waits for, and the chain that took longest."""
        graph = graphs.get(graph_id)
        now = datetime.now(UTC)
        by_id = {job.job_id: job for job in graph.jobs}
        run_sec = {job.job_id: _run_sec(job, now) for job in graph.jobs}
        parents: dict[UUID, list[tuple[str, str, bool | None]]] = {}
        for edge in graph.edges:
            if edge.parent_id in by_id:
                parents.setdefault(edge.child_id, []).append((by_id[edge.parent_id].key, edge.on, edge.met))
        by_layer = layers(graph.jobs, graph.edges)
        critical = {*critical_path(graph, run_sec)}
        is_grouped = len(graph.jobs) > _MAX_JOBS_SHOWN
        drawn = _groups(by_layer, graph.edges) if is_grouped else _nodes(graph, run_sec, critical, pages.formatter)
        return pages.render(
            "graph.html",
            graph=graph,
            picture=json.dumps(drawn, ensure_ascii=False),
            ended=sum(job.status.final for job in graph.jobs),
            layers=by_layer,
            parents=parents,
            run_sec=run_sec,
            critical=critical,
            counts=Counter(_state(job) for job in graph.jobs),
            state_of=_state,
            is_grouped=is_grouped,
            by_task=lambda layer: sorted(Counter((job.task, _state(job)) for job in layer).items()),
        )

    @pages.action("/graphs/<uuid:graph_id>/retry", form=GraphForm, page_url="/graphs/{graph_id}")
    def submit_graph_retry(form: GraphForm, graph_id: UUID) -> None:
        """Queue all jobs of a graph again that did not succeed."""
        graphs.retry(graph_id)

    @pages.action("/graphs/<uuid:graph_id>/cancel", form=GraphForm, page_url="/graphs/{graph_id}")
    def submit_graph_cancel(form: GraphForm, graph_id: UUID) -> None:
        """Cancel all jobs of a graph that have not ended."""
        graphs.cancel(graph_id)

    return pages.blueprint


def _state(job: GraphJob) -> str:
    """The status as people read it: a skipped job is not an error."""
    if job.skipped:
        return "not needed"
    return job.wait_state if job.status.value == "queued" else job.status.value


def _css_state(job: GraphJob) -> str:
    """One of the states that have a shape."""
    if job.skipped:
        return "skipped"
    return "waiting" if job.status.value == "queued" else job.status.value


def _nodes(graph: Graph, run_sec: Mapping[UUID, float], critical: set[UUID], formatter: Formatter) -> dict[str, Any]:
    """The picture's jobs and edges."""
    nodes = []
    for job in graph.jobs:
        ran = f", {formatter.duration(run_sec[job.job_id])}" if run_sec[job.job_id] else ""
        nodes.append({
            "id": str(job.job_id), "label": job.key, "about": f"{_state(job)}{ran}, {job.task}",
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
        about = ", ".join(f"{count:,} {state}" for state, count in counts.most_common())
        worst = next(state for state in _WORST_FIRST if state in states)
        nodes.append(
            {"id": group, "label": f"{jobs[0].task} × {len(jobs):,}", "about": about, "state": worst, "hot": False}
        )
    pairs = {
        (group_of[e.parent_id], group_of[e.child_id]) for e in edges if {e.parent_id, e.child_id} <= group_of.keys()
    }
    drawn = [{"from": one, "to": other, "on": "succeeded", "met": None, "hot": False} for one, other in sorted(pairs)]
    return {"nodes": nodes, "edges": drawn}


def _run_sec(job: GraphJob, now: datetime) -> float:
    return 0.0 if job.started_at is None else ((job.finished_at or now) - job.started_at).total_seconds()
