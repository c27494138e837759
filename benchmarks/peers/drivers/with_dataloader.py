"""Ours: the shipped worker process, BENCH_PROCESSES of them; enqueueing through the API's own pool."""

import os
import subprocess
import sys
from uuid import uuid4

import protocol

from app.queue.job import NewJob
from app.queue.jobqueue import JobQueue
from app.queue.pool import Pool
from app.queue.schema import migrate

MANY = """
INSERT INTO dl_jobs (queue, task, lock_key)
SELECT 'bench', 'bench.note', 'key ' || gen_random_uuid() FROM generate_series(1, %s)
"""


def queue():
    made = []

    def get():
        if not made:
            made.append(JobQueue(Pool(protocol.URL)))
        return made[0]

    return get


get_queue = queue()


def one(jobs):
    for _ in range(jobs):
        get_queue().enqueue(NewJob(queue="bench", task="bench.note", lock_key=str(uuid4())))


def bulk(jobs):
    import psycopg2  # noqa: PLC0415 - used here alone

    connection = psycopg2.connect(protocol.URL)
    with connection, connection.cursor() as cursor:
        cursor.execute(MANY, (jobs,))
    connection.close()


def work():
    command = [sys.executable, "-m", "app", "worker"]
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
