"""Measures what the fence of a target costs: transactions in a target, with and without it.

Takes about half a minute.

Each round inserts one row in a transaction on a local server: with a plain psycopg2 connection, with a fence
(`ctx.transaction(target=…)`), and with a fence and a position. `more` is what a transaction takes longer than a plain
one of the same round; the goal is at most 1 ms. `first` is the first use of a target in an attempt: its connection, the
search for the table, the claim of the row and the number from the queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import psycopg2

from benchmarks.place import benchmark_server, describe_environment, fresh_database
from benchmarks.rounds import Cell, format_table, make_parser, median
from dataloader.app.db.connection import Session
from dataloader.app.queue.attempt_sessions import ConnectionSettings
from dataloader.app.queue.job import NewJob, new_run_ids
from dataloader.app.queue.jobs import JobQueue
from dataloader.workers.context import ContextSettings, JobContext

_INSERT = "INSERT INTO parts (key) VALUES ('a part')"


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__name__, rounds=5)
    parser.add_argument("--transactions", type=int, default=300, help="of each kind in a round")
    options = parser.parse_args(argv)
    with (
        benchmark_server({"synchronous_commit": "on"}) as (server_dsn, _),
        fresh_database(server_dsn, "targets_queue") as queue_dsn,
        fresh_database(server_dsn, "targets_target", empty=True) as target_dsn,
        closing(psycopg2.connect(target_dsn)) as connection,
    ):
        print(describe_environment(server_dsn))
        with connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE parts (key text)")
        times = [_time_round(queue_dsn, target_dsn, connection, options.transactions) for _ in range(options.rounds)]
    lines: list[Sequence[Cell]] = []
    for name in times[0]:
        more = median([round_[name] - round_["plain"] for round_ in times])
        ratio = median([round_[name] / round_["plain"] for round_ in times])
        lines.append((name, f"{median([round_[name] for round_ in times]):.2f}", f"{more:.2f}", f"{ratio:.2f}"))
    print(format_table(["transaction", "ms", "more ms", "ratio"], lines))


def _time_round(queue_dsn: str, target_dsn: str, connection: Any, count: int) -> dict[str, float]:
    """Milliseconds of a transaction of each kind."""
    context = _context(queue_dsn, target_dsn)
    try:
        first = _time(lambda: context.targets.claim("warehouse"), 1)
        return {
            "plain": _time(lambda: _plain(connection), count),
            "fence": _time(lambda: _fenced(context, None), count),
            "fence and position": _time(lambda: _fenced(context, {"part": 3}), count),
            "first": first,
        }
    finally:
        assert context.connections is not None
        context.connections.close()


def _context(queue_dsn: str, target_dsn: str) -> JobContext:
    with closing(Session(queue_dsn, application_name="benchmark")) as session:
        queue = JobQueue(session)
        queue.enqueue(NewJob(queue="q", task="t", lock_key=str(time.time())))
        (job,), _ = queue.claim("q", ["t"], new_run_ids(1), "benchmark")
    settings = ConnectionSettings(dsn=queue_dsn, schema="public", targets={"warehouse": target_dsn})
    return JobContext(job, ContextSettings(connection_settings=settings))


def _time(call: Callable[[], Any], count: int) -> float:
    """Milliseconds a call."""
    started_at = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - started_at) * 1000 / count


def _plain(connection: Any) -> None:
    with connection, connection.cursor() as cursor:
        cursor.execute(_INSERT)


def _fenced(context: JobContext, position: Any) -> None:
    with context.transaction(target="warehouse") as connection, connection.cursor() as cursor:
        cursor.execute(_INSERT)
        if position is not None:
            context.checkpoint(position)


if __name__ == "__main__":
    main()
