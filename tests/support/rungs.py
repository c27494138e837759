"""Pipelines that ignore one means of stopping after the other: who gives in to which rung?"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from inspect import signature
from typing import Any

from pipelines.contract import Context, register

LONG = 60


class Slow:
    """A file that is read for ever, a row at a time."""

    def read(self, size: int = -1) -> str:
        time.sleep(0.02)
        return "1\n" * 4096  # enough for libpq to send it on, and so to notice that nobody is there


def heed(args: dict[str, Any], ctx: Context) -> None:
    ctx.progress(1)
    ctx.sleep(LONG)


def sleep(args: dict[str, Any]) -> None:
    time.sleep(args.get("seconds", LONG))


def query(args: dict[str, Any], ctx: Context) -> None:
    ctx.connect("default").cursor().execute("SELECT pg_sleep(60)")


def query_again(args: dict[str, Any], ctx: Context) -> None:
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
    cursor.copy_expert("COPY slow FROM STDIN", Slow())


def spin(args: dict[str, Any]) -> None:
    while True:
        try:
            sum(range(100))
        except Exception:  # noqa: S112 - it is what such code does
            continue


def hold_the_interpreter(args: dict[str, Any]) -> None:
    sum(range(10**11))


def deaf_to_sigterm(args: dict[str, Any]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.run([sys.executable, "-c", "import time; time.sleep(60)"], check=False)


THREADS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "heed": (heed, {}),
    "sleep": (sleep, {}),
    "query": (query, {}),
    "query_again": (query_again, {}),
    "copy_out": (copy_out, {}),
    "copy_in": (copy_in, {}),
    "spin": (spin, {"interrupt": True}),
    "spin_uninterrupted": (spin, {}),
}
PROCESSES: dict[str, Callable[..., Any]] = {
    "heed": heed,
    "sleep": sleep,
    "query": query,
    "query_again": query_again,
    "spin": spin,
    "hold_the_interpreter": hold_the_interpreter,
    "deaf_to_sigterm": deaf_to_sigterm,
}


def once_it_is_known(call: Callable[..., None]) -> Callable[..., None]:
    """Begin when the parent has heard that it begins: a stop that came before would not be the pipeline's to ignore."""

    def begin(args: dict[str, Any], ctx: Any) -> None:
        ctx.progress(begun=True)
        while ctx.news()[0] is not None:
            time.sleep(0.01)
        call(*(args, ctx)[: len(signature(call).parameters)])

    return begin


for name, (call, options) in THREADS.items():
    register(f"thread.{name}", **options)(call)
for name, call in PROCESSES.items():
    register(f"process.{name}", isolation="process")(once_it_is_known(call))
