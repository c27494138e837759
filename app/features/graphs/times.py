"""How long jobs of a graph waited, and how long the graph will take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from graphlib import TopologicalSorter
from uuid import UUID

from dataloader.app.features.graphs.rows import Graph, GraphEdge, GraphJob

_IN_QUEUE = frozenset({"ready", "blocked", "limited"})  # wait states of a job that could run but for others


@dataclass(frozen=True)
class Remaining:
    """The time left. `is_least`: it leaves out jobs of tasks that have not succeeded yet, whose usual duration is
    unknown."""

    seconds: float
    is_least: bool


def queue_sec(graph: Graph, now: datetime) -> dict[UUID, float]:
    """Seconds of each job from when it could start, which is after the ends it waits for, to its start; of one that
    could start, so far."""
    jobs = {job.job_id: job for job in graph.jobs}
    parents = _parents(graph)
    waited = {}
    for job in graph.jobs:
        end = job.started_at or (now if job.status.value == "queued" and job.wait_state in _IN_QUEUE else None)
        if end is not None:
            waited[job.job_id] = max(0.0, (end - _due_at(job, jobs, parents[job.job_id], end)).total_seconds())
    return waited


def open_tasks(graph: Graph) -> list[str]:
    """The tasks of the jobs that have not ended."""
    return sorted({job.task for job in graph.jobs if not job.status.final})


def remaining(graph: Graph, usual_sec: Mapping[str, float], now: datetime) -> Remaining | None:
    """The longest chain of jobs that have not ended, each as long as its task usually takes; None: none is known.

    No job waits for a queue, a lock key or a limit. Jobs that wait for a failure are not expected to run.
    """
    jobs = {job.job_id: job for job in graph.jobs}
    parents = _parents(graph)
    unexpected: set[UUID] = set()
    left: dict[UUID, float] = {}
    for job_id in TopologicalSorter({job_id: [e.parent_id for e in parents[job_id]] for job_id in jobs}).static_order():
        job, edges = jobs[job_id], parents[job_id]
        if job.status.final:
            left[job_id] = 0.0
        elif job.need != "any" and any(_is_unexpected(edge, unexpected) for edge in edges):
            unexpected.add(job_id)
            left[job_id] = 0.0
        else:
            after = max((left[edge.parent_id] for edge in edges), default=0.0)
            left[job_id] = after + _left_of_job(job, usual_sec.get(job.task, 0.0), now)
    expected = [job for job in graph.jobs if not job.status.final and job.job_id not in unexpected]
    unknown = [job for job in expected if job.task not in usual_sec]
    if len(unknown) == len(expected):
        return None
    return Remaining(max(left.values(), default=0.0), bool(unknown))


def _parents(graph: Graph) -> dict[UUID, list[GraphEdge]]:
    """What each job waits for within the graph."""
    parents: dict[UUID, list[GraphEdge]] = {job.job_id: [] for job in graph.jobs}
    for edge in graph.edges:
        if edge.parent_id in parents:
            parents[edge.child_id].append(edge)
    return parents


def _due_at(job: GraphJob, jobs: Mapping[UUID, GraphJob], edges: list[GraphEdge], end: datetime) -> datetime:
    """When the job could start. A retry has moved `available_at` behind the first start, as it may have the ends of
    parents."""
    ended = [finished for edge in edges if (finished := jobs[edge.parent_id].finished_at) and finished <= end]
    last_end = [(min if job.need == "any" else max)(ended)] if ended else []
    earliest = [job.available_at] if job.available_at <= end else []
    return max([job.created_at, *earliest, *last_end])


def _is_unexpected(edge: GraphEdge, unexpected: set[UUID]) -> bool:
    return edge.parent_id in unexpected or (edge.on == "failed" and not edge.met)


def _left_of_job(job: GraphJob, usual_sec: float, now: datetime) -> float:
    if job.started_at is not None and job.status.value == "running":
        return max(0.0, usual_sec - (now - job.started_at).total_seconds())
    return usual_sec
