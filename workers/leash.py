"""Stands between a worker and the process of a job: when the worker is gone, or its lease of the job has run out, it
ends the whole process group at once. A worker that is frozen can stop nobody itself.

Run by its path in a bare interpreter, so that it starts in milliseconds; it imports nothing of ours:

    python -I -S leash.py DESCRIPTOR PROGRAM ARGUMENT…

The descriptor is a socket to the worker. It says `exit CODE PEAK_KB` or `error ERRNO` there, hears until when the
lease lasts, a line each time it is renewed (in seconds of the worker's clock for leases), and takes its
closing for the worker's end. The program gets this process's environment, folder, standard streams and process
group.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # as in threads.py
_LOOK_MS = 50  # where the system cannot say by a descriptor that a process has ended


def main(number: int, argv: list[str]) -> None:
    os.set_inheritable(number, False)
    for word in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(word, lambda *_: None)  # it is for the program, which does not inherit this
    try:
        program = os.posix_spawnp(
            argv[0], argv, os.environ, setsigmask=(), setsigdef=(signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD)
        )
    except OSError as error:
        os.write(number, b"error %d\n" % (error.errno or 0))
        return
    _wait(number, program)
    _, status, usage = os.wait4(program, 0)
    os.write(number, b"exit %d %d\n" % (os.waitstatus_to_exitcode(status), usage.ru_maxrss))


def _wait(number: int, program: int) -> None:
    """Until the program has ended; if the worker has before, everything here ends."""
    ended = _pidfd(program)
    waiter = select.poll()
    waiter.register(number, select.POLLIN)
    if ended is not None:
        waiter.register(ended, select.POLLIN)
    until = float("inf")
    while os.waitid(os.P_PID, program, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        left = max(0.0, until - time.clock_gettime(_CLOCK)) * 1000
        wait = min(left, float("inf") if ended is not None else _LOOK_MS)
        if number in dict(waiter.poll(None if wait == float("inf") else wait)):
            told = os.read(number, 65_536).split()
            if not told:
                os.killpg(0, signal.SIGKILL)
            until = float(told[-1])
        elif time.clock_gettime(_CLOCK) >= until:
            os.killpg(0, signal.SIGKILL)


def _pidfd(program: int) -> int | None:
    try:
        return os.pidfd_open(program)
    except (AttributeError, OSError):
        return None


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
