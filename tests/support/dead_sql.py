"""Jobs whose SQL outlives them unless it is ended, and a table of what was still active when the next one began."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from dataloader.pipelines.contract import Context, register

TABLES = """CREATE TABLE begun (job uuid PRIMARY KEY);
            CREATE TABLE written (job uuid, at timestamptz);
            CREATE TABLE starts (job uuid, at timestamptz, active text[])"""
# One statement that writes a row each 50 ms for 20 s; in autocommit each is committed at once.
SLOW_WRITES = """DO $$ BEGIN FOR n IN 1..400 LOOP
    INSERT INTO written VALUES ('{job}', clock_timestamp()); {commit} PERFORM pg_sleep(0.05);
END LOOP; END $$"""
RECORD_START = """INSERT INTO starts SELECT %s, clock_timestamp(), array_agg(application_name)
    FROM pg_stat_activity
   WHERE datname = current_database() AND application_name LIKE %s AND state <> 'idle' AND pid <> pg_backend_pid()"""


def is_first_attempt(args: dict[str, Any], ctx: Context) -> bool:
    """A second attempt, and the next job of the key, note what is still active of the first."""
    with closing(ctx.connect("default")) as connection, connection, connection.cursor() as cursor:
        first = args.get("first", str(ctx.job_id))
        cursor.execute("INSERT INTO begun VALUES (%s) ON CONFLICT DO NOTHING", (first,))
        if cursor.rowcount:
            return True
        cursor.execute(RECORD_START, (str(ctx.job_id), f"dataloader:{first}:%"))
        return False


def write_on_connection(args: dict[str, Any], ctx: Context) -> None:
    if is_first_attempt(args, ctx):
        connection = ctx.connect("default")
        connection.autocommit = True
        connection.cursor().execute(SLOW_WRITES.format(job=ctx.job_id, commit="COMMIT;"))


@register("dead.transaction")
def write_in_transaction(args: dict[str, Any], ctx: Context) -> None:
    if is_first_attempt(args, ctx):
        with ctx.transaction() as connection:
            connection.cursor().execute(SLOW_WRITES.format(job=ctx.job_id, commit=""))


@register("dead.next")
def record_start(args: dict[str, Any], ctx: Context) -> None:
    is_first_attempt(args, ctx)


register("dead.thread")(write_on_connection)
register("dead.process", isolation="process")(write_on_connection)
