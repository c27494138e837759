"""Probes, for whoever starts, feeds and watches processes: started, ready, consuming. All are cheap and open."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.web.operations import OPEN, Subject
from app.web.options import WebOptions
from app.web.problems import Code, NotReady

Probe = Callable[[], Mapping[str, Any]]
_NO_WORKERS = "this process runs no jobs"


@dataclass(frozen=True)
class Probed:
    """What was asked for is so; else the answer is a 503."""

    ready: bool


class Probes:
    """What a process can say of itself. `ready` asks everything that it cannot do without."""

    def __init__(self, ready: Callable[[], bool], probe: Probe | None) -> None:
        self._ready, self._probe = ready, probe
        self._started = False  # once it is true it stays so

    def started(self) -> str | None:
        """None, or why it is not so; likewise the others."""
        self._started = self._started or self._ready()
        return None if self._started else "the process has not been ready yet"

    def ready(self) -> str | None:
        now = self._ready()
        self._started = self._started or now
        return None if now else "some part is missing; /status says which"

    def consuming(self) -> str | None:
        if self._probe is None:
            return _NO_WORKERS
        state = self._probe()
        if state.get("consuming"):
            return None
        return str(state.get("detail") or "the claim loop has not completed a round in time")


def probes(ready: Callable[[], bool], probe: Probe | None, options: WebOptions) -> Subject:
    subject = Subject("probes", "/health", options.max_json_depth)
    process = Probes(ready, probe)
    so = Probed(True)

    @subject.get("/started", answer=Probed, problems=(Code.NOT_READY,), scope=OPEN)
    def health_started() -> Probed:
        """Say whether the process has ever been ready: for a startup probe."""
        return _told(process.started(), so)

    @subject.get("/ready", answer=Probed, problems=(Code.NOT_READY,), scope=OPEN)
    def health_ready() -> Probed:
        """Say whether the process can serve now: its database, its tables, and its workers if it has any."""
        return _told(process.ready(), so)

    @subject.get("/consuming", answer=Probed, problems=(Code.NOT_READY,), scope=OPEN)
    def health_consuming() -> Probed:
        """Say whether jobs are taken here.

        Fails while the claim loop has not completed a round in time, also for want of a database; and in a process
        without workers. Where all threads have a job, nobody has to claim.
        """
        return _told(process.consuming(), so)

    return subject


def _told(why: str | None, so: Probed) -> Probed:
    if why is not None:
        raise NotReady({"ready": False, "detail": why})
    return so
