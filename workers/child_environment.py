"""What libpq finds in the environment of an isolated process or program.

Connections that its code opens itself carry the attempt's name (PGAPPNAME), by which they are ended with the attempt;
and their server ends them by itself when the process is gone (PGOPTIONS), should nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from app import log
from app.queue.connection_check import CHECK_OPTIONS, Acceptance, probe_options
from workers.threads import clock

_log = log.get(__name__)
_PROBE_TIMEOUT_SEC = 2.0
_FIRST_WAIT_SEC = 2.5  # the first attempts wait so long for the answers of all servers
_PROBE_INTERVAL_SEC = 60.0  # between two probes of a server that could not be reached


class ConnectionCheck:
    """Whether all known servers accept the settings of the connection check. Asked by the worker threads.

    The answer of a server is kept; only one that could not be reached is probed again.
    """

    def __init__(
        self, servers: Mapping[str, str], *, probe: Callable[[str, float], Acceptance] = probe_options
    ) -> None:
        self._servers, self._probe = dict(servers), probe
        self._lock = threading.Lock()
        self._answers: dict[str, Acceptance] = {}  # by the server's name; this and the rest under the lock
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
                name: answer.value
                for name in self._servers
                if (answer := self._answers.get(name, Acceptance.UNREACHABLE)) is not Acceptance.ACCEPTED
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
            self._wait_until = now + _FIRST_WAIT_SEC
        self._probed_at = now
        undecided = [name for name in self._servers if self._answers.get(name) in (None, Acceptance.UNREACHABLE)]
        self._probes = [
            threading.Thread(target=self._ask, args=(name,), name="connection-check", daemon=True) for name in undecided
        ]
        for probe in self._probes:
            probe.start()

    def _ask(self, name: str) -> None:
        answer = self._probe(self._servers[name], _PROBE_TIMEOUT_SEC)
        with self._lock:
            self._answers[name] = answer


def session_variables(name: str, *, own_options: str, check: bool) -> dict[str, str]:
    """PGAPPNAME and PGOPTIONS of an attempt; the settings of the task stand last in PGOPTIONS, and so win."""
    options = f"{CHECK_OPTIONS} {own_options}".strip() if check else own_options
    return {"PGAPPNAME": name, **({"PGOPTIONS": options} if options else {})}
