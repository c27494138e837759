"""Whether the servers of isolated processes and commands accept the connection check, which is in their PGOPTIONS."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from dataloader.app import log
from dataloader.pipelines.portable import clock
from dataloader.workers.connections.check_options import OptionSupport, probe_options

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
        self._results = dict.fromkeys(servers, OptionSupport.UNREACHABLE)  # under the lock, as the rest
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
            missing = {n: result.value for n, result in self._results.items() if result is not OptionSupport.ACCEPTED}
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
        self._probes = [
            threading.Thread(target=self._probe_server, args=(name,), name="connection-check", daemon=True)
            for name, result in self._results.items()
            if result is OptionSupport.UNREACHABLE
        ]
        for probe in self._probes:
            probe.start()

    def _probe_server(self, name: str) -> None:
        support = self._probe(self._servers[name], _PROBE_TIMEOUT_SEC)
        with self._lock:
            self._results[name] = support
