"""What the web room is told when it is built; it reads no settings itself."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class WebOptions:
    version: str
    environment: str = "production"
    timezone: str = "Europe/Moscow"  # for people, on pages; the API speaks UTC
    queues: tuple[str, ...] = ()  # the registered ones: only these become label values of metrics
    max_body_bytes: int = 1_048_576
    max_batch_bytes: int = 4_194_304
    max_json_depth: int = 64
    max_text_length: int = 1_000
    default_lease_ttl_sec: int = 60
    heartbeat_sec: float = 10
    status_patience_sec: float = 1.5  # how long /status and /metrics wait for the database
    most_waiting_for_logs: int = 4  # requests that wait for a job's next lines, each in a thread
    most_waiting: int = 4  # requests that wait for the end of a job, likewise
    most_streams: int = 2  # streams of events, likewise
    metrics_fresh_sec: float = 5  # how long one look at the queue serves all scrapes
    webhook_allow: tuple[str, ...] = ()  # hosts and networks that webhooks may go to although they are not public
    webhook_secret: bool = False  # jobs' own webhooks can be signed
    wide_open: bool = False  # nobody is asked for a key
    trusted_proxies: tuple[str, ...] = ()  # addresses and networks whose word about their callers is believed
    session_sec: float = 12 * 3600  # how long a browser's session lasts
    session_secret: str | None = field(default=None, repr=False)  # None: one that is kept in the database

    @property
    def shortest_lease_sec(self) -> int:
        """Two heartbeats, in whole seconds: with less, one late heartbeat would lose a healthy run its job."""
        return max(1, -int(-2 * self.heartbeat_sec // 1))
