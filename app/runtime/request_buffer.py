"""Find where a request ends (RFC 9112), in whatever pieces it comes, and what is rejected without the app.

Everything else in a request is for gunicorn's parser, which gets the same bytes. Rejected here is what that parser
would read another way, or find out only while the app reads the body:

- a length or a coding that does not give the body exactly one end: the parser would accept some of them and wait, in a
  thread, for bytes that were not gathered;
- wrongly framed chunks and trailers: the parser raises in the app, which is a 500;
- more chunks than honest clients send: each costs the main thread some microseconds.

A body of many chunks is passed on as one, without trailers: for each chunk the parser copies all that follows it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum, auto
from http import HTTPStatus

from dataloader.app.http.problems import MEDIA_TYPE, ProblemCode

_HEAD_END = b"\r\n\r\n"
# As strict as RFC 9112: no other parser reads these lines after this one.
_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_QUOTED_STRING = rb'"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*"'
_CHUNK_EXTENSION = rb"[ \t]*;[ \t]*%b(?:[ \t]*=[ \t]*(?:%b|%b))?" % (_TOKEN, _TOKEN, _QUOTED_STRING)
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:%b)*" % _CHUNK_EXTENSION)
_TRAILER = re.compile(
    rb"(?!(?:authorization|content-length|host|te|trailer|transfer-encoding):)%b:[\t -~\x80-\xff]*" % _TOKEN,
    re.IGNORECASE,
)
_MAX_TRAILER_COUNT = 100
# One search instead of a split: a head of thousands of lines would keep the main thread.
_FRAMING_FIELD = re.compile(
    rb"\r\n(content-length|transfer-encoding|expect)([ \t]*):[ \t]*((?:[^\r]|\r(?!\n))*)", re.IGNORECASE
)
_MAX_CHUNK_LINE_BYTES = 4096
_DIGITS = re.compile(rb"[0-9]+")
_MAX_LENGTH_DIGITS = 15
_CHUNK_OVERHEAD_FLOOR = 65_536  # bytes: small bodies may come in any chunks
# Clients write chunks of 4 kB and more, proxies what one read gives; a generator of lines sends one chunk a line.
_CHUNK_COUNT_FLOOR = 1_000
_MIN_CHUNK_BYTES = 1_024  # on average, of the chunks after those
_MAX_EMPTY_LINES = 2  # before a request line; RFC 9112 2.2 asks for one at least


@dataclass(frozen=True)
class Rejection:
    """A response that the worker sends itself, without the app."""

    status: HTTPStatus
    detail: str
    code: ProblemCode = ProblemCode.HTTP_ERROR

    def __bytes__(self) -> bytes:
        problem = {
            "type": f"/docs#{self.code.text}",
            "title": self.code.title,
            "status": self.status,
            "detail": self.detail,
            "code": self.code.text,
            "errors": [],
        }
        body = f"{json.dumps(problem)}\n".encode()
        retry_after = "Retry-After: 1\r\n" if self.status is HTTPStatus.SERVICE_UNAVAILABLE else ""
        head = (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\nContent-Type: {MEDIA_TYPE}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\nX-Content-Type-Options: nosniff\r\n"
            f"Cache-Control: no-store\r\n{retry_after}\r\n"
        )
        return head.encode("latin-1") + body


BAD_REQUEST = Rejection(HTTPStatus.BAD_REQUEST, "The request is not HTTP/1.1, or can be read in more than one way.")
HEAD_TOO_LARGE = Rejection(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "The request's head is too large.")
OVERLOADED = Rejection(HTTPStatus.SERVICE_UNAVAILABLE, ProblemCode.OVERLOADED.description, ProblemCode.OVERLOADED)
REQUEST_TIMEOUT = Rejection(HTTPStatus.REQUEST_TIMEOUT, "The request did not come whole in time.")
UNSUPPORTED_EXPECTATION = Rejection(HTTPStatus.EXPECTATION_FAILED, "Only 100-continue can be expected.")
URI_TOO_LONG = Rejection(HTTPStatus.REQUEST_URI_TOO_LONG, "The address is too long.")
BODY_TOO_LARGE = Rejection(
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE, ProblemCode.BODY_TOO_LARGE.description, ProblemCode.BODY_TOO_LARGE
)
BAD_CHUNKING = Rejection(HTTPStatus.BAD_REQUEST, "The body's chunks or trailers are not framed as RFC 9112 has it.")
TOO_MANY_CHUNKS = Rejection(
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "The body comes in too many small chunks; send it in chunks of 1 kB or more, or with a Content-Length.",
    ProblemCode.BODY_TOO_LARGE,
)
AMBIGUOUS_FRAMING = Rejection(
    HTTPStatus.BAD_REQUEST,
    "The end of the body cannot be known; send one Content-Length, or the one Transfer-Encoding chunked.",
)
UNKNOWN_CODING = Rejection(
    HTTPStatus.NOT_IMPLEMENTED, "The only Transfer-Encoding that is understood is chunked, and chunked alone."
)
NO_REQUEST_LINE = Rejection(HTTPStatus.BAD_REQUEST, "More than two empty lines came in place of a request.")


class Progress(Enum):
    """How far a request has come that is not rejected."""

    HEAD = auto()  # its head is not all here
    BODY = auto()  # its head is, and its body may come
    COMPLETE = auto()  # it can be answered


@dataclass(frozen=True)
class RequestLimits:
    """What may be gathered of one request, in bytes."""

    max_head_bytes: int = 65_536
    max_body_bytes: int = 1_048_576

    @property
    def max_chunked_bytes(self) -> int:
        """Of a chunked body with its frames."""
        return self.max_body_bytes + self.chunk_overhead(self.max_body_bytes)

    @staticmethod
    def chunk_overhead(content_bytes: int) -> int:
        """Of the frames around so much: chunks of a few bytes are waste, and of one byte an attack."""
        return content_bytes // 2 + _CHUNK_OVERHEAD_FLOOR


class RequestBuffer:
    """One request, gathered piece by piece. Bytes after its end belong to the next one."""

    def __init__(self, limits: RequestLimits) -> None:
        self.data = bytearray()
        self.state: Progress | Rejection = Progress.HEAD
        self.expect_continue = False  # its sender waits for `100 Continue` before it sends the body
        self.body_declared_too_large = False  # its body is not waited for: the app refuses it by its length
        self._limits = limits
        self._searched_bytes = 0
        self._body_start = 0
        self._body_end: int | None = None  # None: the body is chunked
        self._chunk_start = 0
        self._next_request_start = 0  # where a chunked one ends
        self._chunks: list[slice] = []  # where their content is
        self._content_bytes = 0  # bytes of all chunks
        self._empty_line_count = 0

    def feed(self, chunk: bytes) -> Progress | Rejection:
        self.data += chunk
        if self.state is Progress.HEAD:
            self._find_head()
        if self.state is Progress.BODY:
            self._find_end()
        return self.state

    def normalized(self) -> bytes:
        """The request as the parser gets it, and the bytes after it."""
        if not self.is_chunked:
            return bytes(self.data)
        content = b"".join(self.data[chunk] for chunk in self._chunks)
        one_chunk = b"%x\r\n%s\r\n" % (len(content), content) if content else b""
        return b"".join((self.data[: self._body_start], one_chunk, b"0\r\n\r\n", self.data[self._next_request_start :]))

    @property
    def is_chunked(self) -> bool:
        """Known once the head has been read."""
        return self._body_end is None

    @property
    def expected_body_bytes(self) -> int:
        """Of its body, as far as that is known."""
        return self._limits.max_body_bytes if self._body_end is None else self._body_end - self._body_start

    def _find_head(self) -> None:
        while self.data.startswith(b"\r\n"):  # left over from the body before, by some clients
            del self.data[:2]
            self._searched_bytes = 0
            self._empty_line_count += 1
            if self._empty_line_count > _MAX_EMPTY_LINES:
                self.state = NO_REQUEST_LINE
                return
        found = self.data.find(_HEAD_END, max(0, self._searched_bytes - 3))
        self._searched_bytes = len(self.data)
        if found > self._limits.max_head_bytes or (found < 0 and len(self.data) > self._limits.max_head_bytes):
            self.state = HEAD_TOO_LARGE
        elif found >= 0:
            self._body_start = self._chunk_start = found + len(_HEAD_END)
            self._read_head(bytes(self.data[:found]))

    def _read_head(self, head: bytes) -> None:
        lengths, codings, sound = [], [], True
        for name, blank, value in _FRAMING_FIELD.findall(head):
            match name.lower():
                case b"content-length":
                    lengths.append(value.rstrip(b" \t"))
                case b"transfer-encoding":
                    codings += [coding.strip(b" \t").lower() for coding in value.split(b",")]
                case b"expect":
                    self.expect_continue = value.rstrip(b" \t").lower() == b"100-continue"
            sound = sound and not blank  # a blank before the colon: some read it as the field, others do not
        if not sound or (codings and lengths):
            self.state = AMBIGUOUS_FRAMING
        elif not codings:
            self._read_length(lengths)
        elif codings == [b"chunked"]:
            self.state = Progress.BODY
        elif codings[-1] == b"chunked" and codings.count(b"chunked") == 1:
            self.state = UNKNOWN_CODING
        else:  # the end of such a body cannot be known (RFC 9112, 6.3)
            self.state = AMBIGUOUS_FRAMING

    def _read_length(self, lengths: list[bytes]) -> None:
        if len(lengths) > 1 or not all(map(_DIGITS.fullmatch, lengths)):
            self.state = AMBIGUOUS_FRAMING
        elif lengths and len(lengths[0]) > _MAX_LENGTH_DIGITS:
            self.state = BODY_TOO_LARGE
        else:
            self.state = Progress.BODY
            length = int(lengths[0]) if lengths else 0
            self.body_declared_too_large = length > self._limits.max_body_bytes
            self._body_end = self._body_start + (0 if self.body_declared_too_large else length)

    def _find_end(self) -> None:
        if self._body_end is not None:
            if len(self.data) >= self._body_end:
                self.state = Progress.COMPLETE
            return
        while self.state is Progress.BODY and self._next_chunk():
            pass
        if self.state is Progress.BODY and len(self.data) - self._body_start > self._limits.max_chunked_bytes:
            self.state = BODY_TOO_LARGE

    def _next_chunk(self) -> bool:
        """Pass over one chunk; False: it is not all here."""
        end = self.data.find(b"\r\n", self._chunk_start, self._chunk_start + _MAX_CHUNK_LINE_BYTES)
        line = None if end < 0 else _CHUNK_LINE.fullmatch(self.data, self._chunk_start, end)
        if line is None:
            begun = len(self.data) - self._chunk_start
            if end >= 0 or begun >= _MAX_CHUNK_LINE_BYTES or b"\n" in self.data[self._chunk_start :]:
                self.state = BAD_CHUNKING
            return False
        size = int(line[1], 16)
        if size == 0:
            return self._find_trailers(end)
        if self._content_bytes + size > self._limits.max_body_bytes:
            self.state = BODY_TOO_LARGE
            return False
        after = end + 2 + size
        if len(self.data) < after + 2:
            return False
        if self.data[after : after + 2] != b"\r\n":
            self.state = BAD_CHUNKING
            return False
        self._chunks.append(slice(end + 2, after))
        self._chunk_start, self._content_bytes = after + 2, self._content_bytes + size
        if len(self._chunks) > _CHUNK_COUNT_FLOOR + self._content_bytes // _MIN_CHUNK_BYTES:
            self.state = TOO_MANY_CHUNKS
            return False
        overhead = self._chunk_start - self._body_start - self._content_bytes
        if overhead > self._limits.chunk_overhead(self._content_bytes):
            self.state = BODY_TOO_LARGE
            return False
        return True

    def _find_trailers(self, last_line_end: int) -> bool:
        found = self.data.find(_HEAD_END, last_line_end)
        end = len(self.data) if found < 0 else found
        if (
            end - last_line_end > self._limits.max_head_bytes
            or self.data.count(b"\r\n", last_line_end, end) > _MAX_TRAILER_COUNT
        ):
            self.state = HEAD_TOO_LARGE
        elif found >= 0:
            trailers = bytes(self.data[last_line_end + 2 : found]).split(b"\r\n") if found > last_line_end else []
            self.state = Progress.COMPLETE if all(map(_TRAILER.fullmatch, trailers)) else BAD_CHUNKING
            self._next_request_start = found + len(_HEAD_END)
        return False
