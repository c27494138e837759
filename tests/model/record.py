"""What a campaign has recorded: every change of a row, event, heartbeat and commit, in one order (recorder.sql)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from tests.chaos.history import Edge, Execution, History, RunReport
from tests.model.rows import NO_PROCESS, Row

CREATE_TABLES = Path(__file__).with_name("recorder.sql").read_text(encoding="utf-8")


class TraceStep(NamedTuple):
    n: int
    xid: int
    at: float  # by the clock of the server, in seconds since 1970
    kind: str
    data: Mapping[str, Any]


class TargetCommit(NamedTuple):
    """A line of a target: a part of a load, or a change of the row of its job; in the order of the commits."""

    job: str
    run: str
    kind: str


@dataclass(frozen=True, kw_only=True)
class Record:
    steps: Sequence[TraceStep]
    heartbeat_sec: float
    reports: Sequence[RunReport] = ()  # what runs say of themselves, on a server that suffers no fault
    wall: float = 0.0  # what the servers' time has above the clock of those reports
    edges: Mapping[str, Sequence[Edge]] = field(default_factory=dict)  # by child
    canceling_graphs: Collection[str] = ()
    target: Sequence[TargetCommit] = ()
    executions: Sequence[Execution] = ()  # of work on the engine, as the engine has them


def read_record(query: Callable[[str], list[tuple[Any, ...]]], history: History) -> Record:
    edges: dict[str, list[Edge]] = defaultdict(list)
    for edge in history.edges:
        edges[str(edge.child_id)].append(edge)
    return Record(
        steps=[
            TraceStep(n, xid, at.timestamp(), kind, data)
            for n, xid, at, kind, data in query("SELECT n, xid, at, kind, data FROM trace_steps ORDER BY n")
        ],
        heartbeat_sec=history.heartbeat_sec,
        reports=history.run_reports,
        wall=history.wall,
        edges=edges,
        canceling_graphs={str(graph) for graph in history.canceling_graphs},
        target=[
            TargetCommit(str(job), str(commit.run_id), commit.kind)
            for job, evidence in history.target_loads.items()
            for commit in evidence.commits
        ],
        executions=history.executions,
    )


def model_row(data: Mapping[str, Any], tries: int) -> Row:
    owner = data["owner"] if data["owner"] is not None else NO_PROCESS
    return Row(data["status"], data["wait"], data["attempt"], data["run"], owner, data["cancel"], tries=tries)


def seconds(text: str | None) -> float:
    """A time of a row as seconds since 1970."""
    if text is None or text in ("infinity", "-infinity"):
        return float("inf") if text == "infinity" else float("-inf")
    return datetime.fromisoformat(text).timestamp()
