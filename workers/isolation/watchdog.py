"""The watchdog between a worker and an isolated process: kills the process group when the worker is gone or its lease
has expired. A worker process that is frozen cannot stop its children itself.

Run by its path in a bare interpreter, so that it starts in milliseconds; it imports nothing of ours:

    python -I -S watchdog.py DESCRIPTOR PROGRAM ARGUMENT…

The descriptor is a socket to the worker. The watchdog writes `exit CODE PEAK_KB CPU_MS` or `error ERRNO` to it, and
reads the end of the lease from it, in seconds of the worker's clock: one line before it starts the program, which it
does not once the lease has expired, and one for each renewal. When the socket closes, the worker is gone.
The program gets this process's environment, folder, standard streams and process group.

A watchdog that `fork_server_main.py` has forked calls `watch` instead.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

TYPE_CHECKING = False  # without the import of `typing`
if TYPE_CHECKING:
    from collections.abc import Callable

TERMINATION_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # as in pipelines/portable.py
_POLL_INTERVAL_MS = 50  # where there are no pidfds
_MAX_WAIT_MS = 3_600_000  # a job that is run on a terminal has a lease of years, which `poll` cannot wait for


def main(descriptor: int, argv: list[str]) -> None:
    watch(descriptor, lambda: _spawn(argv))


def _spawn(argv: list[str]) -> int:
    defaults = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD)
    return os.posix_spawnp(argv[0], argv, os.environ, setsigmask=(), setsigdef=defaults)


def watch(descriptor: int, start: Callable[[], int]) -> None:
    """Start the program, which returns its process id, and wait for its end."""
    os.set_inheritable(descriptor, False)
    for number in TERMINATION_SIGNALS:
        signal.signal(number, lambda *_: None)  # they are meant for the program, which does not inherit this
    deadline = _read_deadline(descriptor)
    try:
        program = start()
    except OSError as error:
        os.write(descriptor, b"error %d\n" % (error.errno or 0))
        return
    _wait(descriptor, program, deadline)
    _, status, usage = os.wait4(program, 0)
    cpu_ms = 1000 * (usage.ru_utime + usage.ru_stime)
    os.write(descriptor, b"exit %d %d %d\n" % (os.waitstatus_to_exitcode(status), usage.ru_maxrss, cpu_ms))


def _read_deadline(descriptor: int) -> float:
    """Return the end of the lease; kill the group if that is past, or the worker is gone."""
    lines = os.read(descriptor, 65_536).split()
    if not lines or float(lines[-1]) <= time.clock_gettime(_CLOCK):
        os.killpg(0, signal.SIGKILL)
    return float(lines[-1])


def _wait(descriptor: int, pid: int, deadline: float) -> None:
    """Wait until the program has ended; kill the group if the worker or the lease ends first."""
    pidfd = _open_pidfd(pid)
    waiter = select.poll()
    waiter.register(descriptor, select.POLLIN)
    if pidfd is not None:
        waiter.register(pidfd, select.POLLIN)
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        left = max(0.0, deadline - time.clock_gettime(_CLOCK)) * 1000
        wait = min(left, _POLL_INTERVAL_MS if pidfd is None else _MAX_WAIT_MS)
        if descriptor in dict(waiter.poll(wait)):
            deadline = _read_deadline(descriptor)
        elif time.clock_gettime(_CLOCK) >= deadline:
            os.killpg(0, signal.SIGKILL)


def _open_pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
