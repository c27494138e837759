"""JobQueue: the questions and moves of the queue, one method a statement."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol
from uuid import UUID

import psycopg2

from app.errors import IdempotencyConflict, InvalidJob, JobNotFound, NotRetryable
from app.queue.job import (
    SUCCEEDED,
    Claimed,
    Enqueued,
    Event,
    Expired,
    Fate,
    Handback,
    HostFacts,
    Job,
    LogLine,
    LogPage,
    NewJob,
    News,
    Outlook,
    Reaped,
    Renewal,
    Run,
    Said,
    Settlement,
    Status,
    Sweep,
    WorkerInfo,
)
from app.queue.values import array, checked_json, checked_text, clean_json, clean_text, plain_array

_LONGEST_ERROR = 8_000
_LONGEST_TRACEBACK = 64_000
_LARGEST_PROGRESS = 64_000
_LONGEST_PAUSE = 366 * 86_400.0
FRONT = array(("-1", "-infinity", "00000000-0000-0000-0000-000000000000"))  # before every ready job


APPLIED = {status: Fate("applied", status) for status in Status}
_DONE = APPLIED[Status.SUCCEEDED]


class Source(Protocol):
    """Where statements are sent: a Pool, a Session, or a connection that was handed in."""

    schema: str

    def ask(self, name: str, parameters: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]: ...


@dataclass(frozen=True)
class Limits:
    largest_result: int = 1_000_000  # bytes of JSON
    min_lease_sec: int = 1  # what a worker can renew in time: two heartbeats


class JobQueue:
    """The queue in one schema of one database, spoken to through one source of connections."""

    def __init__(self, source: Source, *, limits: Limits | None = None) -> None:
        self.source = source
        self._ask: Callable[..., list[tuple[Any, ...]]] = source.ask
        self._limits = limits or Limits()

    # ── by callers ──────────────────────────────────────────────────────────────────────────────────────────────

    def enqueue(self, new: NewJob) -> Enqueued:
        """Put a job into the queue, or find the one that its idempotency key already has.

        Raises IdempotencyConflict when that one was asked for with another queue, task or args.
        """
        return self.put(request_of(new))

    def put(self, asked: Mapping[str, Any]) -> Enqueued:
        """The same for a request that `request_of` has read."""
        while True:  # a key's job may be deleted, or not yet visible, between the insert and the look
            try:
                rows = self._ask("enqueue", asked)
            except InvalidJob as error:
                if not _just_retired(error):
                    raise
                continue  # it is there to be found now
            if rows:
                break
        job_id, status, created, same = rows[0]
        if not same:
            raise IdempotencyConflict(asked["idempotency_key"] or "", as_uuid(job_id))
        return Enqueued(as_uuid(job_id), Status(status), created)

    def put_together(self, asked: Iterable[tuple[UUID, Mapping[str, Any]]]) -> frozenset[UUID]:
        """Put those of the requests, each with an id for its job, into the queue that are new and have nothing in their
        way; returns whose these were. None may have a live key."""
        jobs = ",".join(_row(n, job_id, request) for n, (job_id, request) in enumerate(asked))
        return frozenset(as_uuid(row[0]) for row in self._ask("enqueue_together", {"jobs": f"[{jobs}]"}))

    def get(self, job_id: UUID) -> Job | None:
        rows = self._ask("get", {"job_id": str(job_id)})
        return _job(rows[0]) if rows else None

    def jobs(
        self, *, queue: str | None = None, status: Status | None = None, task: str | None = None, limit: int = 50
    ) -> list[Job]:
        """The newest jobs, newest first."""
        return [
            _job(row) for row in self._ask("jobs", {"queue": queue, "status": status, "task": task, "limit": limit})
        ]

    def events(self, job_id: UUID, *, limit: int = 1000) -> list[Event]:
        rows = self._ask("events", {"job_id": str(job_id), "limit": limit})
        return [Event(row[0], as_uuid(row[1]), row[2], row[3], row[4], _decoded(row[5])) for row in rows]

    def logs(
        self,
        job_id: UUID,
        *,
        after: int = 0,
        tail: bool = False,
        levels: Iterable[str] | None = None,
        attempt: int | None = None,
        stream: str | None = None,
        limit: int = 1000,
    ) -> LogPage:
        """What a job said: the first lines after `after`, or with `tail` the last ones; oldest first."""
        asked = {"job_id": str(job_id), "after": after, "tail": tail, "attempt": attempt, "stream": stream}
        rows = self._ask("logs", asked | {"levels": None if levels is None else array(levels), "most": limit})
        if not rows:
            raise JobNotFound(job_id)
        return LogPage([LogLine(*row[1:]) for row in rows if row[1] is not None], rows[0][0])

    def cancel(self, job_id: UUID) -> Job:
        """Cancel a waiting job, ask a running one to stop, leave a finished one. Returns it as it is then."""
        self._ask("cancel", {"job_id": str(job_id)})
        return self._found(job_id)

    def retry(self, job_id: UUID) -> Job:
        """Queue a failed, canceled or lost job again, with a fresh budget."""
        if not self._ask("retry", {"job_id": str(job_id)}):
            job = self._found(job_id)
            blocked = job.status in (Status.FAILED, Status.CANCELED, Status.LOST)
            raise NotRetryable(job_id, job.status, job.live_key if blocked else None)
        return self._found(job_id)

    def workers(self) -> list[WorkerInfo]:
        return [
            WorkerInfo(as_uuid(row[0]), row[1], row[2], tuple(row[3]), tuple(row[4]), *row[5:])
            for row in self._ask("workers")
        ]

    def ping(self) -> float:
        """How many seconds a round trip took."""
        began = time.monotonic()
        self._ask("ping")
        return time.monotonic() - began

    def _found(self, job_id: UUID) -> Job:
        job = self.get(job_id)
        if job is None:
            raise JobNotFound(job_id)
        return job

    # ── by workers ──────────────────────────────────────────────────────────────────────────────────────────────

    def register_worker(
        self, info: WorkerInfo, *, heartbeat_sec: float, facts: HostFacts | None = None
    ) -> list[tuple[Any, ...]]:
        """Register a worker, or note that it lives. `Deaths.beat` reads the answer."""
        facts = facts or HostFacts()
        return self._ask(
            "register_worker",
            {
                "worker_id": str(info.id),
                "name": info.name,
                "version": info.version,
                "queues": array(info.queues),
                "tasks": array(info.tasks),
                "threads": info.threads,
                "heartbeat_sec": heartbeat_sec,
                "queue_threads": json.dumps(dict(info.queue_threads)),
                **vars(facts),
                "child_tasks": array(facts.child_tasks),
            },
        )

    def take_back(self, queues: Iterable[str], tasks: Iterable[str]) -> None:
        """Make due again what was set aside for want of a worker that knows its task."""
        self._ask("take_back", {"queues": array(queues), "tasks": array(tasks)})

    def forget_worker(self, worker_id: UUID) -> None:
        self._ask("forget_worker", {"worker_id": str(worker_id)})

    def claim(
        self,
        queue: str,
        tasks: Iterable[str],
        run_ids: Sequence[UUID | str],
        worker: str,
        *,
        look: int = 0,
        guard: bool = False,
        due: bool = True,
        after: Sequence[str] | None = None,
        worker_id: UUID | None = None,
    ) -> tuple[list[Claimed], Outlook]:
        """Take as many ready jobs as run ids were drawn, and learn when to look again. `look` at more than that where
        many are expected to be parked for their key. With `due` what has fallen due becomes ready first. What stands
        before `after`, the mark of an earlier claim, is passed over. With `guard` the keys' session locks are taken in
        the same stroke; after an error they may be held without a run, so that the session must be closed."""
        rows = self._ask(
            "claim_due" if due else "claim",
            {
                "queue": queue,
                "tasks": array(tasks),
                "most": len(run_ids),
                "look": max(look, len(run_ids)),
                "run_ids": plain_array(run_ids),
                "worker": worker,
                "worker_id": None if worker_id is None else str(worker_id),
                "guard": guard,
                "after": FRONT if after is None else array(after),
                "min_lease_sec": self._limits.min_lease_sec,
            },
        )
        outlook = Outlook(*rows[0][-4:])
        return [_claimed(row) for row in rows if row[0] is not None], outlook

    def find_claimed(self, run_ids: Sequence[UUID | str]) -> list[Claimed]:
        """What a claim has taken whose answer was lost."""
        return [_claimed(row) for row in self._ask("find_claimed", {"run_ids": plain_array(run_ids)})]

    def set_aside(self, queue: str, tasks: Iterable[str]) -> dict[str, int]:
        """Put off ready jobs that no live worker knows how to run; returns how many of each task."""
        rows = self._ask("set_aside", {"queue": queue, "tasks": array(tasks)})
        return {row[0]: row[1] for row in rows}

    def guard(self, runs: Sequence[Run]) -> list[tuple[bool, bool]]:
        """Take the session locks of the runs' keys: for each (locked, still ours)."""
        rows = self._ask(
            "guard",
            {
                "job_ids": array(run.job_id for run in runs),
                "run_ids": array(run.run_id for run in runs),
                "key_hashes": array(run.key_hash for run in runs),
            },
        )
        return [(locked, owned) for _, locked, owned in sorted(rows)]

    def unguard(self, key_hashes: Sequence[int]) -> None:
        self._ask("unguard", {"key_hashes": array(key_hashes)})

    def renew(self, runs: Sequence[News], *, late_sec: float) -> list[Renewal]:
        """Extend the leases. A silence longer than `late_sec` is journaled."""
        news = [News(*run) for run in runs]
        rows = self._ask(
            "renew",
            {
                "job_ids": array(run.job_id for run in news),
                "run_ids": array(run.run_id for run in news),
                "progress": array(_progress(run.progress) for run in news),
                "checkpoints": array(self._json(run.checkpoint) for run in news),
                "late_sec": late_sec,
                "min_lease_sec": self._limits.min_lease_sec,
            },
        )
        return [Renewal(as_uuid(run_id), *said) for run_id, *said in rows]

    def note_pending_stop(self, job: Claimed, *, reason: str, error: str) -> None:
        """Say that a run goes on although everything was tried to stop it."""
        self._ask(
            "note_pending_stop",
            {"job_id": str(job.id), "run_id": str(job.run_id), "reason": reason, "error": error},
        )

    def write_logs(self, lines: Sequence[Said]) -> None:
        """Add lines to jobs' logs. An answer that is lost may mean that they are there all the same."""
        columns = ("job_ids", "attempts", "ages", "levels", "streams", "lines")
        self._ask("write_logs", {name: array(line[n] for line in lines) for n, name in enumerate(columns)})

    def settle(self, ends: Sequence[tuple[Claimed, Settlement]], *, guards: Sequence[int] = ()) -> list[Fate]:
        """Write down how runs ended, and give back the session locks in `guards`, all in one transaction."""
        told = [(job.id_text, job.run_text, job.key_hash, end) for job, end in ends]
        ((applied, otherwise, which, *_),) = self._ask(
            "settle", settlement_values(told, largest=self._limits.largest_result, guards=guards)
        )
        if applied == len(ends) and not otherwise:
            return [_DONE if end is SUCCEEDED else APPLIED[end.status] for _, end in ends]
        statuses = dict(one.split(" ") for one in otherwise or ())
        ours = {job.run_text for job, _ in ends} if which is None and applied else set(which or ())
        ended = {job.run_text: statuses.get(job.run_text, end.status) for job, end in ends if job.run_text in ours}
        return self._fates([job for job, _ in ends], ended)

    def release(self, runs: Sequence[Handback], *, guards: Sequence[int] = ()) -> list[Fate]:
        """Hand runs back without costing an attempt."""
        handed = [Handback(*run) for run in runs]
        rows = self._ask(
            "release",
            {
                "lock_keys": array(run.job.lock_key for run in handed),
                "job_ids": plain_array(run.job.id_text for run in handed),
                "run_ids": plain_array(run.job.run_text for run in handed),
                "reasons": array(run.why.value for run in handed),
                "progress": array(_progress(run.progress) for run in handed),
                "checkpoints": array(self._json(run.checkpoint) for run in handed),
                "notes": array(self._json(run.notes) for run in handed),
                "guards": array(guards),
            },
        )
        ended = {str(row[0]): row[1] for row in rows if row[0] is not None}
        return self._fates([run.job for run in handed], ended)

    def _fates(self, jobs: Sequence[Claimed], ended: Mapping[str, str]) -> list[Fate]:
        """Of those that were not applied: were they before, and the answer lost?"""
        missing = [job for job in jobs if job.run_text not in ended]
        before: dict[str, str] = {}
        if missing:
            asked = {
                "job_ids": plain_array(job.id_text for job in missing),
                "run_ids": plain_array(job.run_text for job in missing),
            }
            before = {str(run_id): status for run_id, status in self._ask("settled_as", asked)}
        fates = []
        for job in jobs:
            if job.run_text in ended:
                fates.append(APPLIED[Status(ended[job.run_text])])
            elif job.run_text in before:
                fates.append(Fate("already", Status(before[job.run_text])))
            else:
                fates.append(Fate("not ours", None))
        return fates

    def _json(self, value: Any) -> str | None:
        return _kept(value, self._limits.largest_result)

    # ── for the dead, and for those that wait ───────────────────────────────────────────────────────────────────

    def expired(self) -> Expired:
        """The runs whose lease has run out."""
        rows = self._ask("expired")
        runs = [(as_uuid(row[0]), as_uuid(row[1]) if row[1] else None, row[2]) for row in rows if row[0] is not None]
        return Expired(runs, up_sec=rows[0][3], server=rows[0][4])

    def open_sessions(self, names: Sequence[str]) -> set[str]:
        """Which of these names sessions on this server have."""
        return {row[0] for row in self._ask("attempt_sessions", {"names": array(names)})}

    def reap(
        self,
        runs: Sequence[tuple[UUID, UUID | None, str]],
        *,
        pause_sec: float,
        sessions_left: Mapping[UUID, Sequence[str]] | None = None,
        worker_id: UUID | None = None,
        server: str | None = None,
    ) -> list[Reaped]:
        """Settle for the dead: those of the runs whose lease is still expired, or that are still of this process, which
        is proved dead. `sessions_left` has the targets on which SQL of a run may still be active. None, if the server
        is not the one that found the leases expired."""
        left = sessions_left or {}
        rows = self._ask(
            "reap",
            {
                "lock_keys": array(key for _, _, key in runs),
                "job_ids": array(job_id for job_id, _, _ in runs),
                "run_ids": array(run_id for _, run_id, _ in runs),
                "sessions_left": array(_targets(left.get(run_id, ())) if run_id else None for _, run_id, _ in runs),
                "pause_sec": pause_sec,
                "worker_id": None if worker_id is None else str(worker_id),
                "server": server,
            },
        )
        return [
            Reaped(as_uuid(row[0]), row[1], row[2], Status(row[3]), row[4], row[5] and as_uuid(row[5]), *row[6:9])
            for row in rows
        ]

    def sweep(self, *, after: str, lately: Iterable[str], most: int = 500) -> Sweep:
        """Repair parked jobs whose key is free, among the next keys after `after`, but for those seen to lately."""
        rows = self._ask("sweep", {"after": after, "lately": array(lately), "most": most})
        return Sweep(seen_to=rows[0][0], promoted=tuple(row[1] for row in rows if row[1] is not None))

    def promote(self) -> int:
        """Make ready what has fallen due, in any queue; returns how many jobs that were."""
        return int(self._ask("promote")[0][1])


def settlement_values(
    ends: Sequence[tuple[str | UUID, str | UUID, int, Settlement]], *, largest: int, guards: Sequence[int]
) -> dict[str, Any]:
    """What the statement `settle` is given, for (job, run, hash of the lock_key, how it ended)."""
    plain = [one for one in ends if one[3] is SUCCEEDED]
    told = [one for one in ends if one[3] is not SUCCEEDED] if len(plain) < len(ends) else []
    return {
        "key_hashes": plain_array([one[2] for one in ends]),
        "plain_jobs": plain_array([one[0] for one in plain]),
        "plain_runs": plain_array([one[1] for one in plain]),
        "job_ids": plain_array(one[0] for one in told),
        "run_ids": plain_array(one[1] for one in told),
        "statuses": array(end.status.value for *_, end in told),
        "errors": array(_told(end.error, _LONGEST_ERROR) for *_, end in told),
        "tracebacks": array(_told(end.traceback, _LONGEST_TRACEBACK) for *_, end in told),
        "results": array(_kept(end.result, largest) for *_, end in told),
        "progress": array(_progress(end.progress) for *_, end in told),
        "checkpoints": array(_kept(end.checkpoint, largest) for *_, end in told),
        "pauses": array(_pause(end.retry_in) for *_, end in told),
        "refunds": array(int(end.refund) for *_, end in told),
        "crashes": array(int(end.crashed) for *_, end in told),
        "notes": array(_kept(end.notes, largest) for *_, end in told),
        "guards": plain_array(guards),
    }


def as_uuid(value: str | UUID) -> UUID:
    """A pipeline in the same process may have told psycopg2 to make UUIDs of uuids, for all connections."""
    return value if isinstance(value, UUID) else UUID(value)


_JOB_FIELDS = tuple(field.name for field in fields(Job))


def request_of(new: NewJob) -> dict[str, Any]:
    """What is sent of it. Raises InvalidJob."""
    texts = ("queue", "task", "lock_key", "partition_key", "idempotency_key", "live_key", "producer", "consumer_group")
    asked: dict[str, Any] = {}
    for name in texts:
        value = getattr(new, name)
        asked[name] = None if value is None else checked_text(name, value)
    return asked | {
        "args": checked_json("args", dict(new.args)),
        "priority": new.priority,
        "available_at": new.available_at,
        "max_attempts": new.max_attempts,
        "lease_ttl_sec": new.lease_ttl_sec,
        "time_limit_sec": new.time_limit_sec,
        "retry": None if new.retry is None else checked_json("retry", dict(new.retry)),
        "parent_id": None if new.parent_id is None else str(new.parent_id),
        "webhook": None if new.webhook is None else checked_json("webhook", dict(new.webhook)),
        "traceparent": new.traceparent,
    }


_NESTED = ("args", "retry", "webhook")  # JSON already


_row_text = json.JSONEncoder(ensure_ascii=False, default=str).encode


def _row(n: int, job_id: UUID, asked: Mapping[str, Any]) -> str:
    plain = {name: value for name, value in asked.items() if value is not None and name not in _NESTED}
    text = _row_text({**plain, "n": n, "job_id": job_id})
    return text[:-1] + "".join(f', "{name}": {asked[name]}' for name in _NESTED if asked[name] is not None) + "}"


def _just_retired(error: InvalidJob) -> bool:
    """The job of the key was deleted while the insert waited for it."""
    cause = error.__cause__
    return isinstance(cause, psycopg2.Error) and cause.diag.constraint_name == "dl_retired_keys_pkey"


def _told(text: str | None, most: int) -> str | None:
    return None if text is None else clean_text(text, most)


def _kept(value: Any, largest: int) -> str | None:
    return None if value is None else clean_json(value, largest)


def _progress(told: Mapping[str, Any] | None) -> str | None:
    return None if told is None else clean_json(dict(told), _LARGEST_PROGRESS)


def _targets(names: Sequence[str]) -> str | None:
    return json.dumps(list(names)) if names else None


def _job(row: tuple[Any, ...]) -> Job:
    values = dict(zip(_JOB_FIELDS, row, strict=True))
    values["id"] = as_uuid(values["id"])
    values["status"] = Status(values["status"])
    values["args"] = _decoded(values["args"])
    values["progress"] = _decoded(values["progress"])
    for name in ("result", "retry", "checkpoint", "webhook"):
        values[name] = None if values[name] is None else _decoded(values[name])
    for name in ("run_id", "parent_id"):
        values[name] = values[name] and as_uuid(values[name])
    return Job(**values)


def _pause(seconds: float) -> float:
    """What a policy has reckoned must not keep a run, and all that are settled with it, from being written down."""
    return min(max(0.0, seconds), _LONGEST_PAUSE)  # in this order: not a number becomes 0


def _decoded(text: str) -> Any:
    """Anything PostgreSQL holds can be shown; a number that Python refuses is shown as its text."""
    try:
        try:
            return json.loads(text, parse_float=_float)
        except ValueError:
            return json.loads(text, parse_int=str, parse_float=_float)
    except RecursionError:
        return {"$dropped": "nested too deep to be shown"}


def _float(text: str) -> float | str:
    number = float(text)
    return number if math.isfinite(number) else text


def _claimed(row: tuple[Any, ...]) -> Claimed:
    return Claimed._make(row[:-4])  # the last four are the outlook
