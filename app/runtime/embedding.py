"""Workers within another program's process, on a connection pool that it hands in."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from dataloader.app import log
from dataloader.app.config import load_settings
from dataloader.app.db.callers_pool import CallersPool
from dataloader.app.runtime.service import Service

_log = log.get(__name__)
_SEPARATE_SETTINGS = ("PG_HOST", "PG_PORT", "PG_USER", "PG_PASSWORD", "PG_DATABASE")  # the pool says where


class Workers:
    """The worker threads of a process that does something else too, such as a web application.

    Neither signal handlers nor logging are set up, and no error ends the process. Start them after a fork, never
    before one, and stop them before the process ends.
    """

    def __init__(
        self,
        pool: Any,
        queues: Mapping[str, int],
        *,
        packages: Sequence[str] = (),
        dsn: str | None = None,
        settings: Mapping[str, str] | None = None,
        labels: Mapping[str, bool | str] | None = None,
    ) -> None:
        """`pool` has `getconn()` and `putconn(connection)`, and psycopg2 connections to the queue's database. `queues`
        has the number of threads of each queue, and `packages` those to import for their tasks.

        `dsn` is where the workers' own connections lead, by default where those of the pool do. `settings` are those
        of docs/configuration.md, such as `{"DL_HEARTBEAT_SEC": "5"}`, and count before the environment. `labels` are
        what tasks may require of a process. Raises ConfigError.
        """
        handed_in = CallersPool(pool)
        overrides = {
            **dict.fromkeys(_SEPARATE_SETTINGS, ""),
            "DL_DB_DSN": handed_in.dsn() if dsn is None else dsn,
            "WORKERS_JSON": json.dumps(
                [{"queue": name, "concurrency": n, "labels": dict(labels or {})} for name, n in queues.items()]
            ),
            "DL_PIPELINES": ",".join(packages),
            **(settings or {}),
        }
        loaded = load_settings(dotenv=None, loads_pipelines=bool(packages), overrides=overrides)
        if not packages:  # all tasks are registered by the program itself
            loaded = loaded.model_copy(update={"pipelines": ()})
        executor = CallersPool(pool, schema=loaded.schema, command_timeout_sec=loaded.pg_command_timeout)
        self._service = Service(loaded, executor=executor, on_crash=self._stop_after_crash)
        self._is_started = False

    def start(self) -> None:
        """Load the tasks and start the threads. The database need not answer yet. Raises ConfigError for a package
        that cannot be imported."""
        if self._is_started:
            raise RuntimeError("these workers were started before")
        self._is_started = True
        _ = self._service.pipeline_failures  # by this thread, as some libraries ask for it
        self._service.start()

    def stop(self) -> bool:
        """Claim no more jobs, give running ones DL_SHUTDOWN_GRACE_SEC, then release them without costing an attempt.

        Return False if the code of some job does not stop. Its key stays locked until the process has ended.
        """
        try:
            return self._service.stop()
        finally:
            self._service.close()

    def state(self) -> Mapping[str, Any]:
        """Return the state of the workers, as `worker_pool` of `GET /status`; `ready` is whether they run."""
        return self._service.probe()

    @property
    def failure(self) -> str | None:
        """Why these workers cannot go on, or None. The process may make new ones."""
        return self._service.failure

    def __enter__(self) -> Workers:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _stop_after_crash(self, thread: str) -> None:
        """Stop everything: the jobs of a pool whose thread is gone are neither renewed nor settled."""
        _log.error("service.thread_crashed", detail=f"thread {thread}; its workers are stopping")
        self._service.stop_now()
        threading.Thread(target=self._service.stop, name="stop-workers", daemon=True).start()
