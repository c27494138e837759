"""What an operator does with a whole graph."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from dataloader.app.acts.act import Call, act
from dataloader.app.features.graphs.rows import Graphs
from dataloader.app.http.problems import ProblemCode


@dataclass(frozen=True)
class GraphChange:
    """How many jobs were changed."""

    graph_id: UUID
    jobs: int


@act("graph.retried", "POST", "/graphs/<uuid:graph_id>/retry", problems=(ProblemCode.GRAPH_NOT_FOUND,))
def retry_graph(call: Call, graph_id: UUID) -> GraphChange:
    """Queue all jobs of a graph again that did not succeed. What succeeded stays."""
    retried = Graphs(call.executor).retry(graph_id)
    call.audit(jobs=retried)
    return GraphChange(graph_id, retried)


@act("graph.canceled", "POST", "/graphs/<uuid:graph_id>/cancel", problems=(ProblemCode.GRAPH_NOT_FOUND,))
def cancel_graph(call: Call, graph_id: UUID) -> GraphChange:
    """Cancel all jobs of a graph that have not ended."""
    canceled = Graphs(call.executor).cancel(graph_id)
    call.audit(jobs=canceled)
    return GraphChange(graph_id, canceled)
