"""What a pipeline is given and what it yields or meets: `Context`, `Progress`, `Checkpoint`, `Stop`. Portable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Dict, Literal, NamedTuple, Protocol, TypedDict, TypeVar, get_args
from uuid import UUID

from dataloader.pipelines.json_values import encode_strictly
from dataloader.pipelines.portable import TextEnum
from dataloader.pipelines.reports import Severity

if TYPE_CHECKING:
    from typing import Unpack

Args = Dict[str, Any]
K = TypeVar("K")
MAX_PARENTS = 1_000


class StopReason(TextEnum):
    """Why an attempt is stopped."""

    CANCEL = "cancel"
    SHUTDOWN = "shutdown"
    LEASE_LOST = "lease_lost"
    KEY_LOST = "key_lost"
    TIME_LIMIT = "time_limit"


class Stop(BaseException):
    """Raised inside a pipeline, at a safe point, to end it early.

    Not an `Exception`, so that a pipeline's `except Exception` lets it through. Clean up in `finally`.
    """

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason)
        self.reason = reason


class Handle:
    """Work on another engine. `Wait(handle)` ends the attempt until it is over; `result()` waits in the attempt."""

    def __init__(self, engine: str, name: str, *, survives: bool = True) -> None:
        self.engine, self.name = engine, name
        self.survives = survives  # the end of the attempt's process

    @property
    def done(self) -> bool:
        """Whether it is over, as far as is known here."""
        raise NotImplementedError

    def result(self) -> Any:
        """Wait for the end; return what it returned, or raise how it failed."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop the work, and wait until the engine has ended it."""
        raise NotImplementedError


class Wait(BaseException):
    """Yielded or raised by a pipeline: end this attempt, and continue in another one when these jobs have ended, or the
    work of these handles of `ctx.offload`. The attempt does not count, and holds nothing meanwhile. `cursor` is its
    checkpoint, unless it is None.

    A yielded Wait for handles that are all done does nothing, so that the next attempt passes it.

    Not an `Exception`, as `Stop`.
    """

    def __init__(self, jobs: Iterable[UUID | str | Handle] | Handle, cursor: Any = None) -> None:
        if isinstance(jobs, (UUID, str)):
            raise TypeError("Wait takes the ids of jobs as a list")
        items = [jobs] if isinstance(jobs, Handle) else [*jobs]
        self.handles = tuple(item for item in items if isinstance(item, Handle))
        if self.handles and len(self.handles) < len(items):
            raise TypeError("Wait takes jobs or handles, not both: wait for one after the other")
        if mortal := next((handle for handle in self.handles if not handle.survives), None):
            raise ValueError(f"the engine {mortal.engine!r} ends its work with the attempt: take its result() here")
        jobs_only = (item for item in items if not isinstance(item, Handle))
        self.jobs = tuple(dict.fromkeys(job if isinstance(job, UUID) else UUID(job) for job in jobs_only))
        self.offloads = tuple(dict.fromkeys(handle.name for handle in self.handles))
        if len(items) > MAX_PARENTS:
            raise ValueError(f"a job waits for at most {MAX_PARENTS:,} others, not {len(items):,}")
        self.cursor = cursor
        super().__init__(f"waits for {len(items)} {'offloads' if self.handles else 'jobs'}")

    @property
    def is_over(self) -> bool:
        """Whether it waits for handles, and all are done."""
        return bool(self.handles) and all(handle.done for handle in self.handles)

    def __reduce__(self) -> tuple[type[Wait], tuple[Any, ...]]:
        return type(self), (self.handles or self.jobs, self.cursor)


@dataclass(frozen=True)
class Checkpoint:
    """Yielded by a generator: where the next attempt resumes."""

    cursor: Any


@dataclass(frozen=True)
class Progress:
    """Yielded by a generator: how far the job is."""

    done: int | None = None
    total: int | None = None
    unit: str | None = None


class ContextLog(Protocol):
    """The job's log. Fields follow the message."""

    def debug(self, message: str, /, **fields: Any) -> None: ...
    def info(self, message: str, /, **fields: Any) -> None: ...
    def warning(self, message: str, /, **fields: Any) -> None: ...
    def error(self, message: str, /, **fields: Any) -> None: ...


@dataclass(frozen=True)
class Upstream:
    """A job that this one waited for."""

    job_id: UUID
    status: str
    result: Any = None
    error: str | None = None


ParentEnd = Literal["succeeded", "ended", "failed"]
ParentsNeeded = Literal["all", "any"]


def check_fan_out(jobs: Iterable[Mapping[str, Any]], on: object, need: object) -> list[Mapping[str, Any]]:
    """Return the jobs. Raises ValueError."""
    requests = [*jobs]
    if len(requests) > MAX_PARENTS:
        raise ValueError(f"a job waits for at most {MAX_PARENTS:,} others, not {len(requests):,}")
    if on not in get_args(ParentEnd) or need not in get_args(ParentsNeeded):
        raise ValueError(f"on is 'succeeded', 'ended' or 'failed', and need 'all' or 'any', not {on!r} and {need!r}")
    return requests


@dataclass(frozen=True)
class Interval:
    """The data that a job is to load: from `start` up to, but not including, `end`."""

    start: datetime
    end: datetime

    @classmethod
    def between(cls, start: datetime | None, end: datetime | None) -> Interval | None:
        return None if start is None or end is None else cls(start, end)


class OffloadOptions(TypedDict, total=False):
    """The options of `ctx.offload`."""

    entrypoint: str  # of a program: its command line
    kwargs: Mapping[str, Any]  # of a function
    env: Mapping[str, str]
    resources: Mapping[str, Any]  # as the engine names them
    timeout: float  # seconds from the submission to the end; then it is stopped, and TimeoutError raised
    key: str  # in the name in place of the call's number
    fresh: bool  # each attempt starts the work again
    on_shutdown: Literal["detach", "stop"]
    engine_timeout: float  # seconds without an answer of the engine; then EngineUnavailable
    grace: float  # seconds for a stop, before it is shown as pending
    abandon: bool  # do not wait longer than `grace` for a stop


class FollowUpOptions(TypedDict, total=False):
    """The options of `ctx.enqueue`, and of each job of `ctx.fan_out`."""

    queue: str | None  # None: that of the running job; of the others: the task's, the running job's, or the default
    lock_key: str | None
    idempotency_key: str | None
    priority: int | None
    available_at: datetime | None
    max_attempts: int | None
    limits: Mapping[str, int] | None


class FollowUp(NamedTuple):
    """A job to enqueue."""

    task: str
    args: Args
    options: FollowUpOptions  # those that are not None


def parse_follow_up(job: Mapping[str, Any]) -> FollowUp:
    """Return a job of the arguments of `ctx.enqueue` by name. Raises TypeError or ValueError."""
    options = dict(job)
    task, args = options.pop("task", None), options.pop("args", None)
    if not isinstance(task, str):
        raise TypeError(f"a job to enqueue names its task as a text, not {task!r:.60}")
    known = FollowUpOptions.__annotations__
    if unknown := next((name for name in options if name not in known), None):
        raise TypeError(f"a job to enqueue has no option {unknown!r}; expected one of: {', '.join(known)}")
    args = {} if args is None else args
    if not isinstance(args, Mapping):
        raise TypeError(f"args is an object with names, not {args!r:.60}")
    try:
        encode_strictly(args)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"args is not JSON that PostgreSQL can store: {error}") from error
    present: Any = {name: value for name, value in options.items() if value is not None}
    return FollowUp(task, dict(args), present)


class Context(Protocol):
    """The second argument of a pipeline that takes one: its job, its log, and what it may do."""

    @property
    def job_id(self) -> UUID: ...

    @property
    def task(self) -> str: ...

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""

    @property
    def max_attempts(self) -> int: ...

    @property
    def traceparent(self) -> str | None:
        """The job's W3C trace context, to be sent on as a header of that name, or None."""

    @property
    def stopping_in(self) -> float | None:
        """Seconds until the worker process, which is shutting down, stops this attempt; None: no stop is known.

        A pipeline that needs longer for its next part than this may leave it to the next attempt: write a checkpoint,
        and wait in `ctx.sleep`.
        """

    @property
    def resume(self) -> Any:
        """The last checkpoint of this attempt or an earlier one, or None."""

    @property
    def upstream(self) -> Mapping[str, Upstream]:
        """The jobs that this one waited for, by their key in the graph or else their id: status, result, error.

        Raises `Fail` if one of them was deleted."""

    @property
    def logical_at(self) -> datetime | None:
        """The time that the job is for, such as the nominal time of its schedule. The same in every attempt."""

    @property
    def interval(self) -> Interval | None:
        """The data that the job is to load, if its schedule or slice has times."""

    @property
    def partition(self) -> str | None:
        """The key of the job's slice."""

    @property
    def log(self) -> ContextLog: ...

    def check(
        self,
        name: str | None = None,
        value: float | None = None,
        *,
        min: float | None = None,
        max: float | None = None,
        vs: str | None = None,
        tolerance: float | None = None,
        severity: Severity = "fail",
    ) -> None:
        """A safe point: raises `Stop` if the attempt is to stop.

        With a name it is a data check too: compares the value with `min` and `max`, and with the median of the last
        values of the same task and check (`vs="median:7", tolerance=0.3` allows 30 % to both sides). Raises `Fail` if
        it does not pass, unless the severity is "warn". Recorded when the attempt ends, however it ends.
        """

    def produced(
        self, dataset: str, *, rows: int | None = None, partition: str | None = None, schema: Any = None
    ) -> None:
        """Report that the job updated a dataset. Recorded with the job's success and only then; another call for the
        same dataset and partition replaces the former. The partition is the job's own if none is given."""

    def consumed(self, dataset: str, *, partition: str | None = None) -> None:
        """Report that the job read a dataset. Recorded as by `produced`."""

    def link(self, name: str, url: str) -> None:
        """Show a link (http or https) with the job, such as to a report or another system's page."""

    def sleep(self, seconds: float) -> None:
        """Wait; raise `Stop` as soon as the attempt is to stop."""

    def progress(self, done: int | None = None, total: int | None = None, unit: str | None = None, **more: Any) -> None:
        """Report how far the job is. Kept in memory and saved about once a second."""

    def count(self, **numbers: int | float) -> None:
        """Add to the job's own counters, which are in its progress under `counts`."""

    def checkpoint(self, cursor: Any) -> None:
        """Record where the next attempt resumes. Saved about once a second; within `transaction`, by its commit."""

    def enqueue(self, task: str, args: Args | None = None, **options: Unpack[FollowUpOptions]) -> UUID:
        """Enqueue a follow-up job. Another attempt that enqueues in the same order gets the same jobs. Within
        `transaction`, the job exists only if that commits. Without `lock_key` and `limits` it has those of its task."""

    def fan_out(
        self,
        jobs: Iterable[Mapping[str, Any]],
        *,
        then: Mapping[str, Any],
        on: ParentEnd = "succeeded",
        need: ParentsNeeded = "all",
    ) -> tuple[list[UUID], UUID]:
        """Enqueue jobs, and `then`, which starts when they have ended as `on` and `need` ask; without jobs at once.

        Each job has the arguments of `enqueue` by name. All are created or none, and another attempt that asks for the
        same gets the same. Return the ids of the jobs, and that of `then`.
        """

    def acquire(self, limit: str, n: int = 1) -> None:
        """Count `n` calls, such as requests to a partner's API, in the rate of this limit; wait until it allows them. A
        limit without a rate allows any. A safe point. Not within `transaction`. Raises ValueError if `n` is below 1 or
        above the burst."""

    def offload(
        self, engine: str, call: Callable[..., Any] | None = None, /, *args: Any, **options: Unpack[OffloadOptions]
    ) -> Handle:
        """Give work to an engine of the settings (DL_EXECUTORS), or to a child process (`process`), and return a handle
        at once. The work is a function with its arguments, or a program: `entrypoint="python -m acme.train"`.

        Its name is made of the job and the number of this call, or `key`, so that the next attempt finds it: it
        attaches to what runs or has succeeded. If the code or the arguments have changed, the former work is stopped
        first. Not within `transaction`. A safe point.
        """

    def transaction(
        self, *, target: str | None = None, final: bool = False, result: Any = None
    ) -> AbstractContextManager[Any]:
        """A psycopg2 connection for one transaction in a target of the settings: the one named here, else the task's
        own, else the queue's database. It commits only if this attempt still owns its job, together with the
        checkpoint. `final`: it is the last one of the job, which has succeeded with this result when it commits."""

    def each(self, keys: Iterable[K]) -> Iterator[K]:
        """Loop over keys, such as days; each is done once. Those that are done when an attempt ends are skipped by the
        next one. The key of a block is done with the transaction in it, of which there is at most one, or else at the
        end of the block. Keys are texts, numbers, dates, UUIDs, or lists of these, and the same in each attempt; new
        ones come last."""

    def connect(self, name: str) -> Any:
        """A psycopg2 connection to a target of the settings, closed when the attempt ends."""
