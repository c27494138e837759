"""The same attempt in a process of its own, or a program as the job: watched over by the worker's thread.

The child speaks JSON lines over a socket pair; what it prints is read line by line. Its lease is renewed by this
process, so that a job may hold its interpreter for minutes. A stop climbs from a word to SIGKILL of the whole process
group: here it always ends, and the journal says by which rung.
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
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from app import log
from app.errors import DatabaseUnavailable
from app.queue.effects import terminate_sessions_of
from pipelines.contract import Kind, StopReason, Task
from pipelines.retry import Answer
from workers.attempt import Attempt
from workers.outcome import (
    Abandoned,
    Ending,
    Failure,
    Finished,
    Left,
    crashed,
    failed,
    failure_of,
    readable_policy,
    refused,
    success,
)
from workers.threads import Bell, clock

_log = log.get(__name__)
_CHUNK = 65_536
_LONGEST_LINE = 8_192  # of what is printed
_LONGEST_MESSAGE = 16_000_000
_STDERR_TAIL = 20  # lines that are told with the error of a program
_LOOK = 1.0  # seconds between two looks whether the child still lives, should its streams be held open by others


def run_apart(attempt: Attempt, task: Task, args: dict[str, Any]) -> Ending:
    """Run the task in a process of its own until it has ended, one way or the other."""
    if task.kind is Kind.COMMAND:
        return _run_command(attempt, task, args)
    ours, theirs = socket.socketpair()
    with ours:
        argv = [sys.executable, "-m", "workers.childmain", str(theirs.fileno())]
        with theirs:
            env = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            }  # it imports what we do
            child = Child(attempt, argv, pass_fds=(theirs.fileno(),), channel=ours, env=env)
        child.send(_recipe(attempt, task))
        return _ending(attempt, child.watch())


def _recipe(attempt: Attempt, task: Task) -> dict[str, Any]:
    job, tools, options = attempt.job, attempt.tools, task.options
    return {
        "packages": list(tools.packages),
        "tasks": tools.tasks,
        "endpoints": tools.endpoints,
        "tokens": tools.tokens,
        "places": None if tools.places is None else asdict(tools.places),
        "facts": {key: str(value) if key.endswith("_id") else value for key, value in asdict(attempt.facts).items()},
        "args": job.args_text,
        "progress": job.progress_text,
        "checkpoint": job.checkpoint_text,
        "memory_mb": options.memory_mb,
        "cpu_sec": options.cpu_sec,
        "parent": os.getpid(),
    }


def _run_command(attempt: Attempt, task: Task, args: dict[str, Any]) -> Ending:
    assert task.command is not None  # noqa: S101 - a task of this kind has one
    try:
        argv = task.command.fill(args)
    except ValueError as error:
        return refused(f"the command's arguments: {error}")
    env = {**os.environ, **task.command.env, "DL_JOB_ID": str(attempt.job_id), "DL_ATTEMPT": str(attempt.attempt)}
    try:
        child = Child(attempt, list(argv), cwd=task.command.cwd, env=env)
    except OSError as error:
        return failed(failure_of(attempt.job, error, attempt.options, attempt.tools.retry), attempt.left())
    how = child.watch()
    if how.by_us:
        return attempt.end_of_stop()
    left = how.left(attempt)
    if how.code == 0:
        return Abandoned() if _lost(attempt) else success({"exit_code": 0}, left)
    told = RuntimeError(f"{how.describe()}{child.last_words()}")
    return failed(failure_of(attempt.job, told, attempt.options, attempt.tools.retry), left)


def _ending(attempt: Attempt, how: Exit) -> Ending:
    end = how.end
    if end is not None and end["how"] == "finished":
        return Finished()
    if _lost(attempt):
        return Abandoned()
    if end is None:
        if how.by_us:
            return attempt.end_of_stop()
        return crashed(attempt.job, how.describe(), attempt.options, attempt.tools.retry, how.left(attempt))
    match end["how"]:
        case "value":
            return success(end["result"], how.left(attempt))
        case "stop":
            if attempt.stopping is None:  # it found out by itself, as one does that cannot commit any more
                attempt.stop(StopReason(end["reason"]))
            return Abandoned() if _lost(attempt) else attempt.end_of_stop()
        case "refused":
            return refused(end["told"])
        case _:
            if end["stopped"] and attempt.stopping is not None:
                return attempt.end_of_stop()
            return failed(_failure(attempt, end), how.left(attempt))


def _lost(attempt: Attempt) -> bool:
    return attempt.stopping is StopReason.LEASE_LOST


def _failure(attempt: Attempt, end: dict[str, Any]) -> Failure:
    """The child has seen the error, and knows its rules; how long to wait is for the job's policy to say."""
    answer, pause = Answer(end["answer"]), end["pause"]
    if answer is Answer.RETRY:
        policy = readable_policy(attempt.job, attempt.options, attempt.tools.retry)
        pause = max(pause, policy.pause(attempt.job.attempt))
    return Failure(end["told"], end["traceback"], answer, pause)


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
        pass_fds: tuple[int, ...] = (),
        channel: socket.socket | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._attempt, self._channel = attempt, channel
        self._bell = Bell()
        self._process = subprocess.Popen(  # noqa: S603 - the task's own program, and no shell
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=pass_fds,
            cwd=cwd,
            env=env,
            start_new_session=True,
        )
        self._streams = {self._process.stdout.fileno(): "stdout", self._process.stderr.fileno(): "stderr"}  # type: ignore[union-attr]
        if channel is not None:
            channel.setblocking(False)
            self._streams[channel.fileno()] = "channel"
        self._pidfd = os.pidfd_open(self._process.pid) if hasattr(os, "pidfd_open") else None  # readable once it ended
        self._partial: dict[str, bytes] = dict.fromkeys(self._streams.values(), b"")
        self._last: list[str] = []
        self._end: dict[str, Any] | None = None
        self._climbed_at: float | None = None
        self._brought_down = False

    def send(self, message: Mapping[str, Any]) -> None:
        """A word to the child; one that is not there any more hears nothing."""
        if self._channel is not None:
            with suppress(OSError):
                self._channel.setblocking(True)
                self._channel.sendall(json.dumps(message).encode() + b"\n")
            with suppress(OSError):
                self._channel.setblocking(False)

    def watch(self) -> Exit:
        """Until it has ended; then nothing of its group is left, nor of its sessions."""
        with self._attempt.woken_by_stop(self._bell.ring):
            while not self._has_exited():
                self._listen(self._until_next_rung())
                self._climb()
        self._listen_to_the_rest()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # not reaped yet, so the group's number is still its own
        _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._close()
        return Exit(self._process.returncode, usage.ru_maxrss, self._brought_down and self._end is None, self._end)

    def last_words(self) -> str:
        return "".join(f"\n{line}" for line in self._last)

    def _has_exited(self) -> bool:
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    # ── what it says ────────────────────────────────────────────────────────────────────────────────────────────

    def _listen(self, timeout: float) -> None:
        self._bell.wait(min(timeout, _LOOK), self._pidfd, *self._streams)
        for number in list(self._streams):
            self._read(number)

    def _listen_to_the_rest(self) -> None:
        for number in list(self._streams):
            while number in self._streams and self._read(number):
                pass
        for stream, rest in self._partial.items():
            if rest and stream != "channel":
                self._line(stream, rest)

    def _read(self, number: int) -> bool:
        """Take what is there; False: nothing is. Never waits."""
        waiter = select.poll()
        waiter.register(number, select.POLLIN)
        if not waiter.poll(0):
            return False
        stream = self._streams[number]
        try:
            chunk = os.read(number, _CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            chunk = b""
        if not chunk:
            del self._streams[number]
            return False
        *lines, rest = (self._partial[stream] + chunk).split(b"\n")
        longest = _LONGEST_MESSAGE if stream == "channel" else _LONGEST_LINE
        if len(rest) > longest:
            lines, rest = [*lines, rest], b""
        self._partial[stream] = rest
        for line in lines:
            self._message(line) if stream == "channel" else self._line(stream, line)
        return True

    def _line(self, stream: str, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip("\r")
        if stream == "stderr":
            self._last = [*self._last[1 - _STDERR_TAIL :], text]
        attempt = self._attempt
        attempt.tools.log(attempt.job_id, attempt.attempt, "INFO", stream, text)

    def _message(self, line: bytes) -> None:
        try:
            said = json.loads(line)
        except ValueError:
            _log.error("child.garbled", job=str(self._attempt.job_id))
            return
        if "progress" in said:
            self._attempt.replace_progress(said["progress"])
        if "checkpoint" in said:
            self._attempt.checkpoint(said["checkpoint"])
        if "log" in said:
            level, stream, text = said["log"]
            self._attempt.tools.log(self._attempt.job_id, self._attempt.attempt, level, stream, text)
        if "end" in said:
            self._end = said["end"]

    # ── how it is stopped ───────────────────────────────────────────────────────────────────────────────────────

    def _until_next_rung(self) -> float:
        if self._attempt.stop_asked_at is None or self._climbed_at is None:
            return _LOOK
        return max(0.0, self._climbed_at + self._attempt.tools.stop_grace_sec - clock())

    def _climb(self) -> None:
        """flag → query → SIGTERM → SIGKILL; a program that hears no words begins with SIGTERM."""
        attempt, now = self._attempt, clock()
        if attempt.stop_asked_at is None:
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
        _log.warning(
            "stop.rung", rung=rung, job=str(attempt.job.id), task=attempt.job.task, reason=str(attempt.stopping)
        )
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _close(self) -> None:
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
        self._bell.close()
        places = self._attempt.tools.places
        if places is not None and self._channel is not None and (self._end is None or self._brought_down):
            for dsn in {places.dsn, *places.targets.values()}:
                with suppress(DatabaseUnavailable):
                    terminate_sessions_of(dsn, self._attempt.job_id)
