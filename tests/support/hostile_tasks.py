"""Pipelines for a process of their own that do to it, and to its parent, whatever code may do."""

from __future__ import annotations

import atexit
import gc
import json
import logging
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psycopg2

from dataloader.pipelines.contract import Checkpoint, Context, Progress, register

LONG_SEC = 60


@register("hostile.short", isolation="process")
def short(args: dict[str, Any]) -> int:
    return int(args["n"])


@register("hostile.big", isolation="process")
def send_big_progress(args: dict[str, Any], ctx: Context) -> str:
    for n in range(100):
        ctx.progress(n, note="x" * 10_000)
    return "é" * (int(args["size"]) // 2)


@register("hostile.garbage", isolation="process")
def write_garbage(args: dict[str, Any]) -> str:
    """Finds the socket that is not its own, as code with a mistaken descriptor does, and writes into it."""
    for number in range(3, 64):
        try:
            channel = socket.socket(fileno=os.dup(number))
        except OSError:
            continue
        for line in (b"7", b'"text"', b"[[[[", b"[" * 200_000, b'{"progress": []}', b'{"end": {}}', b'{"log": 1}',
                     b'{"end": {"how": "value"}}', b"\xff\xfe"):  # fmt: skip
            channel.sendall(line + b"\n")
        channel.close()
    return "unharmed"


@register("hostile.forges_its_end", isolation="process")
def forge_end(args: dict[str, Any]) -> str:
    """Sends a result message of its own before the real one."""
    for number in range(3, 64):
        try:
            channel = socket.socket(fileno=os.dup(number))
        except OSError:
            continue
        channel.sendall(json.dumps({"result": args["message"]}).encode() + b"\n")
        channel.close()
    return "unharmed"


@register("hostile.closes_its_streams", isolation="process")
def close_streams(args: dict[str, Any]) -> str:
    os.close(1)
    os.close(2)
    time.sleep(0.3)
    return "went on"


@register("hostile.leaves_a_daemon", isolation="process")
def leave_daemon(args: dict[str, Any]) -> int:
    """It has left the group, holds all streams open, and floods one of them."""
    flood = "import time, sys\nend = time.time() + 20\nwhile time.time() < end: sys.stdout.write('flood ' * 1000)"
    return subprocess.Popen([sys.executable, "-c", flood], start_new_session=True, close_fds=False).pid


@register("hostile.leaves_threads", isolation="process")
def leave_threads(args: dict[str, Any]) -> str:
    for _ in range(3):
        threading.Thread(target=time.sleep, args=(LONG_SEC,)).start()
    return "done"


@register("hostile.cleans_up", isolation="process")
def clean_up(args: dict[str, Any]) -> str:
    atexit.register(Path(args["file"]).write_text, "cleaned")
    return "done"


@register("hostile.never_leaves", isolation="process")
def never_exit(args: dict[str, Any]) -> str:
    atexit.register(time.sleep, LONG_SEC)
    return "done"


@register("hostile.says_odd_things", isolation="process")
def print_odd_text(args: dict[str, Any]) -> str:
    sys.stdout.buffer.write(b"caf\xe9\n")
    sys.stdout.buffer.flush()
    sys.stdout.write("half a surrogate \udc80\n")
    logging.getLogger("odd").warning("%d", "no number")
    logging.getLogger("odd").error("x" * 100_000)
    return "said"


class LogsWhenCollected:
    def __del__(self) -> None:
        logging.getLogger("noisy").warning("gone")


@register("hostile.logs_at_once", isolation="process")
def log_from_everywhere(args: dict[str, Any]) -> str:
    """From many threads, from finalizers, and from a handler of signals."""
    log = logging.getLogger("many")

    def on_alarm(*_: object) -> None:
        log.warning("alarm")
        signal.setitimer(signal.ITIMER_REAL, 0.001)  # a period would interrupt a handler that takes longer than that

    signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, 0.001)

    def log_lines() -> None:
        for n in range(200):
            ring = [LogsWhenCollected()]
            ring.append(ring)  # type: ignore[arg-type]
            log.warning("line %d", n)
            del ring
            gc.collect(0)

    threads = [threading.Thread(target=log_lines) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()  # while one thread collects, the others' calls do nothing
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    return "all said"


def speak(n: int) -> int:
    logging.getLogger("fork").warning("from a fork %d", n)
    return n


@register("hostile.forks", isolation="process")
def fork_child(args: dict[str, Any]) -> list[int]:
    with multiprocessing.get_context("fork").Pool(2) as workers:
        return workers.map(speak, range(4))


@register("hostile.threads_within_its_memory", isolation="process", memory_mb=300)
def start_threads(args: dict[str, Any]) -> str:
    go_on = threading.Event()
    threads = [threading.Thread(target=go_on.wait) for _ in range(16)]
    for thread in threads:
        thread.start()
    go_on.set()
    return str(len(bytearray(50_000_000)))


@register("hostile.huge_error", isolation="process")
def huge_error(args: dict[str, Any]) -> None:
    raise ValueError("x" * 30_000_000)


@register("hostile.terminated", isolation="process")
def terminate_itself(args: dict[str, Any]) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(LONG_SEC)


@register("hostile.waits", isolation="process")
def wait_for_stop(args: dict[str, Any], ctx: Context) -> None:
    child = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({LONG_SEC})"])
    ctx.progress(pids=[os.getpid(), os.getppid(), child.pid])
    time.sleep(LONG_SEC)


@register("hostile.drivers", isolation="process")
def drivers(args: dict[str, Any]) -> bool:
    """Return whether its process wraps the database drivers."""
    return hasattr(psycopg2.connect, "__wrapped__")


@register("hostile.path", isolation="process")
def path(args: dict[str, Any]) -> dict[str, Any]:
    return {"cwd": os.getcwd(), "path": sys.path, "inherited": os.environ.get("PYTHONPATH")}


def resumes(args: dict[str, Any], ctx: Context) -> Generator[Any, None, Any]:
    if ctx.resume:
        return {"began_at": ctx.resume}
    yield Progress(3)
    yield Checkpoint({"page": 3})
    while True:
        ctx.sleep(LONG_SEC)


register("hostile.resumes.thread")(resumes)
register("hostile.resumes.process", isolation="process")(resumes)
