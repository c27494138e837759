"""The errors a caller can act on. Any other exception is a bug.

DataloaderError
├── ConfigError               settings that cannot work: exit code 78
├── DatabaseUnavailable       no answer from PostgreSQL: try again later
│   └── PoolExhausted         every connection is busy: try again after a short delay
├── SchemaError               the tables are not what this version needs
│   ├── SchemaMissing         run `dataloader migrate`
│   ├── SchemaOutdated        run `dataloader migrate`
│   ├── SchemaTooNew          upgrade dataloader instead
│   ├── SchemaBlocked         what the database holds keeps `dataloader migrate` from making or restoring an object
│   └── RightsMissing         the account may not do this: run what `dataloader migrate --roles` prints
├── EmbeddedServerError       the embedded PostgreSQL cannot be started
├── ProgramMissing            a program that a command starts is not installed
├── PortTaken                 another process listens there: exit code 69
├── JobNotFound
├── WebhookNotFound
├── DeliveryNotFound          no delivery has this id
├── RuleNotFound              no alert rule has this id
├── RuleExists                an alert rule of this name is there already
├── AttemptLost               the attempt does not own its job any more
├── UnknownTarget             DL_TARGETS names no such database
├── SessionsRefused           an attempt that was stopped or has ended opens and uses no more connections
├── InvalidApiKey             an API key cannot be made like this
├── NoOperatorKey             the first API key must have the scope operate or admin
├── ApiKeyNotFound
├── NotRetryable              only a failed, canceled or lost job can be retried
├── NotEditable               only a waiting job can be changed
├── NotDeletable              only a finished job can be deleted, and of no open graph
├── JobChanged                the job is not in the state any more that the caller has seen
├── QueueDraining             the queue takes no new jobs
├── GraphNotFound             no graph has this id
├── BreakerNotFound           the task has no circuit breaker
├── DatasetNotFound           no job has produced or consumed a dataset of this name
├── LimitNotFound             the limit has no setting, and no job uses it
├── ScheduleNotFound          no schedule has this name
├── ScheduleExists            a schedule of this name is there already
├── ScheduleChanged           it has changed or fired since it was read
├── TimeHasFired              the schedule has a job for this time
├── BackfillNotFound          no backfill has this id
├── BackfillEnded             it is done or canceled
├── WorkerNotFound            no worker process has this id
├── HostNotFound              no live worker process runs on this host
├── NameNotFound              no queue or task has this name
├── BulkNotFound              no bulk operation has this id
├── BulkMismatch              far more jobs match than the caller expects
├── InvalidJob                the database refuses a value of the request
└── IdempotencyConflict       the key belongs to another request
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Self
from uuid import UUID


class DataloaderError(Exception):
    """Base of all errors that callers may handle."""


@dataclass(frozen=True)
class SettingError:
    """One thing wrong with the configuration."""

    variable: str  # the environment variable to mend
    problem: str  # what was found, already masked when it is a secret
    remedy: str  # what would do


class ConfigError(DataloaderError):
    """The settings are invalid; all errors are reported together."""

    exit_code = 78  # EX_CONFIG

    def __init__(self, errors: Sequence[SettingError]) -> None:
        self.errors = tuple(errors)
        lines = [f"  {f.variable}: found {f.problem}; {f.remedy}" for f in self.errors]
        super().__init__("the configuration has faults:\n" + "\n".join(lines))


class DatabaseUnavailable(DataloaderError):
    """PostgreSQL did not answer, or the connection was lost in the middle.

    The statement may or may not have taken effect.
    """

    retry_after_sec = 5


class PoolExhausted(DatabaseUnavailable):
    """Every pooled connection stayed busy for the whole wait."""

    retry_after_sec = 1


class SchemaError(DataloaderError):
    """The tables in the database are not what this version works with."""


class SchemaMissing(SchemaError):
    pass


class SchemaOutdated(SchemaError):
    pass


class SchemaTooNew(SchemaError):
    pass


class SchemaBlocked(SchemaError):
    """What the database holds keeps an object of the schema from being made or restored."""


class RightsMissing(SchemaError):
    """The account that asks has not the rights to."""


class EmbeddedServerError(DataloaderError):
    """The embedded PostgreSQL could not be found, made or started."""


class ProgramMissing(DataloaderError):
    """A program that a command starts is not installed."""


class PortTaken(DataloaderError):
    """The address that the API is to listen on cannot be had."""

    def __init__(self, host: str, port: int, reason: str = "another process listens there already; stop it") -> None:
        options = "APP_PORT or --port, APP_HOST or --host"
        super().__init__(f"cannot listen on {host} port {port}: {reason}, or choose another address with {options}")


class JobNotFound(DataloaderError):
    def __init__(self, job_id: UUID) -> None:
        super().__init__(f"there is no job {job_id}")
        self.job_id = job_id


class WebhookNotFound(DataloaderError):
    def __init__(self, webhook_id: UUID) -> None:
        super().__init__(f"there is no webhook {webhook_id}")


class DeliveryNotFound(DataloaderError):
    def __init__(self, delivery_id: UUID) -> None:
        super().__init__(f"there is no delivery {delivery_id}; old ones are deleted")


class RuleNotFound(DataloaderError):
    def __init__(self, rule_id: UUID) -> None:
        super().__init__(f"there is no alert rule {rule_id}")


class AlertNotFound(DataloaderError):
    def __init__(self, alert_id: UUID) -> None:
        super().__init__(f"there is no firing alert {alert_id}; a resolved one cannot be acknowledged")


class RuleExists(DataloaderError):
    def __init__(self, name: str) -> None:
        super().__init__(f"an alert rule named {name!r} is there already; change that one, or choose another name")


class AttemptLost(DataloaderError):
    """The lease was lost: whatever this run still does is recorded nowhere."""

    def __init__(self, job_id: UUID) -> None:
        super().__init__(f"this run does not own job {job_id} any more; nothing was committed")
        self.job_id = job_id


class UnknownTarget(DataloaderError):
    def __init__(self, name: str, known: Sequence[str]) -> None:
        listed = f" among {', '.join(sorted(known))}" if known else ""
        super().__init__(
            f"there is no target {name!r}{listed}; "
            f'name it in DL_TARGETS, such as {{"{name}": "postgresql://user:password@host/database"}}'
        )


class SessionsRefused(DataloaderError):
    def __init__(self, job_id: UUID | str) -> None:
        super().__init__(f"job {job_id}: this attempt was stopped or has ended; its threads open and use no connection")


class NotRetryable(DataloaderError):
    def __init__(self, job_id: UUID, status: str, live_key: str | None = None) -> None:
        message = f"job {job_id} is {status}; only a failed, canceled or lost job can be retried"
        if live_key is not None:
            message = f"job {job_id} cannot be retried while another job with its live_key {live_key!r} waits or runs"
        super().__init__(message)
        self.job_id = job_id
        self.status = status


class InvalidApiKey(DataloaderError):
    """An API key cannot be made like this; the message says why."""


class NoOperatorKey(DataloaderError):
    """An API key without the scope `operate` or `admin` would be made while no valid key has one."""


class ApiKeyNotFound(DataloaderError):
    def __init__(self, key: str) -> None:
        super().__init__(
            f"no valid API key has the name {key!r}, and none the id; `dataloader keys list` shows them all"
        )


class NotEditable(DataloaderError):
    def __init__(self, job_id: UUID, status: str) -> None:
        super().__init__(f"job {job_id} is {status}; only a queued job can be changed, though any can be cloned")
        self.job_id = job_id


class NotDeletable(DataloaderError):
    """`graph_id`: the job is finished, and others that may read its result are not."""

    def __init__(self, job_id: UUID, status: str, *, graph_id: UUID | None = None) -> None:
        super().__init__(
            f"job {job_id} is {status}; only a finished job can be deleted: cancel it first"
            if graph_id is None
            else f"job {job_id} is {status}, and its graph {graph_id} is open: a job that has not ended may read its "
            "result. Delete it when the graph has ended, or cancel the graph first"
        )
        self.job_id = job_id


class JobChanged(DataloaderError):
    def __init__(self, job_id: UUID) -> None:
        super().__init__(f"job {job_id} has changed since it was read; read it again, and send its new ETag")
        self.job_id = job_id


class QueueDraining(DataloaderError):
    def __init__(self, queue: str, note: str | None) -> None:
        reason = f": {note}" if note else ""
        super().__init__(f"queue {queue!r} is being drained and takes no new jobs{reason}")
        self.queue = queue


class GraphNotFound(DataloaderError):
    def __init__(self, graph_id: object) -> None:
        super().__init__(f"there is no graph {graph_id}")


class LimitNotFound(DataloaderError):
    def __init__(self, name: str) -> None:
        super().__init__(f"there is no limit {name!r}")
        self.name = name


class BreakerNotFound(DataloaderError):
    def __init__(self, task: str) -> None:
        super().__init__(f"the task {task!r} has no circuit breaker, and is not paused")
        self.task = task


class DatasetNotFound(DataloaderError):
    def __init__(self, name: str) -> None:
        super().__init__(f"no job has produced or consumed a dataset {name[:500]!r}")
        self.name = name


class ScheduleNotFound(DataloaderError):
    def __init__(self, name: str) -> None:
        super().__init__(f"there is no schedule {name!r}")
        self.name = name


class ScheduleExists(DataloaderError):
    def __init__(self, name: str) -> None:
        super().__init__(f"a schedule named {name!r} is there already; change that one, or choose another name")
        self.name = name


class ScheduleChanged(DataloaderError):
    def __init__(self, name: str) -> None:
        super().__init__(f"the schedule {name!r} has changed or fired meanwhile; read it again")
        self.name = name


class TimeHasFired(DataloaderError):
    def __init__(self, name: str, fire_at: datetime) -> None:
        super().__init__(f"the schedule {name!r} has fired for {fire_at.isoformat()}; `again` makes another job")
        self.name = name


class BackfillNotFound(DataloaderError):
    def __init__(self, backfill_id: object) -> None:
        super().__init__(f"there is no backfill {backfill_id}")


class LimitInUse(DataloaderError):
    def __init__(self, name: str) -> None:
        super().__init__(f"the limit {name} is the concurrency of a backfill that has not ended; cancel the backfill")


class BackfillEnded(DataloaderError):
    def __init__(self, backfill_id: object) -> None:
        super().__init__(f"the backfill {backfill_id} has ended; `retry` loads again what did not succeed")


class NameNotFound(DataloaderError):
    """No queue or task has this name; `message` lists known ones."""

    def __init__(self, message: str, fields: Mapping[str, str] | None = None) -> None:
        """`fields`: the messages by the field that has the name."""
        super().__init__(message)
        self.fields = fields or {}


class WorkerNotFound(DataloaderError):
    def __init__(self, worker_id: UUID) -> None:
        super().__init__(f"there is no worker process {worker_id}; one that ended is forgotten")
        self.worker_id = worker_id


class HostNotFound(DataloaderError):
    def __init__(self, host: str, hosts: Iterable[str]) -> None:
        known = ", ".join(sorted(hosts)) or "none"
        super().__init__(f"no live worker process runs on the host {host!r}; hosts with one: {known}")
        self.host = host


class BulkNotFound(DataloaderError):
    def __init__(self, bulk_id: UUID) -> None:
        super().__init__(f"there is no bulk operation {bulk_id}")
        self.bulk_id = bulk_id


class BulkMismatch(DataloaderError):
    def __init__(self, expected: int, actual: int, max_jobs: int) -> None:
        super().__init__(
            f"found {actual} job{'' if actual == 1 else 's'}, expected {expected} and at most {max_jobs}; nothing was "
            "changed: count again with a dry run, and pass that number as expected"
        )
        self.actual = actual


class InvalidJob(DataloaderError):
    """PostgreSQL refused a value; the message says which."""

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field  # of the request, if the database names it

    @classmethod
    def at_field(cls, field: str | None, problem: str | None) -> Self:
        return cls(f"{field}: {problem}" if field else problem or "", field=field or "")


class WaitRefused(InvalidJob):
    """A job cannot wait for these jobs: one does not exist, or waits for this one."""


class IdempotencyConflict(DataloaderError):
    """A key belongs to a job of another queue or task, or the idempotency key to a request with other values."""

    def __init__(self, key: str | Sequence[str], job_id: UUID | None, owner: str = "") -> None:
        """`key`: of several one is meant. `job_id`: of the job with the key; None: `owner` has it."""
        self.keys = (key,) if isinstance(key, str) else tuple(key)
        owner = owner or f"job {job_id}, which has another queue, task or args"
        named = " or ".join(map(repr, self.keys))
        super().__init__(f"the key {named} already belongs to {owner}; use a new key for a new request")
        self.job_id = job_id
