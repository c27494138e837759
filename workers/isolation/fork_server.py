"""The fork server of a worker process: forks the processes of attempts from one that has imported their modules.

It is started by the first attempt that needs it, and again by the next one after its death, which ends no job: a
watchdog and its program need it no longer. While it cannot be used, attempts start fresh interpreters.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataloader.app import log
from dataloader.pipelines.portable import clock
from dataloader.workers.isolation.fork_channel import ChannelClosed, ForkChannel
from dataloader.workers.isolation.processes import WatchedProcess, open_watchdog_channel

_log = log.get(__name__)
_READY_WAIT_SEC = 10.0  # of an attempt, for a server that is starting: an interpreter would import the same modules
_WAIT_SLICE_SEC = 0.1
_REPLY_TIMEOUT_SEC = 5.0
_RESTART_INTERVAL_SEC = 10.0
_FAILED_START_PAUSE_SEC = 60.0
_EXIT_WAIT_SEC = 2.0
_KILLED = (-signal.SIGKILL, 0)  # nothing else ends a watchdog before its program


@dataclass(frozen=True, kw_only=True)
class ForkRequest:
    """What a process gets from the worker."""

    channel: int  # descriptor of its end of the socket
    locks: tuple[int, ...]  # descriptors that it keeps open
    env: Mapping[str, str]
    paths: Sequence[str]  # sys.path
    is_stopped: Callable[[], bool]  # the attempt, which does not wait for a server then
    lease_ends_at: Callable[[], float]


class ForkServer:
    """Used by all worker threads."""

    def __init__(self, modules: Sequence[str] = (), *, wrap_drivers: bool = True, is_enabled: bool = True) -> None:
        self._modules, self._wrap_drivers = list(modules), wrap_drivers  # under the lock, as the rest
        self._lock = threading.Lock()
        self._server: _ServerProcess | None = None
        self._next_start_at = 0.0 if is_enabled and _is_supported() else float("inf")

    @property
    def pid(self) -> int | None:
        """The process id of the server; None: it does not run."""
        server = self._server  # without the lock, which is held while one starts
        return None if server is None else server.pid

    def fork(self, request: ForkRequest) -> ForkedProcess | None:
        """Return a new process, or None if the attempt must start an interpreter. Raises OSError if the machine has no
        room for another process."""
        with self._lock:
            server = self._ready_server(request)
            if server is None:
                return None
            try:
                process = ForkedProcess(server, request)
            except ChannelClosed:
                self._discard(server)
                return None
        process.await_group()
        return process

    def close(self) -> None:
        """End the server. Start no other one."""
        with self._lock:
            self._next_start_at = float("inf")
            if self._server is not None:
                self._server.close()
                self._server = None

    def _ready_server(self, request: ForkRequest) -> _ServerProcess | None:
        while True:
            if self._server is not None and not self._server.is_alive():
                self._discard(self._server)
            if self._server is None:
                now = clock()
                if now < self._next_start_at:
                    return None
                self._next_start_at = now + _RESTART_INTERVAL_SEC
                self._server = _ServerProcess(self._modules, request.paths, wrap_drivers=self._wrap_drivers)
            server = self._server
            try:
                if not server.await_ready(request.is_stopped):
                    return None
            except ChannelClosed:
                self._discard(server)
                return None
            if not server.refused:
                return server
            self._restart_without(server.refused)

    def _restart_without(self, refused: Mapping[str, str]) -> None:
        _log.warning("fork_server.modules_refused", modules=dict(refused))
        self._modules = [module for module in self._modules if module not in refused]
        if self._server is not None:
            self._server.close()
        self._server, self._next_start_at = None, 0.0

    def _discard(self, server: _ServerProcess) -> None:
        """Forget a server that has died or does not answer."""
        if not server.is_ready:
            self._next_start_at = clock() + _FAILED_START_PAUSE_SEC
        self._server = None
        server.kill()
        _log.warning("fork_server.exited", code=server.exit_code, pid=server.pid, was_ready=server.is_ready)


NO_FORK_SERVER = ForkServer(is_enabled=False)  # each isolated process is a fresh interpreter


def _is_supported() -> bool:
    """Whether this system has descriptors of processes."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


class _ServerProcess:
    """One server process. Used by any thread."""

    def __init__(self, modules: Sequence[str], paths: Sequence[str], *, wrap_drivers: bool) -> None:
        """Raises OSError."""
        ours, theirs = socket.socketpair()
        with ExitStack() as undo, ExitStack() as temporary:
            undo.enter_context(ours)
            temporary.enter_context(theirs)
            output = [_duplicate(number, temporary) for number in (1, 2)]
            # Python looks at its streams when it starts, and those of the processes are pipes.
            _, pipe = _open_pipe(temporary, temporary)
            code = (
                f"import os, sys; os.dup2({output[0]}, 1); os.dup2({output[1]}, 2); sys.path[:] = {[*paths]!r}; "
                f"from dataloader.workers.isolation.fork_server_main import main; main({theirs.fileno()}, {output!r})"
            )
            self._popen = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=pipe,
                stderr=pipe,
                pass_fds=(theirs.fileno(), *output),
                start_new_session=True,
            )
            undo.pop_all()
        self._channel, self.pid = ForkChannel(ours, _REPLY_TIMEOUT_SEC), self._popen.pid
        self._lock = threading.Lock()  # for a request and its reply
        self._ready_deadline = clock() + _READY_WAIT_SEC
        self.is_ready, self.refused = False, dict[str, str]()  # set once, by a thread that holds the fork server's lock
        with suppress(ChannelClosed):
            self._channel.send({"modules": [*modules], "wrap_drivers": wrap_drivers})

    @property
    def exit_code(self) -> int | None:
        return self._popen.returncode

    def is_alive(self) -> bool:
        return self._popen.poll() is None

    def await_ready(self, is_stopped: Callable[[], bool]) -> bool:
        """Wait until it has imported its modules; return False if that takes too long. Raises ChannelClosed."""
        while not self.is_ready:
            left_sec = max(0.0, self._ready_deadline - clock())
            if not self._channel.has_message(min(left_sec, _WAIT_SLICE_SEC)):
                if left_sec == 0.0 or is_stopped():
                    return False
                continue
            message, _ = self._channel.receive()
            self.refused, self.is_ready = message["refused"], True
            if message["failed"]:
                _log.warning("fork_server.modules_failed", modules=message["failed"])
            _log.info("fork_server.started", pid=self.pid)
        return True

    def request(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> tuple[dict[str, Any], list[int]]:
        """Raises ChannelClosed."""
        with self._lock:
            try:
                self._channel.send(message, descriptors)
                return self._channel.receive()
            except ChannelClosed:
                self.kill()  # a late reply must not be taken for that of the next request
                raise

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait()
        self._channel.close()

    def close(self) -> None:
        """End it."""
        if self.is_ready:  # else it imports, and does not see the end of its socket
            with self._lock:
                self._channel.close()
            with suppress(subprocess.TimeoutExpired):
                self._popen.wait(_EXIT_WAIT_SEC)
        self.kill()


class ForkedProcess(WatchedProcess):
    """A child of the fork server, which collects it when this process has seen it exit."""

    program = "python"

    def __init__(self, server: _ServerProcess, request: ForkRequest) -> None:
        """Raises OSError, or ChannelClosed if the server is gone."""
        self._server = server
        with ExitStack() as undo, ExitStack() as theirs:
            self.watchdog, other = open_watchdog_channel(request.lease_ends_at())
            undo.enter_context(self.watchdog)
            theirs.enter_context(other)
            self.stdout, stdout = _open_pipe(undo, theirs)
            self.stderr, stderr = _open_pipe(undo, theirs)
            folder = os.open(".", os.O_PATH | os.O_DIRECTORY)
            theirs.callback(os.close, folder)
            descriptors = (other.fileno(), request.channel, stdout, stderr, folder, *request.locks)
            message = {"env": dict(request.env), "paths": [*request.paths], "descriptors": len(descriptors)}
            reply, received = server.request({"fork": message}, descriptors)
            if "error" in reply:
                raise OSError(reply["error"], os.strerror(reply["error"]))
            self.pid, (self._pidfd,) = reply["pid"], received
            undo.callback(os.close, self._pidfd)
            self._resources = undo.pop_all()

    def await_group(self) -> None:
        """Wait until the watchdog leads its group, so that a signal to the group reaches it, or is gone."""
        self.watchdog.settimeout(_REPLY_TIMEOUT_SEC)
        with suppress(OSError):
            self.watchdog.recv(1)
        self.watchdog.settimeout(None)

    def has_exited(self) -> bool:
        return self._poll(0)

    def wait_exited(self) -> None:
        self._poll(None)

    def _poll(self, timeout: float | None) -> bool:
        waiter = select.poll()
        waiter.register(self._pidfd, select.POLLIN)
        return bool(waiter.poll(timeout))

    def signal_group(self, number: signal.Signals) -> None:
        if self._owns_number():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def _owns_number(self) -> bool:
        """Whether no other process can have this number. After the death of the fork server the system collects a
        watchdog that has exited; then the number is free when the group is empty."""
        if not self.has_exited() or self._server.is_alive():
            return True
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return True
        return stat.rpartition(")")[2].split()[0] == "Z"  # not collected yet

    def collect(self) -> tuple[int, int]:
        self.signal_group(signal.SIGKILL)
        with suppress(ProcessLookupError):  # one that does not lead its group yet
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self.wait_exited()
        with suppress(ChannelClosed):
            reply, _ = self._server.request({"reap": self.pid})
            if "code" in reply:
                return reply["code"], reply["peak_kb"]
        with suppress(ChildProcessError):  # this process inherits orphans, as the first one of a container
            os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
        return _KILLED

    def close(self) -> None:
        self._resources.close()


def _duplicate(descriptor: int, owner: ExitStack) -> int:
    """One of the standard streams, which may be closed."""
    try:
        copy = os.dup(descriptor)
    except OSError:
        copy = os.open(os.devnull, os.O_WRONLY)
    owner.callback(os.close, copy)
    return copy


def _open_pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    read, write = os.pipe()
    reader.callback(os.close, read)
    writer.callback(os.close, write)
    return read, write
