"""Settings: every knob with its variable, default and meaning, loaded from the environment and `.env`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, JsonValue, PrivateAttr, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, DotEnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from app.config import allowing, checks, dsn, keeping, tasks, values
from app.config.values import QueueWorkers, Rotation
from app.errors import ConfigError, Fault

A_SECRET = "DL_SECRET_"  # noqa: S105 - how the variables begin that args may refer to


class Group(StrEnum):
    APP = "Service"
    DATABASE = "Database"
    WORKERS = "Workers"
    PIPELINES = "Pipelines"
    LIMITS = "Limits of a request"
    RETENTION = "What is kept, and for how long"
    WEBHOOKS = "Webhooks, alerts and traces"
    SECURITY = "Security"
    LOGS = "Logs"


@dataclass(frozen=True)
class Knob:
    """One setting as `dataloader config` and the docs show it."""

    variable: str
    value: str  # as it would be written in the environment; masked when secret
    source: str  # environment | .env | default
    default: str
    meaning: str
    accepts: str
    group: str


def _knob(
    group: Group, variable: str, default: Any, meaning: str, accepts: str, *, hidden: bool = False, **limits: Any
) -> Any:
    about: dict[str, JsonValue] = {"group": group.value, "accepts": accepts, "hidden": hidden}
    return Field(default, validation_alias=variable, description=meaning, json_schema_extra=about, **limits)


def _number(group: Group, variable: str, default: float, meaning: str, *limits: float) -> Any:
    low, high = limits
    accepts = f"a{' whole' if isinstance(default, int) else ''} number from {low:.10g} to {high:.10g}"
    return _knob(group, variable, default, meaning, accepts, ge=low, le=high, allow_inf_nan=False)


def _switch(group: Group, variable: str, default: bool, meaning: str) -> Any:
    return _knob(group, variable, default, meaning, "true or false")


def _days(variable: str, default: float, meaning: str) -> Any:
    return _number(Group.RETENTION, variable, default, meaning, 0.01, 36_500)


Text = Annotated[str, Field(min_length=1, max_length=values.MAX_NAME, pattern=r"^[^\x00-\x1f\x7f]+$")]
Zone = Annotated[str, BeforeValidator(values.time_zone)]
Identifier = Annotated[str, BeforeValidator(values.identifier)]
FileName = Annotated[str, BeforeValidator(values.file_name)]
Packages = Annotated[tuple[str, ...], BeforeValidator(values.packages)]
Workers = Annotated[tuple[QueueWorkers, ...], BeforeValidator(values.queue_workers)]
Networks = Annotated[tuple[str, ...], BeforeValidator(values.networks)]
Welcome = Annotated[tuple[str, ...], BeforeValidator(values.welcome)]
Words = Annotated[tuple[str, ...], BeforeValidator(values.words)]
Rotating = Annotated[Rotation, BeforeValidator(values.rotation)]
Endpoints = Annotated[Mapping[str, str], BeforeValidator(values.endpoints)]
Targets = Annotated[Mapping[str, SecretStr], BeforeValidator(values.targets)]
Tokens = Annotated[Mapping[str, SecretStr], BeforeValidator(values.tokens)]
Keeping = Annotated[Mapping[str, Mapping[str, float]], BeforeValidator(keeping.of_tasks)]
Tasks = Annotated[Mapping[str, Any], BeforeValidator(tasks.tasks)]
Allowing = Annotated[Mapping[str, tuple[str, ...]], BeforeValidator(allowing.of_secrets)]


class Settings(BaseSettings):
    """What the service was told. `Settings.load()` is the way in; it tells all faults at once."""

    model_config = SettingsConfigDict(
        frozen=True, extra="ignore", hide_input_in_errors=True, populate_by_name=True, str_strip_whitespace=True
    )

    app_host: Text = _knob(
        Group.APP, "APP_HOST", "127.0.0.1", "The address the API listens on; 0.0.0.0 for all.", "a host name or address"
    )
    app_port: int = _number(Group.APP, "APP_PORT", 8081, "The port the API listens on.", 1, 65_535)
    http_threads: int = _number(
        Group.APP, "APP_THREADS", 16, "How many requests are answered at the same time.", 1, 256
    )
    timezone: Zone = _knob(
        Group.APP,
        "TIMEZONE",
        "Europe/Moscow",
        "The zone of times in logs and on pages; jobs themselves keep absolute time.",
        "an IANA time zone",
    )
    environment: Text = _knob(
        Group.APP,
        "ENVIRONMENT",
        "development",
        "The name of this installation, shown by /info.",
        "a short text",
    )
    data_dir: Path = _knob(
        Group.APP,
        "DL_DATA_DIR",
        Path(".data"),
        "The folder of what the service keeps itself, such as the embedded PostgreSQL.",
        "a folder",
    )

    db_dsn: SecretStr | None = _knob(
        Group.DATABASE,
        "DL_DB_DSN",
        None,
        "The PostgreSQL server as a libpq URI or keyword string, with TLS and the like; it wins over PG_HOST. "
        "With neither of the two an embedded server is started.",
        "postgresql://user:password@host:5432/database, or host=… dbname=…",
    )
    pg_host: Text | None = _knob(
        Group.DATABASE, "PG_HOST", None, "The PostgreSQL server's host name, address or socket folder.", "a host name"
    )
    pg_port: int = _number(Group.DATABASE, "PG_PORT", 5432, "The port of PG_HOST.", 1, 65_535)
    pg_user: Text | None = _knob(
        Group.DATABASE, "PG_USER", None, "The user on PG_HOST; libpq's own default when not given.", "a user name"
    )
    pg_password: SecretStr | None = _knob(
        Group.DATABASE, "PG_PASSWORD", None, "That user's password; it is never shown.", "a text"
    )
    pg_database: Text | None = _knob(
        Group.DATABASE,
        "PG_DATABASE",
        None,
        "The database on PG_HOST; libpq's own default when not given.",
        "a database's name",
    )
    worker_dsn: SecretStr | None = _knob(
        Group.DATABASE,
        "DL_WORKER_DSN",
        None,
        "The same database by the way that workers take, if it is another: PostgreSQL itself, where the API goes "
        "through a pooler in transaction mode. Workers listen and hold locks, which needs connections of their own.",
        "a connection as DL_DB_DSN takes it",
    )
    schema_queue: Identifier = _knob(
        Group.DATABASE,
        "PG_SCHEMA_QUEUE",
        "public",
        "The schema that holds the queue's tables.",
        "a plain lower-case identifier",
    )
    pg_use_pool: bool = _switch(
        Group.DATABASE, "PG_USE_POOL", True, "Whether the API keeps connections open between requests."
    )
    pg_pool_size: int = _number(
        Group.DATABASE, "PG_POOL_SIZE", 8, "How many of the API's connections are kept open.", 1, 500
    )
    pg_max_overflow: int = _number(
        Group.DATABASE, "PG_MAX_OVERFLOW", 8, "How many more may be opened while all of those are busy.", 0, 500
    )
    pg_pool_recycle: int = _number(
        Group.DATABASE,
        "PG_POOL_RECYCLE",
        3600,
        "After how many seconds a kept connection is replaced by a new one.",
        1,
        604_800,
    )
    pg_connect_timeout: int = _number(
        Group.DATABASE, "PG_CONNECT_TIMEOUT", 5, "For how many seconds opening a connection may take.", 1, 300
    )
    pg_command_timeout: float = _number(
        Group.DATABASE,
        "PG_COMMAND_TIMEOUT",
        30.0,
        "For how many seconds one statement of the queue may run.",
        0.1,
        3600,
    )

    workers: Workers = _knob(
        Group.WORKERS,
        "WORKERS_JSON",
        (QueueWorkers("etl.default", 2),),
        "The queues this process works on, each with its number of threads; [] for none.",
        f"a JSON list of objects with queue and concurrency (1 to {values.MAX_CONCURRENCY})",
    )
    pipelines: Packages = _knob(
        Group.WORKERS,
        "DL_PIPELINES",
        ("pipelines",),
        "The packages whose modules register tasks.",
        "names of Python packages, separated by commas",
    )
    tasks: Tasks = _knob(
        Group.WORKERS,
        "DL_TASKS",
        {},
        "Tasks beside those that the packages register, by name: callables, and programs; docs/migrating.md shows how.",
        'a JSON object such as {"rates": "company.loads:rates", "legacy": {"command": ["python", "legacy.py"]}}',
        hidden=True,
    )
    heartbeat_sec: float = _number(
        Group.WORKERS, "DL_HEARTBEAT_SEC", 10.0, "How often a running job's lease is renewed, in seconds.", 0.05, 3600
    )
    default_lease_ttl_sec: int = _number(
        Group.WORKERS,
        "DL_DEFAULT_LEASE_TTL_SEC",
        60,
        "How long a lease lasts when the trigger does not say, and those of follow-ups, in seconds; at least two"
        " heartbeats.",
        1,
        86_400,
    )
    reaper_period_sec: float = _number(
        Group.WORKERS,
        "DL_REAPER_PERIOD_SEC",
        10.0,
        "How often jobs whose lease ran out are given back, in seconds.",
        0.05,
        3600,
    )
    claim_backoff_sec: float = _number(
        Group.WORKERS,
        "DL_CLAIM_BACKOFF_SEC",
        15.0,
        "How long an idle worker waits for a notification before it looks for itself, in seconds.",
        0.05,
        3600,
    )
    shutdown_grace_sec: float = _number(
        Group.WORKERS,
        "DL_SHUTDOWN_GRACE_SEC",
        30.0,
        "How long running jobs may go on after a stop was asked for, in seconds.",
        0,
        3600,
    )
    stop_grace_sec: float = _number(
        Group.WORKERS,
        "DL_STOP_GRACE_SEC",
        5.0,
        "How long each means of stopping a job is given before the next, harder one, in seconds.",
        0.05,
        3600,
    )

    worker_name: Text | None = _knob(
        Group.WORKERS,
        "DL_WORKER_NAME",
        None,
        "A name that at most one worker process has at a time, such as that of a StatefulSet's pod: a process that "
        "starts takes over the jobs of a dead one of this name at once, wherever it ran. Never the same for several "
        "processes.",
        "a short text",
    )

    endpoints: Endpoints = _knob(
        Group.PIPELINES,
        "DL_ENDPOINTS",
        {},
        "Where pipelines fetch from, by the name each asks for; docs/pipelines tells the names.",
        'a JSON object such as {"llm": "https://models.example"}, without credentials',
    )
    targets: Targets = _knob(
        Group.PIPELINES,
        "DL_TARGETS",
        {},
        "The databases pipelines write to, by the name each asks for; default stands for every other name, and "
        "without it that is the queue's own database.",
        'a JSON object such as {"default": "postgresql://user:password@host/database"}',
    )
    tokens: Tokens = _knob(
        Group.PIPELINES,
        "DL_TOKENS",
        {},
        "The bearer tokens that endpoints want, by the endpoint's name; they are never shown.",
        'a JSON object such as {"llm": "token"}',
    )

    max_body_bytes: int = _number(
        Group.LIMITS, "DL_MAX_BODY_BYTES", 1_048_576, "The largest request body, in bytes.", 1024, 1_073_741_824
    )
    max_batch_bytes: int = _number(
        Group.LIMITS,
        "DL_MAX_BATCH_BYTES",
        4_194_304,
        "The largest body of a request for many jobs, in bytes.",
        1024,
        1_073_741_824,
    )
    max_json_depth: int = _number(
        Group.LIMITS, "DL_MAX_JSON_DEPTH", 64, "How deep lists and objects of a request may be nested.", 2, 500
    )
    max_text_length: int = _number(
        Group.LIMITS, "DL_MAX_TEXT_LENGTH", 1000, "The longest text field of a request, in characters.", 16, 100_000
    )

    retention: bool = _switch(
        Group.RETENTION,
        "DL_RETENTION",
        True,
        "Whether workers delete what is older than the ages below. In a database that was upgraded from tables without "
        "versions they do so only if this is given, as true.",
    )
    keep_succeeded_days: float = _days(
        "DL_KEEP_SUCCEEDED_DAYS", 14.0, "After how many days a job that succeeded is deleted."
    )
    keep_canceled_days: float = _days(
        "DL_KEEP_CANCELED_DAYS", 14.0, "After how many days a job that was canceled is deleted."
    )
    keep_failed_days: float = _days("DL_KEEP_FAILED_DAYS", 30.0, "After how many days a job that failed is deleted.")
    keep_lost_days: float = _days("DL_KEEP_LOST_DAYS", 30.0, "After how many days a job that was lost is deleted.")
    keep_tasks: Keeping = _knob(
        Group.RETENTION,
        "DL_KEEP_TASKS",
        {},
        "Other ages for the jobs of single tasks, in days: one for all that have ended, or one for each status.",
        'a JSON object such as {"heartbeat.check": 1, "load.cbr.rates": {"succeeded": 3, "failed": 90}}',
    )
    keep_journal_days: float = _number(
        Group.RETENTION,
        "DL_KEEP_JOURNAL_DAYS",
        30.0,
        "After how many days the journal is dropped, also of jobs that are still there; in whole "
        "parts, so up to a fifth later.",
        1,
        36_500,
    )
    keep_keys_days: float = _number(
        Group.RETENTION,
        "DL_KEEP_KEYS_DAYS",
        0.0,
        "For how many days after a job was deleted its idempotency key still finds it; 0: for ever.",
        0,
        36_500,
    )

    webhook_allow: Welcome = _knob(
        Group.WEBHOOKS,
        "DL_WEBHOOK_ALLOW",
        (),
        "Hosts and networks that webhooks may be sent to although their addresses are not public.",
        "names of hosts and networks such as hooks.internal,10.0.0.0/8, separated by commas",
    )
    webhook_secret: SecretStr | None = _knob(
        Group.WEBHOOKS,
        "DL_WEBHOOK_SECRET",
        None,
        "What signs the webhooks that single jobs ask for; without it they are refused. Never shown. Give it to the "
        "API and to the workers.",
        "a text of at least 24 characters, such as whsec_ and 32 random bytes in base64",
        min_length=24,
    )
    webhook_timeout_sec: float = _number(
        Group.WEBHOOKS, "DL_WEBHOOK_TIMEOUT_SEC", 15.0, "For how many seconds one sending may take in all.", 0.1, 120
    )
    webhook_threads: int = _number(
        Group.WEBHOOKS, "DL_WEBHOOK_THREADS", 8, "How many webhooks a worker process sends at the same time.", 1, 100
    )
    webhook_disable_hours: float = _number(
        Group.WEBHOOKS,
        "DL_WEBHOOK_DISABLE_HOURS",
        72.0,
        "For how many hours a webhook may fail before it is disabled.",
        0.01,
        8760,
    )
    webhook_keep_days: float = _number(
        Group.WEBHOOKS, "DL_WEBHOOK_KEEP_DAYS", 14.0, "After how many days deliveries are forgotten.", 2, 3650
    )
    alert_period_sec: float = _number(
        Group.WEBHOOKS, "DL_ALERT_PERIOD_SEC", 15.0, "How often the alert rules are looked at, in seconds.", 0.05, 3600
    )
    probe_port: Annotated[int, Field(ge=1, le=65_535)] | None = _knob(
        Group.WEBHOOKS,
        "DL_PROBE_PORT",
        None,
        "The port on APP_HOST where `dataloader worker`, which has no API, answers probes and /metrics; without it "
        "there is none.",
        "a whole number from 1 to 65535",
    )
    tracing: bool = _switch(
        Group.WEBHOOKS,
        "DL_TRACING",
        False,
        "Whether spans are drawn with OpenTelemetry, which dataloader[otel] installs; OTEL_EXPORTER_OTLP_ENDPOINT says "
        "where they go.",
    )

    auth: Literal["keys", "none"] = _knob(
        Group.SECURITY,
        "DL_AUTH",
        "keys",
        "Who may call: keys: whoever has an API key, and callers on this machine while there is none; none: everybody "
        "who can reach the service.",
        "keys or none",
    )
    trusted_proxies: Networks = _knob(
        Group.SECURITY,
        "DL_TRUSTED_PROXIES",
        (),
        "The proxies whose X-Forwarded-For and X-Forwarded-Proto are believed; nobody is let in for what they say.",
        "addresses and networks such as 10.0.0.0/8, separated by commas",
    )
    session_hours: float = _number(
        Group.SECURITY, "DL_SESSION_HOURS", 12.0, "How long a browser stays logged in, in hours.", 0.01, 8760
    )
    session_secret: SecretStr | None = _knob(
        Group.SECURITY,
        "DL_SESSION_SECRET",
        None,
        "What browsers' sessions are signed with; without it one is drawn and kept in the database. Never shown.",
        "a text of at least 32 characters",
        min_length=32,
    )
    audit_keep_days: float = _number(
        Group.SECURITY,
        "DL_AUDIT_KEEP_DAYS",
        365.0,
        "After how many days lines of the audit in the database are deleted.",
        1,
        36_500,
    )
    secrets_dir: Path | None = _knob(
        Group.SECURITY,
        "DL_SECRETS_DIR",
        None,
        'The folder with a file for each secret that args may refer to with {"$secret": "name"}, beside variables '
        "DL_SECRET_NAME.",
        "a folder",
    )
    secrets_allow: Allowing = _knob(
        Group.SECURITY,
        "DL_SECRETS_ALLOW",
        {},
        'Which secrets the args of which tasks may refer to: for each secret its tasks, "*" for the secrets that are '
        "not named. What is not said is allowed: say it where not all who may trigger a task may use every secret.",
        'a JSON object such as {"crm": ["load.crm", "report.*"], "*": []}',
    )
    masked_keys: Words = _knob(
        Group.SECURITY,
        "DL_MASKED_KEYS",
        (),
        "Words that make a key of args secret when they are in it, beside password, token, secret, api_key and the "
        "like: its value is not shown in answers and logs.",
        "words of letters, digits and _, separated by commas",
    )

    log_format: Literal["auto", "json", "text"] = _knob(
        Group.LOGS,
        "DL_LOG_FORMAT",
        "auto",
        "How log lines look; auto: text on a terminal, JSON otherwise.",
        "auto, json or text",
    )
    log_path: Path | None = _knob(
        Group.LOGS, "LOG_PATH", None, "The folder of the application's log file; without it there is none.", "a folder"
    )
    log_file_name: FileName = _knob(Group.LOGS, "LOG_FILE_NAME", "app.log", "The name of that file.", "a file name")
    log_rotation: Rotating = _knob(
        Group.LOGS,
        "LOG_ROTATION",
        values.rotation("10 MB"),
        "When a log file, of any kind, is put aside and a new one begun.",
        "a size such as 10 MB, a period such as 6 hours or 1 day, midnight, weekly, or never",
    )
    log_keep_files: int = _number(
        Group.LOGS, "DL_LOG_KEEP_FILES", 10, "How many log files put aside are kept, of each kind.", 1, 10_000
    )
    metric_path: Path | None = _knob(
        Group.LOGS, "METRIC_PATH", None, "The folder of the metrics file; without it there is none.", "a folder"
    )
    metric_file_name: FileName = _knob(
        Group.LOGS, "METRIC_FILE_NAME", "metrics.log", "The name of that file.", "a file name"
    )
    audit_log_path: Path | None = _knob(
        Group.LOGS, "AUDIT_LOG_PATH", None, "The folder of the audit file; without it there is none.", "a folder"
    )
    audit_log_file_name: FileName = _knob(
        Group.LOGS, "AUDIT_LOG_FILE_NAME", "audit.log", "The name of that file.", "a file name"
    )
    job_log_max_bytes: int = _number(
        Group.LOGS,
        "DL_JOB_LOG_MAX_BYTES",
        2_097_152,
        "How much of what one try of a job says is kept, in characters; of more, the beginning and the last lines.",
        1024,
        1_073_741_824,
    )
    job_log_lines_per_sec: int = _number(
        Group.LOGS,
        "DL_JOB_LOG_LINES_PER_SEC",
        200,
        "How many lines a second of one try are kept, when it says more than that for ten seconds.",
        1,
        100_000,
    )
    job_log_keep_days: float = _number(
        Group.LOGS, "DL_JOB_LOG_KEEP_DAYS", 14.0, "After how many days what jobs said is deleted.", 1, 36_500
    )
    debug: bool = _switch(Group.LOGS, "DEBUG", False, "Whether the log also tells what only a developer wants to know.")

    no_color: str | None = _knob(
        Group.LOGS, "NO_COLOR", None, "With any text in it nothing is coloured.", "any text, or nothing"
    )

    _sources: dict[str, str] = PrivateAttr(default_factory=dict)
    _warnings: tuple[str, ...] = PrivateAttr(default=())
    _named_secrets: dict[str, SecretStr] = PrivateAttr(default_factory=dict)

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: Any, **_others: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # load() reads the environment itself: it must know where each value came from.
        return (init_settings,)

    @classmethod
    def load(
        cls,
        environ: Mapping[str, str] | None = None,
        *,
        dotenv: Path | None = Path(".env"),
        loads_pipelines: bool = False,
    ) -> Self:
        """The settings of the environment (by default the process's own), then of the `.env` file.

        For a process that loads the pipelines, a package of DL_PIPELINES that is nowhere is a fault too.
        Raises ConfigError with every fault that could be found.
        """
        here = dict(os.environ if environ is None else environ)
        file, faults = _read_dotenv(cls, dotenv)
        given = {name: text for name, text in (file | here).items() if text.strip()}

        settings, more = cls._without_faulty(given)
        faulty = {fault.variable for fault in more}
        faults += more
        faults += [fault for among, fault in checks.contradictions(settings, given) if not among & faulty]
        if loads_pipelines:
            faults += checks.unimportable(settings.pipelines)
        misspelt, warnings = checks.misspelt(given, cls.variables())
        faults += misspelt
        if faults:
            raise ConfigError(faults)

        settings._sources = {name: "environment" if name in here else ".env" for name in given}
        settings._warnings = (*warnings, *checks.overruled(settings))
        settings._named_secrets = {name: SecretStr(text) for name, text in given.items() if name.startswith(A_SECRET)}
        return settings

    @classmethod
    def _without_faulty(cls, given: Mapping[str, str]) -> tuple[Self, list[Fault]]:
        """Settings of all that is sound, so that one fault does not hide the contradictions among the rest."""
        ours = {name: given[name] for name in cls.variables() if name in given}
        try:
            return cls.model_validate(ours), []
        except ValidationError as error:
            faults = [cls._fault(str(e["loc"][0]), e["type"], e["msg"], ours) for e in error.errors(include_url=False)]
        faulty = {fault.variable for fault in faults}
        return cls.model_validate({name: text for name, text in ours.items() if name not in faulty}), faults

    @classmethod
    def _fault(cls, variable: str, kind: str, message: str, given: Mapping[str, str]) -> Fault:
        # Our own validators say what would do; the library's words would tell of types instead.
        field = cls._fields()[variable]
        remedy = (
            message.removeprefix("Value error, ") if kind == "value_error" else f"{_about(field, 'accepts')} would do"
        )
        return Fault(variable, checks.shown(given[variable], secret=_is_secret(field)), remedy)

    @classmethod
    def variables(cls) -> tuple[str, ...]:
        """The environment variables of all knobs, in the order of the docs."""
        return tuple(cls._fields())

    @classmethod
    def _fields(cls) -> dict[str, FieldInfo]:
        return {str(field.validation_alias): field for field in cls.model_fields.values()}

    @property
    def dsn(self) -> SecretStr | None:
        """Where the database is. None: nowhere yet, the embedded server shall be used."""
        if self.db_dsn is not None:
            return self.db_dsn
        if self.pg_host is None:
            return None
        parts = {"host": self.pg_host, "port": str(self.pg_port), "user": self.pg_user, "dbname": self.pg_database}
        if self.pg_password is not None:
            parts["password"] = self.pg_password.get_secret_value()
        return SecretStr(dsn.write({keyword: value for keyword, value in parts.items() if value}))

    @property
    def schema(self) -> str:  # type: ignore[override]  # pydantic's deprecated classmethod, in nobody's use
        return self.schema_queue

    def places(self) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
        """Endpoints, targets and tokens as pipelines are given them, the secrets in the clear."""
        targets, tokens = (
            {name: secret.get_secret_value() for name, secret in given.items()} for given in (self.targets, self.tokens)
        )
        return dict(self.endpoints), targets, tokens

    @property
    def named_secrets(self) -> dict[str, str]:
        """The variables DL_SECRET_…, in the clear: what args may refer to."""
        return {name: secret.get_secret_value() for name, secret in self._named_secrets.items()}

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values that must not be seen in any log."""
        known = [self.pg_password.get_secret_value()] if self.pg_password else []
        if self.db_dsn is not None:
            known.append(self.db_dsn.get_secret_value())
            known += _passwords(known[-1])
        if self.worker_dsn is not None:
            known.append(self.worker_dsn.get_secret_value())
            known += _passwords(known[-1])
        if self.session_secret is not None:
            known.append(self.session_secret.get_secret_value())
        if self.webhook_secret is not None:
            known.append(self.webhook_secret.get_secret_value())
        for target in self.targets.values():
            known += [target.get_secret_value(), *_passwords(target.get_secret_value())]
        known += [token.get_secret_value() for token in self.tokens.values()]
        known += tasks.secrets(self.tasks)
        known += self.named_secrets.values()
        return tuple(known)

    @property
    def is_retention_decided(self) -> bool:
        """Whether DL_RETENTION is given at all."""
        return "DL_RETENTION" in self._sources

    @property
    def is_retention_requested(self) -> bool:
        """Whether DL_RETENTION is given as true, rather than true by default."""
        return self.retention and self.is_retention_decided

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is not wrong, yet probably not what was meant."""
        return self._warnings

    def describe(self) -> tuple[Knob, ...]:
        """Every knob with its present value, where that came from, and its meaning."""
        return tuple(
            Knob(
                variable=str(field.validation_alias),
                value=as_text(getattr(self, name)),
                source=self._sources.get(str(field.validation_alias), "default"),
                default=as_text(field.default),
                meaning=field.description or "",
                accepts=_about(field, "accepts"),
                group=_about(field, "group"),
            )
            for name, field in type(self).model_fields.items()
        )


def as_text(value: Any) -> str:
    """A value the way it is written in the environment, without its secrets."""
    match value:
        case SecretStr():
            secret = value.get_secret_value()
            text = dsn.masked(secret) if "=" in secret or "://" in secret else dsn.MASK
        case bool():
            text = str(value).lower()
        case float():
            text = f"{value:.10g}"
        case Rotation():
            text = value.text
        case tuple() if all(isinstance(part, QueueWorkers) for part in value):
            text = json.dumps([vars(part) for part in value], ensure_ascii=False, separators=(",", ":"))
        case tuple():
            text = ",".join(value)
        case Mapping():
            text = json.dumps({name: _part(v) for name, v in value.items()}, ensure_ascii=False)
        case _:
            text = "" if value is None else str(value)
    return text


def _part(value: Any) -> Any:
    if isinstance(value, Mapping):
        return tasks.shown(value)
    return list(value) if isinstance(value, tuple) else as_text(value)


def _passwords(connection: str) -> list[str]:
    return [value for key, value in dsn.parse(connection).items() if key in ("password", "sslpassword")]


def _read_dotenv(cls: type[BaseSettings], path: Path | None) -> tuple[dict[str, str], list[Fault]]:
    if path is None:
        return {}, []
    try:
        found = DotEnvSettingsSource(cls, env_file=path, case_sensitive=True).env_vars
    except UnicodeDecodeError:
        return {}, [Fault(str(path), "a file that is not UTF-8", "save it as UTF-8")]
    except OSError as error:
        return {}, [Fault(str(path), f"a file that cannot be read ({error.strerror})", "let this user read it")]
    return {name: text for name, text in found.items() if text is not None}, []


def _about(field: FieldInfo, key: str) -> str:
    about = field.json_schema_extra
    return str(about[key]) if isinstance(about, dict) else ""


def _is_secret(field: FieldInfo) -> bool:
    about = field.json_schema_extra
    return "SecretStr" in str(field.annotation) or (isinstance(about, dict) and about["hidden"] is True)
