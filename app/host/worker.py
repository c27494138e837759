"""A worker pool alone, without HTTP: the main thread waits for a signal, and watches that the others live."""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Callable
from types import FrameType

from app import log
from app.config import Settings
from app.errors import DatabaseUnavailable
from app.host.service import Service, set_up_logging

_log = log.get(__name__)


def work(settings: Settings, *, banner: Callable[[str], None]) -> int:
    """Run jobs until SIGTERM, SIGINT or SIGHUP; returns the exit code."""
    set_up_logging(settings)
    service = Service(settings)
    notes: queue.SimpleQueue[int] = queue.SimpleQueue()

    def leave_a_note(number: int, frame: FrameType | None) -> None:
        notes.put(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, leave_a_note)
    try:
        service.database.prepare()
    except DatabaseUnavailable as error:
        _log.warning("database.away", error=str(error), detail="waiting for it")
    banner(service.database.describe())
    service.start()
    _log.info("worker.stopping", signal=signal.Signals(notes.get()).name)
    clean = service.stop()
    log.tear_down()
    if not clean:
        os._exit(0)  # a pipeline does not stop: leave without waiting for its thread, so that its key is free
    return 0
