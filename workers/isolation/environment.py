"""The libpq variables of an isolated process or command.

Connections that its code opens carry the attempt's name (PGAPPNAME), by which they are ended with the attempt. Their
server ends them by itself when the process is gone (PGOPTIONS).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from app import log
from app.db.connection_check import CHECK_OPTIONS, OptionSupport, probe_options
from workers.threads import clock

_log = log.get(__name__)
_PROBE_TIMEOUT_SEC = 2.0
_FIRST_PROBE_WAIT_SEC = 2.5  # the first attempts wait this long for all servers
_PROBE_INTERVAL_SEC = 60.0  # of a server that could not be reached


class ConnectionCheck:
    """Whether all known servers accept the settings of the connection check. Used by all worker threads.

    A server's answer is kept; only a server that could not be reached is probed again.
    """

    def __init__(
        self, servers: Mapping[str, str], *, probe: Callable[[str, float], OptionSupport] = probe_options
    ) -> None:
        self._servers, self._probe = dict(servers), probe
        self._lock = threading.Lock()
        self._results: dict[str, OptionSupport] = {}  # by server; under the lock, as the rest
        self._probes: list[threading.Thread] = []
        self._probed_at: float | None = None
        self._wait_until = 0.0
        self._was_accepted = True

    def is_accepted(self) -> bool:
        with self._lock:
            self._start_probes()
            probes, wait_until = self._probes, self._wait_until
        for probe in probes:
            probe.join(max(0.0, wait_until - clock()))
        with self._lock:
            missing = {
                name: support.value
                for name in self._servers
                if (support := self._results.get(name, OptionSupport.UNREACHABLE)) is not OptionSupport.ACCEPTED
            }
            if self._was_accepted and missing:
                _log.warning("connection_check.off", servers=missing)
            self._was_accepted = not missing
            return not missing

    def _start_probes(self) -> None:
        now = clock()
        if self._probed_at is not None and now - self._probed_at < _PROBE_INTERVAL_SEC:
            return
        if self._probed_at is None:
            self._wait_until = now + _FIRST_PROBE_WAIT_SEC
        self._probed_at = now
        undecided = [name for name in self._servers if self._results.get(name) in (None, OptionSupport.UNREACHABLE)]
        self._probes = [
            threading.Thread(target=self._probe_server, args=(name,), name="connection-check", daemon=True)
            for name in undecided
        ]
        for probe in self._probes:
            probe.start()

    def _probe_server(self, name: str) -> None:
        support = self._probe(self._servers[name], _PROBE_TIMEOUT_SEC)
        with self._lock:
            self._results[name] = support


def session_variables(application_name: str, *, task_options: str, add_check: bool) -> dict[str, str]:
    """Return PGAPPNAME and PGOPTIONS of an attempt. The task's own options come last in PGOPTIONS, so that they win."""
    options = f"{CHECK_OPTIONS} {task_options}".strip() if add_check else task_options
    return {"PGAPPNAME": application_name, **({"PGOPTIONS": options} if options else {})}
