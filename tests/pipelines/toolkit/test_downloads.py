"""Downloads and redirects of sources."""

import hashlib
import tracemalloc

import pytest

from dataloader.pipelines.toolkit import sources
from dataloader.pipelines.toolkit.errors import (
    SourceRefused,
    SourceTruncated,
)
from dataloader.pipelines.toolkit.sources import HttpSource, Timeouts
from tests.support.site import answer, hang_up, serving

ONCE = Timeouts(connect_sec=5, stall_sec=5, total_sec=30, max_attempts=1)


class TestDownload:
    def test_a_file_appears_whole_with_its_size_and_sum(self, site, tmp_path):
        fake_context = []
        body = bytes(range(256)) * 2000
        site.at("/a")(lambda h: answer(h, body))
        with HttpSource() as source:
            got = source.download(
                site.url("/a"), tmp_path / "a", max_bytes=10**6, on_bytes=lambda *so_far: fake_context.append(so_far)
            )

        assert got.path.read_bytes() == body
        assert got.sha256 == hashlib.sha256(body).hexdigest()
        assert fake_context[-1] == (len(body), len(body))
        assert [path.name for path in tmp_path.iterdir()] == ["a"]

    def test_missing_length_is_unknown(self, site, tmp_path):
        fake_context = []

        @site.at("/a")
        def unsaid(handler):
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nbody")
            hang_up(handler)

        with HttpSource() as source:
            source.download(
                site.url("/a"), tmp_path / "a", max_bytes=10**6, on_bytes=lambda *so_far: fake_context.append(so_far)
            )

        assert fake_context == [(4, None)]

    def test_what_failed_leaves_the_old_file_and_no_other(self, site, tmp_path):
        (tmp_path / "a").write_bytes(b"old")

        @site.at("/a")
        def lie(handler):
            answer(handler, b"half", length=8)
            hang_up(handler)

        with HttpSource(timeouts=ONCE) as source, pytest.raises(SourceTruncated):
            source.download(site.url("/a"), tmp_path / "a", max_bytes=100)

        assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]

    def test_a_large_file_is_never_in_memory(self, site, tmp_path):
        @site.at("/a")
        def large(handler):
            answer(handler, b"", length=40 * 1024**2)
            for _ in range(40):
                handler.wfile.write(bytes(1024**2))

        with HttpSource() as source:
            tracemalloc.start()
            got = source.download(site.url("/a"), tmp_path / "a", max_bytes=10**9)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()

        assert got.size == 40 * 1024**2
        assert peak < 8 * 1024**2


class TestRedirects:
    def test_one_on_the_same_host_is_followed(self, site):
        site.at("/a")(lambda h: answer(h, b"", 302, Location="/b"))
        site.at("/b")(lambda h: answer(h, h.headers["X-Token"].encode()))
        with HttpSource(headers={"X-Token": "t"}) as source:
            got = source.get(site.url("/a"))

        assert (got.body, got.url) == (b"t", site.url("/b"))

    @pytest.mark.parametrize("where", ["127.0.0.1", "localhost"])
    def test_redirect_to_private_address_is_refused_unsent(self, site, where):
        with serving() as inner:
            inner.at("/secret")(lambda h: answer(h, b"secret"))
            site.at("/a")(lambda h: answer(h, b"", 302, Location=inner.url("/secret", where)))
            with HttpSource(timeouts=ONCE) as source, pytest.raises(SourceRefused, match="private address"):
                source.get(site.url("/a"))

            assert inner.requests == []
        assert len(site.requests) == 1

    def test_allowed_private_redirect_carries_no_secrets(self, site):
        result = []
        with serving() as inner:

            @inner.at("/b")
            def record_request(handler):
                result.append(dict(handler.headers))
                answer(handler, b"ok")

            site.at("/a")(lambda h: answer(h, b"", 302, Location=inner.url("/b")))
            with HttpSource(headers={"X-Token": "t", "Accept": "text/x"}, allow_private_redirects=True) as source:
                got = source.get(site.url("/a"), headers={"Authorization": "Bearer t"})

        assert got.body == b"ok"
        assert result[0]["Accept"] == "text/x"
        assert not {"X-Token", "Authorization"} & set(result[0])

    @pytest.mark.parametrize(("status", "then"), [(302, "GET /b"), (303, "GET /b"), (307, "POST /b"), (308, "POST /b")])
    def test_post_is_redirected_as_post_only_by_307_and_308(self, site, status, then):
        site.at("/a")(lambda h: (h.rfile.read(1), answer(h, b"", status, Location="/b")))
        site.at("/b")(lambda h: answer(h, h.rfile.read(int(h.headers.get("Content-Length", "0")))))
        with HttpSource() as source:
            got = source.post(site.url("/a"), data=b"x")

        assert site.requests == ["POST /a", then]
        assert got.body == (b"x" if then.startswith("POST") else b"")

    def test_a_ring_of_them_is_given_up(self, site):
        site.at("/a")(lambda h: answer(h, b"", 301, Location="/a"))
        with HttpSource() as source, pytest.raises(SourceRefused, match="more than 5 times"):
            source.get(site.url("/a"))

    @pytest.mark.parametrize("location", ["file:///etc/passwd", "gopher://127.0.0.1/"])
    def test_one_to_another_kind_of_address_is_refused(self, site, location):
        site.at("/a")(lambda h: answer(h, b"", 302, Location=location))
        with HttpSource() as source, pytest.raises(SourceRefused, match="away from http"):
            source.get(site.url("/a"))

    def test_one_away_from_tls_is_refused(self):
        request = sources._Request("GET", "https://a.example/x", None, {}, True)

        with pytest.raises(SourceRefused, match="away from https"):
            request.redirected(302, "https://a.example/x", "http://a.example/x")
