"""Jobs whose SQL outlives them unless it is ended, and a table of what was still active when the next one began."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from pipelines.contract import Context, register

TABLES = """CREATE TABLE begun (job uuid PRIMARY KEY);
            CREATE TABLE written (job uuid, at timestamptz);
            CREATE TABLE starts (job uuid, at timestamptz, active text[])"""
# One statement that writes a row each 50 ms for 20 s; in autocommit each is committed at once.
WRITES_ON = """DO $$ BEGIN FOR n IN 1..400 LOOP
    INSERT INTO written VALUES ('{job}', clock_timestamp()); {commit} PERFORM pg_sleep(0.05);
END LOOP; END $$"""
NOTES_START = """INSERT INTO starts SELECT %s, clock_timestamp(), array_agg(application_name)
    FROM pg_stat_activity
   WHERE datname = current_database() AND application_name LIKE %s AND state <> 'idle' AND pid <> pg_backend_pid()"""


def is_first(args: dict[str, Any], ctx: Context) -> bool:
    """A second attempt, and the next job of the key, note what is still active of the first."""
    with closing(ctx.connect("default")) as connection, connection, connection.cursor() as cursor:
        first = args.get("first", str(ctx.job_id))
        cursor.execute("INSERT INTO begun VALUES (%s) ON CONFLICT DO NOTHING", (first,))
        if cursor.rowcount:
            return True
        cursor.execute(NOTES_START, (str(ctx.job_id), f"dataloader:{first}:%"))
        return False


def connects(args: dict[str, Any], ctx: Context) -> None:
    if is_first(args, ctx):
        connection = ctx.connect("default")
        connection.autocommit = True
        connection.cursor().execute(WRITES_ON.format(job=ctx.job_id, commit="COMMIT;"))


@register("dead.transaction")
def transacts(args: dict[str, Any], ctx: Context) -> None:
    if is_first(args, ctx):
        with ctx.transaction() as connection:
            connection.cursor().execute(WRITES_ON.format(job=ctx.job_id, commit=""))


@register("dead.next")
def comes_next(args: dict[str, Any], ctx: Context) -> None:
    is_first(args, ctx)


register("dead.thread")(connects)
register("dead.process", isolation="process")(connects)
