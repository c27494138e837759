"""Where a request ends, found in whatever pieces it comes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.host.arrival import Arrival, Need, Sizes

SIZES = Sizes(head=300, body=100)
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
    arrival = Arrival(SIZES)
    last = len(request_) - 1
    ends = [*sorted(cut for cut in set(cuts) if cut < last), last]

    needs = [arrival.take(request_[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]

    assert set(needs) <= {Need.MORE, Need.BODY}
    assert arrival.take(request_[last:]) is Need.NOTHING
    assert arrival.data == request_.lstrip(b"\r\n")
    assert arrival.whole() == arrival.data or b"hunked" in request_


def test_what_comes_behind_a_request_is_kept_for_the_next():
    arrival = Arrival(SIZES)

    assert arrival.take(POST + b"Content-Length: 1\r\n\r\naGET") is Need.NOTHING
    assert arrival.data.endswith(b"aGET")


@pytest.mark.parametrize(
    ("sent", "need"),
    [
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 60, Need.SMALLER_HEAD),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 60 + b"\r\n", Need.SMALLER_HEAD),
        (CHUNKED + b"65\r\n", Need.SMALLER_BODY),
        (CHUNKED + b"32\r\n" + b"x" * 50 + b"\r\n33\r\n", Need.SMALLER_BODY),
        (CHUNKED + b"x\r\n", Need.SOUND_CHUNKS),
        (CHUNKED + b"1 \r\n", Need.SOUND_CHUNKS),
        (CHUNKED + b" 1\r\n", Need.SOUND_CHUNKS),
        (CHUNKED + b"1;\r\n", Need.SOUND_CHUNKS),
        (CHUNKED + b"1;a\0b\r\n", Need.SOUND_CHUNKS),
        (CHUNKED + b'1;a="b\r\n', Need.SOUND_CHUNKS),
        (CHUNKED + b"1;a b\r\n", Need.SOUND_CHUNKS),
        (CHUNKED + b"0x1\r\n", Need.SOUND_CHUNKS),
        (CHUNKED + b"1\n", Need.SOUND_CHUNKS),
        (CHUNKED + b"1\r\nab\r\n", Need.SOUND_CHUNKS),
        (CHUNKED + b"1" * 4_100, Need.SOUND_CHUNKS),
        (CHUNKED + b"0\r\n" + b"X: y\r\n" * 60, Need.SMALLER_HEAD),
        (POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", Need.ONE_FRAMING),
        (POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\n", Need.ONE_FRAMING),
        (POST + b"Content-Length: -1\r\n\r\n", Need.ONE_FRAMING),
        (POST + b"Content-Length: 3, 3\r\n\r\n", Need.ONE_FRAMING),
        (POST + b"Content-Length:\r\n\r\n", Need.ONE_FRAMING),
        (POST + b"Content-Length : 3\r\n\r\n", Need.ONE_FRAMING),
        (POST + b"Transfer-Encoding : chunked\r\n\r\n", Need.ONE_FRAMING),
        (POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n", Need.ONE_FRAMING),
        (POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n", Need.ONE_FRAMING),
        (POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", Need.ONE_FRAMING),
        (POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n", Need.ONE_FRAMING),
        (POST + b"Transfer-Encoding: chunked, identity\r\n\r\n", Need.ONE_FRAMING),
        (POST + b"Transfer-Encoding: gzip\r\nContent-Length: 3\r\n\r\n", Need.ONE_FRAMING),
        (POST + b"Transfer-Encoding: gzip\r\n\r\n", Need.ONE_FRAMING),
        (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", Need.KNOWN_CODING),
        (POST + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n", Need.KNOWN_CODING),
        (POST + b"Transfer-Encoding: identity, chunked\r\n\r\n", Need.KNOWN_CODING),
        (POST + b"Transfer-Encoding: xyz , Chunked\r\n\r\n", Need.KNOWN_CODING),
        (POST + b"Content-Length: " + b"9" * 16 + b"\r\n\r\n", Need.SMALLER_BODY),
        (POST + b"Content-Length: " + b"9" * 100 + b"\r\n\r\n", Need.SMALLER_BODY),
        (CHUNKED + b"0\r\nbad\r\n\r\n", Need.SOUND_CHUNKS),
        (CHUNKED + b"0\r\n: x\r\n\r\n", Need.SOUND_CHUNKS),
        (CHUNKED + b"0\r\nX : y\r\n\r\n", Need.SOUND_CHUNKS),
        (CHUNKED + b"0\r\nX: y\r\n folded\r\n\r\n", Need.SOUND_CHUNKS),
        (CHUNKED + b"0\r\nX: a\0b\r\n\r\n", Need.SOUND_CHUNKS),
        (CHUNKED + b"0\r\nX: a\nY: b\r\n\r\n", Need.SOUND_CHUNKS),
        (CHUNKED + b"0\r\nContent-Length: 3\r\n\r\n", Need.SOUND_CHUNKS),
        (CHUNKED + b"0\r\nX: y\r\nhost: z\r\n\r\n", Need.SOUND_CHUNKS),
        (b"\r\n" * 3, Need.REQUEST_LINE),
        (b"\r\n" * 3 + POST + b"Content-Length: 0\r\n\r\n", Need.REQUEST_LINE),
    ],
)
def test_what_is_too_large_or_wrongly_framed_is_known_as_soon_as_it_is_there(sent: bytes, need: Need):
    assert Arrival(SIZES).take(sent) is need


def test_chunks_of_nothing_but_frames_are_too_much_in_the_end():
    arrival = Arrival(Sizes(body=50_000))

    assert arrival.take(CHUNKED + b"1;" + b"e" * 4_000 + b"\r\na\r\n") is Need.BODY
    for _ in range(60):
        arrival.take(b"1;" + b"e" * 4_000 + b"\r\na\r\n")

    assert arrival.need is Need.SMALLER_BODY


def test_chunks_beyond_a_thousand_and_one_a_kilobyte_are_refused():
    few, many, long = (Arrival(Sizes(body=5_000_000)) for _ in range(3))

    assert few.take(CHUNKED + b"1\r\nx\r\n" * 1_000 + b"0\r\n\r\n") is Need.NOTHING
    assert many.take(CHUNKED + b"1\r\nx\r\n" * 1_001) is Need.FEWER_CHUNKS
    assert long.take(CHUNKED + (b"400\r\n" + b"x" * 1_024 + b"\r\n") * 4_000 + b"0\r\n\r\n") is Need.NOTHING


def test_empty_lines_byte_by_byte_are_refused_at_the_third():
    arrival = Arrival(SIZES)

    needs = [arrival.take(bytes([byte])) for byte in b"\r\n" * 3]

    assert needs == [Need.MORE] * 5 + [Need.REQUEST_LINE]


def test_trailers_are_dropped_before_the_next_request():
    arrival = Arrival(SIZES)

    assert arrival.take(CHUNKED + b"1\r\nx\r\n0\r\nX-Sum: abc\r\nX-T:\r\n\r\nGET") is Need.NOTHING
    assert arrival.whole() == CHUNKED + b"1\r\nx\r\n0\r\n\r\nGET"


@pytest.mark.parametrize(
    ("sent", "whole"),
    [
        (b"0\r\n\r\n", b"0\r\n\r\n"),
        (b"3\r\nabc\r\n0\r\n\r\n", b"3\r\nabc\r\n0\r\n\r\n"),
        (b"3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nT: x\r\n\r\nGET", b"d\r\nabc0123456789\r\n0\r\n\r\nGET"),
        (b"2\r\n\r\n\r\n01\r\n0\r\n00;x\r\n\r\n", b"3\r\n\r\n0\r\n0\r\n\r\n"),
    ],
)
def test_chunks_are_handed_on_as_one_with_all_that_comes_behind_them(sent: bytes, whole: bytes):
    arrival = Arrival(SIZES)

    assert arrival.take(CHUNKED + sent) is Need.NOTHING
    assert arrival.whole() == CHUNKED + whole


def test_how_much_is_to_come_is_known_or_taken_to_be_the_most():
    known, unknown = Arrival(SIZES), Arrival(SIZES)
    known.take(POST + b"Content-Length: 7\r\n\r\n")
    unknown.take(CHUNKED)

    assert (known.expected_bytes, unknown.expected_bytes) == (7, 100)
    assert not known.too_long
