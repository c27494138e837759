"""The figures of a service at one look."""

from __future__ import annotations

from uuid import uuid4

from dataloader.app.db.schema import SCHEMA_VERSION
from dataloader.app.queue.job import NewJob
from dataloader.app.queue.workers import WorkerInfo, WorkerLiveness


def test_overview_counts_jobs_and_workers(client, queue, pool):
    for key in ("first", "second", "second"):
        queue.enqueue(NewJob(queue="etl", task="noop", lock_key=key))
    WorkerLiveness(pool).send_heartbeat(
        WorkerInfo(uuid4(), "host-1:77", "1.2.3", ("etl",), ("noop",), 3), heartbeat_sec=60
    )

    figures = client.get("/api/v1/overview").json

    assert (figures["version"], figures["schema_version"]) == ("1.2.3", SCHEMA_VERSION)
    assert (figures["ready"], figures["waiting"], figures["running"]) == (3, 0, 0)
    assert (figures["workers"], figures["threads"]) == (1, 3)
    assert figures["oldest_ready_sec"] >= 0
    assert figures["problems"] is not None
