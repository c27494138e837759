"""Refuses a former primary: a server whose timeline this process has seen superseded.

A promotion begins a new timeline. An old primary that comes back still has the former one and takes writes, which are
lost as soon as it is rebuilt as a standby.
"""

from __future__ import annotations

import threading

import psycopg2

# The timeline of the log that is being written; pg_control_checkpoint() has the former one until the next checkpoint.
TIMELINE_QUERY = (
    "SELECT system_identifier::text,"
    " CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_lsn()), 8) END"
    " FROM pg_control_system()"
)
INSUFFICIENT_PRIVILEGE = "42501"


class Timelines:
    """The highest timeline that was met of each cluster, by its system identifier."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._highest: dict[str, int] = {}  # under the lock

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


KNOWN_TIMELINES = Timelines()  # of this process
