"""Settings: every setting with its variable, default and meaning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from dataloader.app.config import dsn, values
from dataloader.app.config.declaring import accepted_values, flag_setting, number_setting, setting
from dataloader.app.config.smtp import parse_smtp_url
from dataloader.app.config.tasks import Tasks, secret_values
from dataloader.app.config.values import Password, QueueWorkers

SECRET_PREFIX = "DL_SECRET_"  # noqa: S105 - how the variables begin that args may refer to
_GROUPS = {  # the first setting of each
    "app_host": "Service",
    "db_dsn": "Database",
    "workers": "Workers",
    "endpoints": "Pipelines",
    "retention_enabled": "Retention",
    "webhook_allowed_hosts": "Webhooks, probes, traces and lineage",
    "auth": "Security",
    "log_format": "Logs",
}


@dataclass(frozen=True)
class SettingInfo:
    """One setting as `dataloader config` and the docs show it."""

    variable: str
    value: str  # as it would be written in the environment; masked when secret
    source: str  # environment | .env | default | the variable that names a file
    default: str
    meaning: str
    accepts: str
    group: str


class Settings(BaseSettings):
    """The settings of a process; `load_settings` makes them."""

    model_config = SettingsConfigDict(
        frozen=True, extra="ignore", hide_input_in_errors=True, populate_by_name=True, str_strip_whitespace=True
    )

    app_host: values.Text = setting(
        "APP_HOST", "127.0.0.1", "The address the API listens on; 0.0.0.0 for all.", "a host name or address"
    )
    app_port: int = number_setting("APP_PORT", 8081, "The port the API listens on.", 1, 65_535)
    http_threads: int = number_setting("APP_HTTP_THREADS", 16, "How many requests are answered at once.", 1, 256)
    timezone: values.Zone = setting(
        "TIMEZONE", "Europe/Moscow", "The time zone of logs and pages, and of schedules and partitions that name "
        "none; jobs keep absolute times.",
        "an IANA time zone such as Europe/Moscow or UTC",
    )  # fmt: skip
    environment: values.Text = setting(
        "ENVIRONMENT", "development", "The name of this installation, shown by /info.", "a short text"
    )
    data_dir: Path = setting(
        "DL_DATA_DIR", Path(".data"), "The folder for the service's data, such as the embedded PostgreSQL.", "a folder"
    )

    db_dsn: values.Dsn | None = setting(
        "DL_DB_DSN", None, "The PostgreSQL server as a libpq URI or keyword string, with TLS options; it overrides "
        "PG_HOST. Without both an embedded server is started.",
        "postgresql://user:password@host:5432/database, or host=… dbname=…",
    )  # fmt: skip
    pg_host: values.Text | None = setting(
        "PG_HOST", None, "The PostgreSQL server's host name, address or socket folder.", "a host name"
    )
    pg_port: int = number_setting("PG_PORT", 5432, "The port of PG_HOST.", 1, 65_535)
    pg_user: values.Text | None = setting(
        "PG_USER", None, "The user on PG_HOST; by default libpq's own.", "a user name"
    )
    pg_password: Password | None = setting("PG_PASSWORD", None, "The user's password; never shown.", "a text")
    pg_database: values.Text | None = setting(
        "PG_DATABASE", None, "The database on PG_HOST; by default libpq's own.", "the name of a database"
    )
    worker_dsn: values.Dsn | None = setting(
        "DL_WORKER_DSN", None, "The workers' own connection to the same database, for an API behind a pooler in "
        "transaction mode: workers use LISTEN and session locks, which need a direct connection.",
        "a connection as DL_DB_DSN takes it",
    )  # fmt: skip
    read_dsn: values.Dsn | None = setting(
        "DL_READ_DSN", None, "A standby of the same database, for what the API and the dashboard only show: lists, "
        "charts, logs, the audit log, metrics. The primary is asked when it is too far behind, or away.",
        "a connection as DL_DB_DSN takes it",
    )  # fmt: skip
    read_max_lag_sec: float = number_setting(
        "DL_READ_MAX_LAG_SEC", 10.0, "How old the data of that standby may be, in seconds.", 0.1, 3600
    )
    schema_queue: values.Identifier = setting(
        "PG_SCHEMA_QUEUE",
        "public",
        "The schema that holds the queue's tables.",
        "a lower-case identifier: letters, digits and _, not starting with a digit or pg_, at most 63 characters",
    )
    pg_use_pool: bool = flag_setting("PG_USE_POOL", True, "Keep the API's connections open between requests.")
    pg_pool_size: int = number_setting("PG_POOL_SIZE", 8, "How many of the API's connections are kept open.", 1, 500)
    pg_max_overflow: int = number_setting(
        "PG_MAX_OVERFLOW", 8, "How many more may be opened while all of those are busy.", 0, 500
    )
    pg_pool_recycle: int = number_setting(
        "PG_POOL_RECYCLE", 3600, "After how many seconds a kept connection is replaced.", 1, 604_800
    )
    pg_connect_timeout: int = number_setting(
        "PG_CONNECT_TIMEOUT", 5, "How many seconds opening a connection may take.", 1, 300
    )
    pg_command_timeout: float = number_setting(
        "PG_COMMAND_TIMEOUT", 30.0, "How many seconds one statement of the queue may run.", 0.1, 3600
    )

    workers: values.Workers = setting(
        "WORKERS_JSON", (QueueWorkers("etl.default", 2),), "The queues of this process, each with its number of "
        "threads; [] for none. `poll` says how often idle ones look for jobs without a notification, such as "
        '`"poll": {"kind": "exponential", "min_sec": 1, "max_sec": 60, "jitter": 0.2}`; '
        "docs/operations.md has the kinds. `shutdown_grace_sec` is a queue's own DL_SHUTDOWN_GRACE_SEC. "
        '`"labels": {"gpu": true}` are labels of the process, which tasks may require: docs/scaling.md.',
        f"a JSON list of objects with queue and concurrency (1 to {values.MAX_CONCURRENCY}), if wanted with poll, "
        "shutdown_grace_sec and labels",
    )  # fmt: skip
    pipelines: values.Packages = setting(
        "DL_PIPELINES", ("dataloader.pipelines",), "The packages whose modules register tasks.",
        "names of Python packages, separated by commas, or a JSON list",
    )  # fmt: skip
    tasks: Tasks = setting(
        "DL_TASKS", {}, "More tasks by name: callables and programs; docs/migrating.md shows how.",
        'a JSON object such as {"rates": "company.loads:rates", "legacy": {"command": ["python", "legacy.py"]}}',
        hidden=True,
    )  # fmt: skip
    heartbeat_sec: float = number_setting(
        "DL_HEARTBEAT_SEC", 10.0, "The interval at which leases of running jobs are renewed, in seconds.", 0.05, 3600
    )
    default_lease_ttl_sec: int = number_setting(
        "DL_DEFAULT_LEASE_TTL_SEC", 60, "How long a lease lasts if the trigger does not say, and for follow-up jobs, "
        "in seconds; at least two heartbeats.", 1, 86_400,
    )  # fmt: skip
    reaper_period_sec: float = number_setting(
        "DL_REAPER_PERIOD_SEC", 10.0, "The interval at which jobs with an expired lease are requeued, in seconds.",
        0.05, 3600,
    )  # fmt: skip
    reaper: bool = flag_setting(
        "DL_REAPER", True, "Take the jobs of dead worker processes; false: at least one other process must do it."
    )
    wrap_drivers: bool = flag_setting(
        "DL_WRAP_DRIVERS", True, "Connections that tasks open by psycopg2 or psycopg are stopped with their attempt."
    )
    preload: values.Packages = setting(
        "DL_PRELOAD", (), "Modules that the fork server imports before it forks isolated processes, such as pandas or "
        "a package of DL_PIPELINES; off: no fork server, each isolated process is a fresh interpreter.",
        "names of Python modules, separated by commas, or a JSON list; or off",
    )  # fmt: skip
    claim_backoff_sec: float = number_setting(
        "DL_CLAIM_BACKOFF_SEC", 15.0,
        "The poll interval of an idle worker, in case a notification is lost, in seconds; of queues without a poll of "
        "their own in WORKERS_JSON.", values.MIN_POLL_SEC, values.MAX_POLL_SEC,
    )  # fmt: skip
    listen: values.ListenMode = setting(
        "DL_LISTEN", "process", "Which worker processes keep a LISTEN connection. process: each; off: none, and idle "
        "workers poll every DL_CLAIM_BACKOFF_SEC.", "process or off",
    )  # fmt: skip
    shutdown_grace_sec: float = number_setting(
        "DL_SHUTDOWN_GRACE_SEC", 30.0, "How long jobs may run after a stop signal, in seconds.", 0, values.MAX_GRACE_SEC
    )  # fmt: skip
    stop_step_sec: float = number_setting(
        "DL_STOP_STEP_SEC", 5.0, "How long a stop step has before the next, harder one, in seconds.", 0.05, 3600
    )
    memory_high: float = number_setting(
        "DL_MEMORY_HIGH", 85.0, "Above how much used memory of its cgroup's limit, or of the machine, a worker takes "
        "no new job while one is running, in percent; 0: memory and its pressure are not watched.", 0, 100,
    )  # fmt: skip
    release: values.Text | None = setting(
        "DL_RELEASE", None, "The release of your code, in each attempt; else its git commit, or `none`.", "a short text"
    )
    sampler_interval_sec: float = number_setting(
        "DL_SAMPLER_INTERVAL_SEC", 1.0, "How often a worker looks where its long attempts are, for the account of "
        "their time, in seconds; 0: never.", 0, 60,
    )  # fmt: skip
    sampler_after_sec: float = number_setting("DL_SAMPLER_AFTER_SEC", 10.0, "From which age on, in seconds.", 0, 86_400)
    prices: values.Prices | None = setting(
        "DL_PRICES", None, "What an hour of a CPU, of a gigabyte of memory and of an attempt costs.",
        'a JSON object such as {"cpu_hour": 0.04, "memory_gb_hour": 0.005, "run_hour": 0.1, "currency": "EUR"}',
    )  # fmt: skip
    worker_name: values.Text | None = setting(
        "DL_WORKER_NAME", None, "A name that at most one worker process has at a time, such as a StatefulSet's pod: a "
        "process that starts takes over the jobs of a dead one of this name at once, on whatever host it ran. Never "
        "the same for several processes.", "a short text",
    )  # fmt: skip

    endpoints: values.Endpoints = setting(
        "DL_ENDPOINTS", {}, "The addresses that pipelines fetch from, by name; docs/pipelines lists the names.",
        'a JSON object such as {"llm": "https://models.example"}, without credentials', hidden=True,
    )  # fmt: skip
    targets: values.Targets = setting(
        "DL_TARGETS", {}, "The databases that pipelines write to, by name; the entry default is used for names "
        "without an entry; without it the queue's own database is used.",
        'a JSON object such as {"default": "postgresql://user:password@host/database"}',
    )  # fmt: skip
    tokens: values.Tokens = setting(
        "DL_TOKENS", {}, "The bearer tokens of endpoints, by name; never shown.",
        'a JSON object such as {"llm": "token"}',
    )  # fmt: skip

    executors: values.Executors = setting(
        "DL_EXECUTORS", {}, "The engines that tasks may give work to with ctx.offload, by name; docs/offload.md has "
        "their keys. A secret is a reference, as in args.",
        'a JSON object such as {"ray": {"address": "http://head:8265", "token": {"$secret": "ray"}}}',
    )  # fmt: skip

    retention_enabled: bool = flag_setting(
        "DL_RETENTION_ENABLED", True, "Delete what is older than the retention periods below. In a database that was "
        "upgraded from tables without versions, workers do so only if this is given, as true.",
    )  # fmt: skip
    keep_jobs_days: values.JobRetention = setting(
        "DL_KEEP_JOBS_DAYS", values.DEFAULT_JOB_RETENTION, "After how many days an ended job is deleted: one number "
        "for all statuses, or one each; a status without one keeps its default.",
        'a number up to 36500, or a JSON object such as {"succeeded": 3, "failed": 90}',
    )  # fmt: skip
    keep_tasks: values.TaskRetention = setting(
        "DL_KEEP_TASKS", {}, "Other periods for the jobs of single tasks, in days: one for all statuses, or one each.",
        'a JSON object such as {"heartbeat.check": 1, "load.cbr.rates": {"succeeded": 3, "failed": 90}}',
    )  # fmt: skip
    keep_events_days: float = number_setting(
        "DL_KEEP_EVENTS_DAYS", 30.0, "After how many days events are deleted, also of jobs that still exist; in whole "
        "partitions, so up to a fifth later.", 1, 36_500,
    )  # fmt: skip
    job_log_keep_days: float = number_setting(
        "DL_JOB_LOG_KEEP_DAYS", 14.0, "After how many days job logs are deleted.", 1, 36_500
    )
    keep_history_days: float = number_setting(
        "DL_KEEP_HISTORY_DAYS", 365.0, "After how many days the audit log in the database is deleted.", 1, 36_500
    )

    webhook_allowed_hosts: values.AllowedHostList = setting(
        "DL_WEBHOOK_ALLOWED_HOSTS", (), "Hosts and networks that may receive webhooks although they are not public.",
        "names of hosts and networks such as hooks.internal,10.0.0.0/8, separated by commas, or a JSON list",
    )  # fmt: skip
    webhook_secret: SecretStr | None = setting(
        "DL_WEBHOOK_SECRET", None, "The secret that signs the webhooks of single jobs; without it they are refused. "
        "Never shown. Give it to the API and to the workers.",
        "a text of at least 24 characters, such as whsec_ and 32 random bytes in base64", min_length=24,
    )  # fmt: skip
    public_url: values.PublicUrl | None = setting(
        "DL_PUBLIC_URL", None, "Where people open the dashboard; messages to chats and by e-mail link it. Give it to "
        "the workers.", "a URL such as https://dataloader.example.com",
    )  # fmt: skip
    smtp_url: values.SmtpUrl | None = setting(
        "DL_SMTP_URL", None, "The mail server for webhooks to mailto: addresses, and the sender; never shown. smtps: "
        "TLS; smtp: STARTTLS; with tls=off neither. Give it to the API and to the workers.",
        "smtps://user:password@host:465?from=dataloader@example.com",
    )  # fmt: skip
    probe_port: Annotated[int, Field(ge=1, le=65_535)] | None = setting(
        "DL_PROBE_PORT", None, "The port on APP_HOST where `dataloader worker`, which has no API, answers probes and "
        "/metrics; without it, none.", "a whole number from 1 to 65535",
    )  # fmt: skip
    tracing: bool = flag_setting(
        "DL_TRACING", False, "Send OpenTelemetry spans, with the packages of the extra `otel`; "
        "OTEL_EXPORTER_OTLP_ENDPOINT says where.",
    )  # fmt: skip

    lineage: values.RemoteService | None = setting(
        "DL_LINEAGE", None, "Send OpenLineage events of jobs to this receiver, with the packages of "
        "the extra `lineage`; /api/v1/lineage is added. Its bearer token is a reference to a secret.",
        'a URL such as https://marquez.internal:5000, or a JSON object such as {"url": "https://marquez.internal", '
        '"key": {"$secret": "lineage"}}',
    )  # fmt: skip

    auth: Literal["keys", "none"] = setting(
        "DL_AUTH", "keys", "Who may call. keys: callers with an API key, and callers on this machine while there is no "
        "key; none: every caller that can reach the service.", "keys or none",
    )  # fmt: skip
    trusted_proxies: values.Networks = setting(
        "DL_TRUSTED_PROXIES", (), "The proxies whose X-Forwarded-For and X-Forwarded-Proto are believed; these headers "
        "give no access.", "addresses and networks such as 10.0.0.0/8, separated by commas, or a JSON list",
    )  # fmt: skip
    secrets_dir: Path | None = setting(
        "DL_SECRETS_DIR", None, 'The folder with a file for each secret that args may refer to with {"$secret": '
        '"name"}; the variables DL_SECRET_NAME are secrets too.', "a folder",
    )  # fmt: skip
    task_secrets: values.SecretTasks = setting(
        "DL_TASK_SECRETS", {}, 'The tasks whose args may refer to each secret; "*" for all other secrets. A secret '
        "without an entry is open to every task: limit it if not all who may trigger a task may use it.",
        'a JSON object such as {"crm": ["load.crm", "report.*"], "*": []}',
    )  # fmt: skip
    masked_keys: values.WordList = setting(
        "DL_MASKED_KEYS", (), "More words that mark a key of args as secret, in addition to password, token, secret, "
        "api_key and the like: its value is not shown in responses and logs.",
        "words of letters, digits and _, separated by commas, or a JSON list",
    )  # fmt: skip

    log_format: Literal["auto", "json", "text"] = setting(
        "DL_LOG_FORMAT", "auto", "The format of log lines; auto: text on a terminal, else JSON.", "auto, json or text"
    )
    log_path: Path | None = setting("LOG_PATH", None, "The folder of the log file; without it, none.", "a folder")
    log_file_name: values.FileName = setting(
        "LOG_FILE_NAME", "app.log", "The name of that file.", "a file name without a folder"
    )
    log_rotation: values.LogRotation = setting(
        "LOG_ROTATION", values.parse_rotation("10 MB"),
        "When a log file of any kind is rotated; ten old files are kept.",
        "a size such as 10 MB, a period such as 6 hours or 1 day, midnight, weekly, or never",
    )  # fmt: skip
    metric_path: Path | None = setting(
        "METRIC_PATH", None, "The folder of the metrics file; without it, none.", "a folder"
    )
    metric_file_name: values.FileName = setting(
        "METRIC_FILE_NAME", "metrics.log", "The name of that file.", "a file name without a folder"
    )
    audit_log_path: Path | None = setting(
        "AUDIT_LOG_PATH", None, "The folder of the audit file; without it, none.", "a folder"
    )
    audit_log_file_name: values.FileName = setting(
        "AUDIT_LOG_FILE_NAME", "audit.log", "The name of that file.", "a file name without a folder"
    )
    debug: bool = flag_setting("DEBUG", False, "Write debug lines to the log too.")

    _sources: dict[str, str] = PrivateAttr(default_factory=dict)
    _warnings: tuple[str, ...] = PrivateAttr(default=())
    _named_secrets: dict[str, SecretStr] = PrivateAttr(default_factory=dict)

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: Any, **_others: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # load_settings() reads the environment itself: it must know where each value comes from.
        return (init_settings,)

    @classmethod
    def fields_by_variable(cls) -> dict[str, FieldInfo]:
        """The settings by their environment variables, in the order of the docs."""
        return {str(field.validation_alias): field for field in cls.model_fields.values()}

    def loaded_from(
        self, sources: Mapping[str, str], warnings: tuple[str, ...], named_secrets: Mapping[str, str]
    ) -> Self:
        """Record the source of each variable, the warnings, and the secrets that args may refer to."""
        self._sources, self._warnings = dict(sources), warnings
        self._named_secrets = {name: SecretStr(text) for name, text in named_secrets.items()}
        return self

    @property
    def dsn(self) -> SecretStr | None:
        """The connection string of the database; None: the embedded server is used."""
        if self.db_dsn is not None:
            return self.db_dsn
        if self.pg_host is None:
            return None
        parts = {"host": self.pg_host, "port": str(self.pg_port), "user": self.pg_user, "dbname": self.pg_database}
        if self.pg_password is not None:
            parts["password"] = self.pg_password.get_secret_value()
        return SecretStr(dsn.format_dsn({keyword: value for keyword, value in parts.items() if value}))

    @property
    def schema(self) -> str:  # type: ignore[override]  # pydantic's deprecated classmethod, which nothing calls
        return self.schema_queue

    def pipeline_connections(self) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
        """Endpoints, targets and tokens as pipelines get them, with the secrets in the clear."""
        targets, tokens = (
            {name: secret.get_secret_value() for name, secret in secrets.items()}
            for secrets in (self.targets, self.tokens)
        )
        return dict(self.endpoints), targets, tokens

    @property
    def named_secrets(self) -> dict[str, str]:
        """The variables DL_SECRET_…, in the clear: what args may refer to."""
        return {name: secret.get_secret_value() for name, secret in self._named_secrets.items()}

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values that must not be seen in any log."""
        connections = [
            connection
            for connection in (self.db_dsn, self.worker_dsn, self.read_dsn, *self.targets.values())
            if connection
        ]
        others = (
            self.pg_password,
            self.webhook_secret,
            self.smtp_url,
            *self.tokens.values(),
        )
        known = [secret.get_secret_value() for secret in (*connections, *others) if secret is not None]
        for connection in connections:
            parameters = dsn.parse_dsn(connection.get_secret_value())
            known += [parameters[name] for name in ("password", "sslpassword") if name in parameters]
        if self.smtp_url is not None and (password := parse_smtp_url(self.smtp_url.get_secret_value()).password):
            known.append(password)
        return (*known, *secret_values(self.tasks), *self.named_secrets.values())

    @property
    def is_retention_decided(self) -> bool:
        """Whether DL_RETENTION_ENABLED is given at all."""
        return "DL_RETENTION_ENABLED" in self._sources

    @property
    def grace_by_queue(self) -> dict[str, float]:
        """The grace of the queues that have their own."""
        return {w.queue: w.shutdown_grace_sec for w in self.workers if w.shutdown_grace_sec is not None}

    @property
    def worker_labels(self) -> dict[str, bool | str]:
        """The labels of this process, which its queues share."""
        return {name: value for w in self.workers for name, value in (w.labels or {}).items()}

    @property
    def longest_grace_sec(self) -> float:
        return max(self.shutdown_grace_sec, *self.grace_by_queue.values(), 0.0)

    @property
    def is_grace_given(self) -> bool:
        """Whether DL_SHUTDOWN_GRACE_SEC is given, rather than its default."""
        return "DL_SHUTDOWN_GRACE_SEC" in self._sources

    @property
    def is_retention_requested(self) -> bool:
        """Whether DL_RETENTION_ENABLED is given as true, rather than true by default."""
        return self.retention_enabled and self.is_retention_decided

    @property
    def warnings(self) -> tuple[str, ...]:
        """Settings that are valid, but probably not meant."""
        return self._warnings

    def describe(self) -> tuple[SettingInfo, ...]:
        """Describe every setting: its value, where that comes from, and its meaning."""
        group, infos = "", []
        for name, field in type(self).model_fields.items():
            group, variable = _GROUPS.get(name, group), str(field.validation_alias)
            infos.append(
                SettingInfo(
                    variable=variable,
                    value=values.format_value(getattr(self, name)),
                    source=self._sources.get(variable, "default"),
                    default=values.format_value(field.default),
                    meaning=field.description or "",
                    accepts=accepted_values(field),
                    group=group,
                )
            )
        return tuple(infos)
