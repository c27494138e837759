"""The rules of graphs: jobs that wait for parents."""

from __future__ import annotations

from collections import defaultdict
from uuid import UUID

from tests.chaos.history import FINAL, Edge, Findings, History

# ── graphs ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def started_before_parents_ended(history: History) -> Findings:
    """A job started before its parents had ended as it asks: all of them, or with `need` any one. A retry of a parent
    does not take back that it had ended so.

    The end of a parent gets the number of its event before others see it."""
    parents, retried = _edges_by_child(history), _retried(history)
    ends: dict[UUID, set[str]] = defaultdict(set)
    for _, event in history.event_log:
        if event.payload.get("status") in FINAL:
            ends[event.job_id].add(event.payload["status"])
        if event.kind != "picked" or event.job_id not in parents or event.job_id in retried:
            continue
        met = [any(map(edge.is_met_by, ends[edge.parent_id])) for edge in parents[event.job_id]]
        row = history.rows.get(event.job_id)
        if row is not None and not (any(met) if row.need == "any" else all(met)):
            yield event.job_id, f"it started when {met.count(False)} of {len(met)} parents had not ended as it asks"


def skipped_without_reason(history: History) -> Findings:
    """A job was skipped although its parents ended as it asks, and nothing failed in a graph that a failure cancels."""
    parents = _edges_by_child(history)
    failed_graphs = {
        row.graph_id
        for row in history.rows.values()
        if any(event.payload.get("status") in ("failed", "lost") for event in history.events.get(row.job_id, ()))
    } & set(history.canceling_graphs)
    for row in history.rows.values():
        if not row.skipped or row.graph_id in failed_graphs:
            continue
        met = [edge.is_met_by(history.rows[edge.parent_id].status) for edge in parents.get(row.job_id, ())]
        if met and (any(met) if row.need == "any" else all(met)):
            yield row.job_id, f"skipped ({row.error}), and its parents ended as it asks"


def not_skipped(history: History) -> Findings:
    """A job succeeded although a parent that it needs never ended as it asks, and it was not retried itself."""
    retried = _retried(history)
    for child, edges in _edges_by_child(history).items():
        row = history.rows.get(child)
        if row is None or row.status != "succeeded" or child in retried:
            continue
        ends = {edge: {str(e.payload.get("status")) for e in history.events.get(edge.parent_id, ())} for edge in edges}
        met = [any(map(edge.is_met_by, statuses & set(FINAL))) for edge, statuses in ends.items()]
        if not (any(met) if row.need == "any" else all(met)):
            yield child, f"it succeeded, and {met.count(False)} of its {len(met)} parents never ended as it asks"


def job_left_waiting(history: History) -> Findings:
    """After quiet, a job waits for others that have all ended."""
    parents = _edges_by_child(history)
    for row in history.rows.values():
        if row.wait_state == "waiting":
            ended = [history.rows[edge.parent_id].status in FINAL for edge in parents.get(row.job_id, ())]
            yield row.job_id, f"{row.task} waits; of its {len(ended)} parents {ended.count(True)} have ended"


def graph_made_in_part(history: History) -> Findings:
    """An edge leads to a job that does not exist."""
    for edge in history.edges:
        for job_id in (edge.child_id, edge.parent_id):
            if job_id not in history.rows:
                yield job_id, "an edge leads to it, and it does not exist"


def _retried(history: History) -> set[UUID]:
    """Jobs that a person retried: a skipped one runs then, whatever its parents ended as."""
    return {UUID(response.job_id) for response in history.responses if response.what == "retried"}


def _edges_by_child(history: History) -> dict[UUID, list[Edge]]:
    edges: dict[UUID, list[Edge]] = defaultdict(list)
    for edge in history.edges:
        edges[edge.child_id].append(edge)
    return edges
