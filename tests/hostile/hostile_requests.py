"""Requests of hostile clients, by name: bytes as they are sent, and unusual ones that are valid."""

from __future__ import annotations

import json
from typing import Any

from tests.support.sockets import (
    TRIGGER,
    chunked_body,
    post_request,
    request_head,
)

LIMIT = 1_048_576  # bytes of a body
JOB = {"queue": "idle", "task": "noop", "lock_key": "k"}


def job(**more: Any) -> bytes:
    return json.dumps(JOB | more).encode()


def raw(args: bytes) -> bytes:
    """A trigger whose args are these bytes."""
    return b'{"queue":"idle","task":"noop","lock_key":"k","args":' + args + b"}"


def deep(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


ACCEPTED = {
    "a plain job": post_request(job()),
    "a body in many small chunks": chunked_body([bytes([byte]) for byte in job()]),
    "a body in a thousand chunks": chunked_body([bytes([byte]) for byte in job().ljust(1_000)]),
    "chunks with extensions and trailers": chunked_body([job()], trailer=b"0;x=y\r\nX-Trailer: 1\r\n\r\n"),
    "headers in lower case": post_request(job()).replace(b"Content-", b"content-"),
    "a type of a thousand parameters": post_request(job(), kind="application/json" + "; a=b" * 1000),
    "an address with many slashes": request_head("GET", "//////api/v1/jobs"),
    "blank lines before the request": b"\r\n\r\n" + post_request(job()),
    "an expectation, and the body at once": post_request(job(), "Expect: 100-continue"),
    "text of all planes": post_request(job(args={"text": "ж\U0001f600\U0010ffff\ufeff\u202e"})),
    "a body of just the limit": post_request(job(args={"x": "y" * (LIMIT - len(job(args={"x": ""})))})),
    "numbers of 300 digits": post_request(raw(b'{"n":' + b"9" * 300 + b"}")),
    "a hundred headers less a few": request_head("GET", "/info", *(f"X-{n}: {n}" for n in range(90))),
    "a request id that would forge a line": request_head("GET", "/info", "X-Request-ID: a\\u000a{}"),
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
    "an unknown field": job(status="succeeded"),
    "fields by the thousand": json.dumps(JOB | {f"f{n}": n for n in range(10_000)}).encode(),
}

HEADS = {
    "a body that is too large": request_head(
        "POST", TRIGGER, "Content-Type: application/json", "Content-Length: 10000000"
    ),
    "a body of 10 MB, sent": post_request(b'{"a":"' + b"x" * 10_000_000 + b'"}'),
    "10 MB in chunks": chunked_body([b"x" * 65_536] * 160),
    "1 MB in chunks of a byte": chunked_body([b"x"] * 1_000_000),
    "a chunk of exabytes": chunked_body([], trailer=b"fffffffffffffff\r\n"),
    "a negative chunk": chunked_body([], trailer=b"-1\r\n\r\n"),
    "a chunk size of letters": chunked_body([], trailer=b"zz\r\n\r\n"),
    "a chunk that is longer than it says": chunked_body([], trailer=b"1\r\nabc\r\n0\r\n\r\n"),
    "a chunk line without end": chunked_body([], trailer=b"1;" + b"x" * 20_000),
    "chunks ended by line feeds": chunked_body([], trailer=b"1\na\n0\n\n"),
    "10,000 chunks of a byte": chunked_body([b"x"] * 10_000),
    "a trailer without a colon": chunked_body([job()], trailer=b"0\r\nbad\r\n\r\n"),
    "a trailer with a bare line feed": chunked_body([job()], trailer=b"0\r\nX: a\nY: b\r\n\r\n"),
    "a length as a trailer": chunked_body([job()], trailer=b"0\r\nContent-Length: 5\r\n\r\n"),
    "a thousand trailers": chunked_body([job()], trailer=b"0\r\n" + b"X: y\r\n" * 1_000 + b"\r\n"),
    "a hundred thousand empty lines first": b"\r\n" * 100_000 + post_request(job()),
    "trailers without end": chunked_body([], trailer=b"0\r\n" + b"X: y\r\n" * 20_000),
    "two lengths that differ": request_head("POST", TRIGGER, "Content-Length: 5", "Content-Length: 6") + b"hello!",
    "a list of lengths": request_head("POST", TRIGGER, "Content-Length: 5, 6") + b"hello!",
    "a negative length": request_head("POST", TRIGGER, "Content-Length: -5") + b"hello",
    "a length with a sign": request_head("POST", TRIGGER, "Content-Length: +5") + b"hello",
    "a length of a thousand digits": request_head("POST", TRIGGER, "Content-Length: " + "9" * 1000),
    "a length in other digits": request_head("POST", TRIGGER, "Content-Length: \u0665") + b"hello",
    "a length and chunks": chunked_body([job()], "Content-Length: 4"),
    "chunks twice": chunked_body([job()], "Transfer-Encoding: chunked"),
    "chunks, then identity": request_head("POST", TRIGGER, "Transfer-Encoding: chunked, identity") + b"0\r\n\r\n",
    "an unknown coding": request_head("POST", TRIGGER, "Transfer-Encoding: xchunked") + b"0\r\n\r\n",
    "chunks in disguise": request_head("POST", TRIGGER, "Transfer-Encoding:\x0bchunked") + b"0\r\n\r\n",
    "a name ended by a blank": request_head("POST", TRIGGER, "Transfer-Encoding : chunked") + b"0\r\n\r\n",
    "a folded header": request_head("GET", "/info", "X: a\r\n b"),
    "a header without a name": request_head("GET", "/info", ": x"),
    "a header without a colon": request_head("GET", "/info", "nonsense"),
    "a NUL in a header": request_head("GET", "/info", "X: a\0b"),
    "a line break alone in a header": request_head("GET", "/info", "X: a\nY: b"),
    "a thousand headers": request_head("GET", "/info", *(f"X-{n}: {n}" for n in range(1000))),
    "a header of 60,000 bytes": request_head("GET", "/info", "X: " + "y" * 60_000),
    "a head of 10 MB": request_head("GET", "/info", *("X: " + "y" * 8_000 for _ in range(1250))),
    "a cookie of 20,000 bytes": request_head("GET", "/info", "Cookie: " + "a=b; " * 4_000),
    "an address of 60,000 bytes": request_head("GET", "/" + "a" * 60_000),
    "a query of 60,000 bytes": request_head("GET", "/api/v1/jobs?queue=" + "a" * 60_000),
    "an address with a blank": b"GET /a b HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a bare NUL in the address": b"GET /\0 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "bytes past ASCII in the address": b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "no version": b"GET /info\r\n\r\n",
    "version 9": b"GET /info HTTP/9.9\r\nHost: localhost\r\n\r\n",
    "no method": b"/info HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "the greeting of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "the greeting of TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500) + b"\r\n\r\n",
    "an unknown expectation": post_request(job(), "Expect: miracles"),
    "text": post_request(job(), kind="text/plain"),
    "no type": request_head("POST", TRIGGER, f"Content-Length: {len(job())}") + job(),
    "another charset": post_request(job().decode().encode("utf-16"), kind="application/json; charset=utf-16"),
    "a body that says it is packed": post_request(b"\x1f\x8b" + bytes(100), "Content-Encoding: gzip"),
    "a form": post_request(b"queue=idle", kind="application/x-www-form-urlencoded"),
    "a wrong method": request_head("DELETE", TRIGGER),
    "a method of letters": request_head("BREW", "/info"),
    "a method of 10,000 letters": request_head("A" * 10_000, "/info"),
    "CONNECT": request_head("CONNECT", "example.org:443"),
    "TRACE": request_head("TRACE", "/info"),
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
    "a log of an unknown job": "/api/v1/jobs/00000000-0000-0000-0000-000000000000/logs?wait=1e999",
}

HOSTILE: dict[str, bytes] = {
    **{f"body: {name}": post_request(body) for name, body in BODIES.items()},
    **{f"head: {name}": sent for name, sent in HEADS.items()},
    **{f"path: {name}": request_head("GET", path) for name, path in PATHS.items()},
}
