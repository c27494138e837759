"""The page of a graph: its jobs by layer, and the actions on all of them."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from uuid import UUID

from flask import Response

from app.db.statements import Executor
from app.queue.graphs import GraphJob, Graphs, critical_path, layers
from app.web.options import WebOptions
from app.web.pages.base import FormModel, PageRenderer
from app.web.problems import ProblemCode
from app.web.routing import ApiBlueprint

_MAX_JOBS_SHOWN = 300  # of more, a layer shows its tasks with counts


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
        return pages.render(
            "graph.html",
            graph=graph,
            layers=layers(graph.jobs, graph.edges),
            parents=parents,
            run_sec=run_sec,
            critical={*critical_path(graph, run_sec)},
            counts=Counter(_state(job) for job in graph.jobs),
            state_of=_state,
            is_grouped=len(graph.jobs) > _MAX_JOBS_SHOWN,
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


def _run_sec(job: GraphJob, now: datetime) -> float:
    return 0.0 if job.started_at is None else ((job.finished_at or now) - job.started_at).total_seconds()
