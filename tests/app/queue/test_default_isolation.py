"""What a pipeline writes where the default isolation of the database is not READ COMMITTED."""

from __future__ import annotations

from psycopg2.extensions import make_dsn

from dataloader.app.queue.attempt_sessions import ConnectionSettings
from dataloader.workers.connections.task_connections import TaskConnections
from tests.support.queue_fixture import QueueFixture


def test_renewal_during_transaction_is_no_conflict(queue_db: QueueFixture):
    job = queue_db.enqueue_and_claim()
    dsn = make_dsn(queue_db.dsn, options="-c default_transaction_isolation=serializable")
    connections = TaskConnections(ConnectionSettings(dsn=dsn, schema="public", targets={}), job.id, job.run_id)
    for _ in range(2):
        with connections.transaction(checkpoint=lambda: 1, final=None) as connection:
            connection.cursor().execute("SELECT count(*) FROM dl_jobs")
            queue_db.renew(job)
        connection.set_session(isolation_level="SERIALIZABLE")
    connections.close()

    assert queue_db.job(job.id).checkpoint == 1
