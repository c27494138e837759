"""Celery on Redis: prefork, results ignored, and the large prefetch its docs advise for short tasks; it has no bulk."""

import protocol
from celery import Celery

app = Celery("with_celery", broker=protocol.URL)
app.conf.task_ignore_result = True
app.conf.worker_prefetch_multiplier = 64
app.conf.broker_connection_retry_on_startup = True


@app.task(name="note")
def note():
    protocol.note()


def one(jobs):
    for _ in range(jobs):
        note.delay()


def work():
    protocol.become(
        "celery", "-A", "with_celery", "worker", "--concurrency", str(protocol.CONCURRENCY), "--loglevel", "WARNING",
        "--without-gossip", "--without-mingle", "--without-heartbeat",
    )  # fmt: skip


if __name__ == "__main__":
    protocol.drive(setup=lambda: None, work=work, one=one, bulk=one)
