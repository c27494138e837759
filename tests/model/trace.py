"""Replays a campaign through the model: each change that was recorded must be a move that the model allows in the state
that the changes before have led to, and each move must have left its event.

The guards are those of rows.py, which the explorer uses too; here rows, heartbeats and times are real ones.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.model import rows
from tests.model.record import Record, TraceStep, model_row, seconds
from tests.model.rows import FINAL, NO_PROCESS, Refused, Row, require
from tests.model.trace_capabilities import check_capabilities

_WALL_SLACK_SEC = 0.3  # between the clocks of a server and of runs
_REAPED = ("lease_expired", "process_died")
_RELEASED = ("shutdown", "lock_busy", "not_started", "waits")
_WITHOUT_CHANGE = ("heartbeat", "stop_pending", "edited", "debounced", "cancel_requested")
# From which wait state statements lead to which, besides those of rows.WAITS: promotions, edits, plain UPDATEs.
_WAIT_CHANGES = {(before, after): name for name, (before, after, _) in rows.WAITS.items()} | {
    ("limited", "scheduled"): "wake", ("waiting", "scheduled"): "decide", ("blocked", "scheduled"): "postpone",
    ("ready", "waiting"): "wait for parents", ("scheduled", "waiting"): "wait for parents",
    ("blocked", "waiting"): "wait for parents", ("limited", "waiting"): "wait for parents",
}  # fmt: skip


@dataclass(frozen=True)
class Refusal:
    """A step that the model does not allow."""

    job: str
    message: str


@dataclass
class _Job:
    row: Row
    data: Mapping[str, Any]
    ends: set[str] = field(default_factory=set)  # statuses that it has ended with


@dataclass
class _Run:
    job: str
    owner: str
    task: str
    ttl: float
    proofs: list[float]  # when the row alone proved that it lives: its claim, and its renewals
    row_ends: float
    ended_at: float = float("inf")
    reason: str = ""  # of its end
    canceled_at: float = float("inf")


@dataclass
class TraceReport:
    refusals: list[Refusal] = field(default_factory=list)
    actions: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0  # that the replay took

    def counts(self) -> dict[str, float]:
        return {
            "steps replayed": sum(self.actions.values()),
            "s of the replay": round(self.seconds, 1),
            **dict(sorted(self.actions.items())),
        }


def check_trace(record: Record) -> TraceReport:
    began, replay = time.monotonic(), _Replay(record)
    for step in record.steps:
        replay.apply(step)
    replay.finish()
    replay.report.refusals += [Refusal(job, message) for job, message in check_capabilities(record)]
    replay.report.seconds = time.monotonic() - began
    return replay.report


class _Replay:
    def __init__(self, record: Record) -> None:
        self._record, self.report = record, TraceReport()
        self._jobs: dict[str, _Job] = {}
        self._runs: dict[str, _Run] = {}
        self._running: dict[str, str] = {}  # key -> the job that runs
        self._used: Counter[str] = Counter()  # of each limit
        self._limits: dict[str, int | None] = {}
        self._beats: dict[str, list[float]] = defaultdict(list)  # of each process
        self._dead: dict[str, int] = {}  # processes that were proved dead, and the number of that step
        # The events of each transaction and job that no change has accounted for yet.
        self._events: dict[tuple[int, str], list[Mapping[str, Any]]] = defaultdict(list)
        # What a function writes within a statement is recorded before what the statement itself writes.
        self._not_running_after: set[tuple[int, str]] = set()
        for step in record.steps:
            if step.kind == "event":
                self._events[step.xid, step.data["job"]].append(step.data)
            elif step.kind == "row" and step.data["status"] != "running":
                self._not_running_after.add((step.xid, step.data["job"]))
        self._ended_by: dict[str, int] = {}  # run -> the transaction that ended it
        self._failed_graphs: set[str] = set()

    def apply(self, step: TraceStep) -> None:
        handlers = {"row": self._change, "beat": self._beat, "limit": self._set_limit, "effect": self._commit_effect}
        if (handler := handlers.get(step.kind)) is None:
            return
        try:
            handler(step)
        except Refused as refused:
            job = str(step.data.get("job", step.data.get("worker")))
            self.report.refusals.append(Refusal(job, f"step {step.n}: {refused}"))

    def _refuse(self, job: str, message: str) -> None:
        self.report.refusals.append(Refusal(job, message))

    # ── rows ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _change(self, step: TraceStep) -> None:
        data, job_id = step.data, str(step.data["job"])
        if data["op"] == "DELETE":
            require(self._jobs.pop(job_id).row.status in FINAL, "a job is deleted that has not ended")
            return
        if (job := self._jobs.get(job_id)) is None:
            self._jobs[job_id] = _Job(model_row(data, 0), data)
            require(data["op"] == "INSERT", "a row changes that was never inserted")
            event = self._take_event(step, "queued") if data["status"] == "queued" else None
            require(event or data["status"] != "queued", "a job is inserted without an event")
            self.report.actions["enqueues"] += 1
            return
        before, after = job.row, model_row(data, job.row.tries)
        job.row, job.data, former = after, data, job.data
        try:
            self._move(step, job, before, after, former)
        finally:
            self._account(step, job_id, before, job.row, data, former)

    def _move(self, step: TraceStep, job: _Job, before: Row, after: Row, former: Mapping[str, Any]) -> None:
        if before.status != after.status:
            name, new = self._change_status(step, before, after, job.data, former["progress_run"])
            expected = (new.status, new.attempt, new.cancel)
            require(
                expected == (after.status, after.attempt, after.cancel),
                f"{name} leads to {expected}, and the row has {(after.status, after.attempt, after.cancel)}",
            )
            job.row = after._replace(tries=new.tries)
            require(
                0 <= new.tries == after.attempt <= job.data["most"],
                f"attempt {after.attempt} after {new.tries} attempts of {job.data['most']}",
            )
            if after.status in FINAL:
                require(
                    after.owner == NO_PROCESS and job.data["lease"] is None,
                    "a job has ended, and has an owner or a lease",
                )
                job.ends.add(after.status)
        elif after.status == "running":
            name = self._change_running(step, before, after, job.data, former)
        elif after.status == "queued":
            name = self._change_wait(step, before, after, job.data)
        else:
            require(before.attempt == after.attempt, "the attempt of a job changes that has ended")
            name = "notes"
        self.report.actions[name] += 1

    def _change_status(
        self, step: TraceStep, before: Row, after: Row, data: Mapping[str, Any], shown: str | None
    ) -> tuple[str, Row]:
        event = self._take_event(step, None)
        require(event, f"the job goes from {before.status} to {after.status}, and no event says so")
        assert event is not None
        self._require_match(event, after)
        kind, reason, run = event["kind"], event["reason"] or "", event["run"]
        if before.status in FINAL:
            is_by_hand = reason == "by_hand"
            new = rows.requeue_by_hand(before)[0] if is_by_hand else rows.retry(before)[0]
            return "updates by hand" if is_by_hand else "retries", new
        if before.status == "queued":
            return self._leave_queue(step, before, after, data, kind, reason)
        if reason == "by_hand":
            return "updates by hand", rows.requeue_by_hand(before)[0]
        require(run == before.run, f"run {run} ends it, and run {before.run} owns it")
        if reason in _REAPED:
            self._require_death(step, before, data, reason)
            return f"reaps: {reason}", rows.reap(before, run, reason, data["most"])[0]
        if reason in _RELEASED:
            return f"releases: {reason}", rows.release(before, run, reason)[0]
        outcome = {"done": "succeeded", "requeue": "queued"}.get(kind, kind)
        # A run that ends before it has reported anything leaves what the job shows of an earlier one.
        self._require_own_values(before, data, shown if outcome != "succeeded" else None)
        if outcome == "failed" and before.attempt >= data["most"]:
            outcome = "queued"
        return "settles", rows.settle(before, run, outcome, data["most"], refund=before.attempt - after.attempt)[0]

    def _leave_queue(
        self, step: TraceStep, before: Row, after: Row, data: Mapping[str, Any], kind: str, reason: str
    ) -> tuple[str, Row]:
        job_id = str(data["job"])
        if after.status == "running":
            require(after.run is not None and after.run not in self._runs, f"the run_id {after.run} is not a fresh one")
            require(
                self._running.get(data["key"]) in (None, job_id),
                f"job {self._running.get(data['key'])} runs with its key",
            )
            self._require_parents(job_id, data)
            self._require_room(data)
            return "claims", rows.claim(before, after.run, after.owner, data["most"])[0]
        if kind == "skipped":
            met = self._met(job_id)
            outcome = rows.verdict(met, any_is_enough=data["need"] == "any")
            require(
                outcome == "canceled" or data["graph"] in self._failed_graphs,
                "a job is skipped whose parents ended as it asks",
            )
        elif kind == "failed":
            require(reason == "no_attempts" and data["most"] < 1, "a queued job fails that has attempts")
        return kind, rows.end_queued(before._replace(cancel=after.cancel), after.status)[0]

    def _change_running(
        self, step: TraceStep, before: Row, after: Row, data: Mapping[str, Any], former: Mapping[str, Any]
    ) -> str:
        require((before.run, before.attempt) == (after.run, after.attempt), "the run of a running job changes")
        require(before.owner == after.owner, "the owner of a running job changes")
        if data["progress_run"] != former["progress_run"]:
            self._require_own_values(before, data)
        if after.cancel and not before.cancel:
            require(self._take_event(step, "cancel_requested"), "a cancel is requested, and no event says so")
            self._runs[after.run].canceled_at = step.at
            return "cancels"
        require(after.cancel or not before.cancel, "a cancel request is taken back")
        if data["beat"] != former["beat"]:
            ends = seconds(data["lease"])
            require(
                ends >= step.at + data["ttl"] - _WALL_SLACK_SEC,
                f"the row is renewed, and its lease ends in {ends - step.at:.2f} s",
            )
            return "renews"
        if data["lease"] != former["lease"]:
            require(seconds(data["lease"]) <= step.at, "a lease is changed, and is neither renewed nor ended")
            return "disowns"
        return "notes"

    def _change_wait(self, step: TraceStep, before: Row, after: Row, data: Mapping[str, Any]) -> str:
        require(
            before.attempt == after.attempt and not after.cancel,
            "a queued job changes its attempt, or is to be canceled",
        )
        if before.wait == after.wait:
            return "notes"
        name = _WAIT_CHANGES.get((before.wait, after.wait), "")
        require(name, f"a job that is {before.wait} becomes {after.wait}")
        if name == "unblock":
            holder = self._running.get(data["key"])
            is_free = holder is None or (step.xid, holder) in self._not_running_after
            require(is_free, f"a job becomes ready, and job {holder} runs with its key")
        if name == "decide":
            outcome = rows.verdict(self._met(str(data["job"])), any_is_enough=data["need"] == "any")
            require(outcome == "ready", "a job is released whose parents have not ended as it asks")
        kind = {"limit": "limited", "wake": "released", "decide": "released"}.get(name)
        require(kind is None or self._take_event(step, kind), f"a statement could {name} the job, and no event says so")
        return name

    # ── what a move requires ────────────────────────────────────────────────────────────────────────────────────

    def _take_event(self, step: TraceStep, kind: str | None) -> Mapping[str, Any] | None:
        """The next event that the transaction has written of the job; that of a change of status for None."""
        events = self._events.get((step.xid, str(step.data["job"])), [])
        for n, event in enumerate(events):
            is_status = (
                event["kind"] not in (*_WITHOUT_CHANGE, "limited", "released", "queued")
                and event["reason"] != "unknown_task"
            )
            if event["kind"] == kind or (kind is None and is_status):
                return events.pop(n)
        return None

    def _require_match(self, event: Mapping[str, Any], after: Row) -> None:
        found = (event["status"], event["attempt"])
        require(
            found == (after.status, after.attempt), f"the event says {found}, the row {(after.status, after.attempt)}"
        )
        is_own = event["run"] in (None, after.run)
        require(is_own, f"the event names run {event['run']}, the row {after.run}")

    def _require_own_values(self, before: Row, data: Mapping[str, Any], shown: str | None = None) -> None:
        """What a run reports is its own: the campaign's tasks write their run into progress, result and error."""
        for name in ("progress_run", "result_run", "error_run"):
            is_own = data[name] in (None, before.run) or (name == "progress_run" and data[name] == shown)
            what = f"{name.partition('_')[0]} of run {data[name]}"
            require(is_own, f"{what} is written while run {before.run} owns the job")

    def _require_death(self, step: TraceStep, before: Row, data: Mapping[str, Any], reason: str) -> None:
        run = self._runs[before.run]
        if reason == "process_died":
            self._dead[run.owner] = step.n
            return
        ends_at = self._lease_end(run, step.at)
        late_sec = step.at - ends_at - self._record.heartbeat_sec
        require(
            late_sec >= 0, f"a reaper takes the run {late_sec + self._record.heartbeat_sec:.3f} s after its lease ended"
        )

    def _lease_end(self, run: _Run, at: float) -> float:
        """As dl_lease_end has it: by the last heartbeat of the process, and by the row."""
        beats = self._beats[run.owner]
        n = bisect_right(beats, at)
        last = max([*run.proofs[-1:], *beats[max(n - 1, 0) : n]])
        return min(run.row_ends, last + run.ttl)

    def _met(self, job_id: str) -> list[bool | None]:
        met: list[bool | None] = []
        for edge in self._record.edges.get(job_id, ()):
            parent = self._jobs.get(str(edge.parent_id))
            statuses = parent.ends if parent else set()
            met.append(any(rows.is_met(edge.wants, status) for status in statuses) if statuses else None)
        return met

    def _require_parents(self, job_id: str, data: Mapping[str, Any]) -> None:
        met = self._met(job_id)
        is_met = any(met) if data["need"] == "any" else all(met)
        require(not met or is_met or self._was_retried(job_id), "a job starts before its parents have ended as it asks")

    def _was_retried(self, job_id: str) -> bool:
        """A skipped job runs after a retry by a person, whatever its parents ended as."""
        return bool(self._jobs[job_id].ends)

    def _weights(self, data: Mapping[str, Any]) -> Mapping[str, int]:
        return {**(data["limits"] or {}), f"queue:{data['queue']}": 1, f"task:{data['task']}": 1}

    def _require_room(self, data: Mapping[str, Any]) -> None:
        for name, weight in self._weights(data).items():
            default = f"{name.rpartition(':')[0]}:*"
            allowed = self._limits.get(name, self._limits.get(default))
            require(
                rows.fits(self._used[name], weight, allowed),
                f"it starts with {self._used[name]} of {allowed} of the limit {name!r} in use",
            )

    def _account(
        self, step: TraceStep, job_id: str, before: Row, after: Row, data: Mapping[str, Any], former: Mapping[str, Any]
    ) -> None:
        """Follow the real state, also after a refused step: each fault is reported once."""
        if after.status == "running" and (before.status != "running" or before.run != after.run):
            self._running[data["key"]] = job_id
            self._used.update(self._weights(data))
            owner = "" if after.owner == NO_PROCESS else str(after.owner)
            proof = seconds(data["beat"])
            self._runs[str(after.run)] = _Run(job_id, owner, data["task"], data["ttl"], [proof], seconds(data["lease"]))
        elif after.status == "running":
            run = self._runs[str(after.run)]
            if data["beat"] != former["beat"]:
                run.proofs.append(seconds(data["beat"]))
            run.row_ends, run.ttl = seconds(data["lease"]), data["ttl"]
        if before.status == "running" and after.status != "running":
            if self._running.get(data["key"]) == job_id:
                del self._running[data["key"]]
            self._used.subtract(self._weights(former))
            if (ended := self._runs.get(str(before.run))) is not None:
                ended.ended_at, ended.reason = step.at, after.status
                self._ended_by[str(before.run)] = step.xid
        if after.status in ("failed", "lost") and data["graph"] in self._record.canceling_graphs:
            self._failed_graphs.add(data["graph"])

    # ── processes ───────────────────────────────────────────────────────────────────────────────────────────────

    def _beat(self, step: TraceStep) -> None:
        worker = str(step.data["worker"])
        self._beats[worker].append(seconds(step.data["at"]))
        self.report.actions["beats"] += 1
        require(worker not in self._dead, "a process beats that was proved dead")

    def _set_limit(self, step: TraceStep) -> None:
        self._limits[step.data["name"]] = step.data["concurrency"]
        self.report.actions["sets limit"] += 1

    def _commit_effect(self, step: TraceStep) -> None:
        job, run = self._jobs[str(step.data["job"])], str(step.data["run"])
        self.report.actions["commits effect"] += 1
        is_owner = job.row.status == "running" and job.row.run == run
        require(
            is_owner or self._ended_by.get(run) == step.xid,
            f"run {run} commits part {step.data['part']}, and does not own the job",
        )

    # ── what remains ────────────────────────────────────────────────────────────────────────────────────────────

    def finish(self) -> None:
        for (_, job), events in self._events.items():
            for event in events:
                if event["kind"] not in _WITHOUT_CHANGE and event["reason"] != "unknown_task":
                    self._refuse(job, f"event {event['id']} ({event['kind']}) was written without a change of the row")
        for beats in self._beats.values():
            beats.sort()
        for job, message in (*self._untrue_reports(), *self._unfenced_commits()):
            self._refuse(job, message)

    def _untrue_reports(self) -> Iterator[tuple[str, str]]:
        """Runs that passed a safe point, or would have, when the model says that they may not act."""
        found: set[tuple[str, str]] = set()
        for report in self._record.reports:
            run, job = self._runs.get(str(report.run_id)), str(report.job_id)
            if run is None:
                if job in self._jobs:
                    yield job, f"run {report.run_id} {report.what}, and was never claimed"
                continue
            if report.what not in ("acted", "trusted"):
                continue
            self.report.actions[f"run {report.what}"] += 1
            problem = self._why_not(run, report.at + self._record.wall)
            if problem and (str(report.run_id), problem[0]) not in found:
                found.add((str(report.run_id), problem[0]))
                yield job, f"run {report.run_id} {report.what} {problem[1]}"

    def _why_not(self, run: _Run, at: float) -> tuple[str, str] | None:
        if at > run.ended_at + _WALL_SLACK_SEC and run.reason != "succeeded":  # settled by its own last transaction
            return "end", f"{at - run.ended_at:.3f} s after it had lost its job, which became {run.reason}"
        beats = self._beats[run.owner]
        if not run.owner:
            return None
        last = max(
            [
                run.proofs[0],
                *(proof for proof in run.proofs if proof <= at),
                *beats[: bisect_right(beats, at + _WALL_SLACK_SEC)][-1:],
            ]
        )
        if at > last + run.ttl + _WALL_SLACK_SEC:
            return "lease", f"{at - last:.3f} s after the last heartbeat of its process, with a lease of {run.ttl} s"
        next_beat = beats[bisect_right(beats, run.canceled_at) :][:1]
        if next_beat and at > next_beat[0] + run.ttl + _WALL_SLACK_SEC:
            return "cancel", f"{at - next_beat[0]:.3f} s after a heartbeat that found its cancel request"
        return None

    def _unfenced_commits(self) -> Iterator[tuple[str, str]]:
        """The row of a job in the target names the run that may write; claims are in the order of the queue's."""
        order = {run_id: n for n, run_id in enumerate(self._runs)}
        holder: dict[str, str] = {}
        for commit in self._record.target:
            self.report.actions[f"target {commit.kind}"] += 1
            former = holder.get(commit.job)
            if commit.kind == "row":
                if former is not None and order.get(commit.run, 0) < order.get(former, 0):
                    yield commit.job, f"run {commit.run} claims its row in the target after the later run {former}"
                holder[commit.job] = commit.run
            elif commit.kind == "part" and former is not None and former != commit.run:
                yield commit.job, f"run {commit.run} commits a part in the target, whose row is of run {former}"
