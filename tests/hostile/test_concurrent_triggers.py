"""Concurrent triggers on kept-alive connections, with failures around them."""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from tests.hostile.hostile_requests import BODIES
from tests.support import Databases, Process, eventually, free_port
from tests.support.real_service import FAST_SETTINGS, RunningService, query_rows
from tests.support.sockets import TRIGGER, post_request, send_and_read

CLIENTS = 12
JOB = {"queue": "idle", "task": "noop", "lock_key": "k"}


@pytest.fixture
def service(databases: Databases, tmp_path: Path) -> Iterator[RunningService]:
    with databases.fresh() as dsn:
        port = free_port()
        env = {**FAST_SETTINGS, "DL_DB_DSN": dsn, "APP_PORT": str(port), "APP_HTTP_THREADS": "4", "WORKERS_JSON": "[]"}
        with Process.dataloader("serve", env=env, output=tmp_path / "service.log") as process:
            running = RunningService(process, port, "serve").wait_until_ready()
            running.dsn = dsn  # type: ignore[attr-defined]
            yield running


class Client:
    """One kept connection, opened again when the service has closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connection: http.client.HTTPConnection | None = None

    def trigger(self, body: bytes) -> tuple[int, dict[str, Any]]:
        """Return status and body; (0, {}) if the connection broke."""
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


def run_clients(port: int, work: Callable[[int, Client], list[Any]]) -> list[Any]:
    def one(n: int) -> list[Any]:
        with closing(Client(port)) as client:
            return work(n, client)

    with ThreadPoolExecutor(CLIENTS) as threads:
        return [found for some in threads.map(one, range(CLIENTS)) for found in some]


def job(**more: Any) -> bytes:
    return json.dumps(JOB | more).encode()


def jobs_of(service: RunningService) -> Counter[str]:
    rows = query_rows(service.dsn, "SELECT producer FROM dl_jobs WHERE producer IS NOT NULL")  # type: ignore[attr-defined]
    return Counter(row[0] for row in rows)


def test_concurrent_triggers_get_their_own_jobs(service: RunningService):
    alone = {
        name: send_and_read(service.port, post_request(body)) for name, body in BODIES.items()
    }  # one connection each

    def asked(n: int, client: Client) -> list[Any]:
        found: list[Any] = []
        hostile = list(BODIES.items())[n::CLIENTS]
        for i in range(20):
            found.append((f"{n} {i}", client.trigger(job(producer=f"{n} {i}", idempotency_key=f"{i} of {n % 6}"))))
            if hostile:
                name, body = hostile.pop()
                found.append((name, client.trigger(body)))
        return found

    answers = run_clients(service.port, asked)

    sound = {who: answer for who, answer in answers if who not in BODIES}
    refused = {name: (status, report["code"]) for name, (status, report) in answers if name in BODIES}
    assert {status for status, _ in sound.values()} <= {200, 409}
    assert refused == {name: (reply.status, reply.json()["code"]) for name, reply in alone.items()}
    made: dict[str, str] = dict(query_rows(service.dsn, "SELECT idempotency_key, job_id::text FROM dl_jobs"))  # type: ignore[attr-defined]
    assert len(made) == 6 * 20
    for who, (status, report) in sound.items():
        n, i = map(int, who.split())
        assert status == 409 or report["job_id"] == made[f"{i} of {n % 6}"]


def test_locked_key_delays_only_its_own_caller(service: RunningService):
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
            answers = run_clients(service.port, lambda n, client: [client.trigger(job())[0] for _ in range(20)])
            assert not over.is_set()
            holder.rollback()
            assert waits.result(60)[0] == 200
    assert Counter(answers) == {200: 20 * CLIENTS}


def test_hanging_queue_refresh_delays_no_trigger(service: RunningService):
    over, answered = threading.Event(), list[tuple[int, int]]()  # whom, and how
    hangs = "SELECT 1 FROM pg_locks WHERE relation = 'dl_fair_weights'::regclass AND NOT granted"

    def asked(n: int, client: Client) -> list[Any]:
        while not over.is_set():
            answered.append((n, client.trigger(job())[0]))
        return []

    def go_on(before: int) -> int:
        """How many clients have been answered more than what was on its way."""
        return sum(count > 2 for count in Counter(n for n, _ in answered[before:]).values())

    with ThreadPoolExecutor(1) as aside, closing(psycopg2.connect(service.dsn)) as holder:  # type: ignore[attr-defined]
        asking = aside.submit(run_clients, service.port, asked)
        try:
            eventually(lambda: len(answered) > CLIENTS)
            with holder.cursor() as cursor:
                cursor.execute("LOCK TABLE dl_fair_weights IN ACCESS EXCLUSIVE MODE")
                eventually(lambda: query_rows(service.dsn, hangs))  # type: ignore[attr-defined]
                before = len(answered)
                # Sooner than the look itself is given up, after 15 s.
                eventually(lambda: go_on(before) == CLIENTS)
                assert query_rows(service.dsn, hangs), "it hangs still"  # type: ignore[attr-defined]
        finally:
            over.set()
            holder.rollback()
        asking.result(60)
    assert {status for _, status in answered} == {200}


def test_dying_database_connections_duplicate_no_job(service: RunningService):
    over = threading.Event()

    def killer() -> int:
        killed = 0
        while not over.wait(0.02):
            killed += query_rows(
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
            answers = dict(run_clients(service.port, asked))
        finally:
            over.set()
        assert killing.result() > 0

    there = jobs_of(service)
    assert {status for status, _ in answers.values()} <= {200, 503}
    assert set(there.values()) == {1}, "none was asked for twice"
    assert {who for who, (status, _) in answers.items() if status == 200} <= set(there)


def test_shutdown_keeps_every_acknowledged_job(service: RunningService):
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
        asking = aside.submit(run_clients, service.port, asked)
        assert began.wait(60)
        assert service.stop() == 0
        answers = dict(asking.result(60))

    there = jobs_of(service)
    answered = {who for who, (status, _) in answers.items() if status == 200}
    assert len(answered) > 10 * CLIENTS / 2
    assert answered <= set(there)
    assert set(there.values()) == {1}
    assert {status for status, _ in answers.values()} <= {200, 0}


def test_kept_connection_answers_mixed_requests(service: RunningService):
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
    statuses = []
    for n in range(30):
        body = job(producer="me") if n % 3 else b"{"
        connection.request("POST", TRIGGER, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        statuses.append(answer.status)
        report = json.loads(answer.read())
        if n % 5 == 0 and answer.status == 200:
            connection.request("GET", f"/api/v1/jobs/{report['job_id']}/status", headers={"Cookie": "a=b"})
            again = connection.getresponse()
            assert (again.status, json.loads(again.read())["status"]) == (200, "queued")
    connection.close()

    assert Counter(statuses) == {200: 20, 400: 10}
    assert jobs_of(service) == {"me": 20}
