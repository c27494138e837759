"""Compressed files as a stream of small pieces, with limits on the expanded size."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol, cast

import zstandard

from pipelines.toolkit.deprecation import renamed_attributes, renamed_keywords
from pipelines.toolkit.errors import BrokenArchive, ExpandsTooMuch, TruncatedArchive
from pipelines.toolkit.safepoint import NoSafePoints, SafePoint

if not TYPE_CHECKING:
    __getattr__ = renamed_attributes(__name__, Packing="Compression")

PIECE_BYTES = 64 * 1024

_CHECK_INTERVAL_BYTES = 1024 * 1024  # bytes taken

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_GZIP_MAGIC = b"\x1f\x8b"
_RATIO_CHECKED_FROM_BYTES = 64 * 1024 * 1024  # small and very even files compress past any ratio, and do no harm


class Compression(StrEnum):
    BY_CONTENT = "by content"  # detected from the first bytes
    ZSTD = "zstd"
    GZIP = "gzip"
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Limits of an expanded file and of the memory that expanding it takes."""

    expanded_bytes: int = 32 * 1024**3
    ratio: int = 1_000  # of expanded to compressed bytes
    window_bytes: int = 32 * 1024**2  # memory that a zstd file may ask for; `zstd --long` asks for 128 MB
    line_bytes: int = 1024**2


class Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


Source = Path | BinaryIO


@contextmanager
def open_stream(source: Source) -> Iterator[BinaryIO]:
    """Open the source as a stream; a file is closed at the end, a stream is left to its owner."""
    if isinstance(source, Path):
        with source.open("rb") as file:
            yield file
    else:
        yield source


@renamed_keywords(packing="compression")
def pieces(
    source: Source,
    *,
    compression: Compression = Compression.BY_CONTENT,
    bounds: Bounds | None = None,
    ctx: SafePoint | None = None,
) -> Iterator[bytes]:
    """Yield the expanded content in pieces of at most 64 KB. `ctx` is checked before each."""
    bounds, ctx = bounds or Bounds(), ctx or NoSafePoints()
    with open_stream(source) as stream:
        packed = _PackedStream(stream, ctx)
        expanded = 0
        for piece in _expand(packed, compression, bounds):
            ctx.check()
            expanded += len(piece)
            check_bounds(expanded, packed.bytes_read, bounds)
            yield piece


def check_bounds(expanded_bytes: int, packed_bytes: int, bounds: Bounds) -> None:
    """Raise `ExpandsTooMuch` if an archive expands beyond the bounds."""
    if expanded_bytes > bounds.expanded_bytes:
        raise ExpandsTooMuch(f"the archive holds more than the {bounds.expanded_bytes} bytes that Bounds allow")
    if expanded_bytes > _RATIO_CHECKED_FROM_BYTES and expanded_bytes > packed_bytes * bounds.ratio:
        raise ExpandsTooMuch(
            f"{packed_bytes} packed bytes became {expanded_bytes} already: more than the {bounds.ratio} to 1 that Bounds allow"
        )


class _PackedStream:
    """The compressed stream, counted, whose first bytes can be peeked at.

    `ctx` is checked here too: much input may expand to nothing, such as an endless file name of gzip.
    """

    def __init__(self, stream: BinaryIO, ctx: SafePoint) -> None:
        self._stream, self._ctx = stream, ctx
        self._checked_at = 0
        self._peeked = b""
        self.bytes_read = 0

    def peek(self, size: int) -> bytes:
        while len(self._peeked) < size and (more := self._stream.read(size - len(self._peeked))):
            self._peeked += more
        return self._peeked

    def read(self, size: int = -1, /) -> bytes:
        if self._peeked:
            data, self._peeked = (self._peeked, b"") if size < 0 else (self._peeked[:size], self._peeked[size:])
        else:
            data = self._stream.read(size)
        self.bytes_read += len(data)
        if self.bytes_read - self._checked_at >= _CHECK_INTERVAL_BYTES:
            self._checked_at = self.bytes_read
            self._ctx.check()
        return data


def _expand(packed: _PackedStream, compression: Compression, bounds: Bounds) -> Iterator[bytes]:
    if compression is Compression.BY_CONTENT:
        compression = _detect_compression(packed.peek(len(_ZSTD_MAGIC)))
    if compression is Compression.ZSTD:
        return _expand_zstd(packed, bounds)
    return _expand_gzip(packed) if compression is Compression.GZIP else iter(lambda: packed.read(PIECE_BYTES), b"")


def _detect_compression(start: bytes) -> Compression:
    if start == _ZSTD_MAGIC or _is_skippable(start):
        return Compression.ZSTD
    return Compression.GZIP if start.startswith(_GZIP_MAGIC) else Compression.NONE


def _expand_zstd(packed: _PackedStream, bounds: Bounds) -> Iterator[bytes]:
    watched = _ZstdFrames(packed)
    decompressor = zstandard.ZstdDecompressor(max_window_size=bounds.window_bytes)
    try:
        # read_across_frames: a file that was appended to has several frames, and by default only the first is read
        with decompressor.stream_reader(
            cast(BinaryIO, watched), read_size=PIECE_BYTES, read_across_frames=True, closefd=False
        ) as reader:
            while piece := reader.read(PIECE_BYTES):
                yield piece
    except zstandard.ZstdError as error:
        if "too much memory" in str(error):
            raise ExpandsTooMuch(
                f"the zstd archive asks for a larger window than the {bounds.window_bytes} bytes that Bounds allow"
            ) from error
        raise BrokenArchive(
            f"the zstd archive is damaged after {packed.bytes_read} bytes, or is none: {error}"
        ) from error
    if not watched.is_complete:
        raise TruncatedArchive(f"the zstd archive ends in the middle, after {packed.bytes_read} bytes")


def _expand_gzip(packed: _PackedStream) -> Iterator[bytes]:
    try:
        with gzip.GzipFile(fileobj=cast(BinaryIO, packed), mode="rb") as reader:
            while piece := reader.read(PIECE_BYTES):
                yield piece
    except EOFError as error:
        raise TruncatedArchive(f"the gzip archive ends in the middle, after {packed.bytes_read} bytes") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise BrokenArchive(
            f"the gzip archive is damaged after {packed.bytes_read} bytes, or is none: {error}"
        ) from error


def _is_skippable(magic: bytes) -> bool:
    return len(magic) == 4 and magic[1:] == b"\x2a\x4d\x18" and magic[0] >> 4 == 5  # noqa: PLR2004


class _ZstdFrames:
    """Tracks the blocks of a zstd stream to notice a truncated one, which the reader of zstandard accepts.

    It parses lengths only (RFC 8878, section 3.1); the reader checks the content.
    """

    def __init__(self, packed: Readable) -> None:
        self._packed = packed
        self._header = b""  # of a frame or a block, as far as it has been read
        self._bytes_to_skip = 0  # until the next header
        self._in_frame = False
        self._last_block = False
        self._checksum_bytes = 0

    @property
    def is_complete(self) -> bool:
        return not (self._header or self._bytes_to_skip or self._in_frame)

    def read(self, size: int = -1, /) -> bytes:
        data = self._packed.read(size)
        self._track_blocks(memoryview(data))
        return data

    def _track_blocks(self, data: memoryview) -> None:
        while data:
            if self._bytes_to_skip:
                passed = min(self._bytes_to_skip, len(data))
                self._bytes_to_skip -= passed
                data = data[passed:]
            else:
                missing = self._header_size() - len(self._header)
                self._header += data[:missing]
                data = data[missing:]
                if len(self._header) == self._header_size():
                    self._parse_header()
            if not self._bytes_to_skip and self._in_frame and self._last_block:
                self._in_frame = self._last_block = False
                self._bytes_to_skip, self._checksum_bytes = self._checksum_bytes, 0

    def _header_size(self) -> int:
        if self._in_frame:
            return 3
        if len(self._header) < 5:  # noqa: PLR2004 - magic and descriptor
            return 5
        if _is_skippable(self._header[:4]):
            return 8
        descriptor = self._header[4]
        single_segment = descriptor >> 5 & 1
        content_size = (single_segment, 2, 4, 8)[descriptor >> 6]
        return 5 + (1 - single_segment) + (0, 1, 2, 4)[descriptor & 3] + content_size

    def _parse_header(self) -> None:
        head, self._header = self._header, b""
        if not self._in_frame and _is_skippable(head[:4]):
            self._bytes_to_skip = int.from_bytes(head[4:8], "little")
        elif not self._in_frame:
            self._in_frame = True
            self._checksum_bytes = 4 if head[4] & 4 else 0
        else:
            block = int.from_bytes(head, "little")
            self._last_block = bool(block & 1)
            repeated = block >> 1 & 3 == 1
            self._bytes_to_skip = 1 if repeated else block >> 3
