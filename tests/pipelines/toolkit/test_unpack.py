import gzip
import io
import tracemalloc

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloader.pipelines.contract import Stop
from dataloader.pipelines.toolkit.errors import BrokenArchive, ExpandsTooMuch, TruncatedArchive
from dataloader.pipelines.toolkit.unpack import Bounds, Compression, pieces

TEXT = "".join(f'{{"n": {n}, "text": "{n * 7919 % 1_000_003}"}}\n' for n in range(20_000)).encode()


def zstd(data, **options):
    return zstandard.ZstdCompressor(**options).compress(data)


def streamed(data):
    """As a program writes it that does not know how much will come: without the size in the head."""
    out = io.BytesIO()
    with zstandard.ZstdCompressor(write_checksum=True).stream_writer(out, closefd=False) as writer:
        writer.write(data)
    return out.getvalue()


SKIPPABLE = b"\x5a\x2a\x4d\x18" + (7).to_bytes(4, "little") + b"ignored"
PACKED = {
    "plain": TEXT,
    "gzip": gzip.compress(TEXT),
    "two gzip members": gzip.compress(TEXT[:1000]) + gzip.compress(TEXT[1000:]),
    "zstd": zstd(TEXT),
    "zstd, streamed": streamed(TEXT),
    "zstd, two frames": zstd(TEXT[:1000]) + streamed(TEXT[1000:]),
    "zstd, no checksum, no size": zstd(TEXT, write_checksum=False, write_content_size=False),
    "zstd, skippable frames": SKIPPABLE + zstd(TEXT) + SKIPPABLE,
    "zstd, large window": zstd(TEXT, level=19),
}


@pytest.mark.parametrize("packed", PACKED.values(), ids=PACKED)
def test_archive_is_detected_by_content_and_read_whole(packed, tmp_path):
    path = tmp_path / "archive"
    path.write_bytes(packed)
    expanded = list(pieces(path))

    assert b"".join(expanded) == TEXT
    assert max(map(len, expanded)) <= 64 * 1024


def test_a_stream_is_read_as_it_comes_and_left_open():
    class Dripping(io.BytesIO):
        def read(self, size=-1, /):
            return super().read(min(3, size))

    stream = Dripping(zstd(TEXT[:5000]))

    assert b"".join(pieces(stream)) == TEXT[:5000]
    assert not stream.closed


@pytest.mark.parametrize("packing", Compression)
def test_nothing_is_nothing(packing):
    assert list(pieces(io.BytesIO(b""), compression=packing)) == []


@settings(max_examples=60)
@given(st.sampled_from([name for name in PACKED if name not in ("plain", "two gzip members")]), st.data())
def test_an_archive_cut_anywhere_is_named_as_truncated(name, data):
    packed = PACKED[name]
    ends = {0, 1} if name == "gzip" else {0}  # one byte is not a gzip archive yet
    if name == "zstd, two frames":
        ends.add(len(zstd(TEXT[:1000])))
    if name == "zstd, skippable frames":
        ends |= {len(SKIPPABLE), len(packed) - len(SKIPPABLE)}
    cut = data.draw(st.integers(1, len(packed) - 1).filter(lambda at: at not in ends))
    packing = (
        Compression.GZIP if name == "gzip" else Compression.ZSTD
    )  # a very short one is not fake_context by content

    with pytest.raises(TruncatedArchive, match="ends in the middle"):
        list(pieces(io.BytesIO(packed[:cut]), compression=packing))


@settings(max_examples=60)
@given(st.binary(max_size=2000), st.integers(0, 3), st.booleans())
def test_frames_of_every_kind_are_followed_to_their_end(content, repeat, checksum):
    blocks = content * 10**repeat
    packed = zstd(blocks, write_checksum=checksum) + zstd(blocks[:300], write_content_size=False)

    assert b"".join(pieces(io.BytesIO(packed), compression=Compression.ZSTD)) == blocks + blocks[:300]


@pytest.mark.parametrize(
    "packed",
    [
        PACKED["zstd, streamed"][:-2] + b"xx",  # the checksum
        PACKED["zstd"][:40] + bytes(40) + PACKED["zstd"][80:],
        zstd(TEXT) + b"something else",
        PACKED["gzip"][:-6] + b"xx" + PACKED["gzip"][-4:],
        PACKED["gzip"][:200] + bytes(200) + PACKED["gzip"][400:],
        PACKED["gzip"] + b"something else",
    ],
    ids=["zstd checksum", "zstd inside", "zstd and more", "gzip checksum", "gzip inside", "gzip and more"],
)
def test_a_damaged_archive_is_named_as_damaged(packed):
    with pytest.raises(BrokenArchive, match="damaged"):
        list(pieces(io.BytesIO(packed)))


@pytest.mark.parametrize("packing", [Compression.ZSTD, Compression.GZIP])
def test_what_is_no_archive_is_named(packing):
    with pytest.raises(BrokenArchive, match="or is none"):
        list(pieces(io.BytesIO(b"<html>no such export</html>"), compression=packing))


def test_a_bomb_ends_early_and_in_little_memory():
    """30 KB that hold 1 GB: it must end at the ratio, far from the end, and never hold more than a few pieces."""
    out = io.BytesIO()
    with zstandard.ZstdCompressor(level=1).stream_writer(out, closefd=False) as writer:
        for _ in range(1024):
            writer.write(bytes(1024 * 1024))
    bomb = out.getvalue()
    assert len(bomb) < 150_000
    tracemalloc.start()
    expanded = 0
    try:
        with pytest.raises(ExpandsTooMuch, match="to 1 that Bounds allow"):
            for piece in pieces(io.BytesIO(bomb)):
                expanded += len(piece)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert expanded < 200 * 1024**2
    assert peak < 10 * 1024**2


def test_an_archive_past_its_absolute_bound_is_refused():
    with pytest.raises(ExpandsTooMuch, match="more than the 100000 bytes"):
        list(pieces(io.BytesIO(zstd(TEXT)), bounds=Bounds(expanded_bytes=100_000)))


def test_a_window_larger_than_allowed_is_refused():
    packed = io.BytesIO()
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=26)
    with zstandard.ZstdCompressor(compression_params=parameters).stream_writer(packed, closefd=False) as writer:
        writer.write(TEXT)
    data = packed.getvalue()

    with pytest.raises(ExpandsTooMuch, match="larger window"):
        list(pieces(io.BytesIO(data)))
    assert b"".join(pieces(io.BytesIO(data), bounds=Bounds(window_bytes=2**26))) == TEXT


def test_the_context_is_asked_before_every_piece(fake_context):
    ctx = fake_context(stop_at=3)

    with pytest.raises(Stop):
        list(pieces(io.BytesIO(TEXT), ctx=ctx))

    assert ctx.checks == 3
