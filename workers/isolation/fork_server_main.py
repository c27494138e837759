"""The program of the fork server: it has imported what isolated processes need, and forks one for each attempt.

It has one thread, no connection and no task's data. It is a child of the worker process, reads requests from a socket,
and ends when the worker closes it. For each request it forks a watchdog, which forks the program: the same two
processes as those of `processes.py`, with the same streams, environment, folder, session and limits.

A module that starts a thread or opens a socket when it is imported cannot be preloaded: a fork has neither the thread
nor the sole use of the socket. The worker starts another server without the module.
"""

from __future__ import annotations

import errno
import gc
import importlib
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from dataloader.workers.connections.own_connections import wrap_drivers
from dataloader.workers.isolation import child_main
from dataloader.workers.isolation.fork_channel import ChannelClosed, ForkChannel, close_all
from dataloader.workers.isolation.watchdog import TERMINATION_SIGNALS, watch

EXIT_HAS_THREADS = 72
_MAX_START_SEC = 60
_PR_SET_NAME = 15


def main(descriptor: int, unused: Sequence[int]) -> None:
    close_all(unused)
    os.set_inheritable(descriptor, False)
    channel = ForkChannel(socket.socket(fileno=descriptor))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else the exit status of a child is lost
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_MAX_START_SEC)  # an import may wait for ever, also after the worker's end
    with suppress(ChannelClosed):
        settings, _ = channel.receive()
        if settings["modules"] and settings["wrap_drivers"]:
            wrap_drivers()
        before = dict(os.environ), [*sys.path]
        refused, failed = _preload(settings["modules"])
        _set_process_name("dl-fork-server")
        for number in TERMINATION_SIGNALS:  # a service manager sends them to all processes; the worker drains
            signal.signal(number, signal.SIG_IGN)
        signal.alarm(0)
        channel.send({"refused": refused, "failed": failed})
        if not refused:
            _serve(channel, ImportEffects(*before))
    os._exit(0)


class ImportEffects:
    """What the imports have changed for the whole process, and would change in a fresh interpreter, too."""

    def __init__(self, env_before: Mapping[str, str], paths_before: Sequence[str]) -> None:
        self._env = {name: value for name, value in os.environ.items() if env_before.get(name) != value}
        self._paths_before, self._paths = paths_before, [*sys.path]

    def apply(self, env: Mapping[str, str], paths: Sequence[str]) -> None:
        """Set the environment and import path of the worker, with these changes."""
        wanted = {**env, **self._env}
        for name in os.environ.keys() - wanted.keys():
            del os.environ[name]
        os.environ.update({name: value for name, value in wanted.items() if os.environ.get(name) != value})
        time.tzset()
        added = [path for path in self._paths if path not in self._paths_before]
        sys.path[:] = self._paths if paths == self._paths_before else [*paths, *added]
        importlib.invalidate_caches()


def _preload(modules: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Import the modules; return those that make forks unsafe, and those that cannot be imported, with reasons."""
    refused, failed = {}, {}
    for module in modules:
        before = _shared_descriptors()
        try:
            importlib.import_module(module)
        except BaseException as error:  # the child that needs it reports it
            failed[module] = f"{type(error).__name__}: {error}"
        if (threads := _thread_count()) > 1:
            refused[module] = f"its import starts threads; there are {threads}"
        elif shared := _shared_descriptors() - before:
            refused[module] = f"its import opens {', '.join(sorted(shared))}"
        if refused:
            break  # the threads would be counted for the next module, too
    for stream in (sys.stdout, sys.stderr):  # else each child writes what an import has printed
        with suppress(Exception):
            stream.flush()
    importlib.invalidate_caches()  # loads what each child needs for the same
    gc.collect()
    gc.freeze()  # a collection in a child does not write to what it shares with this process
    return refused, failed


def _thread_count() -> int:
    """With those of native code."""
    return len(os.listdir("/proc/self/task"))


def _shared_descriptors() -> set[str]:
    """The open sockets, pipes and the like, which a fork would share; files are harmless."""
    names = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the listing itself
            names.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    return {name for name in names if not name.startswith("/")}


def _serve(channel: ForkChannel, effects: ImportEffects) -> None:
    while True:
        message, descriptors = channel.receive()
        try:
            match message:
                case {"reap": int(pid)}:
                    channel.send(_reap(pid))
                case {"fork": dict(request)}:
                    apply = partial(effects.apply, request["env"], request["paths"])
                    _answer_fork(channel, request["descriptors"], descriptors, apply)
        finally:
            close_all(descriptors)


def _answer_fork(channel: ForkChannel, sent_count: int, descriptors: Sequence[int], set_up: Callable[[], None]) -> None:
    if len(descriptors) < sent_count:  # there was no room for the others
        channel.send({"error": errno.EMFILE})
        return
    if _thread_count() > 1:  # started by something that is called at each fork
        os._exit(EXIT_HAS_THREADS)
    try:
        pid = _fork(partial(_run_watchdog, channel, descriptors, set_up))
    except OSError as error:
        channel.send({"error": error.errno})
        return
    pidfd = os.pidfd_open(pid)
    channel.send({"pid": pid}, [pidfd])
    os.close(pidfd)


def _reap(pid: int) -> dict[str, Any]:
    """Collect a watchdog, which the worker has seen exit: until then its number is not another's."""
    try:
        reaped, status, usage = os.wait4(pid, os.WNOHANG)
    except ChildProcessError:
        return {}
    if reaped == 0:
        return {}
    return {"code": os.waitstatus_to_exitcode(status), "peak_kb": usage.ru_maxrss}


def _fork(run: Callable[[], None]) -> int:
    """Run this in a child of this process; return the child's process id."""
    pid = os.fork()
    if pid != 0:
        return pid
    try:
        run()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(1)


def _run_watchdog(channel: ForkChannel, descriptors: Sequence[int], set_up: Callable[[], None]) -> None:
    watchdog, job_channel, stdout, stderr, folder, *locks = descriptors
    channel.close()
    os.setsid()
    for descriptor, number in ((stdout, 1), (stderr, 2)):
        os.dup2(descriptor, number)
    os.fchdir(folder)
    close_all((stdout, stderr, folder))
    for lock in locks:
        os.set_inheritable(lock, True)
    _set_process_name("dl-watchdog")
    os.write(watchdog, b"\n")  # the worker may send signals to the group
    watch(watchdog, lambda: _fork(partial(_run_program, watchdog, job_channel, set_up)))
    os.killpg(0, signal.SIGKILL)  # with itself: the worker cannot if the fork server is gone


def _run_program(watchdog: int, job_channel: int, set_up: Callable[[], None]) -> None:
    os.close(watchdog)
    for number in TERMINATION_SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _set_process_name("dl-job")
    set_up()
    _reseed()
    child_main.main(job_channel)


def _reseed() -> None:
    """Python seeds `random` in each fork, OpenSSL its own generator; numpy's global one would be the same in all."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _set_process_name(name: str) -> None:
    """As `ps -o comm` and `top` show it."""
    with suppress(ImportError, OSError, AttributeError):
        import ctypes  # noqa: PLC0415 - an interpreter may be built without it

        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
