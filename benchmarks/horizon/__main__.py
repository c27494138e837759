"""Measures what a transaction that is open for hours in the queue's database costs the queue, by statement.

Takes about 3 hours; with --seconds 1000 about 15 minutes.

While a transaction is open, vacuum removes no row version that is younger than it, and no index entry of one. A hundred
jobs run in two worker processes and report progress each second. Twenty short jobs a second are enqueued, claimed and
settled meanwhile: a few share a lock key or a limit, are scheduled, or are retried. The maintenance leader does its
duties, retention deletes as many jobs as arrive, and people read pages. This is simulated by the queue's own classes,
one statement after the other, each second as fast as possible; heartbeats come earlier than in a service, which changes
no number of row versions. What autovacuum would do in a minute is done each simulated minute, and sessions then make
new plans.

Each lane is a fresh database in which one thing is open from the first second on: nothing; a transaction that has
written, between two of its statements; a held snapshot; the slot of a standby that sent `hot_standby_feedback` and was
stopped; such a standby with an open query. The slot is a physical one, since a logical slot holds the versions of
catalog rows only. A lane whose programs are missing is left out.

Pages are counted exactly, by table and index, within the session that touches them, and do not depend on the load of
the machine; each figure is the median of the executions in the ten seconds before a checkpoint. Pages of a heartbeat,
of a status read and of a claim shall be at most twice those of the first checkpoint, and at most 30 more; p99 of claims
at most twice; the tables shall grow by at most 300 MB more than with nothing open; no lease shall be lost.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial

from benchmarks.horizon.lanes import LANES, LaneUnavailable
from benchmarks.horizon.load import LaneResult, Simulation
from benchmarks.horizon.pages import Statement
from benchmarks.place import benchmark_server, describe_environment, fresh_database
from benchmarks.rounds import Cell, format_ratio, format_table, make_parser, quantile

CHECKPOINTS = (30, 100, 300, 1_000, 3_000, 10_800)
SETTINGS = {
    "fsync": "off",  # nothing here waits for a disk
    "full_page_writes": "off",  # a slot keeps all of the write-ahead log
    "autovacuum": "off",
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
}
MAX_RATIO, MAX_MORE_PAGES, MAX_GROWTH_MB = 2.0, 30, 300.0
MB = 1_000_000
# Totals of the summary: what a user or the clock waits for.
ACTIVITIES = (
    "beat",
    "renewal of rows",
    "save progress",
    "what there is to do",
    "report",
    "status read",
    "enqueue",
    "claim",
    "settle",
    "list of running jobs",
    "overview",
)


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__name__)
    parser.add_argument("--seconds", type=int, default=CHECKPOINTS[-1], help="simulated seconds")
    parser.add_argument("--jobs", type=int, default=100, help="running jobs with progress")
    parser.add_argument("--rate", type=int, default=20, help="short jobs a second")
    parser.add_argument("--plain", action="store_true", help="short jobs have no common keys, limits, times or retries")
    parser.add_argument("--lanes", nargs="+", choices=list(LANES), default=list(LANES))
    parser.add_argument("--max-minutes", type=float, default=60.0, help="end a lane after so long")
    parser.add_argument("--all", action="store_true", help="list statements that do not grow too")
    options = parser.parse_args(argv)
    checkpoints = [each for each in CHECKPOINTS if each < options.seconds] + [options.seconds]
    results: dict[str, LaneResult] = {}
    with benchmark_server(SETTINGS) as (server_dsn, _):
        print(describe_environment(server_dsn))
        for lane in options.lanes:
            with fresh_database(server_dsn) as dsn:
                simulation = Simulation(
                    dsn, jobs=options.jobs, rate=options.rate, seconds=options.seconds, plain=options.plain
                )
                try:
                    simulation.fill()
                    with LANES[lane](dsn):
                        results[lane] = simulation.run(
                            checkpoints, partial(print_progress, lane), max_sec=options.max_minutes * 60
                        )
                except LaneUnavailable as reason:
                    print(f"{lane}: left out, {reason}\n", flush=True)
                    continue
                finally:
                    simulation.close()
            print_statements(lane, results[lane], everything=options.all)
    print_summary(results)


def print_progress(lane: str, text: str) -> None:
    print(f"  {lane}: {text}", file=sys.stderr, flush=True)


def print_statements(lane: str, result: LaneResult, *, everything: bool) -> None:
    """Print the statements that grew, the most first, with the tables and indexes in which they did."""
    seconds = sorted(result.figures)
    rows: list[tuple[float, list[Cell]]] = []
    statements = dict.fromkeys(statement for second in seconds for statement in result.figures[second])
    for statement in statements:
        figures = [result.figures[second].get(statement) for second in seconds]
        known = [figure for figure in figures if figure is not None]
        first, last = known[0], known[-1]
        ratio = last.pages / max(1.0, first.pages)
        if not everything and _is_flat(first.pages, last.pages):
            continue
        where = _largest(first.by_relation, last.by_relation, "pages")
        entries = _largest(first.entries, last.entries, "entries")
        pages: list[Cell] = [None if figure is None else round(figure.pages) for figure in figures]
        ms = f"{first.ms:.1f} → {last.ms:.1f}"
        rows.append((ratio, [": ".join(statement), *pages, format_ratio(ratio), ms, where, entries]))
    rows.sort(key=lambda row: -row[0])
    print(f"{lane}: pages of {'each statement' if everything else 'the statements that grow'}, of {len(statements)}\n")
    headings = ["statement", *(f"{second:,} s" for second in seconds), "growth", "ms", "where", "index entries"]
    print(
        format_table(headings, [row for _, row in rows], text_columns=(0, len(headings) - 2, len(headings) - 1)),
        end="\n\n",
        flush=True,
    )


def _largest(first: Mapping[str, float], last: Mapping[str, float], unit: str) -> str:
    """The three tables or indexes of which a statement reads so much more than at first."""
    more = {name: count - first.get(name, 0.0) for name, count in last.items()}
    top = sorted(more.items(), key=lambda item: -item[1])[:3]
    return ", ".join(f"{name} +{count:,.0f}" for name, count in top if count >= 5) + f" {unit}"


def _is_flat(first: float, last: float) -> bool:
    return last <= MAX_RATIO * max(1.0, first) and last <= first + MAX_MORE_PAGES


def print_summary(results: dict[str, LaneResult]) -> None:
    rows: list[list[Cell]] = []
    for activity in ACTIVITIES:
        cells = [_first_and_last(result, activity) for result in results.values()]
        rows.append([f"pages of: {activity}", *cells])
    for name, percent in (("p50", 50), ("p99", 99)):
        rows.append([f"claim {name}, ms", *(_quantiles(r, r.claim_ms, percent) for r in results.values())])
    rows.append(["all statements of a second, ms", *(_quantiles(r, r.second_ms, 50) for r in results.values())])
    tables = sorted({table for result in results.values() for table in result.bytes_after})
    grown = {table: [result.grown_bytes(table) / MB for result in results.values()] for table in tables}
    rows += [[f"{table}, MB more", *each] for table, each in grown.items() if max(each) >= 1]
    rows.append(["all tables, MB more", *(sum(column) for column in zip(*grown.values(), strict=True))])
    for name in ("waiting_jobs", "leases_lost", "deadlocks", "seconds"):
        rows.append([name.replace("_", " "), *(getattr(result, name) for result in results.values())])
    print(format_table(["first → last checkpoint", *results], rows))


def _first_and_last(result: LaneResult, activity: str) -> str:
    """The sum of the medians of the activity's statements; `!` marks what grew more than it shall."""
    first, last = result.figures[min(result.figures)], result.figures[max(result.figures)]
    statements: list[Statement] = [statement for statement in first if statement[0] == activity and statement in last]
    before, after = (sum(figures[statement].pages for statement in statements) for figures in (first, last))
    return f"{before:,.0f} → {after:,.0f}{'' if _is_flat(before, after) else ' !'}"


def _quantiles(result: LaneResult, times: Sequence[tuple[int, float]], percent: int) -> str:
    """Of the first and of the last tenth of the time."""
    size = max(1, result.seconds // 10)
    first = [ms for second, ms in times if second <= size]
    last = [ms for second, ms in times if second > result.seconds - size] or first
    return f"{quantile(first, percent):.1f} → {quantile(last, percent):.1f}"


if __name__ == "__main__":
    main()
