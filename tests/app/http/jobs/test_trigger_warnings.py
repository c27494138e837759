"""A trigger that no live worker would run is answered with the reasons, or refused if that is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any
from uuid import UUID, uuid4

import pytest
from flask.testing import FlaskClient

from dataloader.app.db.pool import Pool
from dataloader.app.http.app import create_app
from dataloader.app.http.caches import NO_WORKER_WARNING, run_warnings
from dataloader.app.http.options import WebOptions
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.queue.queues import LiveWorker, QueueSettings, QueueState
from dataloader.app.queue.workers import WorkerInfo, WorkerLiveness
from dataloader.app.state.queues import Queues
from dataloader.pipelines.contract import Pipelines
from tests.support.queue_fixture import QueueFixture

PATH = "/api/v1/jobs/trigger"
WORKER = LiveWorker(frozenset({"etl", "mail"}), frozenset({"load.invoices", "noop"}))
OTHER = LiveWorker(frozenset({"docs"}), frozenset({"doc.check"}))
JOB: dict[str, Any] = {"queue": "etl", "task": "noop", "lock_key": "k"}


@pytest.fixture
def queue_db(dsn: str) -> Iterator[QueueFixture]:
    made = QueueFixture(dsn)
    made.sql("TRUNCATE dl_workers, dl_queues")
    yield made
    made.sql("TRUNCATE dl_workers, dl_queues")
    made.close()


def worker(queue_db: QueueFixture, *, tasks: tuple[str, ...] = ("noop", "load.invoices")) -> UUID:
    info = WorkerInfo(uuid4(), "w", "1", ("etl",), tasks, 2)
    WorkerLiveness(queue_db.session).send_heartbeat(info, heartbeat_sec=60)
    return info.id


@pytest.mark.parametrize(
    ("queue", "task", "expected"),
    [
        ("etl", "noop", []),
        ("docs", "doc.check", []),
        ("etl", "load.invoice", ["no live worker knows 'load.invoice'; did you mean 'load.invoices'?"]),
        ("etl", "quite.another", ["no live worker knows 'quite.another'"]),
        ("mails", "noop", ["no live worker serves queue 'mails'; did you mean 'mail'?"]),
        ("etl", "doc.check", ["no live worker of queue 'etl' knows 'doc.check'"]),
        ("x", "y", ["no live worker serves queue 'x'", "no live worker knows 'y'"]),
        ("etl", "n" * 5000, [f"no live worker knows '{'n' * 5000}'"]),
    ],
)
def test_warnings_name_unserved_queue_and_task(queue, task, expected):
    assert run_warnings(queue, task, [WORKER, OTHER], None) == expected


def test_warning_names_labels_that_no_worker_has():
    plain = LiveWorker(frozenset({"etl"}), frozenset({"noop"}), unserved_tasks={"train": {"gpu": True}})
    on_gpu = LiveWorker(frozenset({"etl"}), frozenset({"noop", "train"}), labels={"gpu": True})

    assert run_warnings("etl", "train", [plain], None) == [
        "no live worker of queue 'etl' has gpu=true (task 'train' requires gpu=true)"
    ]
    assert run_warnings("etl", "train", [plain, on_gpu], None) == []


def test_suggestion_among_thousands_of_names_compares_few(monkeypatch: pytest.MonkeyPatch):
    compared: list[int] = []
    find = get_close_matches

    def counted(name: str, names: list[str], n: int, cutoff: float) -> list[str]:
        compared.append(len(names))
        return find(name, names, n, cutoff)

    monkeypatch.setattr("dataloader.app.wording.get_close_matches", counted)
    names = [f"company.pipelines.load_{n:04}.daily" for n in range(3000)]
    busy = LiveWorker(frozenset({"etl"}), frozenset(names))
    for typo in ("company.pipelines.load_1234.dialy", "compani.pipelines.load_1234.daily"):
        (warning,) = run_warnings("etl", typo, [busy], None)
        assert warning.endswith("?"), warning
    assert max(compared) <= 40


def test_similar_name_is_looked_for_once(client: FlaskClient, queue_db: QueueFixture, monkeypatch: pytest.MonkeyPatch):
    worker(queue_db)
    client.post("/api/v1/jobs/trigger", json=JOB)  # the workers are known
    calls: list[str] = []

    def none(name: str, *_: Any, **__: Any) -> list[str]:
        calls.append(name)
        return []

    monkeypatch.setattr("dataloader.app.wording.get_close_matches", none)
    for _ in range(2):
        client.post("/api/v1/jobs/trigger", json={**JOB, "task": "load.looked-for-once"})

    assert calls == ["load.looked-for-once"]


def test_doubts_name_paused_queue_and_workers_that_claim_nothing():
    closed = LiveWorker(WORKER.queues, WORKER.tasks, can_claim=False)

    assert run_warnings("etl", "noop", [WORKER], QueueSettings("etl", QueueState.PAUSED, note="later")) == [
        "queue 'etl' is paused: later"
    ]
    assert run_warnings("etl", "noop", [closed], None) == [
        "all live workers of queue 'etl' that know 'noop' are drained or shut down"
    ]
    assert run_warnings("etl", "noop", [closed, WORKER], None) == []
    assert run_warnings("etl", "noop", [], None) == [NO_WORKER_WARNING]


def test_doubts_suggest_no_name_that_the_caller_may_not_know():
    found = run_warnings("etl", "load.invoice", [WORKER], None, can_see_task=lambda task: task == "noop")

    assert found == ["no live worker knows 'load.invoice'"]


def test_trigger_of_a_misspelt_task_is_answered_with_a_warning(client: FlaskClient, queue_db: QueueFixture):
    worker(queue_db)

    wrong = client.post(PATH, json={**JOB, "task": "load.invoice"})
    right = client.post(PATH, json=JOB)

    assert wrong.status_code == 200
    assert wrong.json is not None
    assert wrong.json["warnings"] == ["no live worker knows 'load.invoice'; did you mean 'load.invoices'?"]
    assert right.json is not None
    assert right.json.keys() == {"job_id", "status"}


def test_strict_trigger_puts_nothing_into_the_queue(client: FlaskClient, queue_db: QueueFixture):
    worker(queue_db)

    refused = client.post(f"{PATH}?strict=true", json={**JOB, "task": "zzz"})
    taken = client.post(f"{PATH}?strict=true", json=JOB)

    assert refused.status_code == 409
    assert refused.json is not None
    assert (refused.json["code"], refused.json["warnings"]) == ("would_not_run", ["no live worker knows 'zzz'"])
    assert refused.json["detail"] == "no live worker knows 'zzz'"
    assert taken.status_code == 200
    assert queue_db.fetch_row("SELECT count(*) FROM dl_jobs") == 1


def test_worker_that_appears_ends_the_warnings_at_once(client: FlaskClient, queue_db: QueueFixture):
    first = client.post(PATH, json=JOB).json
    worker(queue_db)
    queue_db.sql("SELECT pg_sleep(0.25)")  # what is known may be 0.2 s old
    second = client.post(PATH, json=JOB).json

    assert first is not None
    assert first["warnings"] == [NO_WORKER_WARNING]
    assert second is not None
    assert "warnings" not in second


def test_unregistered_own_workers_cause_no_warning(
    queue: JobQueue, pool: Pool, pipelines: Pipelines, queue_db: QueueFixture
):
    options = WebOptions(version="1", queues=("etl",))
    app = create_app(queue, pipelines, options, probe=lambda: {"ready": True}, pool=pool)

    fresh = app.test_client().post(PATH, json=JOB).json
    other = app.test_client().post(PATH, json={**JOB, "queue": "other"}).json

    assert fresh is not None
    assert "warnings" not in fresh
    assert other is not None
    assert other["warnings"] == ["no live worker serves queue 'other'"]


def test_job_that_is_there_and_over_has_no_warning(client: FlaskClient, queue_db: QueueFixture):
    body = {**JOB, "idempotency_key": "i"}
    client.post(PATH, json=body)
    queue_db.sql("UPDATE dl_jobs SET status = 'canceled', finished_at = now()")

    assert client.post(PATH, json=body).json == {
        "job_id": queue_db.fetch_row("SELECT job_id::text FROM dl_jobs"),
        "status": "canceled",
    }


def test_batch_names_each_reason_once(client: FlaskClient, queue_db: QueueFixture):
    worker(queue_db)
    answer = client.post("/api/v1/jobs/batch", json={"jobs": [{**JOB, "task": "zzz"}] * 3 + [JOB]}).json

    assert answer is not None
    assert answer["created"] == 4
    assert answer["warnings"] == ["no live worker knows 'zzz'"]


def test_paused_queue_is_a_warning(client: FlaskClient, queue_db: QueueFixture):
    worker(queue_db)
    Queues(queue_db.session).change_settings("etl", state=QueueState.PAUSED)

    answer = client.post(PATH, json=JOB).json

    assert answer is not None
    assert answer["warnings"] == ["queue 'etl' is paused"]
