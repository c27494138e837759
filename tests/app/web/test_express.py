"""Triggers answered without Flask: the same answers, the same traces of them, and nothing done twice."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest.mock import ANY

import psycopg2
import pytest
from flask import Flask
from flask.signals import request_started
from pydantic import BaseModel, field_validator

from app.errors import DatabaseUnavailable
from app.queue.job import NewJob
from app.queue.jobqueue import JobQueue
from app.queue.keys import Keys, NewKey, Scope
from app.queue.pool import Pool
from app.queue.queues import Queues, QueueState
from app.traces import Quiet, Telemetry
from app.web import WebOptions, create_app
from app.web.again import Again, fail_as_before, once_more
from app.web.express import EXPRESS, PATH, Answer, Express, Wanted, express_of
from pipelines.contract import Pipelines
from tests.support import eventually
from tests.support.desk import Desk

JOB: dict[str, Any] = {"queue": "etl", "task": "noop", "lock_key": "noop"}
HERE = {"REQUEST_METHOD": "POST", "PATH_INFO": PATH, "REMOTE_ADDR": "127.0.0.1", "SERVER_PROTOCOL": "HTTP/1.1",
        "HTTP_HOST": "localhost", "CONTENT_TYPE": "application/json"}  # fmt: skip
TRACE = "00-11111111111111111111111111111111-2222222222222222-01"


@pytest.fixture(autouse=True)
def _every_job_would_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker is live here; what that means for a trigger is tested in test_doubts.py."""
    monkeypatch.setattr("app.web.queues.doubts", lambda *_, **__: [])


@pytest.fixture
def app(queue: JobQueue, pipelines: Pipelines, pool: Pool) -> Flask:
    return create_app(queue, pipelines, WebOptions(version="1.2.3"), pool=pool)


class Lane:
    """As the lane asks: one after the other, and all that are plain at once."""

    def __init__(self, express: Express) -> None:
        self.express = express

    def answer(self, requests: Sequence[tuple[dict[str, str], bytes]]) -> list[Answer | Again]:
        found: list[Any] = [self.express.read(environ, body) for environ, body in requests]
        answers = iter(self.express.answer([one for one in found if isinstance(one, Wanted)]))
        return [next(answers) if isinstance(one, Wanted) else one for one in found]


def lane_of(app: Flask) -> Lane:
    """One that has been in use: what it needs to know is known."""
    express = express_of(app)
    assert express is not None
    lane = Lane(express)
    with app.test_client() as client:
        client.post(PATH, json={"queue": "warm", "task": "up", "lock_key": "k", "live_key": "warm"})
    return lane


@pytest.fixture
def express(app: Flask, desk: Desk) -> Lane:
    lane = lane_of(app)
    desk.sql("DELETE FROM dl_jobs")
    return lane


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
    express.express._drains._looked_at = None
    express.express._drains.refuse("any")
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

    answers = dict(zip(odd, express.answer([asked(), *odd.values()])[1:], strict=True))

    assert {name: answer for name, answer in answers.items() if not isinstance(answer, Again)} == {"a cookie": ANY}
    assert {name for name, answer in answers.items() if isinstance(answer, Again) and answer.told} == {
        "a key that is taken"
    }
    assert {answer.failure for answer in answers.values() if isinstance(answer, Again)} == {None}
    assert desk.one("SELECT count(*) FROM dl_jobs") == 3, "where there are no sessions a cookie says nothing"


def test_args_that_the_task_does_not_take_are_left_to_the_ordinary_way(queue, pool, desk, monkeypatch):
    monkeypatch.setattr("app.web.express._SLOW", 3600.0)  # a busy machine takes its time for the first look
    known = Pipelines()

    @known.register("typed", args={"type": "object", "properties": {"rows": {"type": "integer"}}})
    def typed(args: dict[str, Any]) -> None: ...

    express = lane_of(create_app(queue, known, WebOptions(version="1"), pool=pool))

    answers = express.answer([asked(task="typed", args={"rows": "x"}), asked(task="typed", args={"rows": 1})])

    assert [type(answer) for answer in answers] == [Again, Answer]
    assert desk.one("SELECT count(*) FROM dl_jobs WHERE queue = 'etl'") == 1


def test_a_key_opens_what_it_may_and_its_owner_stands_in_the_audit(queue, pipelines, pool, desk):
    desk.sql("DELETE FROM dl_api_keys; DELETE FROM dl_audit")
    keys = Keys(pool)

    def bearer(*scopes: Scope, **limits: Any) -> dict[str, str]:
        new = NewKey(name=f"{scopes[0]} {limits}", scopes=frozenset(scopes), created_by="test", **limits)
        return {"HTTP_AUTHORIZATION": f"Bearer {keys.create(new)[1]}", "REMOTE_ADDR": "192.0.2.7"}

    may, reads = bearer(Scope.TRIGGER), bearer(Scope.READ)
    limited = bearer(Scope.TRIGGER, tasks=frozenset({"other"}))
    app = create_app(queue, pipelines, WebOptions(version="1"), pool=pool, keys=keys)
    cold = express_of(app)
    assert cold is not None
    assert isinstance(cold.read(*asked(head=may)), Again), "nobody has looked at the keys yet"
    warm = {"Authorization": may["HTTP_AUTHORIZATION"]}
    assert app.test_client().post(PATH, json=JOB | {"lock_key": "warm"}, headers=warm).status_code == 200
    desk.sql("DELETE FROM dl_audit")
    express = Lane(cold)

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


def test_log_audit_and_numbers_have_the_same_of_it_as_ever(app, express, heard):
    def said(ask: Callable[[], Any]) -> list[tuple[str, str, dict[str, Any]]]:
        heard.clear()
        ask()
        unlike = ("job_id", "duration_ms")
        return [
            (record.name, record.message, {k: v for k, v in record.fields.items() if k not in unlike})
            for record in heard.records
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
    assert isinstance(first, Again)
    assert isinstance(second, Again)
    assert isinstance(first.failure, DatabaseUnavailable)

    for again in (first, second):
        with once_more(again):
            answer = app.test_client().post(PATH, json=JOB)
        assert (answer.status_code, answer.json["code"]) == (503, "database_unavailable")
        assert answer.headers["X-Request-ID"] == again.request_id, "as the audit has it, should the job be there"
    assert desk.one("SELECT count(*) FROM dl_jobs") == 0
    assert app.test_client().post(PATH, json=JOB).status_code == 200


def test_what_is_one_of_thems_fault_is_for_each_to_find_out(express, desk, monkeypatch):
    monkeypatch.setattr(JobQueue, "put_together", lambda queue, jobs: (_ for _ in ()).throw(psycopg2.DataError("x")))

    answers = express.answer([asked(), asked()])

    assert [isinstance(one, Again) and (one.told, one.failure) for one in answers] == [(True, None)] * 2
    assert desk.one("SELECT count(*) FROM dl_jobs") == 0


def test_a_request_that_comes_a_second_way_is_counted_and_told_of_once(app, heard):
    client = app.test_client()
    with once_more(Again("mine", told=True)):
        assert client.post(PATH, json=JOB).headers["X-Request-ID"] == "mine"
    assert "request.began" not in [record.message for record in heard.records]
    with once_more(Again("mine")):
        client.post(PATH, json=JOB)
    assert [record.message for record in heard.records].count("request.began") == 1


def test_the_beginning_is_told_before_anything_is_done(express, heard, monkeypatch):
    heard.clear()
    seen: list[str] = []
    put = JobQueue.put_together

    def watched(queue: JobQueue, jobs: Any) -> Any:
        seen.extend(record.message for record in heard.records)
        return put(queue, jobs)

    monkeypatch.setattr(JobQueue, "put_together", watched)
    express.answer([asked(), asked()])

    assert seen == ["request.began", "request.began"]


def test_a_failure_behind_the_commit_is_its_own_requests_alone(express, desk, monkeypatch):
    told = iter([None, RuntimeError("full"), None])
    end = express.express.around.end

    def failing(*facts: Any) -> None:
        error = next(told)
        if error is not None:
            raise error
        end(*facts)

    monkeypatch.setattr(express.express.around, "end", failing)
    first, second, third = express.answer([asked(), asked(), asked()])

    assert isinstance(first, Answer)
    assert isinstance(third, Answer)
    assert isinstance(second, Again)
    assert isinstance(second.failure, RuntimeError), "its job is there, and is not asked for again"
    assert desk.one("SELECT count(*) FROM dl_jobs") == 3


def test_an_error_of_many_is_raised_anew_by_each():
    error = DatabaseUnavailable("away")
    raised = []
    for _ in range(3):
        with once_more(Again("r", failure=error)), pytest.raises(DatabaseUnavailable, match="away") as caught:
            fail_as_before()
        raised.append(caught.value)

    assert len({id(one) for one in (error, *raised)}) == 4
    assert error.__traceback__ is None
    fail_as_before()  # nobody else is told


@pytest.mark.parametrize("end", [SystemExit(3), KeyboardInterrupt(), RuntimeError("a bug"), ValueError("no")])
def test_whatever_a_tasks_look_at_its_args_raises_is_for_the_ordinary_way(queue, pool, end):
    known = Pipelines()

    class Model(BaseModel):
        n: int

        @field_validator("n")
        @classmethod
        def look(cls, n: int) -> int:
            if n:
                raise end
            return n

    @known.register("typed", args=Model)
    def typed(args: Any) -> None: ...

    lane = lane_of(create_app(queue, known, WebOptions(version="1"), pool=pool))
    one = {"queue": "etl", "lock_key": "k", "task": "typed"}

    assert isinstance(lane.express.read(HERE.copy(), json.dumps(one | {"args": {"n": 0}}).encode()), Wanted)
    assert isinstance(lane.express.read(HERE.copy(), json.dumps(one | {"args": {"n": 1}}).encode()), Again)


def test_a_task_that_takes_long_to_look_at_its_args_keeps_others_waiting_once_a_minute(queue, pool):
    known, looked = Pipelines(), []

    class Model(BaseModel):
        @field_validator("*", mode="before")
        @classmethod
        def look(cls, told: Any) -> Any:
            looked.append(told)
            time.sleep(0.05)
            return told

        n: int

    @known.register("typed", args=Model)
    def typed(args: Any) -> None: ...

    lane = lane_of(create_app(queue, known, WebOptions(version="1"), pool=pool))
    read = [lane.express.read(*asked(task="typed", args={"n": 1})) for _ in range(3)]

    assert [type(one) for one in read] == [Wanted, Again, Again]
    assert len(looked) == 1
    lane.express._slow["typed"] -= 61  # a minute later
    assert isinstance(lane.express.read(*asked(task="typed", args={"n": 1})), Wanted)


def test_what_would_have_to_be_looked_up_first_is_for_the_ordinary_way(queue, pipelines, pool):
    keys = Keys(pool)
    token = keys.create(NewKey(name="n", scopes=frozenset({Scope.TRIGGER}), created_by="test"))[1]
    other = keys.create(NewKey(name="m", scopes=frozenset({Scope.TRIGGER}), created_by="test"))[1]
    app = create_app(queue, pipelines, WebOptions(version="1"), pool=pool, keys=keys)
    express = express_of(app)
    assert express is not None
    here = {"HTTP_AUTHORIZATION": f"Bearer {token}"}

    assert isinstance(express.read(*asked(head=here)), Again), "neither keys nor queues are known yet"
    assert app.test_client().post(PATH, json=JOB, headers={"Authorization": f"Bearer {token}"}).status_code == 200
    assert isinstance(express.read(*asked(head=here)), Wanted)

    late = keys.create(NewKey(name="late", scopes=frozenset({Scope.TRIGGER}), created_by="test"))[1]
    strangers = [
        f"Bearer {late}",
        f"Bearer {other[:-4]}0000",
        "Bearer dlk_000000000000_" + "0" * 40,
        "Bearer x",
        "Basic x",
    ]
    for stranger in strangers:
        assert isinstance(express.read(*asked(head={"HTTP_AUTHORIZATION": stranger})), Again)
    assert not express._guard.knows_at_once({"HTTP_AUTHORIZATION": strangers[0]})
    assert express._guard.knows_at_once({"HTTP_AUTHORIZATION": here["HTTP_AUTHORIZATION"]})

    for key in keys.ring().keys:
        keys.revoke(key.id)


def test_a_queue_that_drains_is_known_within_a_second_and_nobody_waits_for_the_look(express, desk, monkeypatch):
    drains, go = express.express._drains, threading.Event()
    rules = Queues.rules

    def slow(queues: Queues) -> Any:
        assert go.wait(30)
        return rules(queues)

    monkeypatch.setattr(Queues, "rules", slow)
    monkeypatch.setattr("app.web.queues._RULES_FRESH_SEC", 0.0)
    Queues(desk.session).rule("etl", state=QueueState.DRAINING)
    drains._looked_at = time.monotonic() - 1.0  # the next look is due

    assert [type(one) for one in express.answer([asked(), asked()])] == [Answer, Answer]
    go.set()
    eventually(lambda: drains.takes("etl") is False)
    assert [type(one) for one in express.answer([asked(), asked(queue="other")])] == [Again, Answer]


def test_a_database_that_is_away_is_told_of_by_the_ordinary_way(pipelines):
    away = Pool("host=127.0.0.1 port=1")
    app = create_app(JobQueue(away), pipelines, WebOptions(version="1"))

    with app.test_client() as client:
        assert client.post(PATH, json=JOB).status_code == 503
    (answer,) = Lane(app.extensions[EXPRESS]).answer([asked()])

    assert isinstance(answer, Again)
    assert isinstance(answer.failure, DatabaseUnavailable)


def test_nobody_is_asked_when_none_is_plain(pipelines):
    class Silent:
        schema = "public"

        def ask(self, name: str, parameters: Any = None) -> list[tuple[Any, ...]]:
            raise AssertionError(f"asked for {name}")

    lane = Lane(create_app(JobQueue(Silent()), pipelines, WebOptions(version="1")).extensions[EXPRESS])

    assert [type(one) for one in lane.answer([(HERE.copy(), b"x"), (HERE.copy(), b"[]"), asked()])] == [Again] * 3
    assert lane.answer([]) == []


def wrapped(app: Flask) -> Any:
    return partial(app)


def around(app: Flask) -> Any:
    app.wsgi_app = partial(app.wsgi_app)  # type: ignore[method-assign]
    return app


def hooked(name: str) -> Callable[[Flask], Any]:
    def hook(app: Flask) -> Any:
        getattr(app, name)(lambda *args: None)
        return app

    return hook


def heard(app: Flask) -> Any:
    request_started.connect(listener)
    return app


def listener(_: Any, **__: Any) -> None: ...


class Watched(Flask):
    def dispatch_request(self) -> Any:
        return super().dispatch_request()


def patched(app: Flask) -> Any:
    app.__class__ = Watched
    return app


@pytest.mark.parametrize(
    "stands_in",
    [
        wrapped, around, heard, patched,
        *map(hooked, ("before_request", "after_request", "teardown_request", "teardown_appcontext")),
        hooked("url_value_preprocessor"),
    ],
)  # fmt: skip
def test_whoever_stands_around_the_app_or_in_it_is_not_passed_by(queue, pipelines, stands_in):
    app = create_app(queue, pipelines, WebOptions(version="1"))
    assert express_of(app) is not None
    try:
        assert express_of(stands_in(app)) is None
    finally:
        request_started.disconnect(listener)
    assert express_of(Flask("other")) is None


def test_where_spans_are_drawn_all_go_the_ordinary_way(queue, pipelines):
    def there(tracer: Any) -> bool:
        return express_of(create_app(queue, pipelines, WebOptions(version="1"), tracer=tracer)) is not None

    assert there(None)
    assert there(Quiet())
    assert not there(Telemetry.__new__(Telemetry))
