import gzip
import threading
import time

import pytest

from dataloader.pipelines.contract import Stop
from dataloader.pipelines.toolkit.errors import (
    SourceAnswered,
    SourceBroken,
    SourceBusy,
    SourceRefused,
    SourceStalled,
    SourceTooLarge,
    SourceTooSlow,
    SourceTruncated,
    SourceUnreachable,
)
from dataloader.pipelines.toolkit.sources import HttpSource, Timeouts
from tests.support import eventually, free_port
from tests.support.site import answer, hang_up

HASTY = Timeouts(connect_sec=5, stall_sec=5, total_sec=30, max_attempts=3, retry_delay_sec=0)
ONCE = Timeouts(connect_sec=5, stall_sec=5, total_sec=30, max_attempts=1)


def test_an_answer_comes_whole_with_its_status_and_headers(site):
    site.at("/a")(lambda h: answer(h, b'{"a": 1}', X_Kind="test"))
    with HttpSource(headers={"X-Token": "t"}) as source:
        got = source.get(site.url("/a"), params={"key": "secret", "b": "ё"})

    assert (got.status, got.json(), got.headers["X-Kind"]) == (200, {"a": 1}, "test")
    assert got.url == site.url("/a")  # without what may be secret
    assert site.requests == ["GET /a?key=secret&b=%D1%91"]


def test_it_says_who_it_is_and_sends_what_it_is_given(site):
    result: dict[str, object] = {}

    @site.at("/start")
    def start(handler):
        result.update(handler.headers, body=handler.rfile.read(int(handler.headers["Content-Length"])))
        answer(handler, b"{}", 201)

    with HttpSource(headers={"X-Token": "t"}, user_agent="loader/1") as source:
        source.post(site.url("/start"), json={"date": "2024-01-31"}, headers={"X-More": "m"})

    assert result["User-Agent"] == "loader/1"
    assert (result["X-Token"], result["X-More"]) == ("t", "m")
    assert (result["Content-Type"], result["body"]) == ("application/json", b'{"date":"2024-01-31"}')


def test_an_answer_that_is_no_json_is_named(site):
    site.at("/a")(lambda h: answer(h, b"<html>sorry"))
    with HttpSource() as source, pytest.raises(SourceBroken, match=r"/a answered no JSON.*'<html>sorry'"):
        source.get(site.url("/a")).json()


def test_error_status_has_status_and_body_excerpt(site):
    site.at("/a")(lambda h: answer(h, b"no such date" + b"!" * 5000, 404))

    with HttpSource(timeouts=HASTY) as source, pytest.raises(SourceAnswered, match="404 Not Found: 'no such") as caught:
        source.get(site.url("/a", "user:pass@127.0.0.1"), params={"key": "secret"})

    assert (caught.value.status, len(caught.value.body), caught.value.permanent) == (404, 2000, True)
    assert "secret" not in str(caught.value)
    assert "pass" not in str(caught.value)
    assert len(site.requests) == 1


@pytest.mark.parametrize("status", [429, 503])
def test_busy_source_is_retried_after_its_retry_after(site, fake_context, status):
    site.at("/a")(lambda h: answer(h, b"ok") if len(site.requests) > 2 else answer(h, b"", status, Retry_After="7"))
    ctx = fake_context()
    with HttpSource(ctx=ctx, timeouts=HASTY) as source:
        got = source.get(site.url("/a"))

    assert got.body == b"ok"
    assert ctx.sleeps == [7, 7]


def test_busy_source_fails_with_its_retry_after(site, fake_context):
    site.at("/a")(lambda h: answer(h, b"", 503, Retry_After="3"))

    with HttpSource(ctx=fake_context(), timeouts=HASTY) as source, pytest.raises(SourceBusy, match="503") as busy:
        source.get(site.url("/a"))

    assert (busy.value.retry_after, len(site.requests)) == (3, 3)


def test_a_pause_longer_than_the_deadline_is_not_begun(site, fake_context):
    site.at("/a")(lambda h: answer(h, b"", 429, Retry_After="3600"))
    ctx = fake_context()

    with HttpSource(ctx=ctx, timeouts=HASTY) as source, pytest.raises(SourceBusy) as busy:
        source.get(site.url("/a"))

    assert (busy.value.retry_after, ctx.sleeps, len(site.requests)) == (3600, [], 1)


def test_a_retry_after_that_says_nothing_is_ignored(site, fake_context):
    site.at("/a")(lambda h: answer(h, b"", 500, Retry_After="soon"))

    with HttpSource(ctx=fake_context(), timeouts=HASTY) as source, pytest.raises(SourceBusy) as busy:
        source.get(site.url("/a"))

    assert (busy.value.retry_after, len(site.requests)) == (None, 3)


def test_unsafe_request_is_repeated_only_if_allowed(site, fake_context):
    site.at("/a")(lambda h: answer(h, b"", 503))
    with HttpSource(ctx=fake_context(), timeouts=HASTY) as source:
        with pytest.raises(SourceBusy):
            source.post(site.url("/a"), data=b"x")
        assert len(site.requests) == 1
        with pytest.raises(SourceBusy):
            source.post(site.url("/a"), data=b"x", repeatable=True)
        assert len(site.requests) == 4


def test_refused_connection_is_reported_and_retried(fake_context):
    ctx = fake_context()
    url = f"http://127.0.0.1:{free_port()}/a?key=secret"

    with HttpSource(ctx=ctx, timeouts=HASTY) as source, pytest.raises(SourceUnreachable, match="no connection") as gone:
        source.post(url, data=b"x")

    assert len(ctx.sleeps) == 2
    assert "secret" not in str(gone.value)


def test_missing_name_is_reported():
    with HttpSource(timeouts=ONCE) as source, pytest.raises(SourceUnreachable, match="no connection"):
        source.get("http://nowhere.invalid/")


def test_a_server_that_speaks_no_tls_is_unreachable_by_tls(site):
    with HttpSource(timeouts=ONCE) as source, pytest.raises(SourceUnreachable, match="no connection"):
        source.get(site.url("/a").replace("http:", "https:"))


@pytest.mark.parametrize(
    "url", ["ftp://127.0.0.1/a", "file:///etc/passwd", "nothing", "http://", "http://a:b/", "http://[::1"]
)
def test_what_is_no_http_address_is_refused(url):
    with HttpSource(timeouts=ONCE) as source, pytest.raises(SourceRefused):
        source.get(url)


@pytest.mark.parametrize("stalled_part", ["head", "body"])
def test_a_source_that_falls_silent_is_an_error(site, stalled_part):
    @site.at("/a")
    def stall(handler):
        if stalled_part == "body":
            answer(handler, b"some", length=100)
            handler.wfile.flush()
        site.over.wait(20)

    short_timeouts = Timeouts(stall_sec=0.3, max_attempts=1)
    with HttpSource(timeouts=short_timeouts) as source, pytest.raises(SourceStalled, match=r"nothing came for 0\.3 s"):
        source.get(site.url("/a"))


@pytest.mark.parametrize("stalled_part", ["head", "body", "body without end"])
def test_a_source_that_drips_does_not_outlast_the_deadline(site, stalled_part):
    @site.at("/a")
    def drip(handler):
        if stalled_part == "body":
            answer(handler, b"", length=10_000)
        elif stalled_part == "body without end":
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        else:
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
        while not site.over.wait(0.05):
            handler.wfile.write(b"x")
            handler.wfile.flush()

    began = time.monotonic()
    short_timeouts = Timeouts(stall_sec=10, total_sec=0.5)
    with (
        HttpSource(timeouts=short_timeouts) as source,
        pytest.raises(SourceTooSlow, match="GET .*/a: it did not finish"),
    ):
        source.get(site.url("/a"))

    assert time.monotonic() - began < 30


@pytest.mark.parametrize("way", ["get", "download"])
@pytest.mark.parametrize("stalled_part", ["head", "body"])
def test_a_stop_wakes_a_thread_that_waits_for_the_source(site, fake_context, tmp_path, stalled_part, way):
    @site.at("/a")
    def stall(handler):
        if stalled_part == "body":
            answer(handler, b"some", length=100)
            handler.wfile.flush()
        site.over.wait(20)

    began = time.monotonic()
    with HttpSource(ctx=fake_context(stop_at=4), timeouts=Timeouts(stall_sec=15)) as source, pytest.raises(Stop):
        if way == "get":
            source.get(site.url("/a"))
        else:
            source.download(site.url("/a"), tmp_path / "a", max_bytes=1000)

    assert time.monotonic() - began < 14
    assert list(tmp_path.iterdir()) == []


def test_short_body_is_truncated_and_retried(site, fake_context, tmp_path):
    @site.at("/a")
    def lie(handler):
        if len(site.requests) < 3:
            answer(handler, b"half", length=8)
            hang_up(handler)
        else:
            answer(handler, b"halfhalf")

    with HttpSource(ctx=fake_context(), timeouts=HASTY) as source:
        got = source.download(site.url("/a"), tmp_path / "a", max_bytes=100)

    assert (got.path.read_bytes(), got.size) == (b"halfhalf", 8)
    assert len(site.requests) == 3


def test_a_chunked_body_cut_short_is_truncated(site):
    @site.at("/a")
    def cut(handler):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
        hang_up(handler)

    with HttpSource(timeouts=ONCE) as source, pytest.raises(SourceTruncated, match="closed the connection"):
        source.get(site.url("/a"))


def test_source_closing_without_response_is_reported(site):
    site.at("/a")(hang_up)

    with HttpSource(timeouts=ONCE) as source, pytest.raises(SourceTruncated, match="closed the connection"):
        source.get(site.url("/a"))


def test_large_body_is_refused_by_length_and_by_bytes(site):
    @site.at("/lies")
    def lies(handler):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b"x" * 1_000_000)
        hang_up(handler)

    site.at("/says")(lambda h: answer(h, b"x", length=1_000_000))

    with HttpSource(max_bytes=1000, timeouts=HASTY) as source:
        with pytest.raises(SourceTooLarge, match="would send 1000000 bytes"):
            source.get(site.url("/says"))
        with pytest.raises(SourceTooLarge, match="sent more than the 1000 bytes"):
            source.get(site.url("/lies"))
    assert len(site.requests) == 2


def test_a_packed_body_is_bounded_by_what_it_unpacks_to(site):
    site.at("/a")(lambda h: answer(h, gzip.compress(bytes(50_000_000)), Content_Encoding="gzip"))
    site.at("/b")(lambda h: answer(h, b"not gzip at all", Content_Encoding="gzip"))

    with HttpSource(timeouts=ONCE) as source:
        with pytest.raises(SourceTooLarge):
            source.get(site.url("/a"))
        with pytest.raises(SourceBroken, match="does not match its Content-Encoding"):
            source.get(site.url("/b"))


def test_a_proxy_is_used_and_may_be_private(site, monkeypatch):
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{site.port}")
    monkeypatch.setenv("no_proxy", "")
    site.at("http://source.example/a")(lambda h: answer(h, b"through the proxy"))
    with HttpSource() as source:
        got = source.get("http://source.example/a")

    assert got.body == b"through the proxy"


def test_a_connection_is_kept_between_requests(site):
    ports = set()

    @site.at("/a")
    def note(handler):
        ports.add(handler.client_address[1])
        answer(handler, b"ok")

    with HttpSource() as source:
        for _ in range(3):
            source.get(site.url("/a"))

    assert len(ports) == 1


def test_a_fault_of_ours_is_not_hidden_as_one_of_the_source(site, tmp_path):
    site.at("/a")(lambda h: answer(h, b"ok"))
    with HttpSource() as source, pytest.raises(FileNotFoundError):
        source.download(site.url("/a"), tmp_path / "missing" / "a", max_bytes=10)


def test_no_thread_is_left_behind(site):
    site.at("/a")(lambda h: answer(h, b"ok"))
    with HttpSource() as source:
        source.get(site.url("/a"))

    eventually(lambda: not [t for t in threading.enumerate() if t.name == "http-watch"])
