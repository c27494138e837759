"""The rules of work on an engine. The engine of the campaign keeps names: each is executed at most once."""

from __future__ import annotations

from collections import defaultdict
from uuid import UUID

from tests.chaos.history import Findings, History, OffloadRow

OFFLOAD_TASKS = ("chaos.offload", "chaos.offload_wait")


def offload_without_intent(history: History) -> Findings:
    """Work was started, and its row had not been committed before, or is not there afterwards."""
    names = {row.name for row in history.offloads}
    for execution in history.executions:
        if execution.had_intent is False:
            yield _job_of(execution.name), f"{execution.name} was started before its intent was written"
        elif execution.name not in names:
            yield _job_of(execution.name), f"{execution.name} was started, and its intent is lost"


def offload_executed_again(history: History) -> Findings:
    """A name was executed twice, or a call again although its work had neither failed nor been unwanted."""
    for execution in history.executions:
        if execution.starts > 1:
            yield _job_of(execution.name), f"{execution.name} was executed {execution.starts} times"
    for job_id, rows in _rows_by_job(history).items():
        row = history.rows.get(job_id)
        if row is None or row.status != "succeeded":
            continue
        for earlier in rows[:-1]:
            if earlier.outcome != "failed":
                yield job_id, f"{earlier.name} was {earlier.outcome}, and {rows[-1].name} was executed after it"


def wrong_offload_result(history: History) -> Findings:
    """A job has succeeded with another result than that of the one submission that did."""
    states = {execution.name: execution.state for execution in history.executions}
    for job_id, rows in _rows_by_job(history).items():
        row = history.rows.get(job_id)
        if row is None or row.status != "succeeded":
            continue
        taken = [offload.name for offload in rows if offload.outcome == "succeeded"]
        result = row.result.get("offload") if isinstance(row.result, dict) else None
        if taken != [result]:
            yield job_id, f"its result is that of {result}, and taken was that of {' and '.join(taken) or 'none'}"
        elif states.get(taken[0]) != "succeeded":
            yield job_id, f"{taken[0]} counts as succeeded, and is {states.get(taken[0])} on the engine"
    for row in history.rows.values():
        if row.task in OFFLOAD_TASKS and row.status == "succeeded" and row.job_id not in _rows_by_job(history):
            yield row.job_id, "it has succeeded without any work on the engine"


def offload_left_running(history: History) -> Findings:
    """After quiet, work of a job runs on the engine, or its row is open."""
    for execution in history.executions:
        if execution.state == "running":
            yield _job_of(execution.name), f"{execution.name} is still running"
    for row in history.offloads:
        if row.outcome is None:
            yield row.job_id, f"{row.name} has no end"


def _rows_by_job(history: History) -> dict[UUID, list[OffloadRow]]:
    """Each job has one call; its submissions in their order."""
    found: dict[UUID, list[OffloadRow]] = defaultdict(list)
    for row in sorted(history.offloads, key=lambda row: row.number):
        found[row.job_id].append(row)
    return found


def _job_of(name: str) -> UUID:
    """`dl-<job id>-<n>`."""
    return UUID(name[3:39])
