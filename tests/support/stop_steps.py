"""Pipelines that ignore one stop step after the other."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from inspect import signature
from typing import Any

from dataloader.pipelines.contract import Context, register

LONG_SEC = 60


class SlowFile:
    """A file that is read for ever, a row at a time."""

    def read(self, size: int = -1) -> str:
        time.sleep(0.02)
        return "1\n" * 4096  # enough for libpq to send it on, and so to notice the closed connection


def stop_at_safe_point(args: dict[str, Any], ctx: Context) -> None:
    ctx.progress(1)
    ctx.sleep(LONG_SEC)


def block_in_sleep(args: dict[str, Any]) -> None:
    time.sleep(args.get("seconds", LONG_SEC))


def block_in_query(args: dict[str, Any], ctx: Context) -> None:
    ctx.connect("default").cursor().execute("SELECT pg_sleep(60)")


def repeat_query(args: dict[str, Any], ctx: Context) -> None:
    connection = ctx.connect("default")
    while True:
        try:
            connection.cursor().execute("SELECT pg_sleep(60)")
        except Exception:
            connection.rollback()


def copy_out(args: dict[str, Any], ctx: Context) -> None:
    with open("/dev/null", "w") as sink:
        ctx.connect("default").cursor().copy_expert(
            "COPY (SELECT pg_sleep(0.05) FROM generate_series(1, 10000)) TO STDOUT", sink
        )


def copy_in(args: dict[str, Any], ctx: Context) -> None:
    cursor = ctx.connect("default").cursor()
    cursor.execute("CREATE TEMP TABLE slow (n int)")
    cursor.copy_expert("COPY slow FROM STDIN", SlowFile())


def spin_in_python(args: dict[str, Any]) -> None:
    while True:
        try:
            sum(range(100))
        except Exception:  # noqa: S112 - it is what such code does
            continue


def hold_the_interpreter(args: dict[str, Any]) -> None:
    sum(range(10**11))


def ignore_sigterm(args: dict[str, Any]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.run([sys.executable, "-c", "import time; time.sleep(60)"], check=False)


THREADS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "heed": (stop_at_safe_point, {}),
    "sleep": (block_in_sleep, {}),
    "query": (block_in_query, {}),
    "query_again": (repeat_query, {}),
    "copy_out": (copy_out, {}),
    "copy_in": (copy_in, {}),
    "spin": (spin_in_python, {"interrupt": True}),
    "spin_uninterrupted": (spin_in_python, {}),
}
PROCESSES: dict[str, Callable[..., Any]] = {
    "heed": stop_at_safe_point,
    "sleep": block_in_sleep,
    "query": block_in_query,
    "query_again": repeat_query,
    "spin": spin_in_python,
    "hold_the_interpreter": hold_the_interpreter,
    "deaf_to_sigterm": ignore_sigterm,
}


def after_parent_knows(task: Callable[..., None]) -> Callable[..., None]:
    """Start once the parent knows: an earlier stop would not reach the pipeline."""

    def begin(args: dict[str, Any], ctx: Any) -> None:
        ctx.progress(begun=True)
        while ctx.reported.unsaved()[0] is not None:
            time.sleep(0.01)
        task(*(args, ctx)[: len(signature(task).parameters)])

    return begin


for name, (call, options) in THREADS.items():
    register(f"thread.{name}", **options)(call)
for name, call in PROCESSES.items():
    register(f"process.{name}", isolation="process")(after_parent_knows(call))
