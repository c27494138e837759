"""The queue's database: the server that the settings name, or an embedded one, started when it is first needed."""

from __future__ import annotations

import re
import shlex
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager

from dataloader.app import log
from dataloader.app.config import Settings
from dataloader.app.config.dsn import mask_dsn, parse_dsn
from dataloader.app.db import schema
from dataloader.app.db.pool import Pool
from dataloader.app.db.repairs import apply_repairs
from dataloader.app.db.schema_statements import Repair
from dataloader.app.errors import DatabaseUnavailable, EmbeddedServerError, SchemaMissing
from dataloader.app.postgres import EmbeddedServer

_log = log.get(__name__)
_CHECK_INTERVAL_SEC = 1.0
_MAX_RETRY_SEC = 60.0
_DEFAULT_PORT = "5432"
_MISSING_DATABASE = re.compile(r'FATAL: +database "(.+)" does not exist')


class Database:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._embedded: EmbeddedServer | None = None  # under the lock, as the next two
        self._dsn: str | None = None
        self._closed = False

    @contextmanager
    def pool(self, application_name: str, *, direct: bool = True) -> Iterator[Pool]:
        """Open a pool of one connection; `direct`: past a pooler, if the settings name a way."""
        settings = self._settings
        pool = Pool(
            self.worker_dsn if direct else self.dsn,
            size=1,
            overflow=0,
            connect_timeout_sec=settings.pg_connect_timeout,
            command_timeout_sec=settings.pg_command_timeout,
            application_name=application_name,
            schema=settings.schema,
            transactions_only=not direct,
        )
        with closing(pool):
            yield pool

    @property
    def is_embedded(self) -> bool:
        return self._settings.dsn is None

    def dsn(self) -> str:
        with self._lock:
            if self._closed:
                raise DatabaseUnavailable("the service is ending")  # a late request must not start the server again
            if self._dsn is None:
                if self._settings.dsn is not None:
                    self._dsn = self._settings.dsn.get_secret_value()
                else:
                    embedded = EmbeddedServer(self._settings.data_dir / "postgres")
                    self._dsn = embedded.start()
                    self._embedded = embedded
            return self._dsn

    def worker_dsn(self) -> str:
        """The workers' connection string: past a pooler, if there is one."""
        worker_dsn = self._settings.worker_dsn
        return self.dsn() if worker_dsn is None else worker_dsn.get_secret_value()

    def migrate(self, lock_wait_sec: float = schema.LOCK_WAIT_SEC) -> schema.Migration:
        return schema.migrate(
            self.worker_dsn(),
            self._settings.schema,
            connect_timeout_sec=self._settings.pg_connect_timeout,
            lock_wait_sec=lock_wait_sec,
            report=_report_migration,
        )

    def apply_repairs(self, repairs: Iterable[Repair]) -> None:
        apply_repairs(
            self.worker_dsn(),
            repairs,
            self._settings.schema,
            connect_timeout_sec=self._settings.pg_connect_timeout,
            report=_report_migration,
        )

    def prepare(self) -> None:
        """Create the tables if there are none, and upgrade those of the embedded server.

        Those of another server are upgraded by `dataloader migrate` only: raises SchemaOutdated or SchemaTooNew.
        """
        if self.is_embedded:
            self.migrate()
            return
        try:
            schema.check(self.dsn(), self._settings.schema, connect_timeout_sec=self._settings.pg_connect_timeout)
        except SchemaMissing:
            self.migrate()

    def prepare_or_describe_outage(self) -> str | None:
        """Prepare the tables; return why the database does not answer, or None. Raises if they cannot be used."""
        try:
            self.prepare()
        except DatabaseUnavailable as error:
            _log.warning("database.unavailable", error=str(error), detail="waiting for it")
            return describe_outage(str(error), self.dsn())
        return None

    def watch_embedded_server(self, stopping: threading.Event) -> None:
        """Start the embedded server again when it is gone, until `stopping` is set; a failure doubles the pause."""
        pause = _CHECK_INTERVAL_SEC
        while not stopping.wait(pause):
            try:
                restarted = self._embedded is not None and self._embedded.revive(stopping)
            except (EmbeddedServerError, OSError, subprocess.SubprocessError) as error:
                pause = min(_MAX_RETRY_SEC, 2 * pause)
                _log.error("postgres.unavailable", error=str(error), retry_in_sec=pause)
            else:
                pause = _CHECK_INTERVAL_SEC
                if restarted:
                    _log.error("postgres.restarted", error="the embedded server was gone, and has been started again")

    def describe(self) -> str:
        """Describe for people where the database is; never with a password."""
        if self._embedded is not None:
            return self._embedded.describe()
        return f"{mask_dsn(self.dsn())}, schema {self._settings.schema}"

    def close(self) -> None:
        """Stop an embedded server that no other process uses. A forked child only closes what it has inherited."""
        with self._lock:
            self._closed = True
            if self._embedded is not None:
                self._embedded.stop()
                self._embedded = None


def _report_migration(text: str) -> None:
    _log.warning("migration.waiting", detail=text)


def describe_outage(error: str, dsn: str) -> str:
    """`waiting for the database at db:5432: Connection refused`, or what creates a database that does not exist."""
    try:
        parameters = parse_dsn(dsn)
    except ValueError:
        parameters = {}
    place = _format_hosts(parameters)
    missing = _MISSING_DATABASE.search(error)
    if missing is not None:
        options = {"-h": parameters.get("host"), "-p": parameters.get("port"), "-U": parameters.get("user")}
        words = [word for option, value in options.items() if value for word in (option, value)]
        command = shlex.join(["createdb", *words, missing[1]])
        return f"database {missing[1]!r} does not exist at {place}: create it with: {command}"
    first = error.strip().splitlines()[0] if error.strip() else "no answer"
    reason = re.sub(r"^(FATAL|ERROR): +", "", first.rpartition(" failed: ")[2])
    return f"waiting for the database at {place}: {reason}"


def _format_hosts(parameters: Mapping[str, str]) -> str:
    hosts = (parameters.get("host") or parameters.get("hostaddr") or "the local socket").split(",")
    ports = (parameters.get("port") or _DEFAULT_PORT).split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    return ", ".join(f"{host}:{port or _DEFAULT_PORT}" for host, port in zip(hosts, ports, strict=False))
