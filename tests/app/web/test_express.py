"""Triggers answered without Flask: the same answers, the same traces of them, and nothing done twice."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import psycopg2
import pytest
from flask import Flask

from app.errors import DatabaseUnavailable
from app.queue.job import NewJob
from app.queue.jobqueue import JobQueue
from app.queue.keys import Keys, NewKey, Scope
from app.queue.pool import Pool
from app.queue.queues import Queues, QueueState
from app.traces import Quiet, Telemetry
from app.web import WebOptions, create_app
from app.web.application import EXPRESS
from app.web.express import PATH, Answer, Express, failed
from pipelines.contract import Pipelines
from tests.support.desk import Desk

JOB: dict[str, Any] = {"queue": "etl", "task": "noop", "lock_key": "noop"}
HERE = {"REQUEST_METHOD": "POST", "PATH_INFO": PATH, "REMOTE_ADDR": "127.0.0.1", "SERVER_PROTOCOL": "HTTP/1.1",
        "HTTP_HOST": "localhost", "CONTENT_TYPE": "application/json"}  # fmt: skip
TRACE = "00-11111111111111111111111111111111-2222222222222222-01"


@pytest.fixture
def app(queue: JobQueue, pipelines: Pipelines, pool: Pool) -> Flask:
    return create_app(queue, pipelines, WebOptions(version="1.2.3"), pool=pool)


@pytest.fixture
def express(app: Flask) -> Express:
    made: Express = app.extensions[EXPRESS]
    return made


@pytest.fixture
def desk(dsn: str):
    made = Desk(dsn)
    yield made
    made.close()


def asked(*, head: dict[str, str] | None = None, **job: Any) -> tuple[dict[str, str], bytes]:
    return {**HERE, **(head or {})}, json.dumps(JOB | job).encode()


def fields_of(answer: Answer) -> list[tuple[str, str]]:
    return [tuple(line.split(": ", 1)) for line in answer.fields.split("\r\n") if line]  # type: ignore[misc]


def test_the_answer_is_the_ordinary_one_to_the_letter(app, express):
    ordinary = app.test_client().post(PATH, json=JOB, headers={"X-Request-ID": "mine"})

    (answer,) = express.answer([asked(head={"HTTP_X_REQUEST_ID": "mine"})])

    assert fields_of(answer) == list(ordinary.headers.items())
    blank = "0" * 36
    assert answer.body.decode().replace(json.loads(answer.body)["job_id"], blank) == ordinary.text.replace(
        ordinary.json["job_id"], blank
    )


def test_each_gets_a_job_of_its_own_as_it_was_asked_for(express, desk):
    told = {
        "args": {"texts": ["a\nb", "ж", "\\"], "n": 1.5}, "partition_key": "p", "priority": 7, "max_attempts": 3,
        "lease_ttl_sec": 90, "time_limit_sec": 50, "producer": "x", "consumer_group": "y",
        "available_at": "2100-01-01T00:00:00+03:00", "retry": {"kind": "fixed", "seconds": 5}, "idempotency_key": "i",
    }  # fmt: skip
    answers = express.answer([asked(head={"HTTP_TRACEPARENT": TRACE}, **told), asked(lock_key="other"), asked()])

    ids = [json.loads(answer.body)["job_id"] for answer in answers]
    rows = desk.sql("SELECT job_id::text, lock_key, traceparent, xmin::text FROM dl_jobs ORDER BY lock_key DESC")
    assert {row[0] for row in rows} == set(ids)
    assert [row[1] for row in rows] == ["other", "noop", "noop"]
    assert len({row[3] for row in rows}) == 1, "in one transaction"
    columns = ", ".join(["args", "available_at", "retry", *(name for name in told if name not in ("args", "retry"))])
    kept = desk.sql(f"SELECT {columns}, traceparent FROM dl_jobs WHERE job_id = %s", ids[0])
    desk.sql("DELETE FROM dl_jobs")
    desk.queue.enqueue(NewJob(**{**JOB, **told, "available_at": kept[0][1], "traceparent": TRACE}))
    assert desk.sql(f"SELECT {columns}, traceparent FROM dl_jobs") == kept


def test_whatever_is_not_plain_is_left_to_the_ordinary_way_untouched(express, desk):
    desk.queue.enqueue(NewJob(**JOB, idempotency_key="taken"))
    Queues(desk.session).rule("closed", state=QueueState.DRAINING)
    odd = {
        "no JSON": (HERE, b"{"),
        "a list": (HERE, b"[]"),
        "a field too many": asked(colour="red"),
        "a key twice": (HERE, b'{"queue":"a","queue":"b","task":"noop","lock_key":"k"}'),
        "a NUL": asked(lock_key="a\0b"),
        "another type": asked(head={"CONTENT_TYPE": "text/plain"}),
        "no type": ({k: v for k, v in HERE.items() if k != "CONTENT_TYPE"}, json.dumps(JOB).encode()),
        "too large": asked(args={"x": "y" * 2_000_000}),
        "a live key": asked(live_key="one"),
        "a key that is taken": asked(idempotency_key="taken"),
        "a queue that drains": asked(queue="closed"),
        "another site": asked(head={"HTTP_ORIGIN": "https://evil.example"}),
        "another name for this machine": asked(head={"HTTP_HOST": "evil.example"}),
        "from elsewhere without a key": asked(head={"REMOTE_ADDR": "192.0.2.7"}),
        "through a proxy": asked(head={"HTTP_X_FORWARDED_FOR": "192.0.2.7"}),
        "a key where there are none": asked(head={"REMOTE_ADDR": "192.0.2.7", "HTTP_AUTHORIZATION": "Bearer dlk_x"}),
        "a cookie": asked(head={"HTTP_COOKIE": "dl_session=x"}),
    }
    expected = {"a cookie": Answer}  # no session: the cookie says nothing

    answers = dict(zip(odd, express.answer([asked(), *odd.values()])[1:], strict=True))

    assert {name: answer for name, answer in answers.items() if answer is not None and name not in expected} == {}
    assert desk.one("SELECT count(*) FROM dl_jobs") == 2 + sum(isinstance(a, Answer) for a in answers.values())


def test_args_that_the_task_does_not_take_are_left_to_the_ordinary_way(queue, pool, desk):
    known = Pipelines()

    @known.register("typed", args={"type": "object", "properties": {"rows": {"type": "integer"}}})
    def typed(args: dict[str, Any]) -> None: ...

    express = create_app(queue, known, WebOptions(version="1"), pool=pool).extensions[EXPRESS]

    answers = express.answer([asked(task="typed", args={"rows": "x"}), asked(task="typed", args={"rows": 1})])

    assert answers[0] is None
    assert isinstance(answers[1], Answer)
    assert desk.one("SELECT count(*) FROM dl_jobs") == 1


def test_a_key_opens_what_it_may_and_its_owner_stands_in_the_audit(queue, pipelines, pool, desk):
    desk.sql("DELETE FROM dl_api_keys; DELETE FROM dl_audit")
    keys = Keys(pool)

    def bearer(*scopes: Scope, **limits: Any) -> dict[str, str]:
        new = NewKey(name=f"{scopes[0]} {limits}", scopes=frozenset(scopes), created_by="test", **limits)
        return {"HTTP_AUTHORIZATION": f"Bearer {keys.create(new)[1]}", "REMOTE_ADDR": "192.0.2.7"}

    may, reads = bearer(Scope.TRIGGER), bearer(Scope.READ)
    limited = bearer(Scope.TRIGGER, tasks=frozenset({"other"}))
    express = create_app(queue, pipelines, WebOptions(version="1"), pool=pool, keys=keys).extensions[EXPRESS]

    answers = express.answer([
        asked(head={**may, "HTTP_X_REQUEST_ID": "the first"}), asked(head={**may, "HTTP_X_REQUEST_ID": "r2"}),
        asked(head=reads), asked(head=limited), asked(head=limited, task="other"), asked(),
    ])  # fmt: skip

    assert [isinstance(answer, Answer) for answer in answers] == [True, True, False, False, True, False]
    lines = desk.sql("SELECT action, actor, via, address, request_id FROM dl_audit WHERE subject = 'job'")
    assert sorted(line[:4] for line in lines) == [
        ("trigger", "trigger {'tasks': frozenset({'other'})}", "key", "192.0.2.7"),
        ("trigger", "trigger {}", "key", "192.0.2.7"),
        ("trigger", "trigger {}", "key", "192.0.2.7"),
    ]
    told = {fields["X-Request-ID"] for fields in (dict(fields_of(a)) for a in answers if isinstance(a, Answer))}
    assert {line[4] for line in lines} == told
    assert "r2" in told
    assert "the first" not in told, "it is no id"
    desk.sql("DELETE FROM dl_api_keys")


def test_log_audit_and_numbers_have_the_same_of_it_as_ever(app, express, caplog, monkeypatch):
    for name in ("", "dataloader.audit", "dataloader.metric"):
        caplog.set_level(logging.DEBUG, name or None)
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)

    def said(ask: Callable[[], Any]) -> list[tuple[str, str, dict[str, Any]]]:
        caplog.clear()
        ask()
        unlike = ("job_id", "duration_ms")
        return [
            (record.name, record.message, {k: v for k, v in record.fields.items() if k not in unlike})
            for record in caplog.records
            if record.name.startswith(("app.web", "dataloader."))
        ]

    client = app.test_client()
    ordinary = said(lambda: client.post(PATH, json=JOB, headers={"User-Agent": "x"}))
    before = client.get("/metrics").text

    assert said(lambda: express.answer([asked(head={"HTTP_USER_AGENT": "x"})])) == ordinary
    assert len(ordinary) == 5

    def count(text: str) -> float:
        line = f'responses_total{{route="{PATH}",status="200"}} '
        return float(next(one for one in text.splitlines() if one.startswith(line)).split()[-1])

    assert count(client.get("/metrics").text) == count(before) + 1


def test_what_an_outage_leaves_unknown_is_asked_for_once(app, express, desk, monkeypatch):
    class Lost(psycopg2.OperationalError):
        pgcode = "08006"

    def lost(_: Any) -> Any:
        raise DatabaseUnavailable("the connection broke") from Lost()

    monkeypatch.setattr(JobQueue, "put_together", lambda queue, jobs: lost(jobs))
    first, second = express.answer([asked(), asked()])
    assert isinstance(first, DatabaseUnavailable)
    assert isinstance(second, DatabaseUnavailable)

    with failed(first):
        answer = app.test_client().post(PATH, json=JOB)
    assert (answer.status_code, answer.json["code"]) == (503, "database_unavailable")
    assert desk.one("SELECT count(*) FROM dl_jobs") == 0
    assert app.test_client().post(PATH, json=JOB).status_code == 200


def test_what_is_one_of_thems_fault_is_for_each_to_find_out(express, desk, monkeypatch):
    monkeypatch.setattr(JobQueue, "put_together", lambda queue, jobs: (_ for _ in ()).throw(psycopg2.DataError("x")))

    assert express.answer([asked(), asked()]) == [None, None]
    assert desk.one("SELECT count(*) FROM dl_jobs") == 0


def test_a_database_that_is_away_is_told_of_by_the_ordinary_way(pipelines):
    away = Pool("host=127.0.0.1 port=1")
    app = create_app(JobQueue(away), pipelines, WebOptions(version="1"))

    (answer,) = app.extensions[EXPRESS].answer([asked()])

    assert isinstance(answer, DatabaseUnavailable)


def test_nobody_is_asked_when_none_is_plain(pipelines):
    class Silent:
        schema = "public"

        def ask(self, name: str, parameters: Any = None) -> list[tuple[Any, ...]]:
            raise AssertionError(f"asked for {name}")

    app = create_app(JobQueue(Silent()), pipelines, WebOptions(version="1"))

    assert app.extensions[EXPRESS].answer([(HERE, b"x"), (HERE, b"[]")]) == [None, None]
    assert app.extensions[EXPRESS].answer([]) == []


def test_where_spans_are_drawn_all_go_the_ordinary_way(queue, pipelines):
    def there(tracer: Any) -> bool:
        return EXPRESS in create_app(queue, pipelines, WebOptions(version="1"), tracer=tracer).extensions

    assert there(None)
    assert there(Quiet())
    assert not there(Telemetry.__new__(Telemetry))
