"""Where a running job is: what its worker process answers, its sessions, and one sentence of both."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, TypeVar
from uuid import UUID

from dataloader.app.errors import JobNotFound
from dataloader.app.features.targets.servers import TargetServers
from dataloader.app.features.where.locks import describe_sql, find_blocked, read_sessions
from dataloader.app.features.where.rows import AskedWorker, Run, WhereRows
from dataloader.app.features.where.sessions import ServerSessions, read_servers
from dataloader.app.http.jobs.watcher import JobWatcher
from dataloader.app.log.masking import mask_secret_fields
from dataloader.app.queue.attempt_sessions import attempt_application_name
from dataloader.app.queue.job import Job, Status
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.wording import format_duration

WAIT_SEC = 3.0  # for the answer of a worker process
TARGET_WAIT_SEC = 2.0
LIST_WAIT_SEC = 1.0  # for the answers of all, and for targets
_FILE_PARTS = 2  # of a path that a sentence names
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class StackFrame:
    """A call. `kind` is whose code it is: task, library, standard (of Python) or dataloader. `repeated`: how often the
    function has called itself there."""

    file: str
    line: int | None
    function: str
    kind: str
    repeated: int

    @property
    def place(self) -> str:
        """Such as `load in sales/load.py:88`."""
        parts = self.file.replace("\\", "/").split("/")
        line = "" if self.line is None else f":{self.line}"
        times = f" × {self.repeated:,}" if self.repeated > 1 else ""
        return f"{self.function} in {'/'.join(parts[-_FILE_PARTS:])}{line}{times}"


@dataclass(frozen=True, kw_only=True)
class ThreadStack:
    """A thread of the attempt, the innermost call first. `frame_count`: of all calls, of which a deep stack shows both
    ends."""

    name: str | None
    is_task: bool
    frames: list[StackFrame]
    frame_count: int


@dataclass(frozen=True, kw_only=True)
class ProcessState:
    """A process of the attempt. `name` is that of its program, without arguments. `cpu_percent` is of one CPU, in the
    fifth of a second of the answer; `cpu_sec` since it began."""

    pid: int
    parent_pid: int
    depth: int
    name: str
    state: str
    cpu_percent: float | None
    cpu_sec: float
    memory_mb: float
    threads: int


@dataclass(frozen=True, kw_only=True)
class JobWhere:
    """Where a running job is. `summary` says it in a sentence. `isolation` is what the attempt runs in: thread,
    process, interpreter or program. `problem`: why there is no stack. `servers` has the queue's server and targets."""

    job_id: UUID
    status: Status
    run_id: UUID | None
    attempt: int
    worker: str | None
    summary: str
    isolation: str | None = None
    problem: str | None = None
    cpu_percent: float | None = None
    threads: list[ThreadStack] = field(default_factory=list)
    processes: list[ProcessState] = field(default_factory=list)
    process_count: int = 0
    servers: list[ServerSessions] = field(default_factory=list)

    @property
    def place(self) -> StackFrame | None:
        """The innermost call of the task's own code; of its first thread that has one."""
        own = (frame for thread in self.threads for frame in thread.frames if frame.kind == "task")
        return next(own, None)


@dataclass(frozen=True, kw_only=True)
class RunningJobWhere:
    """A running job. `summary` says where it is; `blocked`: a statement of it waits for a lock. `memory_mb` is of its
    processes, null for one that runs in a thread. `running_sec` counts from the start of the attempt."""

    job_id: UUID
    task: str
    queue: str
    worker: str | None
    attempt: int
    max_attempts: int
    running_sec: float | None
    progress: Any
    summary: str
    blocked: bool
    isolation: str | None
    cpu_percent: float | None
    memory_mb: float | None


@dataclass(frozen=True)
class RunningJobs:
    """Running jobs, those first that have been running longest."""

    jobs: list[RunningJobWhere]
    has_more: bool


class WhereReader:
    """Reads where jobs are. Threads may share it."""

    def __init__(self, queue: JobQueue, watcher: JobWatcher, servers: TargetServers | None) -> None:
        self._queue, self._watcher, self._servers = queue, watcher, servers or TargetServers({})
        self._rows = WhereRows(queue.executor)

    def read(self, job_id: UUID) -> JobWhere:
        """Ask the worker process, and wait some seconds for its answer. Raises JobNotFound."""
        job = self._queue.get(job_id)
        if job is None:
            raise JobNotFound(job_id)
        if job.status is not Status.RUNNING or job.run_id is None:
            return _not_running(job)
        asked = self._rows.ask(job.run_id)
        servers = read_sessions(self._queue.executor, self._servers, job, wait_sec=TARGET_WAIT_SEC)
        run_id, answer = job.run_id, asked.answer
        if answer is None:
            answer = self._watcher.wait(
                lambda: self._rows.read(run_id, asked.at), lambda found: found is not None, WAIT_SEC
            )
        if answer is None:
            worker = self._rows.worker(job_id, run_id)
            if worker is None:  # it has ended meanwhile, or its next attempt has begun
                latest = self._queue.get(job_id)
                if latest is not None and latest.run_id != run_id:
                    return _not_running(latest)
            answer = {"problem": _silence(job, worker)}
        return _where(_run_of(job, run_id), answer, servers)

    def read_running(self, *, queue: str | None, task: str | None, limit: int) -> RunningJobs:
        """Ask for all these running jobs at once, and wait a second for the answers."""
        runs = self._rows.running(queue=queue, task=task, limit=limit + 1)
        shown = runs[:limit]
        if not shown:
            return RunningJobs([], has_more=False)
        run_ids = [run.run_id for run in shown]
        asked_at = self._rows.ask_all(run_ids)
        names = {run.run_id: attempt_application_name(run.job_id, run.run_id) for run in shown}
        servers = self._servers
        sessions = read_servers(
            self._queue.executor, servers, servers.names, list(names.values()), wait_sec=LIST_WAIT_SEC
        )
        answers = self._watcher.wait(
            lambda: self._rows.read_all(run_ids, asked_at), lambda found: len(found) == len(run_ids), LIST_WAIT_SEC
        )
        silent = {"problem": "its worker process has not answered within a second"}
        found = [_where(run, answers.get(run.run_id, silent), sessions[names[run.run_id]]) for run in shown]
        jobs = [_running_job(run, where) for run, where in zip(shown, found, strict=True)]
        return RunningJobs(jobs, has_more=len(runs) > limit)


def _run_of(job: Job, run_id: UUID) -> Run:
    return Run(job.id, job.status, run_id, job.attempt, job.worker)


def _running_job(run: Run, where: JobWhere) -> RunningJobWhere:
    memory_mb = round(sum(process.memory_mb for process in where.processes), 1) if where.processes else None
    return RunningJobWhere(
        job_id=run.job_id,
        task=run.task,
        queue=run.queue,
        worker=run.worker,
        attempt=run.attempt,
        max_attempts=run.max_attempts,
        running_sec=None if run.running_sec is None else round(max(0.0, run.running_sec), 1),
        progress=mask_secret_fields(run.progress),
        summary=where.summary,
        blocked=bool(find_blocked(where.servers)),
        isolation=where.isolation,
        cpu_percent=where.cpu_percent,
        memory_mb=memory_mb,
    )


def _not_running(job: Job) -> JobWhere:
    what = "has not started yet" if job.status is Status.QUEUED else f"has ended: it is {job.status.value}"
    if job.status is Status.QUEUED and job.attempt > 0:
        what = "waits for its next attempt"
    problem = f"The job {what}."
    if job.status is Status.RUNNING:
        problem = "Another attempt of the job has just begun."
    return JobWhere(
        job_id=job.id, status=job.status, run_id=job.run_id, attempt=job.attempt, worker=job.worker, summary=problem,
        problem=problem,
    )  # fmt: skip


def _silence(job: Job, worker: AskedWorker | None) -> str:
    name = f"its worker process {job.worker}" if job.worker else "its worker process"
    waited = format_duration(WAIT_SEC)
    if worker is None:
        return f"{name} did not answer within {waited}, and has no row by which it could be asked"
    age = worker.heartbeat_age_sec
    beat = "" if age is None else f"; its last heartbeat was {format_duration(max(0.0, age))} ago"
    if worker.listener == "off":
        return f"{name} receives no notifications (DL_LISTEN=off), so that it cannot be asked{beat}"
    return (
        f"{name} did not answer within {waited}{beat}: it does not reach the database, is of an older version, or "
        "native code holds its interpreter"
    )


def _where(run: Run, answer: dict[str, Any], servers: list[ServerSessions]) -> JobWhere:
    found = JobWhere(
        job_id=run.job_id,
        status=run.status,
        run_id=run.run_id,
        attempt=run.attempt,
        worker=run.worker,
        summary="",
        isolation=answer.get("isolation"),
        problem=answer.get("problem"),
        cpu_percent=answer.get("cpu_percent"),
        threads=[_thread(thread) for thread in answer.get("threads") or ()],
        processes=[_make(ProcessState, process) for process in answer.get("processes") or ()],
        process_count=answer.get("process_count") or 0,
        servers=servers,
    )
    return JobWhere(**{**vars(found), "summary": summarize(found)})


def _thread(values: dict[str, Any]) -> ThreadStack:
    frames = [_make(StackFrame, frame) for frame in values["frames"]]
    return ThreadStack(**{**values, "frames": frames})


def _make(kind: type[_T], values: dict[str, Any]) -> _T:
    """Of the fields that it knows: a worker process may be of another version."""
    return kind(**{entry.name: values.get(entry.name) for entry in fields(kind)})  # type: ignore[arg-type]


# ── in one sentence ─────────────────────────────────────────────────────────────────────────────────────────────────


def summarize(where: JobWhere) -> str:
    """Such as `load in sales/load.py:88 waits for a lock on sales, which is held by pid 77 (psql, user ann)`."""
    place = where.place
    sql = describe_sql(where.servers)
    if place is None and (frames := [frame for thread in where.threads for frame in thread.frames]):
        place = frames[0]
    if place is not None:
        return f"{place.place}: {sql}." if sql else f"{place.place}{_cpu(where)}."
    if where.processes:
        shown = max(where.processes, key=lambda process: process.cpu_percent or 0.0)
        what = f"{shown.name} (pid {shown.pid}) is {shown.state}{_cpu(where)}"
        return f"{what}: {sql}." if sql else f"{what}."
    problem = f"{where.problem[:1].upper()}{where.problem[1:]}" if where.problem else "It is not known where it is"
    return f"{problem}. In SQL: {sql}." if sql else f"{problem}."


def _cpu(where: JobWhere) -> str:
    return "" if where.cpu_percent is None else f", {where.cpu_percent:.0f} % of a CPU"
