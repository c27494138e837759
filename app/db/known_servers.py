"""Which servers this process has met: it refuses a former primary, and a server with another queue."""

from __future__ import annotations

import threading

import psycopg2

# The timeline of the log that is being written; pg_control_checkpoint() has the former one until the next checkpoint.
TIMELINE_QUERY = (
    "SELECT system_identifier::text,"
    " CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_lsn()), 8) END"
    " FROM pg_control_system()"
)


class Timelines:
    """Refuses a former primary: a server whose timeline this process has seen superseded.

    A promotion begins a new timeline. A former primary that comes back still has the old one and takes writes, which
    are lost as soon as it is rebuilt as a standby.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._highest: dict[str, int] = {}  # by system identifier; under the lock

    def knows(self, cluster: str) -> bool:
        """Whether a writable server of this system identifier was met."""
        with self._lock:
            return cluster in self._highest

    def check(self, cluster: str, timeline: str | None) -> None:
        """Raise OperationalError for a writable server of a timeline lower than one met before; a standby has none."""
        if timeline is None:
            return
        number = int(timeline, 16)
        with self._lock:
            highest = self._highest[cluster] = max(number, self._highest.get(cluster, 0))
        if number < highest:
            raise psycopg2.OperationalError(
                f"the server is a former primary: it is on timeline {number}, and {highest} has begun since"
            )


KNOWN_TIMELINES = Timelines()


class Queues:
    """Refuses a server that has another queue than the one that was met by the same connection string.

    A list of hosts may lead to a server that was set up again: its ids, keys and schedules have nothing to do with the
    jobs that this process has. After a restart of the process it is accepted.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._origins: dict[tuple[str, str], str] = {}  # by connection string and schema; under the lock

    def check(self, connection: tuple[str, str], origin: str | None) -> None:
        """Raise OperationalError for another origin than the first; None: it is not known."""
        if origin is None:
            return
        with self._lock:
            known = self._origins.setdefault(connection, origin)
        if known != origin:
            raise psycopg2.OperationalError(
                "the server holds another queue than the one this process has worked with; if it replaces that one, "
                "restart the process"
            )


KNOWN_QUEUES = Queues()
