"""The sampler of a worker process: looks at attempts that have run for long, once a second, and writes their accounts.

Its thread exists only while there is such an attempt, or will be before the next heartbeat. The heartbeat starts it.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from dataloader.app import log
from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.features.where.accounts import Accounts, NewAccount
from dataloader.app.features.where.sampler_options import SamplerOptions
from dataloader.app.features.where.server_looks import ServerLooks
from dataloader.app.features.where.sessions import QUEUE_SERVER
from dataloader.app.features.where.watched import WatchedAttempt
from dataloader.app.queue.attempt_sessions import ConnectionSettings
from dataloader.pipelines.portable import clock
from dataloader.workers.attempt import Attempt
from dataloader.workers.moments import LateLooks
from dataloader.workers.running_attempts import RunningAttempts

_log = log.get(__name__)
MAX_SERVERS = 10
_HEARTBEATS = 1.5  # the interval until the next one, at least
_EACH_SECOND = 4  # processes that are looked at in each interval
_WRITE_SHARE = 0.1  # of the attempt's age, between two writes of an account that grows
_MAX_UNWRITTEN = 200  # while the database is unavailable; more are dropped, oldest first
_CLOSE_SEC = 5.0


class Sampler:
    """Starts a thread while there is something to look at."""

    def __init__(self, accounts: Accounts, attempts: RunningAttempts, options: SamplerOptions) -> None:
        self._accounts, self._attempts, self._options = accounts, attempts, options
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None  # under the lock
        self._is_closed = threading.Event()
        self._heartbeat_at: float | None = None
        self._due_before = 0.0  # attempts that will be old enough by then are waited for

    @property
    def is_running(self) -> bool:
        return self._thread is not None

    def start_if_needed(self) -> None:
        """Start the thread if an attempt will be old enough before the next heartbeat. Called with each of them."""
        now, last_at = clock(), self._heartbeat_at
        self._heartbeat_at = now
        self._due_before = now if last_at is None else now + _HEARTBEATS * (now - last_at)
        if self._options.interval_sec <= 0 or self._thread is not None or self._is_closed.is_set():
            return
        if next_due_at(self._attempts, self._options.after_sec) > self._due_before:
            return
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Write what is left."""
        self._is_closed.set()
        thread = self._thread
        if thread is not None:
            thread.join(_CLOSE_SEC)

    def _run(self) -> None:
        looks = _Looks(self._accounts, self._attempts, self._options)
        try:
            while looks.run_once(self._due_before) and not self._is_closed.wait(looks.pause_sec()):
                pass
            looks.write(is_last=True)
        except Exception:  # an account is worth no job
            _log.exception("sampler.failed")
        finally:
            looks.close()
            with self._lock:
                self._thread = None


def _running(attempts: RunningAttempts) -> Iterator[tuple[Attempt, float]]:
    """Each with the time of its start."""
    for attempt in attempts.all():
        if attempt.started_at is not None and attempt.ended_at is None:
            yield attempt, attempt.started_at


def next_due_at(attempts: RunningAttempts, after_sec: float) -> float:
    """When the first of the attempts is old enough, or was."""
    return min((started_at for _, started_at in _running(attempts)), default=math.inf) + after_sec


@dataclass
class _Looks:
    """What the thread looks at. That thread uses it alone."""

    accounts: Accounts
    attempts: RunningAttempts
    options: SamplerOptions
    watched: dict[str, WatchedAttempt] = field(default_factory=dict)  # by run
    unwritten: dict[str, NewAccount] = field(default_factory=dict)
    servers: ServerLooks | None = None
    late: LateLooks = field(default_factory=LateLooks)
    next_at: float = 0.0

    def run_once(self, due_before: float) -> bool:
        """Look at all; return whether there is something to look at any more, or will be before then."""
        now = clock()
        late_sec = self.late.late_sec(now)
        for attempt, started_at in _running(self.attempts):
            run = attempt.job.run_text
            if run not in self.watched and now - started_at >= self.options.after_sec:
                self.watched[run] = WatchedAttempt(
                    attempt, now, self._interval_of(attempt), started_at + self.options.after_sec
                )
        frames: Mapping[int, FrameType] = sys._current_frames()
        for run, watched in list(self.watched.items()):
            sessions = () if self.servers is None else self.servers.latest(watched.session_name)
            if self.servers is not None and watched.may_have_sessions:
                watched.account.problems.update(self.servers.problems)
            watched.look(now, frames, late_sec, sessions)
            if watched.has_ended or self.attempts.get(run) is None:
                self._end(run, watched)
            elif watched.is_write_due(now, self.options.write_interval_sec, _WRITE_SHARE):
                self.unwritten[run] = watched.encode(now, self.options.prices)
                watched.written_at = now
        del frames  # else the frames of tasks would live until the next look
        self.write()
        self._request_sessions()
        self.next_at = max(now + self.options.interval_sec, clock())
        if self.watched or self.unwritten:
            return True
        self.next_at = next_due_at(self.attempts, self.options.after_sec)
        return self.next_at <= due_before

    def _interval_of(self, attempt: Attempt) -> float:
        """A look at a process costs more than one at a thread: where there are many, each is looked at less often."""
        others = sum(not watched.attempt.in_thread for watched in self.watched.values())
        return self.options.interval_sec * (1.0 if attempt.in_thread else max(1.0, (others + 1) / _EACH_SECOND))

    def pause_sec(self) -> float:
        self.late.plan(self.next_at)
        return max(0.0, self.next_at - clock())

    def _end(self, run: str, watched: WatchedAttempt) -> None:
        self.unwritten[run] = watched.encode(watched.ended_at, self.options.prices, has_ended=True)
        del self.watched[run]
        watched.close()

    def _request_sessions(self) -> None:
        names = [watched.session_name for watched in self.watched.values() if watched.may_have_sessions]
        if not names:
            return
        if self.servers is None:
            attempt = next(iter(self.watched.values())).attempt
            settings = attempt.settings.connection_settings
            self.servers = ServerLooks({} if settings is None else _dsns(settings), self.options.interval_sec)
        self.servers.request(names)

    def write(self, *, is_last: bool = False) -> None:
        if is_last:  # of a process that stops: attempts that have not ended are released, and end here
            now = clock()
            for run, watched in list(self.watched.items()):
                self.unwritten[run] = watched.encode(now, self.options.prices, has_ended=watched.has_ended)
        if not self.unwritten:
            return
        try:
            self.accounts.write(list(self.unwritten.values()))
        except DatabaseUnavailable as error:
            _log.debug("accounts.not_written", error=str(error))
            for run in list(self.unwritten)[:-_MAX_UNWRITTEN]:
                del self.unwritten[run]
        else:
            self.unwritten.clear()

    def close(self) -> None:
        if self.servers is not None:
            self.servers.close()
        self.late.close()
        for watched in self.watched.values():
            watched.close()


def _dsns(settings: ConnectionSettings) -> dict[str, str]:
    queue: dict[str, Any] = {QUEUE_SERVER: settings.dsn} if settings.dsn else {}
    return dict(list({**queue, **settings.targets}.items())[:MAX_SERVERS])
