"""Tasks that stay at a known place until a file is there: in a thread, in a process, and hostile ones."""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
import time
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import psycopg2

from dataloader.pipelines.contract import Context, Pipelines, register

PATIENT_SEC = 0.01


def wait_for(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(PATIENT_SEC)


def stay_here(args: dict[str, Any]) -> None:
    secret_value = "never shown"
    wait_for(args["file"])
    assert secret_value


def recurse(args: dict[str, Any], depth: int = 0) -> None:
    if depth < int(args["depth"]):
        recurse(args, depth + 1)
    else:
        wait_for(args["file"])


def stay_at_odd_place(args: dict[str, Any]) -> None:
    """Code with a name and a file that no source has."""
    code = compile("def f(wait, path):\n    wait(path)\n", "<script>\ud800\n" + "x" * 5000, "exec")
    names: dict[str, Any] = {"__name__": 7}
    exec(code, names)  # noqa: S102 - as programs do that write code
    odd = names["f"]
    odd.__code__ = odd.__code__.replace(co_name='a"\x00<b>\u202e' + "n" * 3000, co_qualname="q\x00" + "<b>" * 3000)
    odd(wait_for, args["file"])


def query(args: dict[str, Any], ctx: Context) -> None:
    """Execute a statement on a connection of the attempt."""
    with ctx.connect(args.get("target", "default")) as connection, connection.cursor() as cursor:
        cursor.execute(args["statement"])


@register("where.apart", isolation="process")
def stay_apart(args: dict[str, Any]) -> None:
    stay_here(args)


@register("where.queries", isolation="process")
def query_apart(args: dict[str, Any]) -> None:
    """Execute a statement on a connection of its own, which has its name from the environment."""
    with closing(psycopg2.connect(args["dsn"])) as connection:
        connection.cursor().execute(args["statement"])


@register("where.helped", isolation="process")
def stay_with_helper(args: dict[str, Any]) -> None:
    helper = threading.Thread(target=stay_here, args=(args,), name="helper-thread")
    helper.start()
    helper.join()


@register("where.frozen", isolation="process")
def hold_interpreter(args: dict[str, Any]) -> None:
    """Native code that holds the interpreter, until a signal ends the process."""
    with open(args["file"], "w", encoding="utf-8"):
        ctypes.PyDLL(None).sleep(600)


@register("where.recursive", isolation="process")
def recurse_apart(args: dict[str, Any]) -> None:
    recurse(args)


def stay_until_stopped(args: dict[str, Any], ctx: Context) -> None:
    ctx.log.info("I am here")
    while True:
        ctx.sleep(PATIENT_SEC)


async def wait_in_coroutine(path: str) -> None:
    while not os.path.exists(path):
        await asyncio.sleep(PATIENT_SEC)


async def await_here(args: dict[str, Any]) -> None:
    await wait_in_coroutine(args["file"])


async def yield_here(args: dict[str, Any]) -> AsyncIterator[dict[str, int]]:
    yield {"processed": 1}
    await asyncio.gather(wait_in_coroutine(args["file"]), asyncio.sleep(0))


async def compute_here(args: dict[str, Any]) -> None:
    wait_for(args["file"])  # it keeps the event loop from all else


@register("where.awaits", isolation="process")
async def await_apart(args: dict[str, Any]) -> None:
    await wait_in_coroutine(args["file"])


def in_threads() -> Pipelines:
    tasks = Pipelines()
    for name, task in (
        ("stay", stay_here), ("recurse", recurse), ("odd", stay_at_odd_place), ("query", query),
        ("stay_until_stopped", stay_until_stopped), ("awaits", await_here), ("yields", yield_here),
        ("computes", compute_here),
    ):  # fmt: skip
        tasks.register(name)(task)
    return tasks
