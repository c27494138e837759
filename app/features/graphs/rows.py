"""Graphs: jobs that wait for other jobs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from graphlib import CycleError, TopologicalSorter
from typing import Any
from uuid import UUID

from dataloader.app.db.encoding import as_uuid, from_row, validate_text
from dataloader.app.db.statements import Executor
from dataloader.app.errors import GraphNotFound, IdempotencyConflict, InvalidJob
from dataloader.app.queue.batch import Outcome, encode_requests
from dataloader.app.queue.job import NewJob, Status, encode_request

MAX_JOBS = 10_000
MAX_EDGES = 50_000
_UNIQUE_VIOLATION = "23505"


@dataclass(frozen=True, kw_only=True)
class GraphJob:
    """A job of a graph. `skipped`: it was canceled because a parent did not end as it asked."""

    job_id: UUID
    key: str
    queue: str
    task: str
    status: Status
    wait_state: str
    skipped: bool
    attempt: int
    created_at: datetime
    available_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error: str | None
    need: str | None


@dataclass(frozen=True)
class GraphEdge:
    """What a job waits for. `met` is null until the parent has ended."""

    child_id: UUID
    parent_id: UUID
    on: str
    met: bool | None


@dataclass(frozen=True)
class Graph:
    graph_id: UUID
    name: str
    on_failure: str
    created_by: str | None
    created_at: datetime
    jobs: list[GraphJob]
    edges: list[GraphEdge]


@dataclass(frozen=True, kw_only=True)
class GraphSummary:
    """A graph in a list, with the number of its jobs. `status` is that of the whole: running or waiting while jobs are
    open, then failed if one has failed, canceled, or succeeded."""

    graph_id: UUID
    name: str
    on_failure: str
    created_by: str | None
    created_at: datetime
    jobs: int
    ended: int
    running: int
    failed: int
    canceled: int
    skipped: int
    started_at: datetime | None
    finished_at: datetime | None
    status: str


@dataclass(frozen=True)
class GraphPage:
    """A page of the list. `next` is the `before` of the next page; null: the list ends here."""

    graphs: list[GraphSummary]
    next: UUID | None


@dataclass(frozen=True)
class EnqueuedGraph:
    """The graph that serves a request, and the job of each key."""

    graph_id: UUID
    created: bool
    jobs: dict[str, UUID]


@dataclass(frozen=True)
class LinkedJob:
    """A job at one end of an edge, what the edge wants of the parent, and whether it was met."""

    key: str
    job_id: UUID
    task: str
    status: Status
    skipped: bool
    on: str
    met: bool | None
    wait_state: str


@dataclass(frozen=True)
class ParentJob(LinkedJob):
    """A job that another one waits for."""

    started_at: datetime | None
    result: Any
    error: str | None


class ChildJob(LinkedJob):
    """A job that waits for another one."""


@dataclass(frozen=True, kw_only=True)
class NewGraphJob:
    """A job of a new graph: its key, and the keys it waits for with what it asks of each."""

    key: str
    job: NewJob
    after: Sequence[tuple[str, str]] = ()  # key of the parent, succeeded | ended | failed
    need: str | None = None


class Graphs:
    """Creates, reads and changes graphs."""

    def __init__(self, executor: Executor) -> None:
        self._execute = executor.execute

    def enqueue(
        self,
        jobs: Sequence[NewGraphJob],
        *,
        name: str = "",
        on_failure: str = "cancel",
        idempotency_key: str | None = None,
        created_by: str | None = None,
    ) -> EnqueuedGraph:
        """Enqueue a graph whole, its jobs in any order. Raises InvalidJob, whose field names the job, and
        IdempotencyConflict if the graph with the key has other jobs."""
        items = []
        for item in order_jobs(jobs):
            edges = [{"job": parent, "on": on} for parent, on in item.after]
            need = {} if item.need is None else {"need": item.need}
            items.append({**encode_request(item.job), "key": item.key, "after": edges, **need})
        graph = {"name": name, "on_failure": on_failure, "jobs": items}
        graph |= {} if idempotency_key is None else {"idempotency_key": idempotency_key}
        graph |= {} if created_by is None else {"created_by": created_by}
        try:
            rows = self._execute("enqueue_graph", {"graph": json.dumps(graph, allow_nan=False)})
        except InvalidJob as error:
            if idempotency_key is None or getattr(error.__cause__, "pgcode", None) != _UNIQUE_VIOLATION:
                raise
            raise IdempotencyConflict(idempotency_key, None, "a graph with other jobs") from error
        return EnqueuedGraph(as_uuid(rows[0][0]), rows[0][1], {key: as_uuid(job_id) for _, _, key, job_id in rows})

    def fan_out(self, jobs: Sequence[NewJob], then: NewJob, *, on: str, need: str) -> tuple[list[UUID], UUID]:
        """Enqueue jobs and a successor that waits for them, all or none. Raises InvalidJob and IdempotencyConflict."""
        requests = [*jobs, then]
        rows = self._execute("fan_out", {"jobs": encode_requests(requests), "on": on, "need": need})
        for job, (outcome, job_id, field, detail) in zip(requests, rows, strict=True):
            if outcome == Outcome.INVALID:
                raise InvalidJob.at_field(field, detail)
            if outcome == Outcome.CONFLICT:
                raise IdempotencyConflict(job.unique_keys, as_uuid(job_id))
        ids = [as_uuid(row[1]) for row in rows]
        return ids[:-1], ids[-1]

    def get(self, graph_id: UUID) -> Graph:
        """Raises GraphNotFound."""
        rows = self._execute("get_graph", {"graph_id": str(graph_id)})
        if not rows:
            raise GraphNotFound(graph_id)
        limits = {"graph_id": str(graph_id), "limit": MAX_JOBS}
        jobs = [from_row(GraphJob, row) for row in self._execute("graph_jobs", limits)]
        edges = [from_row(GraphEdge, row) for row in self._execute("graph_edges", limits | {"limit": MAX_EDGES})]
        return from_row(Graph, rows[0], jobs=jobs, edges=edges)

    def newest(self, *, limit: int = 50, before: UUID | None = None, name: str | None = None) -> GraphPage:
        """The newest graphs before that one whose name has this text, those with open jobs first. The first page has
        older ones with open jobs too."""
        parameters = {"limit": limit, "before": None if before is None else str(before), "max_jobs": MAX_JOBS}
        parameters |= {"name": None if name is None else validate_text("name", name)}
        parameters |= {"open_too": before is None}
        graphs = [from_row(GraphSummary, row) for row in self._execute("list_graphs", parameters)]
        ids = sorted((graph.graph_id for graph in graphs), reverse=True)
        return GraphPage(graphs, ids[limit - 1] if len(ids) >= limit else None)

    def parents(self, job_id: UUID) -> list[ParentJob]:
        """The jobs that a job waits for, or waited for."""
        return [from_row(ParentJob, row) for row in self._execute("job_parents", {"job_id": str(job_id)})]

    def children(self, job_id: UUID, *, limit: int = 100) -> list[ChildJob]:
        """The jobs that wait for a job, or waited for it."""
        rows = self._execute("job_children", {"job_id": str(job_id), "limit": limit})
        return [from_row(ChildJob, row) for row in rows]

    def retry(self, graph_id: UUID) -> int:
        """Queue all jobs of a graph again that did not succeed; return how many."""
        return self._change("retry_graph", graph_id)

    def cancel(self, graph_id: UUID) -> int:
        """Cancel all jobs of a graph that have not ended; return how many."""
        return self._change("cancel_graph", graph_id)

    def _change(self, statement: str, graph_id: UUID) -> int:
        if not self._execute("get_graph", {"graph_id": str(graph_id)}):
            raise GraphNotFound(graph_id)
        return int(self._execute(statement, {"graph_id": str(graph_id)})[0][0])

    # Called by the maintenance leader

    def decide_left(self) -> tuple[int, int]:
        """Decide children that the ends of their parents have left; return how many, and the ends found to do so."""
        decided, found = self._execute("decide_left")[0]
        return decided, found


def order_jobs(jobs: Sequence[NewGraphJob]) -> list[NewGraphJob]:
    """Parents first. Raises InvalidJob for a circle, spelt out, and for a parent or a key that cannot be."""
    positions: dict[str, int] = {}
    for position, item in enumerate(jobs):
        if item.key in positions:
            raise InvalidJob(
                f"jobs[{position}].key is that of another job: {item.key!r}", field=f"jobs[{position}].key"
            )
        positions[item.key] = position
    for position, item in enumerate(jobs):
        for n, (parent, _) in enumerate(item.after):
            if parent not in positions:
                field = f"jobs[{position}].after[{n}].job"
                raise InvalidJob(f"{field} names {parent!r}, which is no job of this graph", field=field)
    sorter = TopologicalSorter({item.key: [parent for parent, _ in item.after] for item in jobs})
    try:
        return [jobs[positions[key]] for key in sorter.static_order()]
    except CycleError as error:
        circle = " → ".join(reversed(error.args[1]))
        raise InvalidJob(f"the jobs wait for one another in a circle: {circle}", field="jobs") from None


def layers(jobs: Iterable[GraphJob], edges: Iterable[GraphEdge]) -> list[list[GraphJob]]:
    """The jobs by their distance from those without parents: each is one layer behind its last parent."""
    parents: dict[UUID, list[UUID]] = {job.job_id: [] for job in jobs}
    for edge in edges:
        if edge.parent_id in parents:
            parents[edge.child_id].append(edge.parent_id)
    depth: dict[UUID, int] = {}
    for job_id in TopologicalSorter(parents).static_order():
        depth[job_id] = 1 + max((depth[parent] for parent in parents[job_id]), default=-1)
    by_layer: list[list[GraphJob]] = [[] for _ in range(1 + max(depth.values(), default=-1))]
    for job in jobs:
        by_layer[depth[job.job_id]].append(job)
    return by_layer


def critical_path(graph: Graph, now: Mapping[UUID, float]) -> list[UUID]:
    """Return the chain of jobs that took longest together, without those that have not run yet.

    `now` has the seconds that each job has run.
    """
    parents: dict[UUID, list[UUID]] = {job.job_id: [] for job in graph.jobs}
    for edge in graph.edges:
        if edge.parent_id in parents:
            parents[edge.child_id].append(edge.parent_id)
    best: dict[UUID, tuple[float, UUID | None]] = {}
    for job_id in TopologicalSorter(parents).static_order():
        before = max(parents[job_id], key=lambda parent: best[parent][0], default=None)
        best[job_id] = (now.get(job_id, 0.0) + (best[before][0] if before else 0.0), before)
    path: list[UUID] = []
    step = max(best, key=lambda job_id: best[job_id][0], default=None)
    while step is not None:
        path.append(step)
        step = best[step][1]
    return [job_id for job_id in reversed(path) if now.get(job_id, 0.0) > 0]
