"""Options of the web app; `dataloader.app.http` reads no settings itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dataloader.app.queue.labels import Labels
from dataloader.app.queue.retention_periods import RetentionPeriods

MAX_BATCH_BYTES = 4_194_304  # the largest body of any request


@dataclass(frozen=True, kw_only=True)
class WebOptions:
    version: str
    environment: str = "production"
    timezone: str = "Europe/Moscow"  # of the dashboard; the API uses UTC
    queues: tuple[str, ...] = ()  # registered queues: the only label values of queue metrics
    worker_labels: Labels = field(default_factory=dict)  # of the workers of this process
    max_body_bytes: int = 1_048_576
    max_batch_bytes: int = MAX_BATCH_BYTES
    default_lease_ttl_sec: int = 60
    heartbeat_sec: float = 10
    status_timeout_sec: float = 1.5  # for /status and /metrics
    max_waiters: int = 8  # requests that wait for a change of a job or for its log lines, each in a thread
    max_streams: int = 2  # event streams, each in a thread
    metrics_max_age_sec: float = 5  # of the queue metrics that scrapes share
    webhook_allowed_hosts: tuple[str, ...] = ()  # private hosts and networks that webhooks may use
    has_webhook_secret: bool = False  # needed to sign webhooks of single jobs
    auth_disabled: bool = False  # every caller has all scopes
    trusted_proxies: tuple[str, ...] = ()  # addresses and networks whose forwarding headers are trusted
    max_data_age_sec: float | None = None  # of what a standby answers; None: there is none
    settings: Sequence[Any] = field(
        default=(), repr=False
    )  # as dataloader.app.config describes them, with secrets masked
    retention: RetentionPeriods | None = None  # None: the page of settings does not show it
    features: Mapping[str, Any] = field(default_factory=dict, repr=False)  # the options of features, by name
    examine: Callable[[], Sequence[Any]] | None = field(default=None, repr=False)  # the findings of doctor

    @property
    def min_lease_ttl_sec(self) -> int:
        """Two heartbeat intervals in whole seconds: with less, one late heartbeat would lose the lease."""
        return max(1, -int(-2 * self.heartbeat_sec // 1))
