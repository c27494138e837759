"""Cancels code that ignores one stop step after another, and prints which step stopped it.

Takes about 3 minutes.

python -m benchmarks.ladder [--grace 1.0]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from dataloader.app.db.pool import Pool
from dataloader.app.db.schema import migrate
from dataloader.app.postgres import EmbeddedServer
from dataloader.app.queue.job import NewJob, Status
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import registry
from dataloader.workers.attempt import AttemptSettings
from dataloader.workers.pool import WorkerPool
from dataloader.workers.pool_options import PoolOptions
from tests.support import stop_steps

_TASKS = [*(f"thread.{name}" for name in stop_steps.THREADS), *(f"process.{name}" for name in stop_steps.PROCESSES)]
_WARM_UP_SEC = 3.0  # for a process to start and reach its blocking call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grace", type=float, default=1.0, help="seconds for each stop step")
    grace = parser.parse_args().grace
    server_dsn = os.environ.get("DL_BENCH_DSN")
    with tempfile.TemporaryDirectory(prefix="dl-ladder-") as folder:
        Path(folder).chmod(0o755)
        if server_dsn:
            cancel_all(server_dsn, grace)
        else:
            with EmbeddedServer(Path(folder) / "data") as server:
                cancel_all(server.dsn, grace)
    sys.stdout.flush()
    os._exit(0)  # without waiting for the threads that cannot be stopped


def cancel_all(dsn: str, grace: float) -> None:
    migrate(dsn)
    queue = JobQueue(Pool(dsn))
    options = PoolOptions(
        dsn=dsn, queues={"ladder": len(_TASKS)}, targets={"default": dsn}, heartbeat_sec=2,
        attempts=AttemptSettings(packages=("tests.support.stop_steps",), stop_step_sec=grace),
    )  # fmt: skip
    pool = WorkerPool(registry, options)
    pool.start()
    print(f"each stop step has {grace:g} s\n\n| code | what stopped it | after s |\n|---|---|---|")
    for task in _TASKS:
        print(f"| {task} | {' | '.join(_cancel(queue, task, grace))} |", flush=True)
    pool.stop(0.1)


def _cancel(queue: JobQueue, task: str, grace: float) -> tuple[str, str]:
    job_id = queue.enqueue(NewJob(queue="ladder", task=task, lock_key=task)).job_id
    time.sleep(_WARM_UP_SEC)
    queue.cancel(job_id)
    deadline = time.monotonic() + 8 * grace + 5
    while time.monotonic() < deadline:
        job = queue.get(job_id)
        last = queue.events(job_id)[-1]
        if job is not None and job.status is Status.CANCELED:
            return last.payload["stopped_by"], f"{last.payload['stopped_after_sec']:.2f}"
        if last.kind == "stop_pending":
            return "nothing; the job has a `stop_pending` event", "—"
        time.sleep(0.05)
    return "nothing", "—"


if __name__ == "__main__":
    main()
