"""Starts the embedded server again when it is gone, for as long as the service runs."""

from __future__ import annotations

import subprocess
import threading

from app import log
from app.errors import EmbeddedServerError
from app.host.database import Database

_log = log.get(__name__)
_CHECK_INTERVAL_SEC = 1.0
_MAX_PAUSE_SEC = 60.0


def watch(database: Database, stopping: threading.Event) -> None:
    """Until `stopping` is set. A server that cannot be started is tried with pauses that double."""
    pause = _CHECK_INTERVAL_SEC
    while not stopping.wait(pause):
        try:
            revived = database.revive(stopping)
        except (EmbeddedServerError, OSError, subprocess.SubprocessError) as error:
            pause = min(_MAX_PAUSE_SEC, 2 * pause)
            _log.error("postgres.gone", error=str(error), next_try_sec=pause)
        else:
            pause = _CHECK_INTERVAL_SEC
            if revived:
                _log.error("postgres.gone", error="the embedded server was gone, and has been started again")
