"""Ours: the shipped worker process, BENCH_PROCESSES of them; enqueueing through the API's own pool."""

import os
import subprocess
import sys
from functools import cache
from uuid import uuid4

import protocol

from dataloader.app.db.pool import Pool
from dataloader.app.db.schema import migrate
from dataloader.app.queue.batch import enqueue_batch
from dataloader.app.queue.job import NewJob
from dataloader.app.queue.jobs import JobQueue


@cache
def pool():
    return Pool(protocol.URL)


def job():
    return NewJob(queue="bench", task="bench.note", lock_key=str(uuid4()))


def one(jobs):
    queue = JobQueue(pool())
    for _ in range(jobs):
        queue.enqueue(job())


def bulk(jobs):
    for begin in range(0, jobs, 1000):
        enqueue_batch(pool(), [job() for _ in range(min(1000, jobs - begin))])


def work():
    command = [sys.executable, "-m", "dataloader", "worker"]
    processes = int(os.environ.get("BENCH_PROCESSES", "1"))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("DL_")} | {
        "DL_DB_DSN": protocol.URL,
        "DL_PIPELINES": "benchmarks.peers.ours",
        "WORKERS_JSON": f'[{{"queue": "bench", "concurrency": {protocol.CONCURRENCY}}}]',
        "DL_LOG_FORMAT": "json",
    }
    started = [subprocess.Popen(command, env=environ) for _ in range(processes)]
    for process in started:
        process.wait()


if __name__ == "__main__":
    protocol.drive(setup=lambda: migrate(protocol.URL), work=work, one=one, bulk=bulk)
