"""Many triggers at once on kept connections, which a lane of their own answers, in the company of what goes wrong."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from tests.hostile.test_requests import BODIES
from tests.support import Databases, Process, eventually, free_port
from tests.support.running import QUICK, Running, ask
from tests.support.sockets import TRIGGER, post, say

CLIENTS = 12
JOB = {"queue": "idle", "task": "noop", "lock_key": "k"}


@pytest.fixture
def service(databases: Databases, tmp_path: Path) -> Iterator[Running]:
    with databases.fresh() as dsn:
        port = free_port()
        env = {**QUICK, "DL_DB_DSN": dsn, "APP_PORT": str(port), "APP_THREADS": "4", "WORKERS_JSON": "[]"}
        with Process.dataloader("serve", env=env, output=tmp_path / "service.log") as process:
            running = Running(process, port, "serve").until_ready()
            running.dsn = dsn  # type: ignore[attr-defined]
            yield running


class Client:
    """One kept connection, opened again when the service has closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connection: http.client.HTTPConnection | None = None

    def trigger(self, body: bytes) -> tuple[int, dict[str, Any]]:
        """Status and answer; (0, {}): nobody knows."""
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            self._connection.request("POST", TRIGGER, body, {"Content-Type": "application/json"})
            answer = self._connection.getresponse()
            return answer.status, json.loads(answer.read())
        except (OSError, http.client.HTTPException):
            self.close()
            return 0, {}

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def crowd(port: int, work: Callable[[int, Client], list[Any]]) -> list[Any]:
    def one(n: int) -> list[Any]:
        with closing(Client(port)) as client:
            return work(n, client)

    with ThreadPoolExecutor(CLIENTS) as threads:
        return [found for some in threads.map(one, range(CLIENTS)) for found in some]


def job(**more: Any) -> bytes:
    return json.dumps(JOB | more).encode()


def jobs_of(service: Running) -> Counter[str]:
    rows = ask(service.dsn, "SELECT producer FROM dl_jobs WHERE producer IS NOT NULL")  # type: ignore[attr-defined]
    return Counter(row[0] for row in rows)


def test_each_of_a_crowd_is_answered_with_its_own_job_and_hostile_company_changes_nothing(service: Running):
    alone = {name: say(service.port, post(body)) for name, body in BODIES.items()}  # closed after: the ordinary way

    def asked(n: int, client: Client) -> list[Any]:
        found: list[Any] = []
        hostile = list(BODIES.items())[n::CLIENTS]
        for i in range(20):
            found.append((f"{n} {i}", client.trigger(job(producer=f"{n} {i}", idempotency_key=f"{i} of {n % 6}"))))
            if hostile:
                name, body = hostile.pop()
                found.append((name, client.trigger(body)))
        return found

    answers = crowd(service.port, asked)

    sound = {who: answer for who, answer in answers if who not in BODIES}
    refused = {name: (status, told["code"]) for name, (status, told) in answers if name in BODIES}
    assert {status for status, _ in sound.values()} <= {200, 409}
    assert refused == {name: (reply.status, reply.json()["code"]) for name, reply in alone.items()}
    made: dict[str, str] = dict(ask(service.dsn, "SELECT idempotency_key, job_id::text FROM dl_jobs"))  # type: ignore[attr-defined]
    assert len(made) == 6 * 20
    for who, (status, told) in sound.items():
        n, i = map(int, who.split())
        assert status == 409 or told["job_id"] == made[f"{i} of {n % 6}"]


def test_a_key_that_a_transaction_holds_keeps_only_its_own_caller_waiting(service: Running):
    over = threading.Event()
    with closing(psycopg2.connect(service.dsn)) as holder, holder.cursor() as cursor:  # type: ignore[attr-defined]
        cursor.execute("INSERT INTO dl_jobs (queue, task, lock_key, idempotency_key) VALUES ('q', 't', 'k', 'held')")

        def held() -> tuple[int, dict[str, Any]]:
            with closing(Client(service.port)) as client:
                answer = client.trigger(job(queue="q", task="t", idempotency_key="held"))
            over.set()
            return answer

        with ThreadPoolExecutor(1) as aside:
            waits = aside.submit(held)
            answers = crowd(service.port, lambda n, client: [client.trigger(job())[0] for _ in range(20)])
            assert not over.is_set()
            holder.rollback()
            assert waits.result(60)[0] == 200
    assert Counter(answers) == {200: 20 * CLIENTS}


def test_a_look_at_the_queues_that_hangs_keeps_nobody_waiting(service: Running):
    over, answered = threading.Event(), list[tuple[int, int]]()  # whom, and how
    hangs = "SELECT 1 FROM pg_locks WHERE relation = 'dl_queues'::regclass AND NOT granted"

    def asked(n: int, client: Client) -> list[Any]:
        while not over.is_set():
            answered.append((n, client.trigger(job())[0]))
        return []

    def go_on(before: int) -> int:
        """How many clients have been answered more than what was on its way."""
        return sum(count > 2 for count in Counter(n for n, _ in answered[before:]).values())

    with ThreadPoolExecutor(1) as aside, closing(psycopg2.connect(service.dsn)) as holder:  # type: ignore[attr-defined]
        asking = aside.submit(crowd, service.port, asked)
        try:
            eventually(lambda: len(answered) > CLIENTS)
            with holder.cursor() as cursor:
                cursor.execute("LOCK TABLE dl_queues IN ACCESS EXCLUSIVE MODE")
                eventually(lambda: ask(service.dsn, hangs))  # type: ignore[attr-defined]
                before = len(answered)
                # Sooner than the look itself is given up, after 15 s.
                eventually(lambda: go_on(before) == CLIENTS, timeout=10)
                assert ask(service.dsn, hangs), "it hangs still"  # type: ignore[attr-defined]
        finally:
            over.set()
            holder.rollback()
        asking.result(60)
    assert {status for _, status in answered} == {200}


def test_the_lane_is_open_as_the_service_is_shipped(service: Running):
    assert not service.log("api.lane.closed")


def test_with_connections_to_the_database_dying_each_is_asked_for_once_at_most(service: Running):
    over = threading.Event()

    def killer() -> int:
        killed = 0
        while not over.wait(0.02):
            killed += ask(
                service.dsn,  # type: ignore[attr-defined]
                "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name = 'dataloader-api' AND state <> 'idle'",
            )[0][0]
        return killed

    def asked(n: int, client: Client) -> list[Any]:
        return [(f"{n} {i}", client.trigger(job(producer=f"{n} {i}"))) for i in range(60)]

    with ThreadPoolExecutor(1) as aside:
        killing = aside.submit(killer)
        try:
            answers = dict(crowd(service.port, asked))
        finally:
            over.set()
        assert killing.result() > 0

    there = jobs_of(service)
    assert {status for status, _ in answers.values()} <= {200, 503}
    assert set(there.values()) == {1}, "none was asked for twice"
    assert {who for who, (status, _) in answers.items() if status == 200} <= set(there)


def test_whoever_was_answered_before_the_end_has_a_job_and_the_service_ends_as_ever(service: Running):
    began = threading.Event()

    def asked(n: int, client: Client) -> list[Any]:
        found: list[Any] = []
        for i in range(2_000):
            found.append((f"{n} {i}", client.trigger(job(producer=f"{n} {i}"))))
            if i == 10:
                began.set()
            if found[-1][1][0] == 0:
                break
        return found

    with ThreadPoolExecutor(1) as aside:
        asking = aside.submit(crowd, service.port, asked)
        assert began.wait(60)
        assert service.stop() == 0
        answers = dict(asking.result(60))

    there = jobs_of(service)
    answered = {who for who, (status, _) in answers.items() if status == 200}
    assert len(answered) > 10 * CLIENTS / 2
    assert answered <= set(there)
    assert set(there.values()) == {1}
    assert {status for status, _ in answers.values()} <= {200, 0}


def test_a_kept_connection_takes_turns_between_the_lane_and_the_ordinary_way(service: Running):
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
    statuses = []
    for n in range(30):
        body = job(producer="me") if n % 3 else b"{"
        connection.request("POST", TRIGGER, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        statuses.append(answer.status)
        told = json.loads(answer.read())
        if n % 5 == 0 and answer.status == 200:
            connection.request("GET", f"/api/v1/jobs/{told['job_id']}/status", headers={"Cookie": "a=b"})
            again = connection.getresponse()
            assert (again.status, json.loads(again.read())["status"]) == (200, "queued")
    connection.close()

    assert Counter(statuses) == {200: 20, 400: 10}
    assert jobs_of(service) == {"me": 20}


def test_one_at_a_time_is_answered_as_soon_as_ever(service: Running):
    """The lane waits for no company: a lone trigger takes what its parts take, not a turn of some clock."""
    took = []
    with closing(Client(service.port)) as client:
        for _ in range(30):
            began = time.perf_counter()
            assert client.trigger(job())[0] == 200
            took.append(time.perf_counter() - began)

    assert sorted(took)[15] < 0.4
