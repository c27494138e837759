"""What a client is told that is turned away at the door, before anybody has looked at what it wants."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus

from gunicorn.http import errors  # type: ignore[import-untyped]

from app.host.arrival import Need
from app.web.problems import MEDIA_TYPE, Code


@dataclass(frozen=True)
class Refusal:
    """An answer that needs no thread."""

    status: HTTPStatus
    code: Code
    detail: str

    def __bytes__(self) -> bytes:
        body = json.dumps({
            "type": f"/docs#{self.code.text}",
            "title": self.code.title,
            "status": self.status,
            "detail": self.detail,
            "code": self.code.text,
            "errors": [],
        }).encode()  # fmt: skip
        again = "Retry-After: 1\r\n" if self.status is HTTPStatus.SERVICE_UNAVAILABLE else ""
        head = (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\nContent-Type: {MEDIA_TYPE}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\nX-Content-Type-Options: nosniff\r\n"
            f"Cache-Control: no-store\r\n{again}\r\n"
        )
        return head.encode("latin-1") + body


def no(status: HTTPStatus, detail: str, code: Code = Code.HTTP_ERROR) -> Refusal:
    return Refusal(status, code, detail)


TOO_SLOW = no(HTTPStatus.REQUEST_TIMEOUT, "The request did not come whole in time.")
OVERLOADED = no(HTTPStatus.SERVICE_UNAVAILABLE, Code.OVERLOADED.meaning, Code.OVERLOADED)
REFUSED = {
    Need.SMALLER_HEAD: no(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "The request's head is too large."),
    Need.SMALLER_BODY: no(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, Code.BODY_TOO_LARGE.meaning, Code.BODY_TOO_LARGE),
    Need.SOUND_CHUNKS: no(HTTPStatus.BAD_REQUEST, "The body's chunks or trailers are not framed as RFC 9112 has it."),
    Need.FEWER_CHUNKS: no(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        "The body comes in too many small chunks; send it in chunks of 1 kB or more, or with a Content-Length.",
        Code.BODY_TOO_LARGE,
    ),
    Need.ONE_FRAMING: no(
        HTTPStatus.BAD_REQUEST,
        "The end of the body cannot be known; send one Content-Length, or the one Transfer-Encoding chunked.",
    ),
    Need.KNOWN_CODING: no(
        HTTPStatus.NOT_IMPLEMENTED, "The only Transfer-Encoding that is understood is chunked, and chunked alone."
    ),
    Need.REQUEST_LINE: no(HTTPStatus.BAD_REQUEST, "More than two empty lines came in place of a request."),
}
BAD_REQUEST = no(HTTPStatus.BAD_REQUEST, "The request is no HTTP/1.1 request that can be read in one way only.")
UNREADABLE: dict[type[Exception], Refusal] = {
    errors.LimitRequestLine: no(HTTPStatus.REQUEST_URI_TOO_LONG, "The address is too long."),
    errors.LimitRequestHeaders: REFUSED[Need.SMALLER_HEAD],
    errors.ExpectationFailed: no(HTTPStatus.EXPECTATION_FAILED, "Only 100-continue can be expected."),
    errors.ParseException: BAD_REQUEST,
}
