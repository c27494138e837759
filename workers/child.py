"""A process with a job in it, seen from the worker: its streams, its ladder, its end.

It speaks JSON lines over a socket pair; what it prints is read line by line. A stop climbs from a word to SIGKILL of
the whole process group: here it always ends, and the journal says by which rung. Between the two stands the leash
(`leash.py`), which ends the group if this process is gone.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app import log
from app.queue.attempt_sessions import Places, end_sessions, servers_of, session_name
from workers.attempt import Attempt
from workers.outcome import Left
from workers.threads import Bell, clock

_log = log.get(__name__)
_LEASH = str(Path(__file__).with_name("leash.py"))
_CHUNK = 65_536
_LONGEST_LINE = 8_192  # of what is printed
_LONGEST_MESSAGE = 16_000_000  # beside the result
_STDERR_TAIL = 20  # lines that are told with the error of a program
_LOOK = 1.0  # seconds between two looks whether the child still lives, should all its descriptors be held by others
_SEND_AGAIN = 0.02  # seconds, while it does not take what is sent
_REST = 2.0  # seconds in which what it has left in its streams is read: a process that escaped may go on writing
_LINGER = 5.0  # seconds from its last word to its end
_MUCH = 0.005  # seconds of reading at a go, after which a flood has to wait for as long
_ENDS = {
    "value": {"result"},
    "stop": {"reason"},
    "error": {"told", "traceback", "answer", "pause", "stopped"},
    "unknown": {"told"},
    "finished": set[str](),
}


class Unstarted(Exception):
    """There is no process, for the operating system refused it."""

    def __init__(self, error: OSError | ValueError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True)
class Exit:
    """How a process ended."""

    code: int  # negative: by this signal
    peak_kb: int
    by_us: bool  # a rung of ours brought it down, before it said anything
    end: dict[str, Any] | None  # what it said last

    def describe(self) -> str:
        peak = f", peak memory {self.peak_kb // 1024} MB"
        if self.code >= 0:
            return f"the process exited with code {self.code}{peak}"
        name = signal.Signals(-self.code).name if -self.code in set(signal.Signals) else str(-self.code)
        why = {
            "SIGKILL": " (was the machine out of memory?)",
            "SIGSEGV": " (a fault in native code)",
            "SIGXCPU": " (its limit of processor time)",
        }.get(name, "")
        return f"the process was killed by {name}{why}{peak}"

    def left(self, attempt: Attempt) -> Left:
        left = attempt.left()
        return Left(
            left.progress, left.checkpoint, {**(left.notes or {}), "exit_code": self.code, "peak_kb": self.peak_kb}
        )


class Child:
    """A process, its streams and its ladder. One thread's own."""

    def __init__(
        self,
        attempt: Attempt,
        argv: list[str],
        *,
        channel: socket.socket | None = None,
        inherit: tuple[int, ...] = (),
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Raises Unstarted. Takes the channel over: `watch` closes it."""
        self._attempt, self._channel = attempt, channel
        self._argv = argv
        with ExitStack() as undo:
            if channel is not None:
                undo.enter_context(channel)
            try:
                self._leash, theirs = socket.socketpair()
                undo.enter_context(self._leash)
                with theirs:
                    self._bell = Bell()
                    undo.callback(self._bell.close)
                    self._process = subprocess.Popen(  # the task's own program, and no shell
                        [sys.executable, "-I", "-S", _LEASH, str(theirs.fileno()), *argv],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        pass_fds=(theirs.fileno(), *inherit, *attempt.tools.process_lock.inherited()),
                        cwd=cwd,
                        env=env,
                        start_new_session=True,
                    )
            except (OSError, ValueError) as error:
                raise Unstarted(error) from error
            self._held = undo.pop_all()
        assert self._process.stdout is not None and self._process.stderr is not None  # noqa: S101, PT018 - pipes
        self._streams = {
            self._process.stdout.fileno(): "stdout",
            self._process.stderr.fileno(): "stderr",
            self._leash.fileno(): "leash",
        }
        if channel is not None:
            channel.setblocking(False)
            self._streams[channel.fileno()] = "channel"
        self._partial = {stream: bytearray() for stream in self._streams.values()}
        self._outgoing = bytearray()
        self._last: list[str] = []
        self._end: dict[str, Any] | None = None
        self._end_at: float | None = None
        self._exit: tuple[int, int] | None = None  # what the leash says of it: code, peak of memory
        self._refused: OSError | None = None  # likewise: there was no such program
        self._climbed_at: float | None = None
        self._brought_down = False
        self._look = min(_LOOK, attempt.lease.ttl / 8)  # renewals of a short lease must be told in time
        self._told_until: float | None = None  # when the leash was told that the lease ends

    @property
    def pid(self) -> int:
        """Of the leash, and so of the group."""
        return self._process.pid

    def send(self, message: Mapping[str, Any]) -> None:
        """A word to the child. It is not waited for: a child that does not listen must not hold up its own stop."""
        self._outgoing += json.dumps(message).encode() + b"\n"
        self._send_on()

    def _send_on(self) -> None:
        if self._channel is not None and self._outgoing:
            try:
                del self._outgoing[: self._channel.send(self._outgoing)]
            except BlockingIOError:
                return
            except OSError:  # it hears nothing any more
                self._outgoing.clear()

    def watch(self) -> Exit:
        """Until it has ended; then nothing of its group is left, nor of its sessions. Raises Unstarted."""
        try:
            with self._attempt.woken_by_stop(self._bell.ring):
                while not self._has_exited():
                    self._lengthen_the_leash()
                    self._send_on()
                    self._listen(self._until_next_rung())
                    self._climb()
        finally:
            if self._told_until is not None and clock() >= self._told_until:
                self._brought_down = True  # by the leash
            returned, peak = self._reap()
            self._listen_to_the_rest()
            self._close()
        if self._refused is not None:
            raise Unstarted(self._refused)
        code, peak = self._exit or (returned, peak)
        return Exit(code, peak, self._brought_down and self._end is None, self._end)

    def _lengthen_the_leash(self) -> None:
        """Until when it may let the job run, should nobody renew the lease: nobody else may start the job before."""
        lease = self._attempt.lease
        until = lease.renewed + lease.ttl
        if until != self._told_until:
            self._told_until = until
            with suppress(OSError):
                self._leash.send(b"%.3f\n" % until, socket.MSG_DONTWAIT)

    def last_words(self) -> str:
        return str(log.mask("".join(f"\n{line}" for line in self._last)))

    def _has_exited(self) -> bool:
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # somebody else has waited for it
            return True

    def _reap(self) -> tuple[int, int]:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # not reaped yet, so the group's number is still its own
        try:
            _, status, usage = os.wait4(self.pid, 0)
        except ChildProcessError:
            self._process.returncode = 255
            return 255, 0
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return self._process.returncode, usage.ru_maxrss

    # ── what it says ────────────────────────────────────────────────────────────────────────────────────────────

    def _listen(self, timeout: float) -> None:
        self._bell.wait(min(timeout, _SEND_AGAIN if self._outgoing else self._look), *self._streams)
        began = clock()
        for number in list(self._streams):
            self._read(number)
        spent = clock() - began
        if spent > _MUCH:
            self._bell.wait(min(spent, self._look))  # the other jobs of this process want the interpreter too

    def _listen_to_the_rest(self) -> None:
        deadline = clock() + _REST
        for number in list(self._streams):
            while number in self._streams and self._read(number) and clock() < deadline:
                pass
        for stream in ("stdout", "stderr"):
            if self._partial[stream]:
                self._line(stream, bytes(self._partial[stream]))

    def _read(self, number: int) -> bool:
        """Take what is there; False: nothing is. Never waits."""
        waiter = select.poll()
        waiter.register(number, select.POLLIN)
        if not waiter.poll(0):
            return False
        try:
            chunk = os.read(number, _CHUNK)
        except OSError:
            chunk = b""
        stream = self._streams[number]
        if not chunk:
            del self._streams[number]
            if stream == "leash":  # it ends this very moment
                with suppress(ChildProcessError):
                    os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            return False
        for line in self._lines(stream, chunk):
            self._heard(stream, line)
        return True

    def _lines(self, stream: str, chunk: bytes) -> list[bytes]:
        partial = self._partial[stream]
        partial += chunk
        longest = _LONGEST_LINE
        if stream == "channel":
            longest = _LONGEST_MESSAGE + 6 * self._attempt.facts.max_result_bytes  # written out as JSON at its longest
        if b"\n" not in chunk and len(partial) <= longest:
            return []
        *lines, rest = bytes(partial).split(b"\n")
        if len(rest) > longest:
            lines, rest = [*lines, rest], b""
        self._partial[stream] = bytearray(rest)
        return lines

    def _heard(self, stream: str, line: bytes) -> None:
        match stream:
            case "channel":
                self._message(line)
            case "leash":
                self._word_of_the_leash(line)
            case _:
                self._line(stream, line)

    def _line(self, stream: str, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip("\r")
        if stream == "stderr":
            self._last = [*self._last[1 - _STDERR_TAIL :], text[:_LONGEST_LINE]]
        attempt = self._attempt
        attempt.tools.log(attempt.job_id, attempt.attempt, "INFO", stream, text)

    def _word_of_the_leash(self, line: bytes) -> None:
        match line.split():
            case [b"exit", code, peak]:
                self._exit = int(code), int(peak)
            case [b"error", number]:
                self._refused = OSError(int(number), os.strerror(int(number)), self._argv[0])

    def _message(self, line: bytes) -> None:
        """Whatever stands there: native code of the pipeline may have written into a descriptor that is not its own."""
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            said = None
        attempt = self._attempt
        match said:
            case {"progress": dict(progress)}:
                attempt.replace_progress(progress)
            case {"checkpoint": cursor}:
                with suppress(ValueError):
                    attempt.keep_checkpoint(cursor)
            case {"log": [str(level), str(stream), str(text)]}:
                attempt.tools.log(attempt.job_id, attempt.attempt, level, stream, text)
            case {"end": {"how": str(how), **more}} if how in _ENDS and _ENDS[how] <= more.keys():
                self._end, self._end_at = said["end"], clock()
            case _:
                _log.error("child.garbled", job=str(attempt.job_id))

    # ── how it is stopped ───────────────────────────────────────────────────────────────────────────────────────

    def _until_next_rung(self) -> float:
        if self._attempt.stop_asked_at is None or self._climbed_at is None:
            return _LOOK
        return max(0.0, self._climbed_at + self._attempt.tools.stop_grace_sec - clock())

    def _climb(self) -> None:
        """flag → query → SIGTERM → SIGKILL; a program that hears no words begins with SIGTERM."""
        attempt, now = self._attempt, clock()
        if self._end_at is not None:
            if now - self._end_at > _LINGER:
                os.killpg(self.pid, signal.SIGKILL)
            return
        if attempt.stop_asked_at is None or self._has_exited():
            return
        if attempt.must_end_now:
            self._signal("sigkill", signal.SIGKILL)
            return
        if self._climbed_at is None:
            self._climbed_at = now
            if self._channel is None:
                self._signal("sigterm", signal.SIGTERM)
            else:
                self.send({"stop": str(attempt.stopping)})
            return
        if now - self._climbed_at < attempt.tools.stop_grace_sec:
            return
        self._climbed_at = now
        match attempt.rung:
            case "flag":
                attempt.rung = "query"
                self.send({"cancel": True})
            case "query":
                self._signal("sigterm", signal.SIGTERM)
            case _:
                self._signal("sigkill", signal.SIGKILL)

    def _signal(self, rung: str, number: signal.Signals) -> None:
        attempt = self._attempt
        attempt.rung = rung
        self._brought_down = True
        _log.info("stop.rung", rung=rung, job=str(attempt.job.id), task=attempt.job.task, reason=str(attempt.stopping))
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _close(self) -> None:
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        self._held.close()
        places = self._attempt.tools.places
        if places is not None:  # its code may have opened connections of its own, which a statement keeps open
            self._end_sessions(places)

    def _end_sessions(self, places: Places) -> None:
        attempt = self._attempt
        report = end_sessions(servers_of(places), [session_name(attempt.job_id, attempt.job.run_id)])
        attempt.sessions_left = report.left_on
        if report.left_on:
            _log.warning("sessions.left", job=str(attempt.job_id), task=attempt.job.task, sessions_left=report.left_on)
