"""Compares what the statements of a job cost the server with those of the last release, without installing it.

Takes about 40 seconds.

Both sides are in this checkout: tests/releases has the schema and the statements of the release. Each statement is
executed on a side after the other, in another order each time, and its cost is the CPU time of the session's server
process. The ratio is the median of those of single executions, which other load changes little. `--max` makes the
command fail if one is higher.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg2

from benchmarks.place import benchmark_server, fresh_database
from benchmarks.rounds import Cell, format_ratio, format_table, make_parser, median
from dataloader.app.db.encoding import array
from dataloader.app.db.schema import schema_text
from dataloader.app.db.statements import StatementPart, statements
from dataloader.app.queue.claims import FRONT
from dataloader.app.queue.job import SUCCEEDED, new_run_ids
from dataloader.app.queue.parameters import settle_parameters

RELEASE = "0.3.0"
_FOLDER = Path(__file__).parents[1] / "tests" / "releases"
_USED = ("enqueue", "claim", "settle")
_SETTINGS = (
    "SET plan_cache_mode = force_generic_plan; SET jit = off; SET enable_seqscan = off;"
    " SET dl.events_checked = 'yes'; SET client_min_messages = error"
)
# A process that serves another queue: without any, each commit sends a notification.
_LIVE_WORKER = (
    "INSERT INTO dl_workers (worker_id, name, version, queues, tasks, threads, heartbeat_sec, seen_at)"
    " VALUES (gen_random_uuid(), 'w', '', '{idle}', '{t}', 1, 10, now() + interval '1 day')"
)
_BATCH = 50
_WARM_UP = 10  # executions: plans are made, and relations are known
_INSERT = (
    "INSERT INTO dl_jobs (queue, task, lock_key, args) SELECT 'q', 't', %s || n, '{}' FROM generate_series(1, %s) n"
)
_JOB = {"queue": "q", "task": "t", "args": {"n": 1}}

Statements = dict[str, list[str]]  # texts of their parts, by name


class Side:
    """A database of one version, and a session that executes its statements."""

    def __init__(self, connection: Any, texts: Statements) -> None:
        connection.autocommit = True
        self._cursor = connection.cursor()
        self._schedstat = Path(f"/proc/{connection.get_backend_pid()}/schedstat")
        self._executes: dict[str, str] = {}
        self._numbers = itertools.count()
        self._cursor.execute(_SETTINGS)
        self._cursor.execute(_LIVE_WORKER)
        for name in _USED:
            parts = [StatementPart(text) for text in texts[name]]
            for part in parts:
                self._cursor.execute(part.prepare)
            self._executes[name] = "; ".join(part.execute for part in parts)

    def measure(self) -> Iterator[tuple[str, float]]:
        """Execute each statement once; yield its name and the microseconds that it took the server."""
        key = f"k{next(self._numbers)}-"
        one = json.dumps(_JOB | {"lock_key": key})
        many = json.dumps([_JOB | {"lock_key": f"{key}{n}"} for n in range(_BATCH)])
        yield "INSERT of one", self._cost_us(_INSERT, (f"{key}a", 1))
        yield f"INSERT of {_BATCH}", self._cost_us(_INSERT, (f"{key}b", _BATCH))
        yield "enqueue", self._cost_us(self._executes["enqueue"], {"job": one})
        yield "dl_enqueue", self._cost_us("SELECT dl_enqueue('q', 't', %s)", (f"{key}c",))
        yield f"dl_enqueue_many of {_BATCH}", self._cost_us("SELECT dl_enqueue_many(%s)", (many,))
        for wanted in (1, _BATCH):
            yield f"claim of {wanted}", self._cost_us(self._executes["claim"], _claim(wanted))
            runs = [(row[0], row[1], row[5], SUCCEEDED) for row in self._cursor.fetchall() if row[0] is not None]
            assert len(runs) == wanted, f"{len(runs)} jobs claimed"
            ends = settle_parameters(runs, max_result_bytes=1_000)
            yield f"settlement of {wanted}", self._cost_us(self._executes["settle"], ends)

    def _cost_us(self, statement: str, parameters: Any) -> float:
        before = self._run_ns()
        self._cursor.execute(statement, parameters)
        return (self._run_ns() - before) / 1e3

    def _run_ns(self) -> int:
        return int(self._schedstat.read_text(encoding="ascii").split()[0])


def _claim(wanted: int) -> dict[str, Any]:
    return {
        "queue": "q", "tasks": "{t}", "wanted": wanted, "scan_limit": wanted, "after": array(FRONT), "in_turn": False,
        "promotes": False, "run_ids": "{" + ",".join(map(str, new_run_ids(wanted))) + "}", "worker": "w",
        "worker_id": None, "takes_session_locks": False, "min_lease_sec": 1, "release": None,
    }  # fmt: skip


def release_side() -> tuple[str, Statements]:
    schema = (_FOLDER / f"schema-{RELEASE}.sql").read_text(encoding="utf-8")
    return schema, json.loads((_FOLDER / f"statements-{RELEASE}.json").read_text(encoding="utf-8"))


def checkout_side() -> tuple[str, Statements]:
    return schema_text(), {name: [part.text for part in statements("public")[name].parts] for name in _USED}


@contextmanager
def open_side(server_dsn: str, schema: str, texts: Statements) -> Iterator[Side]:
    with fresh_database(server_dsn, empty=True) as dsn, closing(psycopg2.connect(dsn)) as connection:
        connection.cursor().execute(schema)
        connection.commit()
        yield Side(connection, texts)


def compare(sides: Sequence[Side], seconds: float) -> tuple[dict[str, list[list[float]]], int]:
    """Return the costs of each statement by side, and the number of rounds."""
    costs: dict[str, list[list[float]]] = {}
    deadline = time.monotonic() + seconds
    for number in itertools.count():
        if number == _WARM_UP:
            costs.clear()
        elif number > _WARM_UP and time.monotonic() > deadline:
            return costs, number - _WARM_UP
        running = [side.measure() for side in sides]
        while True:
            order = random.sample(range(len(sides)), len(sides))
            try:
                for at in order:
                    name, cost_us = next(running[at])
                    costs.setdefault(name, [[] for _ in sides])[at].append(cost_us)
            except StopIteration:
                break
    raise AssertionError("not reached")


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__name__)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to measure (default 30)")
    parser.add_argument("--max", type=float, help="fail if a statement costs more than so many times the release's")
    parser.add_argument("--same", action="store_true", help="compare the release with itself: what noise there is")
    options = parser.parse_args(argv)
    with benchmark_server() as (dsn, _), ExitStack() as stack:
        versions = (release_side(), release_side() if options.same else checkout_side())
        sides = [stack.enter_context(open_side(dsn, *version)) for version in versions]
        costs, rounds = compare(sides, options.seconds)
    ratios = {name: median([b / a for a, b in zip(*by_side, strict=True)]) for name, by_side in costs.items()}
    rows: list[list[Cell]] = [
        [name, median(a), median(b), format_ratio(ratios[name])] for name, (a, b) in costs.items()
    ]
    print(f"{rounds} executions of each in turn, medians of the server's CPU time in µs\n")
    print(format_table(["", f"release {RELEASE}", "release again" if options.same else "checkout", "ratio"], rows))
    missed = [name for name, ratio in ratios.items() if options.max and ratio > options.max]
    for name in missed:
        print(f"{name}: {ratios[name]:.2f} × the release's; at most {options.max:g} is allowed")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
