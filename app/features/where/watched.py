"""An attempt that the sampler looks at: in a thread, in a process of its own, or a program."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any, TypeGuard

from dataloader.app.features.where.account import KINDS, Account, Cause, find_cause
from dataloader.app.features.where.accounts import NewAccount
from dataloader.app.features.where.program_moments import ProgramMoments, read_child_state
from dataloader.app.features.where.sampler_options import Prices
from dataloader.app.features.where.server_looks import SessionLook
from dataloader.app.queue.attempt_sessions import attempt_application_name
from dataloader.workers.attempt import Attempt
from dataloader.workers.moments import LATE_SEC, ThreadMoments

_SILENT_INTERVALS = 3  # without a moment of a child: native code holds its interpreter, or it is stopped
_COMPUTES_SHARE = 0.5
_STARVED_SHARE = 0.02  # of what computes on a host with too few CPUs
_COMPUTING = ("python", "native")
_MAX_TEXT_LENGTH = 300
_MB_PER_GB = 1024


class WatchedAttempt:
    """The sampler's thread uses it."""

    def __init__(self, attempt: Attempt, now: float, interval_sec: float, due_at: float) -> None:
        """`due_at`: when it was old enough for its first look."""
        self._due_at = due_at
        self.attempt, self.account, self._interval_sec = attempt, Account(), interval_sec
        self.session_name = attempt_application_name(attempt.job_id, attempt.job.run_id)
        self.began_at = self._moment_at = now
        self.written_at: float | None = None
        self._last: Cause | None = None
        self._thread: ThreadMoments | None = None
        self._program: ProgramMoments | None = None
        self._asked_child = False
        self._cpu_sec: float | None = None  # of its process
        self._moment_cpu_sec = 0.0
        self._memory_mb_sec, self._peak_mb = 0.0, 0.0
        self._moved = (0, 0)
        self._late_sec = 0.0  # of the last look

    @property
    def has_ended(self) -> bool:
        return self.attempt.ended_at is not None

    @property
    def ended_at(self) -> float:
        return self._moment_at if self.attempt.ended_at is None else self.attempt.ended_at

    @property
    def may_have_sessions(self) -> bool:
        return not self.attempt.in_thread or self.attempt.connections is not None

    def is_write_due(self, now: float, interval_sec: float, share: float) -> bool:
        age_sec = now - (self.attempt.started_at or now)
        if self.written_at is None and self.account.looks > 0:
            return True  # early, so that an attempt that is lost has an account
        return now - (self.written_at or self.began_at) >= max(interval_sec, share * age_sec)

    def look(
        self, now: float, frames: Mapping[int, FrameType], late_sec: float, sessions: Sequence[SessionLook]
    ) -> None:
        attempt, self._late_sec = self.attempt, late_sec
        if attempt.in_thread:
            self._look_at_thread(now, frames, late_sec, sessions)
        elif attempt.child is not None and attempt.child.has_channel:
            self._look_at_child(now, sessions)
        elif attempt.child is not None and not self.has_ended:
            self._look_at_program(now, sessions)
        if self.has_ended:
            self._add_tail()

    def close(self) -> None:
        if self._thread is not None:
            self._thread.close()

    def _look_at_thread(
        self, now: float, frames: Mapping[int, FrameType], late_sec: float, sessions: Sequence[SessionLook]
    ) -> None:
        ident = self.attempt.thread_ident
        if ident is None or self.has_ended:
            return
        if self._thread is None:
            native_id = next((t.native_id for t in threading.enumerate() if t.ident == ident), None)
            if native_id is None:
                return
            self._thread = ThreadMoments(ident, native_id, now)
            moment = self._thread.look(now, frames, late_sec=0.0, awaitable=self.attempt.awaitable)
            if moment is not None:
                self._begin(now, find_cause(moment, sessions), late_sec)
            return
        moment = self._thread.look(now, frames, late_sec=late_sec, awaitable=self.attempt.awaitable)
        if moment is not None and self.attempt.thread_ident == ident:
            self._last = self.account.add_moment(moment, sessions)
            self._moment_at = now

    def _begin(self, now: float, cause: Cause, late_sec: float) -> None:
        """The first look says what the thread does, and not for how long, but that a look was late that it computed."""
        self._last, self._moment_at = cause, now
        held_sec = now - self._due_at if late_sec >= LATE_SEC else 0.0
        is_held = cause.kind == "python" and held_sec >= _SILENT_INTERVALS * self._interval_sec
        if is_held and self._thread_cpu_sec >= _STARVED_SHARE * held_sec:
            self.account.add(Cause("native", cause.place), held_sec)

    @property
    def _thread_cpu_sec(self) -> float:
        """That the attempt had spent at the last moment."""
        seen = None if self._thread is None else self._thread.total_cpu_sec
        return 0.0 if seen is None else seen - self.attempt.cpu_sec_before

    def _look_at_child(self, now: float, sessions: Sequence[SessionLook]) -> None:
        """Read the moments that the child has sent. It may send anything."""
        child = self.attempt.child
        assert child is not None  # noqa: S101 - its caller has seen it
        if not self._asked_child:
            self._asked_child, self._moment_at = True, now
            stat = read_child_state(child.pid)
            self._moment_cpu_sec = 0.0 if stat is None else stat.cpu_sec
            child.request_moments(self._interval_sec)
        while child.moments:
            moment = child.moments.popleft()
            self._read_figures(moment)
            if (valid := _valid_moment(moment, max_sec=now - self._moment_at)) is not None:
                if self._last is None:
                    self._add_before(now, moment.get("up_sec"), valid)
                self._last = self.account.add_moment(valid, sessions)
                self._moment_at += valid["sec"]
                self._moment_cpu_sec = self._cpu_sec or 0.0
        if now - self._moment_at > _SILENT_INTERVALS * self._interval_sec and self._is_stopped():
            self.account.add(Cause("stopped", None if self._last is None else self._last.place), now - self._moment_at)
            self._moment_at = now

    def _is_stopped(self) -> bool:
        """Whether the process of the task is stopped, so that it describes nothing."""
        child = self.attempt.child
        stat = None if child is None or self.has_ended else read_child_state(child.pid)
        return stat is not None and stat.state in ("stopped", "traced")

    def _add_before(self, now: float, up_sec: Any, moment: Mapping[str, Any]) -> None:
        """The time before the first moment: its process started, or native code held its interpreter since before."""
        until = now - moment["sec"]
        began_at = min(until, now - up_sec) if _is_number(up_sec) else until
        if began_at > self._moment_at:
            self.account.add(Cause("start"), began_at - self._moment_at)
            self._moment_at, self._moment_cpu_sec = began_at, 0.0
        sec = until - self._moment_at
        if sec > _SILENT_INTERVALS * self._interval_sec:
            share = _STARVED_SHARE if moment["kind"] in _COMPUTING else _COMPUTES_SHARE
            computed = (self._cpu_sec or 0.0) - self._moment_cpu_sec >= share * sec
            self.account.add(Cause("native" if computed else "other", moment["place"]), sec)
            self._moment_at = until

    def _read_figures(self, moment: Mapping[str, Any]) -> None:
        sec, cpu_sec = moment.get("sec"), moment.get("cpu_sec")
        if _is_number(cpu_sec):
            self._cpu_sec = cpu_sec
        match moment.get("memory_mb"):
            case [resident, peak] if _is_number(resident) and _is_number(peak):
                self._peak_mb = max(self._peak_mb, peak)
                self._memory_mb_sec += resident * (sec if _is_number(sec) else 0.0)
        match moment.get("moved"):
            case [int(rows), int(size)] if 0 <= rows < 2**60 and 0 <= size < 2**60:
                self._moved = (rows, size)

    def _look_at_program(self, now: float, sessions: Sequence[SessionLook]) -> None:
        child = self.attempt.child
        assert child is not None  # noqa: S101 - its caller has seen it
        if self._program is None:
            self._program = ProgramMoments(child.pid, now)
            self._program.look(now)
            self._moment_at = now
            return
        moment = self._program.look(now)
        if moment is not None:
            self._last = self.account.add_moment(moment, sessions)
            self._moment_at = now
            self._cpu_sec, self._peak_mb = self._program.cpu_sec, max(self._peak_mb, self._program.peak_mb)
            self._memory_mb_sec += self._program.memory_mb * moment["sec"]

    def _add_tail(self) -> None:
        """The time from the last moment to the end."""
        ended_at = self.attempt.ended_at or self._moment_at
        if ended_at > self._moment_at and (pending := self._pending(ended_at)) is not None:
            self.account.add(*pending)
            self._moment_at = ended_at

    def _pending(self, now: float) -> tuple[Cause, float] | None:
        """What it has done since the last moment, as far as that is known."""
        sec = now - self._moment_at
        if sec <= 0 or (self._last is None and not self._asked_child):
            return None
        last = self._last or Cause("other")
        if sec <= _SILENT_INTERVALS * self._interval_sec:
            return last, sec
        cpu_sec, queued_sec = self._spent_since_moment()
        if cpu_sec is None:
            return Cause("other", last.place), sec
        has_computed = last.kind in _COMPUTING and cpu_sec >= _STARVED_SHARE * sec
        if has_computed or cpu_sec + queued_sec >= _COMPUTES_SHARE * sec:
            is_held = not self.attempt.in_thread or self._late_sec >= LATE_SEC
            kind = "native" if is_held else "python"
            return (last if last.kind in (kind, "program") else Cause(kind, last.place)), sec
        return Cause("other", last.place), sec

    def _spent_since_moment(self) -> tuple[float | None, float]:
        """CPU time, and of a thread how long it waited for a CPU. None: not known."""
        child = self.attempt.child
        if not self.attempt.in_thread and child is not None:
            stat = None if child.usage is not None else read_child_state(child.pid)
            cpu_sec = child.usage[0] if child.usage is not None else None if stat is None else stat.cpu_sec
            return None if cpu_sec is None else cpu_sec - self._moment_cpu_sec, 0.0
        if self._thread is None or self.attempt.thread_cpu_sec is None:  # it is known at the end
            return None, 0.0
        return self.attempt.thread_cpu_sec - self._thread_cpu_sec, self._thread.read_queued_sec()

    def encode(self, now: float, prices: Prices | None, *, has_ended: bool = False) -> NewAccount:
        attempt, job = self.attempt, self.attempt.job
        wall_sec = max(0.0, now - (attempt.started_at or now))
        cpu_sec, peak_mb, memory_gb_sec = self._figures(wall_sec)
        rows, size = attempt.reported.moved if attempt.in_thread else self._moved
        cost = None
        if prices is not None:
            cost = prices.cost(cpu_sec=cpu_sec or 0.0, memory_gb_sec=memory_gb_sec or 0.0, wall_sec=wall_sec)
        return NewAccount(
            run_id=job.run_text,
            job_id=job.id_text,
            task=job.task,
            attempt=job.attempt,
            has_ended=has_ended,
            wall_sec=round(wall_sec, 3),
            cpu_sec=None if cpu_sec is None else round(cpu_sec, 3),
            peak_memory_mb=peak_mb,
            memory_gb_sec=None if memory_gb_sec is None else round(memory_gb_sec, 3),
            rows=rows,
            bytes=size,
            cost=cost,
            account=self.account.encode(attempt.redact_text, None if has_ended else self._pending(now)),
        )

    def _figures(self, wall_sec: float) -> tuple[float | None, float | None, float | None]:
        """CPU time, and of an attempt with processes of its own its peak memory, and gigabytes times seconds."""
        attempt = self.attempt
        if attempt.in_thread:
            seen = None if self._thread is None else self._thread.cpu_sec
            return (attempt.thread_cpu_sec if attempt.thread_cpu_sec is not None else seen), None, None
        cpu_sec, peak_mb = self._cpu_sec, self._peak_mb
        if attempt.child is not None and attempt.child.usage is not None:
            cpu_sec, peak_mb = attempt.child.usage[0], max(peak_mb, attempt.child.usage[1] / _MB_PER_GB)
        watched_sec = max(self._interval_sec, self._moment_at - self.began_at)
        mean_mb = self._memory_mb_sec / watched_sec
        return cpu_sec, round(peak_mb, 1) or None, mean_mb / _MB_PER_GB * wall_sec if mean_mb else None


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and math.isfinite(value) and value >= 0


def _valid_moment(moment: Mapping[str, Any], *, max_sec: float) -> dict[str, Any] | None:
    """A moment as a child describes it, if it is one. It has at most the seconds that have passed."""
    kind, sec = moment.get("kind"), moment.get("sec")
    waited, queued = moment.get("interpreter_sec"), moment.get("queued_sec", 0.0)
    if kind not in KINDS or not (_is_number(sec) and _is_number(waited) and _is_number(queued)):
        return None
    sec = min(float(sec), max(0.0, max_sec))
    texts = {name: _text(moment.get(name)) for name in ("place", "detail", "calls", "handles")}
    return {
        "kind": kind,
        "sec": sec,
        "interpreter_sec": min(waited, sec),
        "queued_sec": max(0.0, min(queued, sec - waited)),
        "driver": moment.get("driver") is True,
        **texts,
    }


def _text(value: Any) -> str | None:
    return value[:_MAX_TEXT_LENGTH] if isinstance(value, str) else None
