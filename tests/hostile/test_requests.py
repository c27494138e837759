"""What nobody's client library would send, to a real service over real sockets: refused in words, harming nobody."""

from __future__ import annotations

import json
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from typing import Any

import psutil  # type: ignore[import-untyped]
import psycopg2
import pytest

from tests.support import Databases, Process, eventually, free_port
from tests.support.running import QUICK, Running
from tests.support.sockets import TRIGGER, Reply, chunked, head, post, read_reply, say

THREADS = 8
LIMIT = 200_000  # bytes of a body
MB = 1024 * 1024
JOB = {"queue": "idle", "task": "noop", "lock_key": "k"}
REFUSED = range(400, 500)


@pytest.fixture(scope="module")
def service(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    output = tmp_path_factory.mktemp("hostile") / "service.log"
    with databases.fresh() as dsn:
        port = free_port()
        env = {**QUICK, "DL_DB_DSN": dsn, "APP_PORT": str(port), "APP_THREADS": str(THREADS),
               "DL_MAX_BODY_BYTES": str(LIMIT), "PG_POOL_SIZE": str(THREADS)}  # fmt: skip
        with Process.dataloader("serve", env=env, output=output) as process:
            running = Running(process, port, "serve").until_ready()
            running.dsn = dsn  # type: ignore[attr-defined]
            yield running


def job(**more: Any) -> bytes:
    return json.dumps(JOB | more).encode()


def raw(args: bytes) -> bytes:
    """A trigger whose args are these bytes."""
    return b'{"queue":"idle","task":"noop","lock_key":"k","args":' + args + b"}"


def deep(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


ACCEPTED = {
    "a plain job": post(job()),
    "a body in many small chunks": chunked([bytes([byte]) for byte in job()]),
    "a body in a thousand chunks": chunked([bytes([byte]) for byte in job().ljust(1_000)]),
    "chunks with extensions and trailers": chunked([job()], end=b"0;x=y\r\nX-Trailer: 1\r\n\r\n"),
    "headers in lower case": post(job()).replace(b"Content-", b"content-"),
    "a type of a thousand parameters": post(job(), kind="application/json" + "; a=b" * 1000),
    "an address with many slashes": head("GET", "//////api/v1/jobs"),
    "blank lines before the request": b"\r\n\r\n" + post(job()),
    "an expectation, and the body at once": post(job(), "Expect: 100-continue"),
    "text of all planes": post(job(args={"text": "ж\U0001f600\U0010ffff\ufeff\u202e"})),
    "a body of just the limit": post(job(args={"x": "y" * (LIMIT - len(job(args={"x": ""})))})),
    "numbers of 300 digits": post(raw(b'{"n":' + b"9" * 300 + b"}")),
    "a hundred headers less a few": head("GET", "/info", *(f"X-{n}: {n}" for n in range(90))),
    "a request id that would forge a line": head("GET", "/info", "X-Request-ID: a\\u000a{}"),
    "HTTP/1.0": b"GET /health HTTP/1.0\r\n\r\n",
}

BODIES = {
    "nothing": b"",
    "blanks": b" \r\n\t ",
    "a NUL": b"\0",
    "a NUL in a text": job(lock_key="a\0b"),
    "half a surrogate pair": raw(b'{"a":"\\ud800"}'),
    "half a surrogate pair in a key": raw(b'{"\\udfff":1}'),
    "surrogates as UTF-8": raw(b'{"a":"\xed\xa0\x80"}'),
    "bad UTF-8": raw(b'{"a":"\xff\xfe"}'),
    "overlong UTF-8": raw(b'{"a":"\xc0\xaf"}'),
    "UTF-16": job().decode().encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf" + job(),
    "10,000 levels of objects": raw(deep(10_000)),
    "10,000 levels of lists": raw(b'{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}"),
    "levels that never close": raw(b'{"a":' + b"[" * 100_000),
    "65 levels": raw(deep(65)),
    "an integer of 10,000 digits": raw(b'{"n":' + b"9" * 10_000 + b"}"),
    "a fraction of an exponent beyond": raw(b'{"n":1e5000}'),
    "minus infinity by exponent": raw(b'{"n":-1e400}'),
    "NaN": raw(b'{"n":NaN}'),
    "Infinity": raw(b'{"n":-Infinity}'),
    "a key twice": raw(b'{"a":1,"a":2}'),
    "a field twice": b'{"queue":"a","queue":"b","task":"noop","lock_key":"k"}',
    "a list": b"[]",
    "a number": b"1",
    "garbage after it": job() + b"}",
    "two documents": job() + job(),
    "single quotes": b"{'queue':'idle'}",
    "a comment": b"/* */" + job(),
    "control characters in a text": raw(b'{"a":"\x01"}'),
    "a lock_key that no index holds": job(lock_key="k" * 3_000),
    "a lock_key of 900 characters in 3,600 bytes": job(lock_key="\U0001f600" * 900),
    "a queue of blanks": job(queue="  \t "),
    "a priority past int4": job(priority=2**31),
    "a priority as a text": job(priority="1"),
    "true for a number": job(max_attempts=True),
    "a year of five digits": job(available_at="10000-01-01T00:00:00Z"),
    "SQL in a time": job(available_at="now()'; --"),
    "a field nobody knows": job(status="succeeded"),
    "fields by the thousand": json.dumps(JOB | {f"f{n}": n for n in range(10_000)}).encode(),
}

HEADS = {
    "a body that is too large": head("POST", TRIGGER, "Content-Type: application/json", "Content-Length: 10000000"),
    "a body of 10 MB, sent": post(b'{"a":"' + b"x" * 10_000_000 + b'"}'),
    "10 MB in chunks": chunked([b"x" * 65_536] * 160),
    "1 MB in chunks of a byte": chunked([b"x"] * 1_000_000),
    "a chunk of exabytes": chunked([], end=b"fffffffffffffff\r\n"),
    "a negative chunk": chunked([], end=b"-1\r\n\r\n"),
    "a chunk size of letters": chunked([], end=b"zz\r\n\r\n"),
    "a chunk that is longer than it says": chunked([], end=b"1\r\nabc\r\n0\r\n\r\n"),
    "a chunk line without end": chunked([], end=b"1;" + b"x" * 20_000),
    "chunks ended by line feeds": chunked([], end=b"1\na\n0\n\n"),
    "10,000 chunks of a byte": chunked([b"x"] * 10_000),
    "a trailer without a colon": chunked([job()], end=b"0\r\nbad\r\n\r\n"),
    "a trailer with a bare line feed": chunked([job()], end=b"0\r\nX: a\nY: b\r\n\r\n"),
    "a length as a trailer": chunked([job()], end=b"0\r\nContent-Length: 5\r\n\r\n"),
    "a thousand trailers": chunked([job()], end=b"0\r\n" + b"X: y\r\n" * 1_000 + b"\r\n"),
    "a hundred thousand empty lines first": b"\r\n" * 100_000 + post(job()),
    "trailers without end": chunked([], end=b"0\r\n" + b"X: y\r\n" * 20_000),
    "two lengths that differ": head("POST", TRIGGER, "Content-Length: 5", "Content-Length: 6") + b"hello!",
    "a list of lengths": head("POST", TRIGGER, "Content-Length: 5, 6") + b"hello!",
    "a negative length": head("POST", TRIGGER, "Content-Length: -5") + b"hello",
    "a length with a sign": head("POST", TRIGGER, "Content-Length: +5") + b"hello",
    "a length of a thousand digits": head("POST", TRIGGER, "Content-Length: " + "9" * 1000),
    "a length in other digits": head("POST", TRIGGER, "Content-Length: \u0665") + b"hello",
    "a length and chunks": chunked([job()], "Content-Length: 4"),
    "chunks twice": chunked([job()], "Transfer-Encoding: chunked"),
    "chunks, then identity": head("POST", TRIGGER, "Transfer-Encoding: chunked, identity") + b"0\r\n\r\n",
    "a coding nobody knows": head("POST", TRIGGER, "Transfer-Encoding: xchunked") + b"0\r\n\r\n",
    "chunks in disguise": head("POST", TRIGGER, "Transfer-Encoding:\x0bchunked") + b"0\r\n\r\n",
    "a name ended by a blank": head("POST", TRIGGER, "Transfer-Encoding : chunked") + b"0\r\n\r\n",
    "a folded header": head("GET", "/info", "X: a\r\n b"),
    "a header without a name": head("GET", "/info", ": x"),
    "a header without a colon": head("GET", "/info", "nonsense"),
    "a NUL in a header": head("GET", "/info", "X: a\0b"),
    "a line break alone in a header": head("GET", "/info", "X: a\nY: b"),
    "a thousand headers": head("GET", "/info", *(f"X-{n}: {n}" for n in range(1000))),
    "a header of 60,000 bytes": head("GET", "/info", "X: " + "y" * 60_000),
    "a head of 10 MB": head("GET", "/info", *("X: " + "y" * 8_000 for _ in range(1250))),
    "a cookie of 20,000 bytes": head("GET", "/info", "Cookie: " + "a=b; " * 4_000),
    "an address of 60,000 bytes": head("GET", "/" + "a" * 60_000),
    "a query of 60,000 bytes": head("GET", "/api/v1/jobs?queue=" + "a" * 60_000),
    "an address with a blank": b"GET /a b HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a bare NUL in the address": b"GET /\0 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "bytes past ASCII in the address": b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "no version": b"GET /info\r\n\r\n",
    "version 9": b"GET /info HTTP/9.9\r\nHost: localhost\r\n\r\n",
    "no method": b"/info HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "the greeting of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "the greeting of TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500) + b"\r\n\r\n",
    "an expectation nobody can meet": post(job(), "Expect: miracles"),
    "text": post(job(), kind="text/plain"),
    "no type": head("POST", TRIGGER, f"Content-Length: {len(job())}") + job(),
    "another charset": post(job().decode().encode("utf-16"), kind="application/json; charset=utf-16"),
    "a body that says it is packed": post(b"\x1f\x8b" + bytes(100), "Content-Encoding: gzip"),
    "a form": post(b"queue=idle", kind="application/x-www-form-urlencoded"),
    "a wrong method": head("DELETE", TRIGGER),
    "a method of letters": head("BREW", "/info"),
    "a method of 10,000 letters": head("A" * 10_000, "/info"),
    "CONNECT": head("CONNECT", "example.org:443"),
    "TRACE": head("TRACE", "/info"),
}

PATHS = {
    "%00": "/api/v1/jobs/%00",
    "%2e%2e": "/static/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
    "..": "/static/../../../../etc/passwd",
    "%2f": "/static/..%2f..%2f..%2fetc%2fpasswd",
    "backslashes": "/static/..\\..\\wsgi.py",
    "overlong": "/static/%c0%ae%c0%ae/%c0%ae%c0%ae/etc/passwd",
    "twice encoded": "/static/%252e%252e/wsgi.py",
    "bad UTF-8": "/api/v1/jobs/%ff%fe",
    "a broken escape": "/api/v1/jobs/%zz%",
    "line breaks": "/api/v1/jobs/%0d%0aSet-Cookie:%20a=b",
    "another host": "//example.org/api/v1/jobs",
    "an SQL": "/api/v1/jobs/1'%20OR%20'1'='1/status",
    "a UUID in braces": "/api/v1/jobs/%7B00000000-0000-0000-0000-000000000000%7D/status",
    "other digits": "/api/v1/jobs/%D9%A0" + "0" * 7 + "-0000-0000-0000-000000000000/status",
    "a limit of 4,000 digits": "/api/v1/jobs?limit=" + "9" * 4_000,
    "a limit of nothing": "/api/v1/jobs?limit=",
    "a limit that is not a number": "/api/v1/jobs?limit=nan",
    "a NUL in the query": "/api/v1/jobs?queue=%00",
    "a surrogate in the query": "/api/v1/jobs?status=%ed%a0%80",
    "a field twice": "/api/v1/jobs?limit=1&limit=2",
    "a thousand fields": "/api/v1/jobs?" + "&".join(f"f{n}=" for n in range(1000)),
    "a log of nobody": "/api/v1/jobs/00000000-0000-0000-0000-000000000000/logs?wait=1e999",
}

HOSTILE: dict[str, bytes] = {
    **{f"body: {name}": post(body) for name, body in BODIES.items()},
    **{f"head: {name}": sent for name, sent in HEADS.items()},
    **{f"path: {name}": head("GET", path) for name, path in PATHS.items()},
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_is_odd_and_right_is_accepted(service: Running, name: str):
    assert say(service.port, ACCEPTED[name]).status == 200


def test_what_is_hostile_is_refused_in_words(service: Running):
    """One connection each, several at a time; every answer is a problem with a code, and none is ours to blame."""

    def told(item: tuple[str, bytes]) -> tuple[str, Reply]:
        return item[0], say(service.port, item[1])

    with ThreadPoolExecutor(6) as clients:
        replies = dict(clients.map(told, HOSTILE.items()))

    # Who sends megabytes after the refusal may lose it with the connection, however long the service waits.
    replies = {name: reply for name, reply in replies.items() if reply.status or " MB" not in name}
    wrong = {name: reply for name, reply in replies.items() if reply.status not in REFUSED}
    assert wrong == {}
    silent = {name: reply for name, reply in replies.items() if "code" not in reply.json()}
    assert silent == {}
    assert not any(line.get("traceback") for line in service.said()), "no bug of ours was met"


def test_body_in_two_thousand_chunks_is_read_at_once(service: Running):
    """gunicorn's parser copies all that follows for each chunk: minutes of a thread for a few megabytes."""
    whole = chunked([b" " * 2_048] * 2_000).replace(TRIGGER.encode(), b"/api/v1/jobs/batch", 1)

    reply = say(service.port, whole, timeout=20)

    assert (reply.status, reply.json()["code"]) == (400, "invalid_json")


def test_body_in_too_many_chunks_is_413_and_closed(service: Running):
    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as client:
        client.sendall(chunked([b"x"] * 1_001, end=b""))  # it does not end: the answer does not wait for the rest
        reply = read_reply(client)

    assert (reply.status, reply.json()["code"]) == (413, "body_too_large")
    assert "Content-Length" in reply.json()["detail"]


@pytest.mark.parametrize("codings", ["gzip, chunked", "identity, chunked", "gzip,\tCHUNKED"])
def test_stacked_transfer_codings_are_501_and_closed(service: Running, codings: str):
    """As many as there are threads, and none of them ends: a thread would be given to each, to read the rest."""
    sent = head("POST", TRIGGER, "Content-Type: application/json", f"Transfer-Encoding: {codings}", close=False)

    with ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", service.port), timeout=30))
            for _ in range(THREADS)
        ]
        for client in clients:
            client.sendall(sent + b"1\r\n{\r\n")
        replies = [read_reply(client) for client in clients]

    assert {(reply.status, reply.json()["code"]) for reply in replies} == {(501, "http_error")}


def test_a_bad_trailer_is_400_without_an_alert(service: Running):
    alerts = len(service.log("api.error"))

    reply = say(service.port, chunked([job()], end=b"0\r\nbad\r\n\r\n"))

    assert reply.status == 400
    assert len(service.log("api.error")) == alerts


def test_requests_one_after_another_on_one_connection_are_answered_in_order(service: Running):
    rows = [head("GET", f"/api/v1/jobs/{n}", close=False) for n in range(50)]

    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as client:
        client.sendall(b"".join(rows) + head("GET", "/info"))
        came = b"".join(iter(lambda: client.recv(65_536), b""))

    assert came.count(b"HTTP/1.1 404") == 50
    assert [came.index(b"'%d' is not the id" % n) for n in range(50)] == sorted(
        came.index(b"'%d' is not the id" % n) for n in range(50)
    )
    assert came.count(b"HTTP/1.1 200") == 1


def test_garbage_behind_a_request_is_refused_after_its_answer(service: Running):
    sent = head("GET", "/info", close=False) + b"\x00\xff nonsense\r\n\r\n" + head("GET", "/info")

    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as client:
        client.sendall(sent)
        came = b"".join(iter(lambda: client.recv(65_536), b""))

    assert [came.count(b"HTTP/1.1 %d" % status) for status in (200, 400)] == [1, 1], "and nothing was read behind it"


def test_a_request_hidden_in_the_body_of_another_is_never_served(service: Running):
    hidden = b"POST /api/v1/jobs/trigger HTTP/1.1\r\nHost: localhost\r\n\r\n"
    confused = head(
        "POST",
        TRIGGER,
        "Content-Type: application/json",
        "Content-Length: 5",
        "Transfer-Encoding: chunked",
        close=False,
    )

    reply = say(service.port, confused + b"0\r\n\r\n" + hidden)

    assert reply.status == 400
    assert b"HTTP/1.1 " not in reply.body.replace(b"no HTTP/1.1 request", b""), "the connection ends with the refusal"


def test_a_client_that_hangs_up_its_own_side_gets_its_answer(service: Running):
    assert say(service.port, head("GET", "/info", close=False), half_close=True).status == 200


class Crowd:
    """Clients that mean no good, each in its own way, until they are told to go."""

    def __init__(self, port: int, seed: int) -> None:
        self.port, self.random = port, random.Random(seed)
        self.over = threading.Event()
        self.answers: Counter[str] = Counter()
        self.lock = threading.Lock()

    def open(self, sent: bytes) -> socket.socket | None:
        with suppress(OSError):
            client = socket.create_connection(("127.0.0.1", self.port), timeout=10)
            with suppress(OSError):
                client.sendall(sent)
            return client
        return None

    def drip(self, start: bytes, how_many: int) -> None:
        """Many that send a byte now and then, and never the last one."""
        clients = [self.open(start) for _ in range(how_many)]
        while not self.over.wait(0.3):
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
        self.drip(head("POST", TRIGGER, "Content-Type: application/json", "Content-Length: 100000"), 60)

    def slow_chunks(self) -> None:
        self.drip(
            head("POST", TRIGGER, "Content-Type: application/json", "Transfer-Encoding: chunked") + b"ffff\r\n", 30
        )

    def silent(self) -> None:
        self.drip(b"", 30)

    def deaf(self) -> None:
        """Ask for much, and read nothing of it."""
        self.drip(head("GET", "/openapi.json", close=False) * 100, 20)

    def vanishing(self) -> None:
        while not self.over.wait(0.02):
            client = self.open(self.random.choice([head("GET", "/openapi.json"), head("GET", "/api/v1/jobs")]))
            if client is not None:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.close()

    def corpus(self) -> None:
        while not self.over.wait(0.01):
            with suppress(OSError):  # this machine is busy with all of them
                reply = say(self.port, HOSTILE[self.random.choice(list(HOSTILE))], timeout=20)
                with self.lock:
                    self.answers[str(reply.status)] += 1

    def __enter__(self) -> Crowd:
        kinds = (
            self.slow_heads,
            self.slow_bodies,
            self.slow_chunks,
            self.silent,
            self.deaf,
            self.vanishing,
            self.corpus,
        )
        self.threads = [threading.Thread(target=kind) for kind in kinds]
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join(60)


def timed(port: int, asked: bytes) -> tuple[float, int]:
    began = time.monotonic()
    status = say(port, asked).status
    return time.monotonic() - began, status


def test_a_crowd_of_attackers_keeps_no_honest_client_waiting_and_leaves_nothing_behind(
    service: Running, long_run: bool
):
    port, worker = service.port, psutil.Process(service.works_in)
    known = say(port, post(job())).json()["job_id"]
    honest = [head("GET", "/health"), head("GET", f"/api/v1/jobs/{known}/status"), post(job())]
    taken: list[tuple[float, int]] = []

    with socket.create_connection(("127.0.0.1", port), timeout=60) as endless, Crowd(port, seed=6) as crowd:
        endless.sendall(b"GET /info HTTP/1.1\r\n")
        eventually(lambda: crowd.answers.total() > 3, 60, "the crowd is there")
        before = worker.memory_info().rss
        until = time.monotonic() + (120 if long_run else 8)
        while time.monotonic() < until:
            taken += [timed(port, asked) for asked in honest]
        grown = worker.memory_info().rss - before
        assert read_reply(endless).status == 408, "it was told that it did not come to an end"

    assert {status for _, status in taken} == {200}
    assert max(seconds for seconds, _ in taken) < 25
    assert not {status for status in crowd.answers if status.startswith("5") and status != "503"}
    assert grown < 150 * MB, f"{grown / MB:.0f} MB more than at the crowd's beginning"
    eventually(lambda: len(worker.net_connections("tcp")) <= 3 + THREADS, 60, "all clients have been let go")
    assert not any(line.get("traceback") for line in service.said())


def test_after_all_that_every_thread_still_answers_and_health_needs_none_of_them(service: Running):
    dsn = service.dsn  # type: ignore[attr-defined]
    known = head("GET", f"/api/v1/jobs/{say(service.port, post(job())).json()['job_id']}/status")
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
            asked = [clients.submit(say, service.port, known) for _ in range(2 * THREADS)]
            eventually(
                lambda: waiting() == THREADS,
                message=lambda: (
                    f"{waiting()} of {THREADS} wait; {Counter(it.result().status for it in asked if it.done())}"
                ),
            )
            assert say(service.port, head("GET", "/health")).status == 200
            locker.rollback()
            answers = Counter(future.result().status for future in asked)

    assert answers == {200: 2 * THREADS}
