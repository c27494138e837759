"""Who gives in to which rung? Cancels code that ignores one means of stopping after the other, and prints what worked.

python -m benchmarks.ladder [--grace 1.0]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from app.postgres import EmbeddedServer
from app.queue.job import NewJob, Status
from app.queue.jobqueue import JobQueue
from app.queue.pool import Pool
from app.queue.schema import migrate
from pipelines.contract import registry
from tests.support import rungs
from workers.pool import PoolOptions, WorkerPool

_TASKS = [*(f"thread.{name}" for name in rungs.THREADS), *(f"process.{name}" for name in rungs.PROCESSES)]
_SETTLE_IN = 3.0  # seconds for a process to start and come to its point


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grace", type=float, default=1.0, help="seconds for each rung")
    grace = parser.parse_args().grace
    given = os.environ.get("DL_BENCH_DSN")
    with tempfile.TemporaryDirectory(prefix="dl-ladder-") as folder:
        Path(folder).chmod(0o755)
        if given:
            climb(given, grace)
        else:
            with EmbeddedServer(Path(folder) / "data") as server:
                climb(server.dsn, grace)
    sys.stdout.flush()
    os._exit(0)  # without waiting for the threads that cannot be stopped


def climb(dsn: str, grace: float) -> None:
    migrate(dsn)
    queue = JobQueue(Pool(dsn))
    options = PoolOptions(
        dsn=dsn, queues={"ladder": len(_TASKS)}, packages=("tests.support.rungs",), targets={"default": dsn},
        stop_grace_sec=grace, heartbeat_sec=2,
    )  # fmt: skip
    pool = WorkerPool(registry, options)
    pool.start()
    print(f"each rung has {grace:g} s\n\n| code | what stopped it | after s |\n|---|---|---|")
    for task in _TASKS:
        print(f"| {task} | {' | '.join(_cancel(queue, task, grace))} |", flush=True)
    pool.stop(0.1)


def _cancel(queue: JobQueue, task: str, grace: float) -> tuple[str, str]:
    job_id = queue.enqueue(NewJob(queue="ladder", task=task, lock_key=task)).job_id
    time.sleep(_SETTLE_IN)
    queue.cancel(job_id)
    deadline = time.monotonic() + 8 * grace + 5
    while time.monotonic() < deadline:
        job = queue.get(job_id)
        last = queue.events(job_id)[-1]
        if job is not None and job.status is Status.CANCELED:
            return last.payload["stopped_by"], f"{last.payload['stopped_after_sec']:.2f}"
        if last.kind == "stop_pending":
            return "nothing: `stop pending` is told", "—"
        time.sleep(0.05)
    return "nothing", "—"


if __name__ == "__main__":
    main()
