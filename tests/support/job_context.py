"""The context of a claimed job, which no worker runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from dataloader.app.queue.attempt_sessions import ConnectionSettings
from dataloader.app.queue.job import ClaimedJob
from dataloader.workers.context import ContextSettings, JobContext
from tests.support.queue_fixture import QueueFixture

JOB = ClaimedJob(
    id_text=str(uuid4()), run_text=str(uuid4()), queue="q", task="t", args_text="{}", lock_key="k", key_hash=1,
    priority=7, attempt=2, max_attempts=5, lease_ttl_sec=60, producer=None, progress_text="{}", checkpoint_text=None,
    time_limit_sec=None, retry_text=None, crashes=0,
)  # fmt: skip


@contextmanager
def claimed_context(queue_db: QueueFixture) -> Iterator[JobContext]:
    """The context of a claimed job, with a database to write to."""
    queue_db.sql("CREATE TABLE witness (said text)")
    queue_db.enqueue("key")
    (job,) = queue_db.claim()
    claimed = JOB._replace(id_text=job.id_text, run_text=job.run_text, lock_key=job.lock_key, key_hash=job.key_hash)
    settings = ContextSettings(connection_settings=ConnectionSettings(dsn=queue_db.dsn, schema="public", targets={}))
    context = JobContext(claimed, settings)
    yield context
    close_connections(context)


def close_connections(context: JobContext) -> None:
    if context.connections is not None:
        context.connections.close()
