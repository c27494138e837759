"""What a process consists of, wired from the settings. Building it connects to nothing and starts nothing."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

from flask import Flask
from prometheus_client.registry import Collector

from app import log, traces
from app.addresses import Allowed
from app.config import Settings
from app.errors import ConfigError, DatabaseUnavailable, EmbeddedServerError, Fault, SchemaError
from app.host import revival
from app.host.database import Database
from app.host.house import ages_of
from app.host.numbers import ProcessNumbers
from app.host.pooler import describe_pooler
from app.host.startup import last_error
from app.queue.jobqueue import JobQueue
from app.queue.keys import Keys
from app.queue.pool import Pool
from app.traces import Tracer
from app.web import WebOptions, create_app
from app.web.databasenumbers import DatabaseCollector
from pipelines import contract
from pipelines import targets as places
from workers.courier import CourierOptions
from workers.joblog import LogLimits
from workers.numbers import PoolCollector
from workers.pool import PoolOptions, WorkerPool
from workers.secrets import Vault

_log = log.get(__name__)
_STOP_SEC = 10.0  # for jobs that were asked to stop; less for somebody whose grace is short
_SCHEMA_AGAIN = 2.0  # seconds between two tries to reach the database for its schema
_POOLER_CHECK_SEC = 30.0
_LOOK_AGAIN_SEC = 15.0  # for how long the database's own numbers serve all scrapes


def version() -> str:
    try:
        return metadata.version("dataloader")
    except metadata.PackageNotFoundError:  # run from a checkout that was not installed
        return "0+unknown"


def set_up_logging(settings: Settings) -> None:
    log.set_up(
        log.LogOptions(
            format=settings.log_format,
            debug=settings.debug,
            colour=not settings.no_color,
            timezone=settings.timezone,
            file=settings.log_path and settings.log_path / settings.log_file_name,
            metric_file=settings.metric_path and settings.metric_path / settings.metric_file_name,
            audit_file=settings.audit_log_path and settings.audit_log_path / settings.audit_log_file_name,
            rotate_bytes=settings.log_rotation.max_bytes,
            rotate_every_sec=settings.log_rotation.every_sec,
            keep_files=settings.log_keep_files,
            secrets=settings.secrets,
            masked_keys=settings.masked_keys,
        )
    )
    for warning in settings.warnings:
        _log.warning("settings.doubtful", detail=warning)


class Service:
    """One process's share of the service. `app` answers HTTP; `start` begins to work, if it is to."""

    def __init__(self, settings: Settings, *, workers: bool = True) -> None:
        self.settings = settings
        self.database = Database(settings)
        self._works = workers and bool(settings.workers)
        self._pool: WorkerPool | None = None
        self._fault: str | None = None  # why the worker pool does not run yet; read by anyone
        self._failed = False  # it never will
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self.on_ready: Callable[[], None] = lambda: None  # called once, by the thread that starts everything

    @cached_property
    def loading(self) -> contract.Loading:
        """The pipelines, loaded once; a module that fails is named, and the others work."""
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.append(here)  # packages that the settings name may stand beside the process
        places.configure(*self.settings.places(), otherwise=self._worker_dsn)
        loading = contract.load(self.settings.pipelines, self.settings.tasks)
        faults = [
            _unimportable(name, loading.failures[name]) for name in self.settings.pipelines if name in loading.failures
        ]
        if faults:
            raise ConfigError(faults)
        for module, trace in loading.failures.items():
            _log.error("pipeline.broken", module=module, error=last_error(trace), traceback=trace)
        return loading

    @cached_property
    def app(self) -> Flask:
        settings = self.settings
        _ = self.loading
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
        options = WebOptions(
            version=version(),
            environment=settings.environment,
            timezone=settings.timezone,
            queues=tuple(worker.queue for worker in settings.workers),
            max_body_bytes=settings.max_body_bytes,
            max_batch_bytes=settings.max_batch_bytes,
            max_json_depth=settings.max_json_depth,
            max_text_length=settings.max_text_length,
            default_lease_ttl_sec=settings.default_lease_ttl_sec,
            heartbeat_sec=settings.heartbeat_sec,
            most_waiting_for_logs=max(1, settings.http_threads // 4),
            most_waiting=max(1, settings.http_threads // 4),
            most_streams=max(1, settings.http_threads // 8),
            wide_open=settings.auth == "none",
            trusted_proxies=settings.trusted_proxies,
            session_sec=settings.session_hours * 3600,
            session_secret=None if settings.session_secret is None else settings.session_secret.get_secret_value(),
            webhook_allow=settings.webhook_allow,
            webhook_secret=settings.webhook_secret is not None,
        )
        return create_app(
            JobQueue(pool),
            contract.registry,
            options,
            probe=self.probe if self._works else None,
            pool=pool,
            keys=Keys(pool),
            collectors=self.collectors(pool),
            tracer=self.tracer,
            closing=self._stopping,
        )

    @cached_property
    def tracer(self) -> Tracer:
        return traces.tracer(wanted=self.settings.tracing, version=version())

    def collectors(self, pool: Pool | None = None) -> list[Collector]:
        """What this process can tell Prometheus beside the queue's numbers and those of its requests."""
        found: list[Collector] = [ProcessNumbers(works=self._works, answers=pool is not None)]
        if self._works:
            found.append(PoolCollector(lambda: self._pool))
        if pool is not None:
            found.append(DatabaseCollector(pool, fresh_sec=_LOOK_AGAIN_SEC))
        return found

    def start(self) -> None:
        """Prepare the schema and start the worker pool; waits for neither: the database may be away."""
        threading.Thread(target=self._start, name="starter", daemon=True).start()
        if self.database.is_embedded:
            arguments = (self.database, self._stopping)
            threading.Thread(target=revival.watch, args=arguments, name="postgres-watch", daemon=True).start()

    def _start(self) -> None:
        try:
            self._prepare_schema()
            if self._works:
                self._wait_for_sessions()
                self._start_workers()
            if not self._stopping.is_set():
                with suppress(OSError, ValueError):  # a terminal that is gone is no reason not to work
                    self.on_ready()
        except DatabaseUnavailable:
            if not self._stopping.is_set():
                raise
        except Exception:
            _log.exception("service.start.failed")
            self._fault, self._failed = "the service could not start; its log says why", True

    def _prepare_schema(self) -> None:
        """Until it is done: the database may be away, or somebody may have to run `dataloader migrate`."""
        while not self._stopping.is_set():
            try:
                self.database.prepare()
            except (DatabaseUnavailable, SchemaError, EmbeddedServerError) as error:
                if str(error) != self._fault:
                    _log.error("schema.not_ready", error=str(error))
                self._fault = str(error)
                self._stopping.wait(_SCHEMA_AGAIN)
            else:
                if self._fault is not None:
                    _log.info("schema.ready")
                self._fault = None
                return

    def _wait_for_sessions(self) -> None:
        """Until workers have sessions of their own: without them two attempts could hold one key."""
        timeout = self.settings.pg_connect_timeout
        while not self._stopping.is_set():
            fault = describe_pooler(self._worker_dsn(), timeout=timeout)
            if fault is None:
                self._fault = None
                return
            _log.error("worker.pooler", error=fault)
            self._fault = fault
            self._stopping.wait(_POOLER_CHECK_SEC)

    def _dsn(self) -> str:
        return _reached(self.database.dsn)

    def _worker_dsn(self) -> str:
        return _reached(self.database.worker_dsn)

    def _start_workers(self) -> None:
        _ = self.loading
        options = self.pool_options({worker.queue: worker.concurrency for worker in self.settings.workers})
        with self._lock:
            if not self._stopping.is_set():
                gc.freeze()  # what is loaded by now stays: the collector need not go through all of it again and again
                self._pool = WorkerPool(contract.registry, options)
                self._pool.start()

    def pool_options(self, queues: Mapping[str, int]) -> PoolOptions:
        """What the settings say of a worker pool for these queues."""
        settings = self.settings
        endpoints, targets, tokens = settings.places()
        return PoolOptions(
            dsn=self._worker_dsn(),
            queues=queues,
            schema=settings.schema,
            heartbeat_sec=settings.heartbeat_sec,
            reaper_period_sec=settings.reaper_period_sec,
            claim_backoff_sec=settings.claim_backoff_sec,
            connect_timeout_sec=settings.pg_connect_timeout,
            command_timeout_sec=settings.pg_command_timeout,
            stop_sec=min(_STOP_SEC, max(2.0, settings.shutdown_grace_sec)),
            version=version(),
            stop_grace_sec=settings.stop_grace_sec,
            worker_name=settings.worker_name,
            follow_up_lease_sec=settings.default_lease_ttl_sec,
            packages=tuple(settings.pipelines),
            tasks=dict(settings.tasks),
            endpoints=endpoints,
            targets=targets,
            tokens=tokens,
            vault=Vault(settings.named_secrets, settings.secrets_dir, settings.secrets_allow),
            courier=self._courier_options(),
            alert_period_sec=settings.alert_period_sec,
            tracer=self.tracer,
            logs=LogLimits(
                bytes_a_try=settings.job_log_max_bytes,
                lines_a_sec=settings.job_log_lines_per_sec,
            ),
            ages=ages_of(settings),
            deletes=settings.retention,
            is_retention_requested=settings.is_retention_requested,
        )

    def _courier_options(self) -> CourierOptions:
        settings = self.settings
        return CourierOptions(
            timeout_sec=settings.webhook_timeout_sec,
            threads=settings.webhook_threads,
            allowed=Allowed.of(settings.webhook_allow),
            secret=None if settings.webhook_secret is None else settings.webhook_secret.get_secret_value(),
            disable_after_sec=settings.webhook_disable_hours * 3600,
            keep_sec=settings.webhook_keep_days * 86_400,
            version=version(),
        )

    def probe(self) -> Mapping[str, Any]:
        """How the worker pool is, for /status."""
        pool = self._pool
        if pool is None:
            return {"ready": False, "detail": self._fault or "the worker pool is starting"}
        state = asdict(pool.state())
        beats = state["heartbeat_age_sec"] <= 3 * self.settings.heartbeat_sec + 1
        return {
            **state,
            "connected": beats and state["listener"] != "away",
            "worker_id": str(state["worker_id"]),
            "broken_modules": sorted(self.loading.failures),
        }

    @property
    def broken(self) -> str | None:
        """What is wrong beyond repair, if anything is."""
        if self._failed:
            return self._fault
        dead = () if self._pool is None else self._pool.state().dead
        return f"threads have died: {', '.join(dead)}" if dead and not self._stopping.is_set() else None

    def stop(self) -> bool:
        """End the worker pool within the grace; False: a pipeline does not stop, and the process must be left now."""
        self._stopping.set()
        with self._lock:
            pool = self._pool
        return True if pool is None else pool.stop(self.settings.shutdown_grace_sec)

    def hurry(self) -> None:
        """Somebody does not want to wait for the end of the grace."""
        pool = self._pool
        if pool is not None:
            pool.hurry()

    def close(self) -> None:
        """Let go of the database: the last thing to do."""
        self.database.close()


def _unimportable(package: str, trace: str) -> Fault:
    found = f"{package!r}, which cannot be imported: {last_error(trace)}"
    return Fault("DL_PIPELINES", found, "mend it (`dataloader tasks` shows the whole traceback), or leave it out")


def _reached(dsn: Callable[[], str]) -> str:
    """For those who can wait until the embedded server starts after all."""
    try:
        return dsn()
    except EmbeddedServerError as error:
        raise DatabaseUnavailable(str(error)) from error
