"""What sources and those who write args could do to the toolkit: each is refused soon, in words."""

from __future__ import annotations

import gzip
import io
import zlib
from decimal import Decimal

import pytest
import zstandard

from dataloader.pipelines import llm_check
from dataloader.pipelines.cbr_rates import _parse_rate
from dataloader.pipelines.contract import Stop, StopReason
from dataloader.pipelines.toolkit.decode import decimal, json_lines, xml_root
from dataloader.pipelines.toolkit.errors import (
    BadTime,
    DecodeError,
    ExpandsTooMuch,
    SourceRefused,
    TooManyRejects,
    UnsafePath,
)
from dataloader.pipelines.toolkit.paths import segment
from dataloader.pipelines.toolkit.rejects import Rejects
from dataloader.pipelines.toolkit.sources import _content_length, _Request, _retry_after
from dataloader.pipelines.toolkit.times import TimeReader
from dataloader.pipelines.toolkit.unpack import pieces


class StopsAtSecondCheck:
    """A context whose second check asks the pipeline to stop."""

    def __init__(self) -> None:
        self.looks = 0

    def check(self) -> None:
        self.looks += 1
        if self.looks > 1:
            raise Stop(StopReason.CANCEL)

    def sleep(self, seconds: float) -> None:
        self.check()


class StubResponse:
    """As much of an answer of requests as a header needs."""

    def __init__(self, **headers: str) -> None:
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self.raw = self


@pytest.mark.parametrize(
    "packed",
    [
        b"\x1f\x8b\x08\x08\0\0\0\0\0\xff" + b"n" * 5_000_000,  # a gzip file whose name does not end
        (b"\x50\x2a\x4d\x18" + (65_536).to_bytes(4, "little") + bytes(65_536)) * 500,  # frames to be skipped
        gzip.compress(b"") * 200_000,
    ],
    ids=["a name without end", "nothing to read", "empty files by the million"],
)
def test_archive_expanding_to_nothing_can_be_stopped(packed: bytes):
    with pytest.raises(Stop):
        list(pieces(io.BytesIO(packed), ctx=StopsAtSecondCheck()))


def test_kilobytes_that_hold_hundreds_of_megabytes_end_early():
    compressor = zstandard.ZstdCompressor().compressobj()
    bomb = b"".join(compressor.compress(bytes(1 << 20)) for _ in range(256)) + compressor.flush()
    assert len(bomb) < 30_000

    with pytest.raises(ExpandsTooMuch):
        for _ in pieces(io.BytesIO(bomb)):
            pass


def test_bombs_within_bombs_are_not_opened():
    inner = zlib.compress(bytes(100_000_000), 9)

    assert b"".join(pieces(io.BytesIO(gzip.compress(inner)))) == inner


def test_a_line_without_end_is_passed_over_in_little_memory():
    rejects = Rejects(5)
    line = b'{"a": "' + b"x" * 30_000_000 + b'"}\n{"b": 1}\n'

    assert list(json_lines(io.BytesIO(line), rejects=rejects)) == [{"b": 1}]
    assert rejects.count == 1


@pytest.mark.parametrize("text", ["9" * 1_000_000, "1" + " 234" * 100_000, "-" + "0" * 200, "1e999999999", " " * 10**6])
def test_a_number_of_a_million_digits_is_no_number(text: str):
    with pytest.raises(DecodeError):
        decimal(text)


@pytest.mark.parametrize("value", [Decimal("1e999999999"), Decimal("-1e40"), 10**400, 1e300, "1" * 5_000, float("inf")])
def test_time_outside_the_calendar_is_refused(value: object):
    with pytest.raises(BadTime):
        TimeReader().read(value)


@pytest.mark.parametrize(
    ("document", "result"),
    [
        (b'<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>', "not safe to read"),
        (b'<!DOCTYPE a [<!ENTITY a "aa"><!ENTITY b "&a;&a;">]><a>&b;</a>', "not safe to read"),
        (b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>', "not safe to read"),
        (b'<!DOCTYPE a SYSTEM "http://127.0.0.1/x.dtd"><a/>', "not safe to read"),
        (b"<a>" + b"<b/>" * 2_100_000 + b"</a>", "elements and attributes"),
        (b"<a " + b" ".join(b'a%d=""' % n for n in range(1_100_000)) + b"/>", "elements and attributes"),
        (b"<a>" * 200_000, "no XML document"),
        (b'<?xml version="1.0" encoding="utf-7"?><a/>', "no XML document"),
    ],
    ids=["entity", "entities of entities", "a file", "a DTD elsewhere", "elements", "attributes", "depth", "encoding"],
)
def test_hostile_xml_is_refused(document: bytes, result: str):
    with pytest.raises((DecodeError, ExpandsTooMuch), match=result):
        xml_root(document + b" " * 20 if result == "no XML document" else document)


def test_a_nominal_past_its_column_is_a_bad_rate():
    valute = xml_root(b"<V><CharCode>X</CharCode><Nominal>9999999999</Nominal><Value>1,0</Value></V>")

    with pytest.raises(DecodeError, match="is no rate"):
        _parse_rate(valute)


@pytest.mark.parametrize("location", ["http://[::1", "http://a:99999/", "//[", "http://\udc80/", "http://a:b/"])
def test_a_redirect_to_no_address_is_refused(location: str):
    with pytest.raises(SourceRefused, match="no address|away from"):
        _Request("GET", "http://a.example/x", None, {}, True).redirected(302, "http://a.example/x", location)


def test_thousand_digit_headers_are_ignored():
    assert _content_length(StubResponse(Content_Length="9" * 5_000)) is None  # type: ignore[arg-type]
    assert _retry_after(StubResponse(**{"Retry_After": "9" * 5_000})) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "logged", ["```\n" + "\n" * 2_000_000, "```json" + " " * 2_000_000, "\n" * 1_000_000 + "```\n" * 9]
)
def test_model_response_of_blanks_is_scanned_once(logged: str):
    assert isinstance(llm_check._strip_code_fence(logged), str)


@pytest.mark.parametrize("name", ["", ".", "..", "...", "a/../b", "\\..\\", "a/", "x\0", "\ud800", "é" * 600])
def test_unsafe_path_segment_is_refused(name: str):
    with pytest.raises(UnsafePath):
        segment(name)


def test_rejects_keep_little_of_what_was_bad():
    rejects = Rejects(1)
    rejects.add("p" * 10**6, "r" * 10**6)

    assert len(str(rejects)) < 1_200
    with pytest.raises(TooManyRejects):
        rejects.add("line 2", "too")
