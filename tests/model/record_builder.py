"""Builds the record of a campaign step by step, for tests of its replay."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from tests.chaos.history import Edge, Execution, RunReport
from tests.model.record import Record, TargetCommit, TraceStep
from tests.model.trace import check_trace

NOON = 1_900_000_000.0
HEARTBEAT_SEC, LEASE_SEC = 0.5, 2


def timestamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()


class Recorder:
    """Builds a record step by step. Each transaction comes a tenth of a second after the one before."""

    def __init__(self) -> None:
        self.steps: list[TraceStep] = []
        self.rows: dict[str, dict[str, Any]] = {}
        self.reports: list[RunReport] = []
        self.target: list[TargetCommit] = []
        self.edges: dict[str, list[Edge]] = {}
        self.executions: list[Execution] = []
        self.last_job = ""
        self.now, self._xid = NOON, 100

    def transaction(self, after: float = 0.1) -> None:
        self._xid += 1
        self.now += after

    def add(self, kind: str, data: dict[str, Any]) -> None:
        self.steps.append(TraceStep(len(self.steps) + 1, self._xid, self.now, kind, data))

    def event(self, job: str, kind: str, reason: str | None = None, run: str | None = None) -> None:
        row = self.rows[job]
        data = {"kind": kind, "status": row["status"], "attempt": row["attempt"], "run": run, "reason": reason}
        self.add("event", {"id": len(self.steps), "job": job, **data})

    def change(self, job: str, op: str = "UPDATE", **changes: Any) -> None:
        self.rows[job] = self.rows[job] | changes
        self.add("row", {"op": op, **self.rows[job]})

    def enqueue(self, key: str = "k", **more: Any) -> str:
        job = self.last_job = str(uuid4())
        self.rows[job] = {
            "job": job, "key": key, "status": "queued", "wait": "ready", "attempt": 0, "most": 2, "run": None,
            "owner": None, "cancel": False, "lease": None, "beat": None, "ttl": LEASE_SEC, "task": "t", "queue": "q",
            "limits": None, "need": None, "graph": None, "progress_run": None, "result_run": None, "error_run": None,
            "schedule": None, "backfill": None, "live_key": None, "slice": "",
        } | more  # fmt: skip
        self.transaction()
        self.change(job, "INSERT")
        self.event(job, "queued")
        return job

    def claim(self, job: str, worker: str = "w1", run: str | None = None) -> str:
        run = run or str(uuid4())
        self.transaction()
        lease = {"beat": timestamp(self.now), "lease": timestamp(self.now + LEASE_SEC)}
        attempt = self.rows[job]["attempt"] + 1
        self.change(job, status="running", wait="scheduled", attempt=attempt, run=run, owner=worker, **lease)
        self.event(job, "picked", run=run)
        return run

    def start(self, **more: Any) -> str:
        job = self.enqueue(**more)
        self.claim(job)
        return job

    def end(self, job: str, status: str, kind: str, reason: str | None = None, after: float = 0.1, **more: Any) -> None:
        self.transaction(after)
        wait = "ready" if status == "queued" else "scheduled"
        self.change(job, **({"status": status, "wait": wait, "owner": None, "lease": None} | more))
        self.event(job, kind, reason, self.rows[job]["run"])

    def succeed(self, job: str, **more: Any) -> None:
        self.end(job, "succeeded", "done", **more)

    def beat(self, worker: str = "w1", after: float = 0.1) -> None:
        self.transaction(after)
        self.add("beat", {"worker": worker, "at": timestamp(self.now)})

    def report(self, job: str, run: str, what: str = "acted", after: float = 0.1) -> None:
        self.now += after
        self.reports.append(
            RunReport(run_id=UUID(run), job_id=UUID(job), lock_key="k", attempt=1, task="t", what=what, at=self.now)
        )

    def refusals(self) -> list[str]:
        record = Record(
            steps=self.steps,
            heartbeat_sec=HEARTBEAT_SEC,
            reports=self.reports,
            edges=self.edges,
            target=self.target,
            executions=self.executions,
        )
        return [refusal.message for refusal in check_trace(record).refusals]
