"""The tasks of a user's project, one for each kind of isolation and for each step of the first hour.

The places copy this folder into an empty one: it is code of a user, who has the wheel and no checkout.
"""

from __future__ import annotations

import os
import time
from typing import Any

import psycopg2

from dataloader import Context, Daily, register

HANGING_SQL = "SELECT pg_sleep(600)"
NO_TIMEOUT = "SET statement_timeout = 0"  # of the account, whose own statements it ends too


@register("field.thread")
def run_in_thread(args: dict[str, Any], ctx: Context) -> dict[str, int]:
    with ctx.connect("warehouse") as connection, connection.cursor() as cursor:
        cursor.execute("SELECT 6 * 7")
        (answer,) = cursor.fetchone()
    ctx.log.info("answered", answer=answer)
    return {"answer": answer, "pid": os.getpid()}


@register("field.process", isolation="process")
def run_in_process(args: dict[str, Any], ctx: Context) -> dict[str, int]:
    print("a line of the process")
    with ctx.transaction() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT 6 * 7")
        (answer,) = cursor.fetchone()
    return {"answer": answer, "pid": os.getpid()}


@register("field.offload")
def run_offloaded(args: dict[str, Any], ctx: Context) -> dict[str, int]:
    return {"answer": ctx.offload("process", multiply, 6, 7).result(), "pid": os.getpid()}


def multiply(one: int, other: int) -> int:
    return one * other


@register("field.hang_in_thread")
def hang_in_thread(args: dict[str, Any], ctx: Context) -> None:
    with ctx.connect("warehouse") as connection, connection.cursor() as cursor:
        cursor.execute(NO_TIMEOUT)
        cursor.execute(HANGING_SQL)


@register("field.hang_in_process", isolation="process")
def hang_in_process(args: dict[str, Any], ctx: Context) -> None:
    """Hang in a statement of a connection that dataloader knows nothing of."""
    with psycopg2.connect(os.environ["FIELD_DSN"]) as connection, connection.cursor() as cursor:
        cursor.execute(NO_TIMEOUT)
        cursor.execute(HANGING_SQL)


@register("field.limited", limits={"field": 1})
def run_limited(args: dict[str, Any], ctx: Context) -> dict[str, float]:
    started_at = time.time()
    ctx.sleep(0.3)
    return {"started_at": started_at, "ended_at": time.time()}


@register("field.day", lock_key="field.day:{day}", partitions=Daily("2026-01-01", zone="UTC"))
def load_day(args: dict[str, Any], ctx: Context) -> dict[str, str]:
    return {"day": args["day"]}


@register("field.report")
def report(args: dict[str, Any], ctx: Context) -> dict[str, int]:
    return {"sum": sum(parent.result["answer"] for parent in ctx.upstream.values())}


@register("field.wait")
def wait(args: dict[str, Any], ctx: Context) -> str:
    """Wait until the folder has the file that the job names: of its first attempt, or of a later one."""
    while not os.path.exists(args["file"]):
        ctx.sleep(0.1)
    return "done"
