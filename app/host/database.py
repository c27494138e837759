"""Where the queue is: the server that the settings name, or an embedded one, started when it is first asked for."""

from __future__ import annotations

import threading

from app.config import Settings
from app.config.dsn import masked
from app.errors import DatabaseUnavailable, SchemaMissing
from app.host.outage import describe_outage
from app.postgres import EmbeddedServer
from app.queue import schema
from app.queue.repair import Repairs


class Database:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._embedded: EmbeddedServer | None = None  # under the lock, as the next two
        self._dsn: str | None = None
        self._closed = False

    @property
    def is_embedded(self) -> bool:
        return self._settings.dsn is None

    def dsn(self) -> str:
        with self._lock:
            if self._closed:
                raise DatabaseUnavailable("the service is ending")  # a late request must not start the server again
            if self._dsn is None:
                self._dsn = self._find()
            return self._dsn

    def worker_dsn(self) -> str:
        """The way that workers take to the same database: past a pooler, if there is one."""
        way = self._settings.worker_dsn
        return self.dsn() if way is None else way.get_secret_value()

    def _find(self) -> str:
        if self._settings.dsn is not None:
            return self._settings.dsn.get_secret_value()
        embedded = EmbeddedServer(self._settings.data_dir / "postgres")
        dsn = embedded.start()
        self._embedded = embedded
        return dsn

    def migrate(self, repairs: Repairs | None = None) -> schema.Migration:
        return schema.migrate(
            self.worker_dsn(),
            self._settings.schema,
            connect_timeout=self._settings.pg_connect_timeout,
            repairs=repairs,
        )

    def prepare(self) -> None:
        """Make tables where there are none; on the embedded server, which is ours alone, also bring them up to date.

        A server that others share is changed by `dataloader migrate` alone: raises SchemaOutdated or SchemaTooNew.
        """
        if self.is_embedded:
            self.migrate()
            return
        try:
            schema.check(self.dsn(), self._settings.schema, connect_timeout=self._settings.pg_connect_timeout)
        except SchemaMissing:
            self.migrate()

    def revive(self, stopping: threading.Event) -> bool:
        """Start the embedded server again if it is gone; returns whether it was."""
        embedded = self._embedded
        return embedded is not None and embedded.revive(stopping)

    def describe(self) -> str:
        """For people; never with a password."""
        if self._embedded is not None:
            return self._embedded.describe()
        return f"{masked(self.dsn())}, schema {self._settings.schema}"

    def describe_outage(self, error: DatabaseUnavailable) -> str:
        """What keeps the service from its database, for people; never with a password."""
        return describe_outage(str(error), self.dsn())

    def close(self) -> None:
        """Stop an embedded server, if nobody else uses it. In a forked child: only let go of what was inherited."""
        with self._lock:
            self._closed = True
            if self._embedded is not None:
                self._embedded.stop()
                self._embedded = None
