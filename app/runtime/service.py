"""Builds the parts of a process from the settings. Building connects to nothing and starts nothing."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from typing import Any

from flask import Flask
from prometheus_client import Gauge
from prometheus_client.registry import Collector

from dataloader._distribution import version
from dataloader.app import log
from dataloader.app.config import Settings
from dataloader.app.config.checks import working_folder
from dataloader.app.config.loading import is_colour_disabled
from dataloader.app.db.pool import Pool
from dataloader.app.db.statements import Executor
from dataloader.app.errors import ConfigError, DatabaseUnavailable, EmbeddedServerError, SchemaError, SettingError
from dataloader.app.features.doctor.examine import Connections, run_checks
from dataloader.app.features.doctor.facts import DatabaseFacts, detect_pooler
from dataloader.app.features.metrics.routes import DatabaseCollector
from dataloader.app.features.registry import FEATURES
from dataloader.app.http.app import create_app
from dataloader.app.http.auth.api_keys import ApiKeys
from dataloader.app.http.options import WebOptions
from dataloader.app.http.standby_reads import StandbyCollector, StandbyExecutor
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.runtime.database import Database
from dataloader.app.runtime.pool_settings import feature_options, pool_options, retention_periods
from dataloader.app.runtime.startup import Startup, last_error
from dataloader.app.tracing import Tracer, create_tracer
from dataloader.pipelines import contract
from dataloader.pipelines import targets as places
from dataloader.pipelines.executors import Engines
from dataloader.workers.connections.own_connections import wrap_drivers
from dataloader.workers.isolation.interpreter import MIN_VERSION, find_unusable
from dataloader.workers.metrics import PoolCollector
from dataloader.workers.pool import WorkerPool, exit_on_crash
from dataloader.workers.pool_options import PoolOptions
from dataloader.workers.reports.secrets import SecretStore

_log = log.get(__name__)
_SCHEMA_RETRY_SEC = 2.0
_MIN_IDLE_SEC = 1.0  # a thread that has just got a job may not show it yet
_POOLER_CHECK_INTERVAL_SEC = 30.0
_POOLER_CHECKS = 3  # with connections that break
_METRICS_MAX_AGE_SEC = 15.0
_STANDBY_TIMEOUT_SEC = 5.0  # then the primary is asked


def set_up_logging(settings: Settings) -> None:
    log.set_up(
        log.LogOptions(
            format=settings.log_format,
            debug=settings.debug,
            colour=not is_colour_disabled(),
            timezone=settings.timezone,
            file=settings.log_path and settings.log_path / settings.log_file_name,
            metric_file=settings.metric_path and settings.metric_path / settings.metric_file_name,
            audit_file=settings.audit_log_path and settings.audit_log_path / settings.audit_log_file_name,
            rotate_bytes=settings.log_rotation.max_bytes,
            rotate_every_sec=settings.log_rotation.every_sec,
            secrets=settings.secrets,
            masked_keys=settings.masked_keys,
        )
    )
    for warning in settings.warnings:
        _log.warning("settings.warning", detail=warning)


class Service:
    """The parts of one process: `app` answers HTTP, `start` starts the worker pool."""

    def __init__(
        self,
        settings: Settings,
        *,
        workers: bool = True,
        executor: Executor | None = None,  # of a program that embeds the workers
        on_crash: Callable[[str], None] = exit_on_crash,
        max_jobs: int | None = None,  # that the worker pool starts
    ) -> None:
        self.settings, self._max_jobs = settings, max_jobs
        self._executor, self._crash_callback = executor, on_crash
        self.database = Database(settings)
        self._runs_workers = workers and bool(settings.workers)
        self._pool: WorkerPool | None = None
        self._not_ready_reason: str | None = None  # why the worker pool does not run yet; read by anyone
        self._startup_failed = False  # it never will
        self._is_retiring = False
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self.on_ready: Callable[[], None] = lambda: None  # called once, by the thread that starts everything

    @cached_property
    def pipeline_failures(self) -> dict[str, str]:
        """Load the pipelines, once; return the tracebacks of those that fail. They are logged, and the others work."""
        # Packages of the settings may be in the working directory.
        sys.path += [folder for folder in working_folder() if folder not in sys.path]
        if self._runs_workers and self.settings.wrap_drivers:
            wrap_drivers()
        places.configure(*self.settings.pipeline_connections(), fallback_dsn=self._worker_dsn)
        failures = contract.load_tasks(self.settings.pipelines, self.settings.tasks)
        if broken := [name for name in self.settings.pipelines if name in failures]:
            remedy = "correct it (`dataloader tasks` shows the whole traceback), or leave it out"
            found = [f"{name!r}, which cannot be imported: {last_error(failures[name])}" for name in broken]
            raise ConfigError([SettingError("DL_PIPELINES", text, remedy) for text in found])
        if self._runs_workers and (unusable := find_unusable(contract.registry)):
            remedy = f"name a Python of version {'.'.join(map(str, MIN_VERSION))} or newer that the worker may start"
            raise ConfigError([SettingError("DL_TASKS", text, remedy) for text in unusable])
        for module, trace in failures.items():
            _log.error("pipeline.import_failed", module=module, error=last_error(trace), traceback=trace)
        return failures

    def startup(self) -> Startup:
        """What the banner of a service that is ready shows."""
        failures = self.pipeline_failures
        return Startup(self.database.describe(), None, failures, frozenset(contract.registry.names))

    @cached_property
    def app(self) -> Flask:
        settings = self.settings
        _ = self.pipeline_failures
        pool = Pool(
            self._dsn,
            size=settings.pg_pool_size,
            overflow=settings.pg_max_overflow,
            recycle_sec=settings.pg_pool_recycle,
            connect_timeout_sec=settings.pg_connect_timeout,
            command_timeout_sec=min(settings.pg_command_timeout, 15.0),  # a person or a program waits for the answer
            use_pool=settings.pg_use_pool,
            schema=settings.schema,
            transactions_only=settings.worker_dsn is not None,
        )
        standby = self._standby_executor(pool)
        options = WebOptions(
            version=version(),
            environment=settings.environment,
            timezone=settings.timezone,
            queues=tuple(worker.queue for worker in settings.workers),
            worker_labels=settings.worker_labels,
            default_lease_ttl_sec=settings.default_lease_ttl_sec,
            heartbeat_sec=settings.heartbeat_sec,
            max_waiters=max(1, settings.http_threads // 2),
            max_streams=max(1, settings.http_threads // 8),
            auth_disabled=settings.auth == "none",
            trusted_proxies=settings.trusted_proxies,
            max_data_age_sec=None if standby is None else settings.read_max_lag_sec,
            webhook_allowed_hosts=settings.webhook_allowed_hosts,
            has_webhook_secret=settings.webhook_secret is not None,
            settings=settings.describe(),
            retention=retention_periods(settings),
            features=self._feature_options,
            examine=lambda: run_checks(
                DatabaseFacts(pool), doctor_connections(settings, self._dsn(), self._feature_options), FEATURES
            ),
        )
        return create_app(
            JobQueue(standby or pool),
            contract.registry,
            options,
            probe=self.probe if self._runs_workers else None,
            pool=pool,
            keys=ApiKeys(pool),
            collectors=[*self.collectors(pool), *([] if standby is None else [StandbyCollector(standby)])],
            tracer=self.tracer,
            closing=self._stopping,
        )

    @cached_property
    def _secret_store(self) -> SecretStore:
        settings = self.settings
        return SecretStore(settings.named_secrets, settings.secrets_dir, settings.task_secrets)

    @cached_property
    def _feature_options(self) -> Mapping[str, Any]:
        return feature_options(self.settings, self._secret_store)

    def _standby_executor(self, primary: Pool) -> StandbyExecutor | None:
        settings = self.settings
        if settings.read_dsn is None:
            return None
        standby = Pool(
            settings.read_dsn.get_secret_value(),
            size=settings.pg_pool_size,
            overflow=settings.pg_max_overflow,
            recycle_sec=settings.pg_pool_recycle,
            connect_timeout_sec=min(settings.pg_connect_timeout, _STANDBY_TIMEOUT_SEC),
            command_timeout_sec=min(settings.pg_command_timeout, _STANDBY_TIMEOUT_SEC),
            application_name="dataloader-read",
            use_pool=settings.pg_use_pool,
            schema=settings.schema,
            standby_only=True,
        )
        return StandbyExecutor(primary, standby, max_lag_sec=settings.read_max_lag_sec)

    @cached_property
    def tracer(self) -> Tracer | None:
        return create_tracer(version()) if self.settings.tracing else None

    def collectors(self, pool: Pool | None = None) -> list[Collector]:
        """Return the collectors of this process: all metrics but those of the queue and of requests."""
        found: list[Collector] = [*process_metrics(has_workers=self._runs_workers, has_api=pool is not None)]
        if self._runs_workers:
            found.append(PoolCollector(lambda: self._pool))
        if pool is not None:
            found.append(DatabaseCollector(pool, FEATURES, max_age_sec=_METRICS_MAX_AGE_SEC))
        return found

    def start(self) -> None:
        """Prepare the schema and start the worker pool in the background: the database may be unavailable."""
        threading.Thread(target=self._start_parts, name="startup", daemon=True).start()
        if self.database.is_embedded:
            watch = self.database.watch_embedded_server
            threading.Thread(target=watch, args=(self._stopping,), name="postgres-watch", daemon=True).start()

    def _start_parts(self) -> None:
        try:
            self._prepare_schema()
            if self._runs_workers:
                self._wait_for_direct_connection()
                self._start_workers()
            if not self._stopping.is_set():
                with suppress(OSError, ValueError):  # a terminal that is gone is no reason not to work
                    self.on_ready()
        except DatabaseUnavailable:
            if not self._stopping.is_set():
                raise
        except Exception:
            _log.exception("service.start_failed")
            self._not_ready_reason, self._startup_failed = "the service could not start; its log says why", True

    def _prepare_schema(self) -> None:
        """Retry until it is done: the database may be unavailable, or the operator has to run `dataloader migrate`."""
        while not self._stopping.is_set():
            try:
                self.database.prepare()
            except (DatabaseUnavailable, SchemaError, EmbeddedServerError) as error:
                if str(error) != self._not_ready_reason:
                    _log.error("schema.not_ready", error=str(error))
                self._not_ready_reason = str(error)
                self._stopping.wait(_SCHEMA_RETRY_SEC)
            else:
                if self._not_ready_reason is not None:
                    _log.info("schema.ready")
                self._not_ready_reason = None
                return

    def _wait_for_direct_connection(self) -> None:
        """Wait until workers have sessions of their own: without them two attempts could hold one key."""
        while (fault := self._find_pooler()) is not None:
            _log.error("worker.pooler_refused", error=fault)
            self._not_ready_reason = fault
            if self._stopping.wait(_POOLER_CHECK_INTERVAL_SEC):
                return
        self._not_ready_reason = None

    def _find_pooler(self) -> str | None:
        """Return why workers cannot use their connection; None if they can, or if it breaks each time."""
        for _ in range(_POOLER_CHECKS):
            with suppress(DatabaseUnavailable):
                return _describe_pooler(self._worker_dsn(), timeout_sec=self.settings.pg_connect_timeout)
            if self._stopping.wait(_SCHEMA_RETRY_SEC):
                break
        return None

    def _dsn(self) -> str:
        return _as_database_error(self.database.dsn)

    def _worker_dsn(self) -> str:
        return _as_database_error(self.database.worker_dsn)

    def _start_workers(self) -> None:
        _ = self.pipeline_failures
        options = self.pool_options({worker.queue: worker.concurrency for worker in self.settings.workers})
        with self._lock:
            if not self._stopping.is_set():
                if self._executor is None:
                    gc.freeze()  # modules stay: the collector need not visit them
                self._pool = WorkerPool(contract.registry, options, on_crash=self._crash_callback)
                self._pool.start()

    def pool_options(self, queues: Mapping[str, int]) -> PoolOptions:
        """Return the options of a worker pool for these queues."""
        return pool_options(
            self.settings,
            queues,
            dsn=self._worker_dsn(),
            secret_store=self._secret_store,
            executor=self._executor,
            tracer=self.tracer,
            max_jobs=self._max_jobs,
        )

    def probe(self) -> Mapping[str, Any]:
        """Return the state of the worker pool, for /status."""
        pool = self._pool
        if pool is None:
            return {"ready": False, "detail": self._not_ready_reason or "the worker pool is starting"}
        state = asdict(pool.state())
        has_heartbeat = state["heartbeat_age_sec"] <= 3 * self.settings.heartbeat_sec + 1
        return {
            **state,
            "connected": has_heartbeat and state["listener"] != "disconnected",
            "outage": None if state["outage"] is None else log.redact_text(state["outage"]),
            "worker_id": str(state["worker_id"]),
            "broken_modules": sorted(self.pipeline_failures),
        }

    @property
    def failure(self) -> str | None:
        """Return why the process cannot go on, or None."""
        if self._startup_failed:
            return self._not_ready_reason
        dead = () if self._pool is None else self._pool.state().crashed_threads
        return f"threads have died: {', '.join(dead)}" if dead and not self._stopping.is_set() else None

    def stop(self) -> bool:
        """Stop the worker pool within the grace; return whether it stopped. If not the process must exit."""
        self._stopping.set()
        with self._lock:
            pool = self._pool
        return True if pool is None else pool.stop(self.settings.shutdown_grace_sec)

    def stop_within(self, sec: float) -> None:
        """Have running jobs stop in so many seconds, once a `stop` is in progress, whatever their grace."""
        if self._pool is not None:
            self._pool.stop_within(sec)

    def retire(self) -> None:
        """Start no more jobs; there is no work left when those that run have ended."""
        self._is_retiring = True

    def work_left(self, max_idle_sec: float | None) -> bool:
        """Whether there is a reason to go on: no, if all jobs that may run have run, or none ran for so long."""
        pool = self._pool
        if pool is None:
            return True
        idle_sec = pool.idle_sec
        if pool.has_started_all_jobs or self._is_retiring:
            pool.stop_claiming()
            return idle_sec < _MIN_IDLE_SEC
        return max_idle_sec is None or idle_sec < max_idle_sec

    @property
    def would_lose_sec(self) -> float:
        """How long the running jobs without a checkpoint have run so far."""
        return 0.0 if self._pool is None else self._pool.would_lose_sec

    def stop_now(self) -> None:
        """Stop without waiting for the end of the grace."""
        if self._pool is not None:
            self._pool.stop_now()

    def close(self) -> None:
        """Close the database: the last step."""
        self.database.close()


def _as_database_error(dsn: Callable[[], str]) -> str:
    """Raise DatabaseUnavailable instead of EmbeddedServerError, for callers that retry."""
    try:
        return dsn()
    except EmbeddedServerError as error:
        raise DatabaseUnavailable(str(error)) from error


def _describe_pooler(dsn: str, *, timeout_sec: float) -> str | None:
    """Return why workers cannot use this connection; None if they can. Raises DatabaseUnavailable."""
    found = detect_pooler(dsn, timeout_sec=timeout_sec)
    if not (found.shared or found.wandered or found.lost_state or found.lost_prepared):
        return None
    lost = ["LISTEN", "session locks"]
    lost += ["settings"] if found.lost_state else []
    lost += ["prepared statements"] if found.lost_prepared else []
    return (
        f"workers reach the database through a pooler in transaction mode, which loses {', '.join(lost)}: no job is "
        "started; DL_WORKER_DSN must name PostgreSQL itself, or a pooler with pool_mode = session; `dataloader doctor` "
        "looks again"
    )


def doctor_connections(settings: Settings, api_dsn: str, features: Mapping[str, Any]) -> Connections:
    """`features` are the options of features by name."""
    return Connections(
        api_dsn=api_dsn,
        worker_dsn=None if settings.worker_dsn is None else settings.worker_dsn.get_secret_value(),
        timeout_sec=settings.pg_connect_timeout,
        api_connections=settings.pg_pool_size + settings.pg_max_overflow,
        engine_problems=Engines(settings.executors).problems(),
        features=features,
    )


def process_metrics(*, has_workers: bool, has_api: bool) -> list[Gauge]:
    """Each process has its own: of several processes behind one port, one answers a scrape."""
    process = Gauge(
        "dataloader_process", "The answering process and its role; always 1.", ("pid", "role"), registry=None
    )
    process.labels(os.getpid(), "both" if has_workers and has_api else "workers" if has_workers else "api").set(1)
    started_at = Gauge(
        "dataloader_process_start_time_seconds", "When the process started, in seconds since 1970.", registry=None
    )
    started_at.set_to_current_time()
    return [process, started_at]
