"""Tasks that report what their process is given."""

from __future__ import annotations

import os
import random
import resource
import secrets
import signal
import sys
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from dataloader.pipelines.contract import Context, register


@register("process.describe", isolation="process")
def describe_process(args: dict[str, Any]) -> dict[str, Any]:
    """All that a program gets from the process that starts it, but its ids and the attempt's name."""
    old_umask = os.umask(0)
    os.umask(old_umask)
    numbers = sorted(signal.valid_signals())
    return {
        "env": {name: value for name, value in os.environ.items() if name != "PGAPPNAME"},
        "path": sys.path,
        "argv": sys.argv,
        "flags": list(sys.flags),
        "cwd": os.getcwd(),
        "umask": old_umask,
        "nice": os.nice(0),
        "cpus": sorted(os.sched_getaffinity(0)),
        "limits": [
            resource.getrlimit(kind) for name, kind in sorted(vars(resource).items()) if name.startswith("RLIMIT_")
        ],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "handlers": {int(n): str(signal.getsignal(n)).partition(" at 0x")[0] for n in numbers},
        "alarm": signal.getitimer(signal.ITIMER_REAL),
        "leads_group": os.getppid() == os.getpgrp() == os.getsid(0),
        "has_terminal": _has_terminal(),
        "threads": threading.active_count(),
        "streams": [_describe_stream(stream) for stream in (sys.stdin, sys.stdout, sys.stderr)],
        "descriptors": _describe_descriptors(),
        "recursion_limit": sys.getrecursionlimit(),
        "main": sorted(name for name in vars(sys.modules["__main__"]) if name.startswith("__")),
        "time_zone": time.tzname,
        "app_name": os.environ["PGAPPNAME"].partition(":")[0],
    }


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR))
    except OSError:
        return False
    return True


def _describe_stream(stream: Any) -> list[Any]:
    attributes = ("name", "mode", "encoding", "errors", "line_buffering", "write_through", "newlines")
    return [*(getattr(stream, name) for name in attributes), stream.isatty(), stream.fileno(), stream.seekable()]


def _describe_descriptors() -> list[list[Any]]:
    """The number of each, or 3, its kind, and whether programs inherit it."""
    described = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # of the listing itself
            kind = os.readlink(f"/proc/self/fd/{name}").partition(":[")[0]
            described.append([min(int(name), 3), kind, os.get_inheritable(int(name))])
    return sorted(described)


@register("process.random", isolation="process")
def return_random_values(args: dict[str, Any]) -> list[Any]:
    return [random.random(), secrets.token_hex(), str(uuid.uuid4()), str(uuid.uuid1())]


@register("process.loaded", isolation="process")
def return_loaded_modules(args: dict[str, Any]) -> list[str]:
    return sorted(sys.modules)


@register("process.until", isolation="process")
def wait_for_file(args: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """Wait for a file; then print, and return what it has to do with."""
    ctx.progress(pids=[os.getpid(), os.getppid()])
    while not Path(args["file"]).exists():
        ctx.sleep(0.02)
    sys.stdout.write("printed\n")
    return {"pid": os.getpid(), "n": args.get("n"), "descriptors": _describe_descriptors()}
