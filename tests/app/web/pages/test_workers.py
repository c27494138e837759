"""The page of worker processes, without scripts."""

from __future__ import annotations

from uuid import UUID, uuid4

import psycopg2
import pytest

from app.admin.queues import Queues
from app.queue.workers import WorkerInfo, WorkerLiveness


@pytest.fixture
def process_id(dsn: str, pool) -> UUID:
    connection = psycopg2.connect(dsn)
    with connection, connection.cursor() as cursor:
        cursor.execute("TRUNCATE dl_workers")
    connection.close()
    info = WorkerInfo(uuid4(), "host-1:77", "1.2.3", ("etl", "other"), ("noop",), 3)
    WorkerLiveness(pool).beat(info, heartbeat_sec=60)
    return info.id


def test_worker_is_shown_with_queues_and_tasks(client, process_id):
    page = client.get("/workers").text

    assert "host-1:77" in page
    assert 'href="/queues/other"' in page
    assert "noop" in page


def test_worker_without_heartbeat_comes_first_as_lost(client, process_id, dsn, pool):
    WorkerLiveness(pool).beat(WorkerInfo(uuid4(), "alive:1", "1.2.3", ("etl",), ("noop",), 1), heartbeat_sec=60)
    connection = psycopg2.connect(dsn)
    with connection, connection.cursor() as cursor:
        cursor.execute(
            "UPDATE dl_workers SET seen_at = now() - interval '1 hour' WHERE worker_id = %s", [str(process_id)]
        )
    connection.close()

    page = client.get("/workers").text

    assert page.index("host-1:77") < page.index("alive:1")
    assert "no heartbeat" in page


@pytest.mark.parametrize(
    ("listener", "is_problem"), [("disconnected", True), ("unresponsive", True), ("relayed", False), ("off", False)]
)
def test_worker_that_lost_notifications_is_a_warning(client, process_id, dsn, listener, is_problem):
    connection = psycopg2.connect(dsn)
    with connection, connection.cursor() as cursor:
        cursor.execute("UPDATE dl_workers SET listener = %s", [listener])
    connection.close()

    assert (f"no notifications ({listener})" in client.get("/workers").text) is is_problem


def test_labels_and_unserved_tasks_are_shown(client, process_id, pool):
    info = WorkerInfo(
        uuid4(),
        "host-2:78",
        "1",
        ("etl",),
        ("noop",),
        1,
        labels={"spot": True},
        unserved_tasks={"train": {"gpu": True}},
    )
    WorkerLiveness(pool).beat(info, heartbeat_sec=60)

    page = client.get("/workers").text
    workers = {found["name"]: found for found in client.get("/api/v1/workers").json["workers"]}

    assert "spot=true" in page
    assert "not train, which requires gpu=true" in page
    assert workers["host-2:78"]["labels"] == {"spot": True}
    assert workers["host-2:78"]["unserved_tasks"] == {"train": {"gpu": True}}
    assert workers["host-1:77"]["labels"] == {}


def test_worker_is_drained_and_resumed_by_form(client, process_id, pool):
    client.post(f"/workers/{process_id}", data={"draining": "yes"})
    assert Queues(pool).worker(process_id).draining
    assert "drained" in client.get("/workers").text

    client.post(f"/workers/{process_id}", data={"draining": "no"})
    assert not Queues(pool).worker(process_id).draining
