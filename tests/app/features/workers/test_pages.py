"""The page of worker processes, without scripts."""

from __future__ import annotations

import re
from uuid import UUID, uuid4

import psycopg2
import pytest

from dataloader.app.queue.workers import WorkerInfo, WorkerLiveness
from dataloader.app.state.queues import Queues
from tests.support.databases import execute_sql


@pytest.fixture
def process_id(dsn: str, pool) -> UUID:
    execute_sql(dsn, "TRUNCATE dl_workers")
    info = WorkerInfo(uuid4(), "host-1:77", "1.2.3", ("etl", "other"), ("noop",), 3)
    WorkerLiveness(pool).send_heartbeat(info, heartbeat_sec=60)
    return info.id


def test_worker_is_shown_with_queues_and_tasks(client, process_id):
    page = client.get("/workers").text

    assert "host-1:77" in page
    assert 'href="/queues/other"' in page
    assert "noop" in page


def test_worker_without_heartbeat_comes_first_as_lost(client, process_id, dsn, pool):
    WorkerLiveness(pool).send_heartbeat(
        WorkerInfo(uuid4(), "alive:1", "1.2.3", ("etl",), ("noop",), 1), heartbeat_sec=60
    )
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
    ("listener", "is_problem"), [("disconnected", True), ("unresponsive", True), ("listening", False), ("off", False)]
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
    WorkerLiveness(pool).send_heartbeat(info, heartbeat_sec=60)

    page = client.get("/workers").text
    workers = {found["name"]: found for found in client.get("/api/v1/workers").json["workers"]}

    assert "spot=true" in page
    assert "not train, which requires gpu=true" in page
    assert workers["host-2:78"]["labels"] == {"spot": True}
    assert workers["host-2:78"]["unserved_tasks"] == {"train": {"gpu": True}}
    assert workers["host-1:77"]["labels"] == {}


def test_hosts_show_states_runs_and_what_a_stop_would_lose(client, process_id, pool, dsn):
    for name in ("host-2:1", "host-2:2"):
        info = WorkerInfo(uuid4(), name, "2.0", ("etl",), ("noop",), 4)
        WorkerLiveness(pool).send_heartbeat(info, heartbeat_sec=60)
    execute_sql(
        dsn,
        "UPDATE dl_workers SET draining = true WHERE name = 'host-2:1'",
        "UPDATE dl_workers SET listener = 'disconnected' WHERE name = 'host-2:2'",
        "INSERT INTO dl_jobs (queue, task, lock_key, status, attempt, run_id, worker, started_at, lease_expires_at)"
        " SELECT 'etl', 'noop', 'k' || n, 'running', 1, gen_random_uuid(), 'host-2:1', now() - interval '20 minutes',"
        " now() + interval '1 hour' FROM generate_series(1, 2) n",
    )

    hosts, _, processes = client.get("/workers").text.partition('id="processes"')

    row = hosts[hosts.index("host-2</th>") :].partition("</tr>")[0]
    assert hosts.index("host-2</th>") < hosts.index("host-1</th>")  # one of its processes has a problem
    assert ("1 draining" in row, "1 warning" in row, "2 of 8" in row) == (True, True, True)
    assert re.search(r">noop</a> <small>× 2</small>.*<span data-counting>40 min", row, re.DOTALL)
    assert "1.2.3 on host-1; 2.0 on host-2." in hosts
    assert "<span data-counting>40 min" in processes
    assert processes.index("host-2:2") < processes.index("host-1:77") < processes.index("host-2:1")


def test_one_host_and_a_stopping_process_need_no_more(client, process_id, dsn):
    execute_sql(dsn, "UPDATE dl_workers SET stopping = true")

    page = client.get("/workers").text

    assert ('id="hosts"' in page, ">stopping<" in page, 'name="draining"' in page) == (False, True, False)


def test_worker_is_drained_and_resumed_by_form(client, process_id, pool):
    client.post(f"/workers/{process_id}", data={"draining": "yes"})
    assert Queues(pool).worker(process_id).draining
    assert "drained" in client.get("/workers").text

    client.post(f"/workers/{process_id}", data={"draining": "no"})
    assert not Queues(pool).worker(process_id).draining


def test_host_is_drained_with_all_its_processes_and_resumed(client, process_id, pool):
    liveness = WorkerLiveness(pool)
    for name in ("host-1:78", "host-2:1"):
        liveness.send_heartbeat(WorkerInfo(uuid4(), name, "1.2.3", ("etl",), ("noop",), 1), heartbeat_sec=60)

    def draining() -> dict[str, bool]:
        return {worker.name: worker.draining for worker in Queues(pool).workers()}

    assert 'action="/hosts/host-1/drain"' in client.get("/workers").text
    assert client.post("/hosts/host-1/drain").status_code == 303
    assert draining() == {"host-1:77": True, "host-1:78": True, "host-2:1": False}
    page = client.get("/workers").text
    assert 'action="/hosts/host-1/undrain"' in page
    assert 'action="/hosts/host-1/drain"' not in page
    assert client.post("/hosts/host-1/undrain").status_code == 303
    assert not any(draining().values())
