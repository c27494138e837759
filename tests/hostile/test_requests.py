"""Malformed requests to a real service over raw sockets: each is refused with a message and harms no other."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress

import psutil  # type: ignore[import-untyped]
import psycopg2
import pytest

from tests.hostile.hostile_requests import ACCEPTED, HOSTILE, job
from tests.support import Databases, Process, eventually, free_port
from tests.support.real_service import FAST_SETTINGS, RunningService
from tests.support.sockets import (
    TRIGGER,
    RawResponse,
    chunked_body,
    post_request,
    read_response,
    request_head,
    send_and_read,
)

THREADS = 8
MB = 1024 * 1024
REFUSED = range(400, 500)


@pytest.fixture(scope="module")
def service(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    output = tmp_path_factory.mktemp("hostile") / "service.log"
    with databases.fresh() as dsn:
        port = free_port()
        env = {**FAST_SETTINGS, "DL_DB_DSN": dsn, "APP_PORT": str(port), "APP_HTTP_THREADS": str(THREADS),
               "PG_POOL_SIZE": str(THREADS)}  # fmt: skip
        with Process.dataloader("serve", env=env, output=output) as process:
            running = RunningService(process, port, "serve").wait_until_ready()
            running.dsn = dsn  # type: ignore[attr-defined]
            yield running


@pytest.mark.parametrize("name", ACCEPTED)
def test_unusual_valid_request_is_accepted(service: RunningService, name: str):
    assert send_and_read(service.port, ACCEPTED[name]).status == 200


def test_hostile_request_gets_a_problem_response(service: RunningService):
    """One connection each, several at a time; every answer is a problem with a code, and none is ours to blame."""

    def answer(item: tuple[str, bytes]) -> tuple[str, RawResponse]:
        return item[0], send_and_read(service.port, item[1])

    with ThreadPoolExecutor(6) as clients:
        replies = dict(clients.map(answer, HOSTILE.items()))

    # Who sends megabytes after the refusal may lose it with the connection, however long the service waits.
    replies = {name: reply for name, reply in replies.items() if reply.status or " MB" not in name}
    wrong = {name: reply for name, reply in replies.items() if reply.status not in REFUSED}
    assert wrong == {}
    silent = {name: reply for name, reply in replies.items() if "code" not in reply.json()}
    assert silent == {}
    assert not any(line.get("traceback") for line in service.output()), "no bug of ours was met"


def test_body_in_two_thousand_chunks_is_read_at_once(service: RunningService):
    """gunicorn's parser copies all that follows for each chunk: minutes of a thread for a few megabytes."""
    whole = chunked_body([b" " * 2_048] * 2_000).replace(TRIGGER.encode(), b"/api/v1/jobs/batch", 1)

    reply = send_and_read(service.port, whole, timeout=20)

    assert (reply.status, reply.json()["code"]) == (400, "invalid_json")


@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_connection_ends_after_a_large_unread_body(service: RunningService, framing: str):
    """To pass over such a body would keep a thread for seconds."""
    size = 4 * MB - 200_000
    if framing == "length":
        first = request_head("POST", "/nothing", f"Content-Length: {size}", close=False) + b"x" * size
    else:
        first = request_head("POST", "/nothing", "Transfer-Encoding: chunked", close=False)
        first += b"%x\r\n%s\r\n0\r\n\r\n" % (size, b"x" * size)

    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as client:
        client.sendall(first + request_head("GET", "/info"))
        came = b"".join(iter(lambda: client.recv(65_536), b""))

    assert came.startswith(b"HTTP/1.1 404")
    assert came.count(b"HTTP/1.1 ") == 1


def test_body_in_too_many_chunks_is_413_and_closed(service: RunningService):
    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as client:
        client.sendall(
            chunked_body([b"x"] * 1_001, trailer=b"")
        )  # it does not end: the answer does not wait for the rest
        reply = read_response(client)

    assert (reply.status, reply.json()["code"]) == (413, "body_too_large")
    assert "Content-Length" in reply.json()["detail"]


@pytest.mark.parametrize("codings", ["gzip, chunked", "identity, chunked", "gzip,\tCHUNKED"])
def test_stacked_transfer_codings_are_501_and_closed(service: RunningService, codings: str):
    """As many as there are threads, and none of them ends: a thread would be given to each, to read the rest."""
    sent = request_head("POST", TRIGGER, "Content-Type: application/json", f"Transfer-Encoding: {codings}", close=False)

    with ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", service.port), timeout=30))
            for _ in range(THREADS)
        ]
        for client in clients:
            client.sendall(sent + b"1\r\n{\r\n")
        replies = [read_response(client) for client in clients]

    assert {(reply.status, reply.json()["code"]) for reply in replies} == {(501, "http_error")}


def test_a_bad_trailer_is_400_without_an_alert(service: RunningService):
    alerts = len(service.log_lines("api.error"))

    reply = send_and_read(service.port, chunked_body([job()], trailer=b"0\r\nbad\r\n\r\n"))

    assert reply.status == 400
    assert len(service.log_lines("api.error")) == alerts


def test_pipelined_requests_are_answered_in_order(service: RunningService):
    rows = [request_head("GET", f"/api/v1/jobs/{n}", close=False) for n in range(50)]

    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as client:
        client.sendall(b"".join(rows) + request_head("GET", "/info"))
        came = b"".join(iter(lambda: client.recv(65_536), b""))

    assert came.count(b"HTTP/1.1 404") == 50
    assert [came.index(b"'%d' is not the id" % n) for n in range(50)] == sorted(
        came.index(b"'%d' is not the id" % n) for n in range(50)
    )
    assert came.count(b"HTTP/1.1 200") == 1


def test_garbage_behind_a_request_is_refused_after_its_answer(service: RunningService):
    sent = request_head("GET", "/info", close=False) + b"\x00\xff nonsense\r\n\r\n" + request_head("GET", "/info")

    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as client:
        client.sendall(sent)
        came = b"".join(iter(lambda: client.recv(65_536), b""))

    assert [came.count(b"HTTP/1.1 %d" % status) for status in (200, 400)] == [1, 1], "and nothing was read behind it"


def test_a_request_hidden_in_the_body_of_another_is_never_served(service: RunningService):
    hidden = b"POST /api/v1/jobs/trigger HTTP/1.1\r\nHost: localhost\r\n\r\n"
    confused = request_head(
        "POST",
        TRIGGER,
        "Content-Type: application/json",
        "Content-Length: 5",
        "Transfer-Encoding: chunked",
        close=False,
    )

    reply = send_and_read(service.port, confused + b"0\r\n\r\n" + hidden)

    assert reply.status == 400
    assert b"HTTP/1.1 " not in reply.body.replace(b"no HTTP/1.1 request", b""), "the connection ends with the refusal"


def test_a_client_that_hangs_up_its_own_side_gets_its_answer(service: RunningService):
    assert send_and_read(service.port, request_head("GET", "/info", close=False), half_close=True).status == 200


class AttackingClients:
    """Hostile clients of several kinds, until they are stopped."""

    def __init__(self, port: int, seed: int) -> None:
        self.port, self.random = port, random.Random(seed)
        self.stopping = threading.Event()
        self.answers: Counter[str] = Counter()
        self.lock = threading.Lock()

    def open(self, data: bytes) -> socket.socket | None:
        with suppress(OSError):
            client = socket.create_connection(("127.0.0.1", self.port), timeout=10)
            with suppress(OSError):
                client.sendall(data)
            return client
        return None

    def drip(self, start: bytes, count: int) -> None:
        """Many that send a byte now and then, and never the last one."""
        clients = [self.open(start) for _ in range(count)]
        while not self.stopping.wait(0.3):
            for n, client in enumerate(clients):
                try:
                    assert client is not None
                    client.send(b"x")
                except (OSError, AssertionError):
                    if client is not None:
                        client.close()
                    clients[n] = self.open(start)
        for client in filter(None, clients):
            client.close()

    def slow_heads(self) -> None:
        self.drip(b"GET /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nX-Slow: ", 60)

    def slow_bodies(self) -> None:
        self.drip(request_head("POST", TRIGGER, "Content-Type: application/json", "Content-Length: 100000"), 60)

    def slow_chunks(self) -> None:
        self.drip(
            request_head("POST", TRIGGER, "Content-Type: application/json", "Transfer-Encoding: chunked") + b"ffff\r\n",
            30,
        )

    def silent(self) -> None:
        self.drip(b"", 30)

    def never_reading(self) -> None:
        """Ask for much, and read nothing of it."""
        self.drip(request_head("GET", "/openapi.json", close=False) * 100, 20)

    def vanishing(self) -> None:
        while not self.stopping.wait(0.02):
            client = self.open(
                self.random.choice([request_head("GET", "/openapi.json"), request_head("GET", "/api/v1/jobs")])
            )
            if client is not None:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.close()

    def corpus(self) -> None:
        while not self.stopping.wait(0.01):
            with suppress(OSError):  # this machine is busy with all of them
                reply = send_and_read(self.port, HOSTILE[self.random.choice(list(HOSTILE))], timeout=20)
                with self.lock:
                    self.answers[str(reply.status)] += 1

    def __enter__(self) -> AttackingClients:
        kinds = (
            self.slow_heads,
            self.slow_bodies,
            self.slow_chunks,
            self.silent,
            self.never_reading,
            self.vanishing,
            self.corpus,
        )
        self.threads = [threading.Thread(target=kind) for kind in kinds]
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join(60)


def timed_request(port: int, request: bytes) -> tuple[float, int]:
    began = time.monotonic()
    status = send_and_read(port, request).status
    return time.monotonic() - began, status


@pytest.mark.full
def test_attackers_delay_no_client_and_leak_nothing(service: RunningService, long_run: bool):
    port, worker = service.port, psutil.Process(service.worker_pid)
    known = send_and_read(port, post_request(job())).json()["job_id"]
    honest = [request_head("GET", "/health"), request_head("GET", f"/api/v1/jobs/{known}/status"), post_request(job())]
    taken: list[tuple[float, int]] = []

    with socket.create_connection(("127.0.0.1", port), timeout=60) as endless, AttackingClients(port, seed=6) as crowd:
        endless.sendall(b"GET /info HTTP/1.1\r\n")
        eventually(lambda: crowd.answers.total() > 3, 60, "the crowd is there")
        before = worker.memory_info().rss
        until = time.monotonic() + (120 if long_run else 8)
        while time.monotonic() < until:
            taken += [timed_request(port, asked) for asked in honest]
        grown = worker.memory_info().rss - before
        assert read_response(endless).status == 408, "the service did not report that the request never ended"

    assert {status for _, status in taken} == {200}
    assert max(seconds for seconds, _ in taken) < 25
    assert not {status for status in crowd.answers if status.startswith("5") and status != "503"}
    assert grown < 150 * MB, f"{grown / MB:.0f} MB more than at the crowd's beginning"
    eventually(lambda: len(worker.net_connections("tcp")) <= 3 + THREADS, 60, "all clients have been let go")
    assert not any(line.get("traceback") for line in service.output())


def test_threads_respond_after_attacks_and_health_needs_none(service: RunningService):
    dsn = service.dsn  # type: ignore[attr-defined]
    known = request_head(
        "GET", f"/api/v1/jobs/{send_and_read(service.port, post_request(job())).json()['job_id']}/status"
    )
    question = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        " AND application_name = 'dataloader-api'"
    )
    with closing(psycopg2.connect(dsn)) as locker, closing(psycopg2.connect(dsn)) as watcher:
        locker.cursor().execute("LOCK TABLE dl_jobs IN ACCESS EXCLUSIVE MODE")
        watcher.autocommit = True
        cursor = watcher.cursor()

        def waiting() -> int:
            cursor.execute(question)
            return int(cursor.fetchall()[0][0])

        with ThreadPoolExecutor(2 * THREADS) as clients:
            asked = [clients.submit(send_and_read, service.port, known) for _ in range(2 * THREADS)]
            eventually(
                lambda: waiting() == THREADS,
                message=lambda: (
                    f"{waiting()} of {THREADS} wait; {Counter(it.result().status for it in asked if it.done())}"
                ),
            )
            assert send_and_read(service.port, request_head("GET", "/health")).status == 200
            locker.rollback()
            answers = Counter(future.result().status for future in asked)

    assert answers == {200: 2 * THREADS}
