"""Every operation of the API as a method, its answers as types. Written by `python -m app.web client`."""
# ruff: noqa

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, NotRequired, TypedDict, cast
from uuid import UUID

from app.client.calling import UNSET, Calling, Unset, part

Action = Literal["cancel", "retry", "delete", "reprioritise"]
BulkState = Literal["waiting", "running", "done", "canceled", "stopped", "failed"]
Kind = Literal["function", "generator", "coroutine", "async generator", "command"]
Outcome = Literal["created", "exists", "conflict", "invalid", "left_out"]
QueueState = Literal["open", "paused", "draining"]
Status = Literal["queued", "running", "succeeded", "failed", "canceled", "lost"]


class AlertLine(TypedDict):
    alert_id: str
    rule_id: str | None
    kind: str
    name: str
    subject: str
    queue: str | None
    task: str | None
    value: float | None
    detail: str
    began_at: str
    seen_at: str
    ended_at: str | None


class AlertList(TypedDict):
    alerts: list[AlertLine]


class AlertRule(TypedDict):
    rule_id: str
    name: str
    kind: Literal["failure_rate", "no_success", "queue_age", "stalled", "dead_worker"]
    queue: str | None
    task: str | None
    threshold: float
    window_sec: float
    min_runs: int
    active: bool
    created_at: str


class AlertRuleChange(TypedDict):
    threshold: NotRequired[float | None]
    window_sec: NotRequired[float | None]
    min_runs: NotRequired[int | None]
    active: NotRequired[bool | None]


class AlertRuleList(TypedDict):
    rules: list[AlertRule]


class AuditLine(TypedDict):
    audit_id: int
    at: str
    action: str
    actor: str
    key_id: str | None
    via: str
    address: str | None
    request_id: str | None
    subject: str
    subject_id: str | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    db_user: str


class AuditPage(TypedDict):
    lines: list[AuditLine]
    next: int | None


class BatchAnswer(TypedDict):
    created: int
    exists: int
    conflict: int
    invalid: int
    left_out: int
    items: list[BatchItem]
    warnings: list[str]


class BatchItem(TypedDict):
    index: int
    outcome: Outcome
    job_id: str | None
    status: Status | None
    problem: ItemProblem | None


class BatchRequest(TypedDict):
    jobs: list[Any]
    mode: NotRequired[Literal["best_effort", "all_or_none"]]


class BulkCount(TypedDict):
    action: Action
    filter: JobFilter


class BulkLine(TypedDict):
    bulk_id: str
    action: Action
    filter: dict[str, Any]
    priority: int | None
    expected: int
    state: BulkState
    cancel_requested: bool
    looked: int
    matched: int
    changed: int
    seen_to: str
    asked_by: str | None
    error: str | None
    created_at: str
    started_at: str | None
    finished_at: str | None


class BulkList(TypedDict):
    operations: list[BulkLine]


class BulkRequest(TypedDict):
    action: Action
    filter: JobFilter
    expected: int
    priority: NotRequired[int | None]


class BulkTold(TypedDict):
    jobs: int
    exact: bool


class ChartTold(TypedDict):
    span_sec: int
    since: str
    until: str
    points: list[PointTold]
    depths: list[DepthTold]


class DatabasePart(TypedDict):
    ready: bool
    detail: str | None
    round_trip_ms: float | None


class DeliveryDetail(TypedDict):
    delivery_id: str
    webhook_id: str | None
    url: str
    job_id: str | None
    event: str
    state: Literal["waiting", "delivered", "given_up"]
    tries: int
    created_at: str
    due_at: str | None
    delivered_at: str | None
    status: int | None
    error: str | None
    body: str
    log: list[DeliveryTry]


class DeliveryLine(TypedDict):
    delivery_id: str
    webhook_id: str | None
    url: str
    job_id: str | None
    event: str
    state: Literal["waiting", "delivered", "given_up"]
    tries: int
    created_at: str
    due_at: str | None
    delivered_at: str | None
    status: int | None
    error: str | None


class DeliveryList(TypedDict):
    deliveries: list[DeliveryLine]


class DeliveryTry(TypedDict):
    n: int
    at: str
    status: int | None
    duration_ms: float
    answer: str
    error: str | None


class DepthTold(TypedDict):
    at: str
    ready: int
    timed: int
    parked: int
    running: int
    oldest_ready_sec: float | None


class Feedback(TypedDict):
    likes: int
    dislikes: int


class FieldError(TypedDict):
    field: str
    message: str


class HappenedTold(TypedDict):
    queued: int
    started: int
    succeeded: int
    failed: int
    canceled: int
    lost: int
    retried: int
    failure_rate: float | None
    waited: TimesTold
    ran: TimesTold


class Health(TypedDict):
    status: Literal["healthy"]


class Info(TypedDict):
    service: Literal["dataloader"]
    version: str
    environment: str


class ItemProblem(TypedDict):
    code: str
    title: str
    status: int
    detail: str
    errors: list[FieldError]


class JobChange(TypedDict):
    priority: NotRequired[int | None]
    available_at: NotRequired[str | None]
    args: NotRequired[dict[str, Any] | None]
    max_attempts: NotRequired[int | None]
    lease_ttl_sec: NotRequired[int | None]
    time_limit_sec: NotRequired[int | None]
    retry: NotRequired[dict[str, Any] | None]
    partition_key: NotRequired[str | None]


class JobClone(TypedDict):
    queue: NotRequired[str | None]
    lock_key: NotRequired[str | None]
    args: NotRequired[dict[str, Any] | None]
    priority: NotRequired[int | None]
    available_at: NotRequired[str | None]
    max_attempts: NotRequired[int | None]
    idempotency_key: NotRequired[str | None]


class JobCount(TypedDict):
    jobs: int
    exact: bool


class JobDeleted(TypedDict):
    job_id: str
    deleted: bool


class JobDetail(TypedDict):
    job_id: str
    queue: str
    task: str
    status: Status
    lock_key: str
    partition_key: str
    idempotency_key: str | None
    priority: int
    attempt: int
    max_attempts: int
    cancel_requested: bool
    available_at: str
    created_at: str
    started_at: str | None
    heartbeat_at: str | None
    finished_at: str | None
    error: str | None
    progress: dict[str, Any]
    producer: str | None
    consumer_group: str | None
    args: dict[str, Any]
    lease_ttl_sec: int
    lease_expires_at: str | None
    run_id: str | None
    worker: str | None
    result: Any
    traceback: str | None
    live_key: str | None
    time_limit_sec: int | None
    retry: dict[str, Any] | None
    parent_id: str | None
    crashes: int
    checkpoint: Any


class JobEvent(TypedDict):
    event_id: int
    ts: str
    kind: str
    payload: dict[str, Any]


class JobEvents(TypedDict):
    job_id: str
    events: list[JobEvent]


class JobFilter(TypedDict):
    status: NotRequired[str | None]
    queue: NotRequired[str | None]
    task: NotRequired[str | None]
    lock_key: NotRequired[str | None]
    partition_key: NotRequired[str | None]
    producer: NotRequired[str | None]
    created_from: NotRequired[str | None]
    created_to: NotRequired[str | None]
    started_from: NotRequired[str | None]
    started_to: NotRequired[str | None]
    finished_from: NotRequired[str | None]
    finished_to: NotRequired[str | None]
    text: NotRequired[str | None]


class JobList(TypedDict):
    jobs: list[dict[str, Any]]
    next: str | None
    looked_to: str | None
    count: JobCount | None


class JobLogLine(TypedDict):
    log_id: int
    ts: str
    attempt: int
    level: str
    stream: str
    line: str


class JobLogs(TypedDict):
    job_id: str
    lines: list[JobLogLine]
    next: int
    complete: bool


class JobState(TypedDict):
    job_id: str
    status: Status
    attempt: int
    started_at: str | None
    finished_at: str | None
    heartbeat_at: str | None
    error: str | None
    progress: dict[str, Any]


class JobStory(TypedDict):
    job_id: str
    queue: str
    task: str
    status: Status
    lock_key: str
    partition_key: str
    idempotency_key: str | None
    priority: int
    attempt: int
    max_attempts: int
    cancel_requested: bool
    available_at: str
    created_at: str
    started_at: str | None
    heartbeat_at: str | None
    finished_at: str | None
    error: str | None
    progress: dict[str, Any]
    producer: str | None
    consumer_group: str | None
    args: dict[str, Any]
    lease_ttl_sec: int
    lease_expires_at: str | None
    run_id: str | None
    worker: str | None
    result: Any
    traceback: str | None
    live_key: str | None
    time_limit_sec: int | None
    retry: dict[str, Any] | None
    parent_id: str | None
    crashes: int
    checkpoint: Any
    place: str
    stray: bool
    tries: list[JobTry]
    parent: RelatedJob | None
    children: list[RelatedJob]
    key_holder: RelatedJob | None


class JobTry(TypedDict):
    attempt: int
    run_id: str | None
    worker: str | None
    started_at: str
    ended_at: str | None
    outcome: str | None
    reason: str | None
    error: str | None
    pause_sec: float | None
    notes: dict[str, Any]


class JobWebhook(TypedDict):
    url: str
    events: NotRequired[list[Literal["job.succeeded", "job.failed", "job.canceled", "job.lost", "job.retrying"]]]


class JobWhy(TypedDict):
    job_id: str
    status: Status
    reasons: list[WhyReason]
    position: int | None
    position_exact: bool
    estimate: WhyEstimate | None


class NewAlertRule(TypedDict):
    name: str
    kind: Literal["failure_rate", "no_success", "queue_age", "stalled", "dead_worker"]
    threshold: float
    queue: NotRequired[str | None]
    task: NotRequired[str | None]
    window_sec: NotRequired[float]
    min_runs: NotRequired[int]


class NewWebhook(TypedDict):
    url: str
    events: NotRequired[
        list[
            Literal[
                "job.succeeded", "job.failed", "job.canceled", "job.lost", "job.retrying", "alert.firing", "alert.over"
            ]
        ]
    ]
    queue: NotRequired[str | None]
    task: NotRequired[str | None]
    description: NotRequired[str]


class PointTold(TypedDict):
    at: str
    happened: HappenedTold


class Probed(TypedDict):
    ready: bool


class QueueChange(TypedDict):
    queue: str
    state: NotRequired[QueueState | None]
    concurrency: NotRequired[int | None]
    per_worker: NotRequired[int | None]
    note: NotRequired[str | None]


class QueueList(TypedDict):
    queues: list[QueueTold]


class QueueRule(TypedDict):
    queue: str
    state: QueueState
    concurrency: int | None
    per_worker: int | None
    note: str | None
    changed_by: str | None
    changed_at: str | None


class QueueTold(TypedDict):
    queue: str
    state: QueueState
    concurrency: int | None
    per_worker: int | None
    note: str | None
    changed_by: str | None
    changed_at: str | None
    drained: bool
    ready: int
    ready_exact: bool
    timed: int
    parked: int
    running: int
    workers: int
    oldest_ready_sec: float | None
    looked_at: str | None
    last_hour: HappenedTold


class Readiness(TypedDict):
    ready: bool
    state: Literal["ready", "starting", "not_ready"]
    database: DatabasePart
    schema: SchemaPart | None
    pool: dict[str, Any] | None
    workers: dict[str, Any] | None


class RelatedJob(TypedDict):
    job_id: str
    queue: str
    task: str
    status: Status
    since: str


class Removed(TypedDict):
    removed: bool


class Rotation(TypedDict):
    overlap_sec: NotRequired[int]


class RuleRemoved(TypedDict):
    removed: bool


class RunTold(TypedDict):
    job_id: str
    queue: str
    task: str
    attempt: int
    started_at: str
    heartbeat_at: str | None


class SchemaPart(TypedDict):
    ready: bool
    detail: str | None
    found: int | None
    needed: int


class Sent(TypedDict):
    delivery_id: str


class TaskLine(TypedDict):
    name: str
    kind: Kind
    description: str
    options: TaskOptions
    args_schema: dict[str, Any] | None


class TaskList(TypedDict):
    tasks: list[TaskLine]
    numbers: list[TaskNumbers]


class TaskNumbers(TypedDict):
    name: str
    happened: HappenedTold
    last_runs: list[TaskRun]


class TaskOptions(TypedDict):
    queue: str | None
    lock_key: str | None
    retry: dict[str, Any]
    rules: dict[str, Any]
    time_limit_sec: float | None
    isolation: Literal["thread", "process"]
    interrupt: bool
    memory_mb: int | None
    cpu_sec: int | None
    connection_check: bool
    argv: list[str] | None


class TaskRun(TypedDict):
    job_id: str
    queue: str
    ended_at: str
    outcome: str
    attempt: int | None
    ran_sec: float | None


class TimesTold(TypedDict):
    count: int
    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None


class TriggerRequest(TypedDict):
    queue: NotRequired[str]
    task: str
    lock_key: NotRequired[str]
    args: NotRequired[dict[str, Any]]
    idempotency_key: NotRequired[str | None]
    partition_key: NotRequired[str]
    priority: NotRequired[int]
    available_at: NotRequired[str | None]
    max_attempts: NotRequired[int]
    lease_ttl_sec: NotRequired[int]
    producer: NotRequired[str | None]
    consumer_group: NotRequired[str | None]
    live_key: NotRequired[str | None]
    time_limit_sec: NotRequired[int | None]
    retry: NotRequired[dict[str, Any] | None]
    webhook: NotRequired[JobWebhook | None]


class Triggered(TypedDict):
    job_id: str
    status: Status
    warnings: NotRequired[list[str]]


class WebhookChange(TypedDict):
    url: NotRequired[str | None]
    events: NotRequired[
        list[
            Literal[
                "job.succeeded", "job.failed", "job.canceled", "job.lost", "job.retrying", "alert.firing", "alert.over"
            ]
        ]
        | None
    ]
    queue: NotRequired[str | None]
    task: NotRequired[str | None]
    description: NotRequired[str | None]
    active: NotRequired[bool | None]


class WebhookList(TypedDict):
    webhooks: list[WebhookShown]


class WebhookShown(TypedDict):
    webhook_id: str
    url: str
    events: list[str]
    queue: str | None
    task: str | None
    description: str
    active: bool
    disabled_at: str | None
    disabled_why: str | None
    failures: int
    failing_since: str | None
    rest_until: str | None
    old_secret_until: str | None
    created_at: str


class WebhookWithSecret(TypedDict):
    webhook_id: str
    url: str
    events: list[str]
    queue: str | None
    task: str | None
    description: str
    active: bool
    disabled_at: str | None
    disabled_why: str | None
    failures: int
    failing_since: str | None
    rest_until: str | None
    old_secret_until: str | None
    created_at: str
    secret: str


class WhyEstimate(TypedDict):
    seconds: float
    basis: str


class WhyReason(TypedDict):
    code: str
    sentence: str
    facts: dict[str, Any]


class WorkerList(TypedDict):
    workers: list[WorkerTold]


class WorkerTold(TypedDict):
    worker_id: str
    name: str
    version: str
    queues: list[str]
    tasks: list[str]
    threads: int
    busy: int
    started_at: str
    seen_at: str
    alive: bool
    draining: bool
    listener: str | None
    rss_bytes: int | None
    running: list[RunTold]


class Api(Calling):
    """The API, operation by operation. Answers are JSON as it came; see docs/http-api.md."""

    def trigger(
        self,
        *,
        task: str,
        strict: bool | None = None,
        queue: str | Unset = UNSET,
        lock_key: str | Unset = UNSET,
        args: dict[str, Any] | Unset = UNSET,
        idempotency_key: str | None | Unset = UNSET,
        partition_key: str | Unset = UNSET,
        priority: int | Unset = UNSET,
        available_at: datetime | None | Unset = UNSET,
        max_attempts: int | Unset = UNSET,
        lease_ttl_sec: int | Unset = UNSET,
        producer: str | None | Unset = UNSET,
        consumer_group: str | None | Unset = UNSET,
        live_key: str | None | Unset = UNSET,
        time_limit_sec: int | None | Unset = UNSET,
        retry: dict[str, Any] | None | Unset = UNSET,
        webhook: JobWebhook | None | Unset = UNSET,
    ) -> Triggered:
        """Put a job into the queue.

        Idempotent when `idempotency_key` is given: the same request again answers with the job that is there
        already and its present status, as does any request with the `live_key` of a job that waits or runs. A
        task that this process does not know is accepted; another worker may know it. Of one that it knows the
        args are checked, and `queue` and `lock_key` may be left out if the task has them. A `traceparent`
        header (W3C Trace Context) makes the job a part of the caller's trace. `warnings` say why the job may
        never run: no live worker knows its task or serves its queue, or the queue is paused. With `strict`
        such a request is refused instead, and nothing is done.
        """
        said = self.call(
            "POST",
            "/api/v1/jobs/trigger",
            query={"strict": strict},
            body={
                "queue": queue,
                "task": task,
                "lock_key": lock_key,
                "args": args,
                "idempotency_key": idempotency_key,
                "partition_key": partition_key,
                "priority": priority,
                "available_at": available_at,
                "max_attempts": max_attempts,
                "lease_ttl_sec": lease_ttl_sec,
                "producer": producer,
                "consumer_group": consumer_group,
                "live_key": live_key,
                "time_limit_sec": time_limit_sec,
                "retry": retry,
                "webhook": webhook,
            },
            repeatable=isinstance(idempotency_key, str),
        )
        return cast("Triggered", said)

    def status(self, job_id: UUID | str, *, wait: float | None = None) -> JobState:
        """Say how a job does.

        With `wait` the answer comes when the job has ended, or that time is over. With the `ETag` of the
        answer before in `If-None-Match` it comes as soon as it is another one; a 304 says that nothing has
        changed.
        """
        said = self.call("GET", f"/api/v1/jobs/{part(job_id)}/status", query={"wait": wait}, repeatable=True)
        return cast("JobState", said)

    def cancel(self, job_id: UUID | str) -> JobState:
        """Cancel a job.

        A queued job is canceled at once. A running one is asked to stop, and is canceled at its next safe
        point. A finished job is left as it is.
        """
        said = self.call("POST", f"/api/v1/jobs/{part(job_id)}/cancel", repeatable=True)
        return cast("JobState", said)

    def retry(self, job_id: UUID | str) -> JobState:
        """Queue a failed, canceled or lost job again, with all its attempts."""
        said = self.call("POST", f"/api/v1/jobs/{part(job_id)}/retry", repeatable=False)
        return cast("JobState", said)

    def trigger_many(
        self, *, jobs: list[Any], mode: Literal["best_effort", "all_or_none"] | Unset = UNSET
    ) -> BatchAnswer:
        """Put many jobs into the queue.

        At most 10,000, in one statement and one transaction. Each has an outcome: `created`; `exists`, when
        its `idempotency_key` or `live_key` finds a job already; `conflict`, when the key belongs to another
        request; `invalid`, with a problem that says why. With the mode `all_or_none` either every job is
        created or exists, or the answer is a 409 with the outcomes and nothing was done. A batch whose answer
        was lost can be sent again as it is when every request has an idempotency key.
        """
        said = self.call("POST", "/api/v1/jobs/batch", body={"jobs": jobs, "mode": mode}, repeatable=False)
        return cast("BatchAnswer", said)

    def job_list(
        self,
        *,
        status: str | None = None,
        queue: str | None = None,
        task: str | None = None,
        lock_key: str | None = None,
        partition_key: str | None = None,
        producer: str | None = None,
        created_from: datetime | None = None,
        created_to: datetime | None = None,
        started_from: datetime | None = None,
        started_to: datetime | None = None,
        finished_from: datetime | None = None,
        finished_to: datetime | None = None,
        text: str | None = None,
        sort: Literal[
            "-created_at", "created_at", "priority", "available_at", "-available_at", "started_at", "-started_at"
        ]
        | None = None,
        limit: int | None = None,
        after: str | None = None,
        fields: str | None = None,
        count: bool | None = None,
    ) -> JobList:
        """List jobs, the newest first.

        A page is found in a moment however many jobs there are: a search that takes longer ends with what it
        has, and `next` goes on from there.
        """
        said = self.call(
            "GET",
            "/api/v1/jobs",
            query={
                "status": status,
                "queue": queue,
                "task": task,
                "lock_key": lock_key,
                "partition_key": partition_key,
                "producer": producer,
                "created_from": created_from,
                "created_to": created_to,
                "started_from": started_from,
                "started_to": started_to,
                "finished_from": finished_from,
                "finished_to": finished_to,
                "text": text,
                "sort": sort,
                "limit": limit,
                "after": after,
                "fields": fields,
                "count": count,
            },
            repeatable=True,
        )
        return cast("JobList", said)

    def job_detail(self, job_id: UUID | str) -> JobStory:
        """Tell everything about a job.

        Its tries with their errors, the job whose run asked for it and those that it asked for, and who holds
        its key while it waits. The `ETag` is what `If-Match` takes when the job is changed.
        """
        said = self.call("GET", f"/api/v1/jobs/{part(job_id)}", repeatable=True)
        return cast("JobStory", said)

    def job_patch(
        self,
        job_id: UUID | str,
        *,
        priority: int | None | Unset = UNSET,
        available_at: datetime | None | Unset = UNSET,
        args: dict[str, Any] | None | Unset = UNSET,
        max_attempts: int | None | Unset = UNSET,
        lease_ttl_sec: int | None | Unset = UNSET,
        time_limit_sec: int | None | Unset = UNSET,
        retry: dict[str, Any] | None | Unset = UNSET,
        partition_key: str | None | Unset = UNSET,
        if_match: str | None = None,
    ) -> JobDetail:
        """Change a job that waits.

        With `If-Match`, the `ETag` of the job as it was looked at, nothing is changed if it is another one by
        now. The journal tells the values before and after. A repeated trigger with the job's idempotency key
        finds it as before.
        """
        said = self.call(
            "PATCH",
            f"/api/v1/jobs/{part(job_id)}",
            body={
                "priority": priority,
                "available_at": available_at,
                "args": args,
                "max_attempts": max_attempts,
                "lease_ttl_sec": lease_ttl_sec,
                "time_limit_sec": time_limit_sec,
                "retry": retry,
                "partition_key": partition_key,
            },
            headers={"If-Match": if_match},
            repeatable=if_match is None,
        )
        return cast("JobDetail", said)

    def job_delete(self, job_id: UUID | str, *, if_match: str | None = None) -> JobDeleted:
        """Delete a job that is over, with its journal and its log.

        Its idempotency key may then be used anew.
        """
        said = self.call("DELETE", f"/api/v1/jobs/{part(job_id)}", headers={"If-Match": if_match}, repeatable=False)
        return cast("JobDeleted", said)

    def job_events(self, job_id: UUID | str, *, after: int | None = None, limit: int | None = None) -> JobEvents:
        """Read a job's journal, the oldest line first.

        To go on behind a full page send the last `event_id` as `after`.
        """
        said = self.call(
            "GET", f"/api/v1/jobs/{part(job_id)}/events", query={"after": after, "limit": limit}, repeatable=True
        )
        return cast("JobEvents", said)

    def job_why(self, job_id: UUID | str) -> JobWhy:
        """Tell why a job waits, runs for so long, or ended as it did.

        Each reason has a stable `code`, its facts, and a sentence for people.
        """
        said = self.call("GET", f"/api/v1/jobs/{part(job_id)}/why", repeatable=True)
        return cast("JobWhy", said)

    def job_clone(
        self,
        job_id: UUID | str,
        *,
        queue: str | None | Unset = UNSET,
        lock_key: str | None | Unset = UNSET,
        args: dict[str, Any] | None | Unset = UNSET,
        priority: int | None | Unset = UNSET,
        available_at: datetime | None | Unset = UNSET,
        max_attempts: int | None | Unset = UNSET,
        idempotency_key: str | None | Unset = UNSET,
    ) -> Triggered:
        """Make a new job like this one, with other args if given.

        Its idempotency key, its live key and its parent are not taken over.
        """
        said = self.call(
            "POST",
            f"/api/v1/jobs/{part(job_id)}/clone",
            body={
                "queue": queue,
                "lock_key": lock_key,
                "args": args,
                "priority": priority,
                "available_at": available_at,
                "max_attempts": max_attempts,
                "idempotency_key": idempotency_key,
            },
            repeatable=isinstance(idempotency_key, str),
        )
        return cast("Triggered", said)

    def bulk_count(self, *, action: Action, filter: JobFilter) -> BulkTold:
        """Count the jobs that a bulk operation would be done to: the dry run."""
        said = self.call("POST", "/api/v1/bulk/count", body={"action": action, "filter": filter}, repeatable=True)
        return cast("BulkTold", said)

    def bulk_start(
        self, *, action: Action, filter: JobFilter, expected: int, priority: int | None | Unset = UNSET
    ) -> BulkLine:
        """Do something to all jobs that fit a filter.

        It is done in the background, in batches, by one of the worker processes, and goes on after a crash.
        Jobs that are made from now on are not meant. `cancel` is for waiting and running jobs, `retry` for
        failed, canceled and lost ones, `delete` for those that are over, `reprioritise` for waiting ones.
        """
        said = self.call(
            "POST",
            "/api/v1/bulk",
            body={"action": action, "filter": filter, "expected": expected, "priority": priority},
            repeatable=False,
        )
        return cast("BulkLine", said)

    def bulk_list(self, *, limit: int | None = None) -> BulkList:
        """List bulk operations, the newest first."""
        said = self.call("GET", "/api/v1/bulk", query={"limit": limit}, repeatable=True)
        return cast("BulkList", said)

    def bulk_show(self, bulk_id: UUID | str) -> BulkLine:
        """Tell how far a bulk operation has come."""
        said = self.call("GET", f"/api/v1/bulk/{part(bulk_id)}", repeatable=True)
        return cast("BulkLine", said)

    def bulk_cancel(self, bulk_id: UUID | str) -> BulkLine:
        """Stop a bulk operation after the batch at hand.

        What it has done stays done. One that is over is left as it is.
        """
        said = self.call("POST", f"/api/v1/bulk/{part(bulk_id)}/cancel", repeatable=True)
        return cast("BulkLine", said)

    def queue_list(self, *, queue: str | None = None) -> QueueList:
        """List queues: what stands in them, what was ruled about them, and what happened in the last hour.

        A key that may only trigger, and that into some queues, is told of these.
        """
        said = self.call("GET", "/api/v1/queues", query={"queue": queue}, repeatable=True)
        return cast("QueueList", said)

    def queue_rule(
        self,
        *,
        queue: str,
        state: QueueState | None | Unset = UNSET,
        concurrency: int | None | Unset = UNSET,
        per_worker: int | None | Unset = UNSET,
        note: str | None | Unset = UNSET,
    ) -> QueueRule:
        """Pause, drain or open a queue, or change how many of its jobs run at once.

        It holds for the next claim of any worker; what runs goes on. `drained` of the list tells when nothing
        runs any more. A note is kept until the state changes.
        """
        said = self.call(
            "PATCH",
            "/api/v1/queues",
            body={"queue": queue, "state": state, "concurrency": concurrency, "per_worker": per_worker, "note": note},
            repeatable=True,
        )
        return cast("QueueRule", said)

    def worker_list(self) -> WorkerList:
        """List worker processes, the living first, with what each of them runs."""
        said = self.call("GET", "/api/v1/workers", repeatable=True)
        return cast("WorkerList", said)

    def worker_drain(self, worker_id: UUID | str) -> WorkerTold:
        """Tell a worker process to claim nothing more.

        What it runs goes on. When `running` is empty it can be stopped without taking anything from anybody.
        """
        said = self.call("POST", f"/api/v1/workers/{part(worker_id)}/drain", repeatable=True)
        return cast("WorkerTold", said)

    def worker_undrain(self, worker_id: UUID | str) -> WorkerTold:
        """Tell a drained worker process to claim again."""
        said = self.call("POST", f"/api/v1/workers/{part(worker_id)}/undrain", repeatable=True)
        return cast("WorkerTold", said)

    def charts(
        self, *, period: Literal["1h", "24h", "7d"] | None = None, queue: str | None = None, task: str | None = None
    ) -> ChartTold:
        """Tell what happened over an hour, a day or a week.

        How many jobs there were, how long they waited and ran, what failed, and how many stood where.
        """
        said = self.call(
            "GET", "/api/v1/charts", query={"period": period, "queue": queue, "task": task}, repeatable=True
        )
        return cast("ChartTold", said)

    def task_list(self, *, numbers: bool | None = None, period: Literal["1h", "24h", "7d"] | None = None) -> TaskList:
        """List the tasks this process knows, with their options and what their args must be, and how their jobs did.

        A key that may only trigger is told of the tasks and jobs that it might have triggered; one that is
        limited to queues of no numbers, which are of all queues.
        """
        said = self.call("GET", "/api/v1/tasks", query={"numbers": numbers, "period": period}, repeatable=True)
        return cast("TaskList", said)

    def job_logs(
        self,
        job_id: UUID | str,
        *,
        tail: int | None = None,
        after: int | None = None,
        level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] | None = None,
        attempt: int | None = None,
        stream: Literal["log", "stdout", "stderr", "note"] | None = None,
        limit: int | None = None,
        wait: float | None = None,
    ) -> JobLogs:
        """Read what a job said.

        What its pipeline logs, prints and its command writes, of all its tries. To follow it, ask again with
        `after` set to the `next` of the answer before, and with `wait`, until an answer is `complete` and has
        no lines.
        """
        said = self.call(
            "GET",
            f"/api/v1/jobs/{part(job_id)}/logs",
            query={
                "tail": tail,
                "after": after,
                "level": level,
                "attempt": attempt,
                "stream": stream,
                "limit": limit,
                "wait": wait,
            },
            repeatable=True,
        )
        return cast("JobLogs", said)

    def webhook_list(self) -> WebhookList:
        """List the webhooks, the oldest first."""
        said = self.call("GET", "/api/v1/webhooks", repeatable=True)
        return cast("WebhookList", said)

    def webhook_add(
        self,
        *,
        url: str,
        events: list[
            Literal[
                "job.succeeded", "job.failed", "job.canceled", "job.lost", "job.retrying", "alert.firing", "alert.over"
            ]
        ]
        | Unset = UNSET,
        queue: str | None | Unset = UNSET,
        task: str | None | Unset = UNSET,
        description: str | Unset = UNSET,
    ) -> WebhookWithSecret:
        """Have something told to a receiver.

        The answer holds the secret that signs what is sent. It is told here, and never again.
        """
        said = self.call(
            "POST",
            "/api/v1/webhooks",
            body={"url": url, "events": events, "queue": queue, "task": task, "description": description},
            repeatable=False,
        )
        return cast("WebhookWithSecret", said)

    def webhook_detail(self, webhook_id: UUID | str) -> WebhookShown:
        """Tell of one webhook."""
        said = self.call("GET", f"/api/v1/webhooks/{part(webhook_id)}", repeatable=True)
        return cast("WebhookShown", said)

    def webhook_change(
        self,
        webhook_id: UUID | str,
        *,
        url: str | None | Unset = UNSET,
        events: list[
            Literal[
                "job.succeeded", "job.failed", "job.canceled", "job.lost", "job.retrying", "alert.firing", "alert.over"
            ]
        ]
        | None
        | Unset = UNSET,
        queue: str | None | Unset = UNSET,
        task: str | None | Unset = UNSET,
        description: str | None | Unset = UNSET,
        active: bool | None | Unset = UNSET,
    ) -> WebhookShown:
        """Change a webhook, switch it off or on."""
        said = self.call(
            "PATCH",
            f"/api/v1/webhooks/{part(webhook_id)}",
            body={
                "url": url,
                "events": events,
                "queue": queue,
                "task": task,
                "description": description,
                "active": active,
            },
            repeatable=True,
        )
        return cast("WebhookShown", said)

    def webhook_remove(self, webhook_id: UUID | str) -> Removed:
        """Remove a webhook, its deliveries and their log."""
        said = self.call("DELETE", f"/api/v1/webhooks/{part(webhook_id)}", repeatable=False)
        return cast("Removed", said)

    def webhook_rotate(self, webhook_id: UUID | str, *, overlap_sec: int | Unset = UNSET) -> WebhookWithSecret:
        """Draw a new secret. The old one signs beside it for a while, so that the receiver may change over."""
        said = self.call(
            "POST", f"/api/v1/webhooks/{part(webhook_id)}/rotate", body={"overlap_sec": overlap_sec}, repeatable=False
        )
        return cast("WebhookWithSecret", said)

    def webhook_ping(self, webhook_id: UUID | str) -> Sent:
        """Send a webhook something, to see whether it arrives. A worker process sends it, as it does all others."""
        said = self.call("POST", f"/api/v1/webhooks/{part(webhook_id)}/ping", repeatable=False)
        return cast("Sent", said)

    def delivery_list(
        self,
        *,
        webhook_id: UUID | str | None = None,
        job_id: UUID | str | None = None,
        state: Literal["waiting", "delivered", "given_up"] | None = None,
        before: UUID | str | None = None,
        limit: int | None = None,
    ) -> DeliveryList:
        """List what was told, or is to be, the newest first."""
        said = self.call(
            "GET",
            "/api/v1/deliveries",
            query={"webhook_id": webhook_id, "job_id": job_id, "state": state, "before": before, "limit": limit},
            repeatable=True,
        )
        return cast("DeliveryList", said)

    def delivery_detail(self, delivery_id: UUID | str) -> DeliveryDetail:
        """Tell of one delivery: what is sent, and how each try went."""
        said = self.call("GET", f"/api/v1/deliveries/{part(delivery_id)}", repeatable=True)
        return cast("DeliveryDetail", said)

    def redeliver(self, delivery_id: UUID | str) -> Sent:
        """Send something once more, under the same id, and then for as long as if it were new."""
        said = self.call("POST", f"/api/v1/deliveries/{part(delivery_id)}/redeliver", repeatable=False)
        return cast("Sent", said)

    def alert_list(
        self,
        *,
        state: Literal["firing", "all"] | None = None,
        before: UUID | str | None = None,
        limit: int | None = None,
    ) -> AlertList:
        """List the alerts that fire, or that ever have, the newest first."""
        said = self.call(
            "GET", "/api/v1/alerts", query={"state": state, "before": before, "limit": limit}, repeatable=True
        )
        return cast("AlertList", said)

    def rule_list(self) -> AlertRuleList:
        """List the rules, by name."""
        said = self.call("GET", "/api/v1/alerts/rules", repeatable=True)
        return cast("AlertRuleList", said)

    def rule_add(
        self,
        *,
        name: str,
        kind: Literal["failure_rate", "no_success", "queue_age", "stalled", "dead_worker"],
        threshold: float,
        queue: str | None | Unset = UNSET,
        task: str | None | Unset = UNSET,
        window_sec: float | Unset = UNSET,
        min_runs: int | Unset = UNSET,
    ) -> AlertRule:
        """Make a rule. One process at a time looks at all rules every few seconds.

        What a rule finds is told once when it begins and once when it is over, to the webhooks that ask for
        `alert.firing` and `alert.over`.
        """
        said = self.call(
            "POST",
            "/api/v1/alerts/rules",
            body={
                "name": name,
                "kind": kind,
                "threshold": threshold,
                "queue": queue,
                "task": task,
                "window_sec": window_sec,
                "min_runs": min_runs,
            },
            repeatable=False,
        )
        return cast("AlertRule", said)

    def rule_detail(self, rule_id: UUID | str) -> AlertRule:
        """Tell of one rule."""
        said = self.call("GET", f"/api/v1/alerts/rules/{part(rule_id)}", repeatable=True)
        return cast("AlertRule", said)

    def rule_change(
        self,
        rule_id: UUID | str,
        *,
        threshold: float | None | Unset = UNSET,
        window_sec: float | None | Unset = UNSET,
        min_runs: int | None | Unset = UNSET,
        active: bool | None | Unset = UNSET,
    ) -> AlertRule:
        """Change a rule's numbers, switch it off or on."""
        said = self.call(
            "PATCH",
            f"/api/v1/alerts/rules/{part(rule_id)}",
            body={"threshold": threshold, "window_sec": window_sec, "min_runs": min_runs, "active": active},
            repeatable=True,
        )
        return cast("AlertRule", said)

    def rule_remove(self, rule_id: UUID | str) -> RuleRemoved:
        """Remove a rule. What it has fired is over at the next look."""
        said = self.call("DELETE", f"/api/v1/alerts/rules/{part(rule_id)}", repeatable=False)
        return cast("RuleRemoved", said)

    def health(self) -> Health:
        """Say that the process answers. Does not touch the database."""
        said = self.call("GET", "/health", repeatable=True)
        return cast("Health", said)

    def info(self) -> Info:
        """Say which service this is."""
        said = self.call("GET", "/info", repeatable=True)
        return cast("Info", said)

    def readiness(self) -> Readiness:
        """Say what is ready and what is missing.

        Asks the database, and the worker pool if this process has one. When a part is missing the answer is a
        503 whose problem holds the same members. Somebody who may not read learns only what is ready.
        """
        said = self.call("GET", "/status", repeatable=True)
        return cast("Readiness", said)

    def health_started(self) -> Probed:
        """Say whether the process has ever been ready: for a startup probe."""
        said = self.call("GET", "/health/started", repeatable=True)
        return cast("Probed", said)

    def health_ready(self) -> Probed:
        """Say whether the process can serve now: its database, its tables, and its workers if it has any."""
        said = self.call("GET", "/health/ready", repeatable=True)
        return cast("Probed", said)

    def health_consuming(self) -> Probed:
        """Say whether jobs are taken here.

        Fails while the claim loop has not completed a round in time, also for want of a database; and in a
        process without workers. Where all threads have a job, nobody has to claim.
        """
        said = self.call("GET", "/health/consuming", repeatable=True)
        return cast("Probed", said)

    def like(self) -> Feedback:
        """Say that the service does well. Counted in this process since its start."""
        said = self.call("POST", "/api/v1/feedback/like", repeatable=False)
        return cast("Feedback", said)

    def dislike(self) -> Feedback:
        """Say that the service does badly. Counted in this process since its start."""
        said = self.call("POST", "/api/v1/feedback/dislike", repeatable=False)
        return cast("Feedback", said)

    def audit_list(
        self,
        *,
        action: str | None = None,
        actor: str | None = None,
        key_id: str | None = None,
        subject: str | None = None,
        subject_id: str | None = None,
        request_id: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        before: int | None = None,
        limit: int | None = None,
    ) -> AuditPage:
        """Read who did what, when, from where, and what it changed.

        The newest first. Jobs put in, canceled, retried and changed, keys made and revoked, sessions begun
        and ended.
        """
        said = self.call(
            "GET",
            "/api/v1/audit",
            query={
                "action": action,
                "actor": actor,
                "key_id": key_id,
                "subject": subject,
                "subject_id": subject_id,
                "request_id": request_id,
                "since": since,
                "until": until,
                "before": before,
                "limit": limit,
            },
            repeatable=True,
        )
        return cast("AuditPage", said)

    def openapi(self) -> dict[str, Any]:
        """Read the OpenAPI 3.1 document."""
        said = self.call("GET", "/openapi.json", repeatable=True)
        return cast("dict[str, Any]", said)
