"""Measures many worker hosts on one PostgreSQL, each in a network namespace of its own.

Takes about 7 minutes.

Needs root and `ip`. A host is a process with 8 threads that reaches the database over a bridge.

*hosts*: no-op jobs and jobs of 20 ms, inserted before they are claimed; single jobs for the pick-up; an idle stretch.
*claimers*: claims and settlements of that many sessions without worker processes: what the server alone does.
*latency*: no-op jobs through a proxy with that round trip.
*slow*: the pick-up of three hosts while the line of a fourth carries 20 kB/s.
*faults*: hosts and the database cut off, hosts restarted, under the load of the fault campaign, whose checker judges.
*listen*: commits of 8 clients that notify, while that many idle worker processes of one host are there, by DL_LISTEN.
*sessions*: commits of 8 clients, and the server's memory, with idle sessions.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import psycopg2
from psycopg2.extensions import make_dsn

from benchmarks.hosts import NAP_SEC, THREADS, TIMEOUT_SEC, Place, add_hosts, running_hosts, wait_for
from benchmarks.listening import measure_claimers, measure_listening, measure_sessions
from benchmarks.place import commit_count, cpu_sec_of, describe_environment, own_cpu_sec, query_value
from benchmarks.rounds import Cell, format_ratio, format_table, make_parser, quantile
from tests.chaos.servers import Server
from tests.cluster.cluster import allow_network, running_cluster, start_proxy, tcp_dsn
from tests.cluster.network import DATABASE, HUB, Network, missing_tools
from tests.cluster.scenarios import LONG_CUT_SEC, SHORT_CUT_SEC, cut_off_database, cut_off_host, restart_hosts

PARTS = ("hosts", "claimers", "latency", "slow", "faults", "listen", "sessions")
_QUIET_LOAD = 1.0
_WARM_JOBS = 20  # for each thread
_PORT = 5432
_SETTINGS = {
    "fsync": "on", "max_connections": "1400", "listen_addresses": "*", "shared_buffers": "256MB", "max_wal_size": "1GB",
    "wal_keep_size": "0", "shared_preload_libraries": "pg_stat_statements",
}  # fmt: skip
_FILL = "INSERT INTO dl_jobs (queue, task, lock_key) SELECT 'bench', %s, 'key ' || n FROM generate_series(1, %s) n"
_ENDED = (
    "SELECT count(*), extract(epoch FROM max(finished_at))::float8 FROM dl_jobs"
    " WHERE task = %s AND status = 'succeeded'"
)
_STATEMENTS = (
    "SELECT calls, (total_plan_time + total_exec_time) * 1000, left(regexp_replace(query, '\\s+', ' ', 'g'), 90)"
    " FROM pg_stat_statements WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " ORDER BY 2 DESC LIMIT 12"
)
_PICK_UP = (
    "SELECT extract(epoch FROM started_at - created_at)::float8 * 1000, worker FROM dl_jobs WHERE task = 'pick' AND"
    " status = 'succeeded'"
)


@dataclass(frozen=True)
class Drain:
    jobs_per_sec: float
    cpu_us: float  # of the server, a job
    own_cpu_us: float  # of the worker processes, a job
    commits: float  # a job
    notifications: float  # a job
    statements: list[tuple[float, float, str]]  # calls a job, µs a job, text


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__name__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--hosts", nargs="+", type=int, default=[1, 4, 16, 64])
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--statements", type=int, default=0, help="how many of the costliest to list, with hosts")
    parser.add_argument("--samples", type=int, default=100, help="single jobs for the pick-up")
    parser.add_argument("--seconds", type=float, default=3.0, help="of commits, in the parts listen and sessions")
    parser.add_argument("--processes", nargs="+", type=int, default=[150], help="of the part listen")
    options = parser.parse_args(argv)
    if (reason := missing_tools()) is not None:
        parser.error(reason)
    measures: dict[str, Callable[[Place], None]] = {
        "hosts": lambda place: measure_hosts(place, options.hosts, options.jobs, options.samples, options.statements),
        "claimers": lambda place: measure_claimers(place, options.hosts, options.jobs),
        "latency": lambda place: measure_latency(place, options.jobs // 3),
        "slow": lambda place: measure_slow_host(place, options.samples),
        "listen": lambda place: measure_listening(place, options.processes, options.seconds),
        "sessions": lambda place: measure_sessions(place, options.seconds),
    }
    with place_of_all() as place:
        print(describe_environment(place.server.dsn))
        warn_of_load()
        for part in options.parts:
            if part in measures:
                measures[part](place)
    if "faults" in options.parts:
        show_faults()


def warn_of_load() -> None:
    if os.getloadavg()[0] > _QUIET_LOAD:
        print(f"NOTE: other work is on this machine (load {load_text()}): rates and times are those of a crowded one,\n"
              "only CPU, commits and notifications of a job carry over\n")  # fmt: skip


@contextmanager
def place_of_all() -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(prefix="dl-bench-cluster-"))
    folder.chmod(0o755)
    with Network() as network:
        server = Server(folder / "server", binaries="auto", settings=_SETTINGS)
        try:
            with network.inside(DATABASE):
                server.create()
            allow_network(server)
            yield Place(network, server, folder)
        finally:
            server.remove()
            shutil.rmtree(folder, ignore_errors=True)


# ── hosts ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def measure_hosts(place: Place, counts: Sequence[int], jobs: int, samples: int, listed: int) -> None:
    rows, costs = list[list[Cell]](), list[list[Cell]]()
    best: dict[str, float] = {}
    add_hosts(place.network, max(counts))
    for count in counts:
        with place.database(f"hosts_{count}") as database:
            dsn = place.dsn(database)
            with running_hosts(place.network, dsn, [place.network_dsn(database)] * count) as pids:
                idle = idle_share(place.process)
                picked = [sample for sample, _ in pick_up(dsn, samples)]
                drain(place, dsn, pids, "warm", count * THREADS * _WARM_JOBS)  # each has planned its statements
                noop = drain(place, dsn, pids, "noop", jobs)
                nap = drain(place, dsn, pids, "nap", min(jobs, count * THREADS * int(3 / NAP_SEC)))
                sessions = query_value(
                    dsn, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'dataloader-%%'"
                )[0][0]
        for task, found in (("no-op", noop), ("20 ms", nap)):
            best[task] = max(best.get(task, 0.0), found.jobs_per_sec)
            costs.append([f"{count}", task, found.jobs_per_sec, format_ratio(found.jobs_per_sec / best[task]),
                          found.cpu_us, found.own_cpu_us, found.commits, found.notifications, load_text()])  # fmt: skip
            for calls, us, text in found.statements[:listed]:
                print(f"    {count} hosts, {task}: {calls:7.3f} calls, {us:6.1f} µs a job  {text}")
        rows.append([f"{count}", quantile(picked, 50), quantile(picked, 99), sessions, f"{idle:.2f} %"])
        print(f"  {count} hosts: {noop.jobs_per_sec:,.0f} and {nap.jobs_per_sec:,.0f} jobs/s", flush=True)
    of_jobs = ("hosts", "jobs", "jobs/s", "of the best", "server CPU, µs/job", "workers' CPU, µs/job", "commits/job",
               "NOTIFY/job", "load")  # fmt: skip
    print("\n" + format_table(of_jobs, costs, text_columns=(0, 1)) + "\n")
    of_hosts = ("hosts", "pick-up p50, ms", "p99, ms", "sessions", "idle server, of a core")
    print(format_table(of_hosts, rows) + "\n")


def load_text() -> str:
    """The load of the machine, whose own cores are the limit of a small one."""
    return f"{os.getloadavg()[0]:.0f} on {os.cpu_count()} cores"


def drain(place: Place, dsn: str, pids: Sequence[int], task: str, jobs: int) -> Drain:
    workers = [psutil.Process(pid) for pid in pids]
    with closing(psycopg2.connect(dsn)) as listener:
        listener.autocommit = True
        listener.cursor().execute("LISTEN dl_jobs")
        query_value(dsn, "SELECT pg_stat_statements_reset()")
        commits, cpu, own_cpu = commit_count(dsn), cpu_sec_of(place.process), own_cpu_sec(workers)
        with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
            cursor.execute(_FILL, (task, jobs))
            cursor.execute("SELECT extract(epoch FROM clock_timestamp())::float8")
            ((began,),) = cursor.fetchall()
        wait_for(lambda: query_value(dsn, _ENDED, task)[0][0] >= jobs)
        seconds = query_value(dsn, _ENDED, task)[0][1] - began
        cpu, own_cpu = cpu_sec_of(place.process) - cpu, own_cpu_sec(workers) - own_cpu
        listener.poll()
        notified = len(listener.notifies)
        statements = [(calls / jobs, us / jobs, text) for calls, us, text in query_value(dsn, _STATEMENTS)]
    commits = commit_count(dsn) - commits
    return Drain(jobs / seconds, cpu / jobs * 1e6, own_cpu / jobs * 1e6, commits / jobs, notified / jobs, statements)


def pick_up(dsn: str, samples: int) -> list[tuple[float, str]]:
    """Milliseconds from the insert of single jobs to their start, with the worker of each."""
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        for n in range(samples):
            cursor.execute("INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('bench', 'pick', %s)", (f"pick {n}",))
            time.sleep(random.uniform(0.02, 0.06))
    wait_for(lambda: len(query_value(dsn, _PICK_UP)) >= samples)
    return [(row[0], row[1]) for row in query_value(dsn, _PICK_UP)]


def idle_share(process: psutil.Process, seconds: float = 6.0) -> float:
    """Return the share of a core that the server needs while nothing happens."""
    time.sleep(2.0)
    cpu, began = cpu_sec_of(process), time.monotonic()
    time.sleep(seconds)
    return (cpu_sec_of(process) - cpu) / (time.monotonic() - began) * 100


# ── latency, a slow host ────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def proxied(place: Place, database: str, lines: Sequence[tuple[float, float]], first_port: int) -> Iterator[list[str]]:
    """Yield a DSN for each line, a pair of delay and bytes a second, through a proxy of its own in the hub."""
    address = place.network.address(HUB)
    with place.network.inside(HUB):
        target = f"{place.network.address(DATABASE)}:{_PORT}"
        proxies = [
            start_proxy(place.folder, first_port + n, target, delay_sec, rate)
            for n, (delay_sec, rate) in enumerate(lines)
        ]
    try:
        yield [str(make_dsn(tcp_dsn(address, first_port + n), dbname=database)) for n in range(len(lines))]
    finally:
        for proxy in proxies:
            proxy.kill()


def measure_latency(place: Place, jobs: int, hosts: int = 4) -> None:
    rows: list[list[Cell]] = []
    add_hosts(place.network, hosts)
    base = 0.0
    for n, round_trip_ms in enumerate((0, 1, 10, 50)):
        name = f"latency_{round_trip_ms}"
        with place.database(name) as database:
            lines = [(round_trip_ms / 2000, 0.0)] * hosts
            with (
                proxied(place, database, lines, 7100 + 10 * n) as dsns,
                running_hosts(place.network, place.dsn(database), dsns) as pids,
            ):
                found = drain(place, place.dsn(database), pids, "noop", jobs)
                lost = query_value(
                    place.dsn(database),
                    "SELECT count(*) FROM dl_job_events WHERE payload ->> 'reason' = 'lease_expired'",
                )[0][0]
        base = base or found.jobs_per_sec
        rows.append([f"{round_trip_ms} ms", found.jobs_per_sec, format_ratio(found.jobs_per_sec / base), found.cpu_us,
                     found.commits, lost])  # fmt: skip
    headings = ("round trip", "no-op jobs/s", "ratio", "server CPU, µs/job", "commits/job", "leases lost")
    print("\n" + format_table(headings, rows) + "\n")


def measure_slow_host(place: Place, samples: int, hosts: int = 4) -> None:
    rows: list[list[Cell]] = []
    add_hosts(place.network, hosts)
    for name, rate in (("all alike", 0.0), ("one at 20 kB/s", 20_000.0)):
        with place.database(f"slow_{int(rate)}") as database:
            lines = [(0.0, rate if n == 0 else 0.0) for n in range(hosts)]
            with (
                proxied(place, database, lines, 7200 if rate else 7220) as dsns,
                running_hosts(place.network, place.dsn(database), dsns) as pids,
            ):
                samples_ms = pick_up(place.dsn(database), 2 * samples)
                others = [ms for ms, worker in samples_ms if not worker.endswith(f":{pids[0]}")]
        rows.append([name, len(others), quantile(others, 50), quantile(others, 99)])
    print("\n" + format_table(("hosts", "jobs of the other three", "pick-up p50, ms", "p99, ms"), rows) + "\n")


# ── faults ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def show_faults(hosts: int = 4) -> None:
    rows: list[list[Cell]] = []
    with running_cluster(hosts) as cluster:
        outcomes = [
            cut_off_host(cluster, host, seconds=SHORT_CUT_SEC if n % 2 else LONG_CUT_SEC)
            for n, host in enumerate(cluster.hosts)
        ]
        outcomes += [cut_off_database(cluster), restart_hosts(cluster, TIMEOUT_SEC)]
        cluster.drain()
        found, crashed = cluster.violations(), cluster.crashed()
        ((jobs,),) = cluster.server.query("SELECT count(*) FROM dl_jobs")
    rows += [[outcome.scenario, outcome.figures] for outcome in outcomes]
    rows.append([f"the checker, of {jobs:,} jobs", f"{len(found)} violations, {len(crashed)} processes crashed"])
    print("\n" + format_table(("fault", "what was seen"), rows, text_columns=(0, 1)) + "\n")
    for violation in found:
        print(violation)


if __name__ == "__main__":
    main()
