"""Where a request ends, found in whatever pieces it comes."""

from __future__ import annotations

import json
from http import HTTPStatus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloader.app.http.problems import ProblemCode
from dataloader.app.runtime import request_buffer
from dataloader.app.runtime.request_buffer import Progress, Rejection, RequestBuffer, RequestLimits

SIZES = RequestLimits(max_head_bytes=300, max_body_bytes=100)
POST = b"POST /x HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
WHOLE = {
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
    POST + b"Content-Length: 3\r\n\r\nabc",
    POST + b"content-length:\t3 \r\nExpect: 100-Continue\r\n\r\nabc",
    CHUNKED + b"0\r\n\r\n",
    CHUNKED + b'3;x=y ; z="a\\"b"\r\nabc\r\nA;q\r\n0123456789\r\n0\r\nX-Sum: x\r\n\r\n',
    POST + b"transfer-encoding:\tChunked \r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    POST + b"Content-Length: 101\r\n\r\n",  # for the app to refuse
}


@pytest.mark.parametrize("request_", sorted(WHOLE))
@given(cuts=st.lists(st.integers(1, 400), max_size=6))
@settings(max_examples=30, derandomize=True, database=None)
def test_a_request_is_whole_at_its_last_byte_and_not_before(request_: bytes, cuts: list[int]):
    arrival = RequestBuffer(SIZES)
    last = len(request_) - 1
    ends = [*sorted(cut for cut in set(cuts) if cut < last), last]

    needs = [arrival.feed(request_[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]

    assert set(needs) <= {Progress.HEAD, Progress.BODY}
    assert arrival.feed(request_[last:]) is Progress.COMPLETE
    assert arrival.data == request_.lstrip(b"\r\n")
    assert arrival.normalized() == arrival.data or b"hunked" in request_


def test_what_comes_behind_a_request_is_kept_for_the_next():
    arrival = RequestBuffer(SIZES)

    assert arrival.feed(POST + b"Content-Length: 1\r\n\r\naGET") is Progress.COMPLETE
    assert arrival.data.endswith(b"aGET")


@pytest.mark.parametrize(
    ("sent", "need"),
    [
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 60, request_buffer.HEAD_TOO_LARGE),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 60 + b"\r\n", request_buffer.HEAD_TOO_LARGE),
        (CHUNKED + b"65\r\n", request_buffer.BODY_TOO_LARGE),
        (CHUNKED + b"32\r\n" + b"x" * 50 + b"\r\n33\r\n", request_buffer.BODY_TOO_LARGE),
        (CHUNKED + b"x\r\n", request_buffer.BAD_CHUNKING),
        (CHUNKED + b"1 \r\n", request_buffer.BAD_CHUNKING),
        (CHUNKED + b" 1\r\n", request_buffer.BAD_CHUNKING),
        (CHUNKED + b"1;\r\n", request_buffer.BAD_CHUNKING),
        (CHUNKED + b"1;a\0b\r\n", request_buffer.BAD_CHUNKING),
        (CHUNKED + b'1;a="b\r\n', request_buffer.BAD_CHUNKING),
        (CHUNKED + b"1;a b\r\n", request_buffer.BAD_CHUNKING),
        (CHUNKED + b"0x1\r\n", request_buffer.BAD_CHUNKING),
        (CHUNKED + b"1\n", request_buffer.BAD_CHUNKING),
        (CHUNKED + b"1\r\nab\r\n", request_buffer.BAD_CHUNKING),
        (CHUNKED + b"1" * 4_100, request_buffer.BAD_CHUNKING),
        (CHUNKED + b"0\r\n" + b"X: y\r\n" * 60, request_buffer.HEAD_TOO_LARGE),
        (POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", request_buffer.AMBIGUOUS_FRAMING),
        (POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\n", request_buffer.AMBIGUOUS_FRAMING),
        (POST + b"Content-Length: -1\r\n\r\n", request_buffer.AMBIGUOUS_FRAMING),
        (POST + b"Content-Length: 3, 3\r\n\r\n", request_buffer.AMBIGUOUS_FRAMING),
        (POST + b"Content-Length:\r\n\r\n", request_buffer.AMBIGUOUS_FRAMING),
        (POST + b"Content-Length : 3\r\n\r\n", request_buffer.AMBIGUOUS_FRAMING),
        (POST + b"Transfer-Encoding : chunked\r\n\r\n", request_buffer.AMBIGUOUS_FRAMING),
        (POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n", request_buffer.AMBIGUOUS_FRAMING),
        (POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n", request_buffer.AMBIGUOUS_FRAMING),
        (POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", request_buffer.AMBIGUOUS_FRAMING),
        (POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n", request_buffer.AMBIGUOUS_FRAMING),
        (POST + b"Transfer-Encoding: chunked, identity\r\n\r\n", request_buffer.AMBIGUOUS_FRAMING),
        (POST + b"Transfer-Encoding: gzip\r\nContent-Length: 3\r\n\r\n", request_buffer.AMBIGUOUS_FRAMING),
        (POST + b"Transfer-Encoding: gzip\r\n\r\n", request_buffer.AMBIGUOUS_FRAMING),
        (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", request_buffer.UNKNOWN_CODING),
        (POST + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n", request_buffer.UNKNOWN_CODING),
        (POST + b"Transfer-Encoding: identity, chunked\r\n\r\n", request_buffer.UNKNOWN_CODING),
        (POST + b"Transfer-Encoding: xyz , Chunked\r\n\r\n", request_buffer.UNKNOWN_CODING),
        (POST + b"Content-Length: " + b"9" * 16 + b"\r\n\r\n", request_buffer.BODY_TOO_LARGE),
        (POST + b"Content-Length: " + b"9" * 100 + b"\r\n\r\n", request_buffer.BODY_TOO_LARGE),
        (CHUNKED + b"0\r\nbad\r\n\r\n", request_buffer.BAD_CHUNKING),
        (CHUNKED + b"0\r\n: x\r\n\r\n", request_buffer.BAD_CHUNKING),
        (CHUNKED + b"0\r\nX : y\r\n\r\n", request_buffer.BAD_CHUNKING),
        (CHUNKED + b"0\r\nX: y\r\n folded\r\n\r\n", request_buffer.BAD_CHUNKING),
        (CHUNKED + b"0\r\nX: a\0b\r\n\r\n", request_buffer.BAD_CHUNKING),
        (CHUNKED + b"0\r\nX: a\nY: b\r\n\r\n", request_buffer.BAD_CHUNKING),
        (CHUNKED + b"0\r\nContent-Length: 3\r\n\r\n", request_buffer.BAD_CHUNKING),
        (CHUNKED + b"0\r\nX: y\r\nhost: z\r\n\r\n", request_buffer.BAD_CHUNKING),
        (b"\r\n" * 3, request_buffer.NO_REQUEST_LINE),
        (b"\r\n" * 3 + POST + b"Content-Length: 0\r\n\r\n", request_buffer.NO_REQUEST_LINE),
    ],
)
def test_invalid_request_is_rejected_at_its_first_wrong_byte(sent: bytes, need: Rejection):
    assert RequestBuffer(SIZES).feed(sent) is need


def test_chunks_of_nothing_but_frames_are_too_much_in_the_end():
    arrival = RequestBuffer(RequestLimits(max_body_bytes=50_000))

    assert arrival.feed(CHUNKED + b"1;" + b"e" * 4_000 + b"\r\na\r\n") is Progress.BODY
    for _ in range(60):
        arrival.feed(b"1;" + b"e" * 4_000 + b"\r\na\r\n")

    assert arrival.state is request_buffer.BODY_TOO_LARGE


def test_chunks_beyond_a_thousand_and_one_a_kilobyte_are_refused():
    few, many, long = (RequestBuffer(RequestLimits(max_body_bytes=5_000_000)) for _ in range(3))

    assert few.feed(CHUNKED + b"1\r\nx\r\n" * 1_000 + b"0\r\n\r\n") is Progress.COMPLETE
    assert many.feed(CHUNKED + b"1\r\nx\r\n" * 1_001) is request_buffer.TOO_MANY_CHUNKS
    assert long.feed(CHUNKED + (b"400\r\n" + b"x" * 1_024 + b"\r\n") * 4_000 + b"0\r\n\r\n") is Progress.COMPLETE


def test_empty_lines_byte_by_byte_are_refused_at_the_third():
    arrival = RequestBuffer(SIZES)

    needs = [arrival.feed(bytes([byte])) for byte in b"\r\n" * 3]

    assert needs == [Progress.HEAD] * 5 + [request_buffer.NO_REQUEST_LINE]


def test_trailers_are_dropped_before_the_next_request():
    arrival = RequestBuffer(SIZES)

    assert arrival.feed(CHUNKED + b"1\r\nx\r\n0\r\nX-Sum: abc\r\nX-T:\r\n\r\nGET") is Progress.COMPLETE
    assert arrival.normalized() == CHUNKED + b"1\r\nx\r\n0\r\n\r\nGET"


@pytest.mark.parametrize(
    ("sent", "whole"),
    [
        (b"0\r\n\r\n", b"0\r\n\r\n"),
        (b"3\r\nabc\r\n0\r\n\r\n", b"3\r\nabc\r\n0\r\n\r\n"),
        (b"3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nT: x\r\n\r\nGET", b"d\r\nabc0123456789\r\n0\r\n\r\nGET"),
        (b"2\r\n\r\n\r\n01\r\n0\r\n00;x\r\n\r\n", b"3\r\n\r\n0\r\n0\r\n\r\n"),
    ],
)
def test_chunks_are_merged_before_the_next_request(sent: bytes, whole: bytes):
    arrival = RequestBuffer(SIZES)

    assert arrival.feed(CHUNKED + sent) is Progress.COMPLETE
    assert arrival.normalized() == CHUNKED + whole


def test_remaining_size_is_known_or_maximum():
    known, unknown = RequestBuffer(SIZES), RequestBuffer(SIZES)
    known.feed(POST + b"Content-Length: 7\r\n\r\n")
    unknown.feed(CHUNKED)

    assert (known.expected_body_bytes, unknown.expected_body_bytes) == (7, 100)
    assert not known.body_declared_too_large


def test_rejection_is_a_problem_with_retry_after():
    head, _, body = bytes(Rejection(HTTPStatus.SERVICE_UNAVAILABLE, "too much", ProblemCode.OVERLOADED)).partition(
        b"\r\n\r\n"
    )

    assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"Retry-After: 1" in head
    assert b"Connection: close" in head
    assert b"Content-Length: %d\r\n" % len(body) in head
    assert (body.endswith(b"}\n"), json.loads(body)["code"]) == (True, "overloaded")
    assert b"Retry-After" not in bytes(Rejection(HTTPStatus.BAD_REQUEST, "no"))
