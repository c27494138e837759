"""Measures what a checkpoint each second costs those who read a job, while a transaction is open for three hours.

Takes about 2 minutes.

A checkpoint is written to the job's row. One process runs two jobs, which record a checkpoint each second; a snapshot
is held all the while. Each line of the result is a database of its own: in the first one the row is written each time,
in the second one as seldom as a worker process does. Pages are counted exactly, and do not depend on the load of the
machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.horizon.lanes import open_snapshot
from benchmarks.horizon.load import table_sizes
from benchmarks.horizon.pages import Recorder
from benchmarks.horizon.process import LONG, SimulatedProcess
from benchmarks.place import benchmark_server, describe_environment, fresh_database
from benchmarks.rounds import Cell, format_table, make_parser
from dataloader.app.queue.job import NewJob, RenewalRequest
from dataloader.workers.run_records import checkpoint_interval_sec

MB = 1_000_000


@dataclass(frozen=True)
class CheckpointCosts:
    writes: int  # of a job's row
    status_pages: float
    grown_mb: float


VARIANTS: dict[str, Callable[[float], float]] = {
    "each second": lambda run_sec: 0.0,
    "as a worker process does": checkpoint_interval_sec,
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__name__)
    parser.add_argument("--seconds", type=int, default=10_800, help="simulated seconds")
    parser.add_argument("--jobs", type=int, default=2, help="running jobs")
    options = parser.parse_args(argv)
    rows: list[list[Cell]] = []
    with benchmark_server({"autovacuum": "off", "fsync": "off", "shared_buffers": "512MB"}) as (server_dsn, _):
        print(describe_environment(server_dsn))
        for name, interval_sec in VARIANTS.items():
            with fresh_database(server_dsn) as dsn:
                costs = simulate(dsn, interval_sec, jobs=options.jobs, seconds=options.seconds)
            rows.append([name, costs.writes, costs.status_pages, costs.grown_mb])
    headings = ["the row is written", "writes", "pages of a status read", "dl_jobs, MB more"]
    print(format_table(headings, rows))


def simulate(dsn: str, interval_sec: Callable[[float], float], *, jobs: int, seconds: int) -> CheckpointCosts:
    recorder = Recorder()
    process = SimulatedProcess(dsn, recorder, 0)
    try:
        for n in range(jobs):
            process.queue.enqueue(NewJob(queue=LONG, task="load", lock_key=f"long {n}"))
        process.claim_long(jobs)
        before, writes, next_at = table_sizes(dsn)["dl_jobs"], 0, 0.0
        with open_snapshot(dsn):
            for second in range(1, seconds + 1):
                if second >= next_at:
                    write_checkpoints(process, second)
                    writes, next_at = writes + 1, second + interval_sec(second)
            process.queue.get(process.runs[0].id)  # makes the plan
            recorder.start(process.session)
            process.queue.get(process.runs[0].id)
            status_pages = recorder.stop()["", "get_job"].pages
        return CheckpointCosts(writes, status_pages, (table_sizes(dsn)["dl_jobs"] - before) / MB)
    finally:
        process.close()


def write_checkpoints(process: SimulatedProcess, second: int) -> None:
    process.queue.renew(
        [RenewalRequest(run.id_text, run.run_text, None, {"page": second}, next_sec=3600) for run in process.runs]
    )


if __name__ == "__main__":
    main()
