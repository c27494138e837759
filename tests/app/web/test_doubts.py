"""A trigger that no live worker would run is answered with the reasons, or refused if that is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any
from uuid import UUID, uuid4

import pytest
from flask.testing import FlaskClient

from app.queue.job import WorkerInfo
from app.queue.jobqueue import JobQueue
from app.queue.pool import Pool
from app.queue.queues import LiveWorker, Queues, QueueState, Rule
from app.web import WebOptions, create_app
from app.web.again import Again
from app.web.doubts import NO_WORKER, doubts
from app.web.express import PATH, express_of
from pipelines.contract import Pipelines
from tests.support.desk import Desk

WORKER = LiveWorker(frozenset({"etl", "mail"}), frozenset({"load.invoices", "noop"}))
OTHER = LiveWorker(frozenset({"docs"}), frozenset({"doc.check"}))
JOB: dict[str, Any] = {"queue": "etl", "task": "noop", "lock_key": "k"}


@pytest.fixture
def desk(dsn: str) -> Iterator[Desk]:
    made = Desk(dsn)
    made.sql("TRUNCATE dl_workers, dl_queues")
    yield made
    made.sql("TRUNCATE dl_workers, dl_queues")
    made.close()


def worker(desk: Desk, *, tasks: tuple[str, ...] = ("noop", "load.invoices")) -> UUID:
    info = WorkerInfo(uuid4(), "w", "1", ("etl",), tasks, 2)
    desk.queue.register_worker(info, heartbeat_sec=60)
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
def test_doubts_name_what_no_worker_serves(queue, task, expected):
    assert doubts(queue, task, [WORKER, OTHER], None) == expected


def test_suggestion_among_thousands_of_names_compares_few(monkeypatch: pytest.MonkeyPatch):
    compared: list[int] = []
    find = get_close_matches

    def counted(name: str, names: list[str], n: int, cutoff: float) -> list[str]:
        compared.append(len(names))
        return find(name, names, n, cutoff)

    monkeypatch.setattr("app.web.doubts.get_close_matches", counted)
    names = [f"company.pipelines.load_{n:04}.daily" for n in range(3000)]
    busy = LiveWorker(frozenset({"etl"}), frozenset(names))
    for typo in ("company.pipelines.load_1234.dialy", "compani.pipelines.load_1234.daily"):
        (warning,) = doubts("etl", typo, [busy], None)
        assert warning.endswith("?"), warning
    assert max(compared) <= 40


def test_trigger_looks_for_a_similar_name_once(client: FlaskClient, desk: Desk, monkeypatch: pytest.MonkeyPatch):
    worker(desk)
    client.post("/api/v1/jobs/trigger", json=JOB)  # the workers are known
    calls: list[str] = []

    def none(name: str, *_: Any, **__: Any) -> list[str]:
        calls.append(name)
        return []

    monkeypatch.setattr("app.web.doubts.get_close_matches", none)
    client.post("/api/v1/jobs/trigger", json={**JOB, "task": "load.invoice"})

    assert calls == ["load.invoice"]


def test_doubts_name_paused_queue_and_workers_that_claim_nothing():
    closed = LiveWorker(WORKER.queues, WORKER.tasks, claims=False)

    assert doubts("etl", "noop", [WORKER], Rule("etl", QueueState.PAUSED, note="later")) == [
        "queue 'etl' is paused: later"
    ]
    assert doubts("etl", "noop", [closed], None) == [
        "all live workers of queue 'etl' that know 'noop' are drained or shut down"
    ]
    assert doubts("etl", "noop", [closed, WORKER], None) == []
    assert doubts("etl", "noop", [], None) == [NO_WORKER]


def test_doubts_suggest_no_name_that_the_caller_may_not_know():
    found = doubts("etl", "load.invoice", [WORKER], None, may_name_task=lambda task: task == "noop")

    assert found == ["no live worker knows 'load.invoice'"]


def test_trigger_of_a_misspelt_task_is_answered_with_a_warning(client: FlaskClient, desk: Desk):
    worker(desk)

    wrong = client.post(PATH, json={**JOB, "task": "load.invoice"})
    right = client.post(PATH, json=JOB)

    assert wrong.status_code == 200
    assert wrong.json is not None
    assert wrong.json["warnings"] == ["no live worker knows 'load.invoice'; did you mean 'load.invoices'?"]
    assert right.json is not None
    assert right.json.keys() == {"job_id", "status"}


def test_strict_trigger_puts_nothing_into_the_queue(client: FlaskClient, desk: Desk):
    worker(desk)

    refused = client.post(f"{PATH}?strict=true", json={**JOB, "task": "zzz"})
    taken = client.post(f"{PATH}?strict=true", json=JOB)

    assert refused.status_code == 409
    assert refused.json is not None
    assert (refused.json["code"], refused.json["warnings"]) == ("would_not_run", ["no live worker knows 'zzz'"])
    assert refused.json["detail"] == "no live worker knows 'zzz'"
    assert taken.status_code == 200
    assert desk.one("SELECT count(*) FROM dl_jobs") == 1


def test_worker_that_appears_ends_the_warnings_at_once(client: FlaskClient, desk: Desk):
    first = client.post(PATH, json=JOB).json
    worker(desk)
    desk.sql("SELECT pg_sleep(0.25)")  # what is known may be 0.2 s old
    second = client.post(PATH, json=JOB).json

    assert first is not None
    assert first["warnings"] == [NO_WORKER]
    assert second is not None
    assert "warnings" not in second


def test_own_workers_that_are_not_registered_yet_cause_no_warning(
    queue: JobQueue, pool: Pool, pipelines: Pipelines, desk: Desk
):
    options = WebOptions(version="1", queues=("etl",))
    app = create_app(queue, pipelines, options, probe=lambda: {"ready": True}, pool=pool)

    fresh = app.test_client().post(PATH, json=JOB).json
    other = app.test_client().post(PATH, json={**JOB, "queue": "other"}).json

    assert fresh is not None
    assert "warnings" not in fresh
    assert other is not None
    assert other["warnings"] == ["no live worker serves queue 'other'"]


def test_job_that_is_there_and_over_has_no_warning(client: FlaskClient, desk: Desk):
    body = {**JOB, "idempotency_key": "i"}
    client.post(PATH, json=body)
    desk.sql("UPDATE dl_jobs SET status = 'canceled', finished_at = now()")

    assert client.post(PATH, json=body).json == {
        "job_id": desk.one("SELECT job_id::text FROM dl_jobs"),
        "status": "canceled",
    }


def test_batch_names_each_reason_once(client: FlaskClient, desk: Desk):
    worker(desk)
    answer = client.post("/api/v1/jobs/batch", json={"jobs": [{**JOB, "task": "zzz"}] * 3 + [JOB]}).json

    assert answer is not None
    assert answer["created"] == 4
    assert answer["warnings"] == ["no live worker knows 'zzz'"]


def test_fast_lane_leaves_doubtful_triggers_to_the_ordinary_way(
    queue: JobQueue, pipelines: Pipelines, pool: Pool, desk: Desk
):
    worker(desk)
    app = create_app(queue, pipelines, WebOptions(version="1"), pool=pool)
    app.test_client().post(PATH, json=JOB)  # what it needs to know is known
    express = express_of(app)
    assert express is not None
    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": PATH, "REMOTE_ADDR": "127.0.0.1", "HTTP_HOST": "localhost",
               "CONTENT_TYPE": "application/json", "SERVER_PROTOCOL": "HTTP/1.1"}  # fmt: skip

    plain = express.read(dict(environ), b'{"queue": "etl", "task": "noop", "lock_key": "k"}')
    doubtful = express.read(dict(environ), b'{"queue": "etl", "task": "zzz", "lock_key": "k"}')

    assert not isinstance(plain, Again)
    assert isinstance(doubtful, Again)


def test_paused_queue_is_a_warning(client: FlaskClient, desk: Desk):
    worker(desk)
    Queues(desk.session).rule("etl", state=QueueState.PAUSED)

    answer = client.post(PATH, json=JOB).json

    assert answer is not None
    assert answer["warnings"] == ["queue 'etl' is paused"]
