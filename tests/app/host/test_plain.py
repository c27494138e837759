"""What the lane reads of a head is what gunicorn reads of it, or nothing."""

from __future__ import annotations

from typing import Any

import pytest
from gunicorn.config import Config  # type: ignore[import-untyped]
from gunicorn.http import wsgi  # type: ignore[import-untyped]
from gunicorn.http.message import Request  # type: ignore[import-untyped]
from gunicorn.http.unreader import IterUnreader  # type: ignore[import-untyped]
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.host.plain import environ_of

PATH = "/api/v1/jobs/trigger"
LINE = f"POST {PATH} HTTP/1.1\r\n".encode()
HOST = b"Host: localhost:8080"
USUAL = (HOST, b"User-Agent: curl/8", b"Accept: */*", b"Content-Type: application/json", b"Content-Length: 2")

NAMES = st.sampled_from([
    "Host", "User-Agent", "Content-Type", "Content-Length", "Connection", "Transfer-Encoding", "Cookie", "Expect",
    "X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Ssl", "X-Forwarded-Protocol", "x-request-id",
    "Authorization", "Script-Name", "SCRIPT_NAME", "X_Under",
    "Te", "Upgrade", "Bad Name", "Name\t", "", "ÿ", "x",
])  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(
        ["localhost", "2", "keep-alive", "close", "chunked", "https", "on", "a, b", "", " ", "\t2", "+2", "0002"]
    ),
    st.text(st.characters(max_codepoint=255), max_size=12),
)
BREAKS = st.sampled_from(["\r\n", "\r\n", "\r\n", "\n", "\r", "\r\n "])


def by_gunicorn(head: bytes, client: tuple[str, int] = ("127.0.0.1", 5000)) -> dict[str, Any] | None:
    """The environment that Flask would be given; None: the request is refused, or its connection is closed after it."""
    config = Config()
    try:
        request = Request(config, IterUnreader([LINE + head + b"\r\n\r\n{}"]), client)
    except Exception:
        return None
    _, environ = wsgi.create(request, None, client, ("127.0.0.1", 8080), config)
    return None if request.should_close() else environ


def told(environ: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(("HTTP_", "CONTENT_"))
        or name in ("REQUEST_METHOD", "PATH_INFO", "REMOTE_ADDR", "SERVER_PROTOCOL")
    }


def test_a_usual_head_is_read_as_gunicorn_reads_it():
    head = b"\r\n".join((*USUAL, b"X-Forwarded-For: 10.0.0.7, 10.0.0.8", b"Connection: keep-alive"))

    environ = environ_of(head, PATH, "127.0.0.1")

    assert environ is not None
    assert environ["HTTP_X_FORWARDED_FOR"] == "10.0.0.7, 10.0.0.8"
    assert environ == told(by_gunicorn(head) or {})


@settings(max_examples=600)
@given(st.lists(st.tuples(NAMES, VALUES, BREAKS), max_size=6))
@example([("Host", "a", "\r\n"), ("host", "b", "\r\n")])
@example([("X-Forwarded-Ssl", "on", "\r\n"), ("X-Forwarded-Protocol", "nope", "\r\n")])
@example([("Content-Length", "2", "\r\n"), ("Content-Length", "2", "\r\n")])
def test_whatever_is_read_here_is_read_the_same_by_gunicorn(fields):
    lines = HOST + b"\r\n" + "".join(f"{name}: {value}{end}" for name, value, end in fields).encode("latin-1")
    head = lines.removesuffix(b"\r\n")

    environ = environ_of(head, PATH, "127.0.0.1")

    if environ is not None:
        assert environ == told(by_gunicorn(head) or {})


@pytest.mark.parametrize(
    "line",
    [
        b"Transfer-Encoding: chunked", b"Expect: 100-continue", b"Connection: close", b"Connection: keep-alive, te",
        b"Upgrade: h2c", b"HTTP2-Settings: x", b"Cookie: dl_session=x", b"Content-Encoding: gzip", b"Host: other",
        b"Content-Length: 2", b"Authorization: Bearer a\r\nAuthorization: Bearer b", b"Folded: a\r\n b", b"X-Tab: a\tb",
        b"X_Under: a", b"Script-Name: /a", b"Proxy: x", b"Blank : a", b"NoBlank:a", b"X-Empty:", b"X-Eight: \xff",
        b"X-Control: \x01", b"X-Long: " + b"x" * 3_000, b"X" * 70 + b": a", b"no colon", b"A: b\nC: d", b"A: b\rC: d",
    ],
)  # fmt: skip
def test_what_is_rare_or_has_a_say_in_the_framing_is_left_to_gunicorn(line):
    assert environ_of(b"\r\n".join((*USUAL, line)), PATH, "127.0.0.1") is None


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"Content-Length: 2",
        b"Content-Length: 2\r\nHost: a b",
        b"Content-Length: 2\r\nHost: a/b",
        HOST,
        HOST + b"\r\nContent-Length: x",
        HOST + b"\r\nContent-Length: +2",
        b"\r\n".join((*USUAL, *(b"X-%d: 1" % n for n in range(60)))),
    ],
    ids=["nothing", "no host", "two hosts", "a path", "no length", "a word", "a sign", "very many fields"],
)
def test_a_head_without_what_it_must_have_is_left_to_gunicorn(head):
    assert environ_of(head, PATH, "127.0.0.1") is None
