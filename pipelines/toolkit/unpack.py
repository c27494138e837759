"""Compressed files as a stream of small pieces, with limits on the expanded size."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

import zstandard

from dataloader.pipelines.toolkit.deprecation import renamed_attributes, renamed_keywords
from dataloader.pipelines.toolkit.errors import BrokenArchive, ExpandsTooMuch, TruncatedArchive
from dataloader.pipelines.toolkit.safepoint import NoSafePoints, SafePoint

if not TYPE_CHECKING:
    __getattr__ = renamed_attributes(__name__, Packing="Compression")

PIECE_BYTES = 64 * 1024

_CHECK_INTERVAL_BYTES = 1024 * 1024  # bytes taken

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18", re.DOTALL)
_ZSTD_INPUT_BYTES = 128  # for each call: four bytes may expand to a block of 128 KB, and all is returned at once
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


Source = Path | BinaryIO


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
    with source.open("rb") if isinstance(source, Path) else nullcontext(source) as stream:
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
            f"{packed_bytes} packed bytes became {expanded_bytes} already: more than the {bounds.ratio} to 1 "
            "that Bounds allow"
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

    def read(self, size: int) -> bytes:
        data, self._peeked = self._peeked[:size], self._peeked[size:]
        data = data or self._stream.read(size)
        self.bytes_read += len(data)
        if self.bytes_read - self._checked_at >= _CHECK_INTERVAL_BYTES:
            self._checked_at = self.bytes_read
            self._ctx.check()
        return data


def _expand(packed: _PackedStream, compression: Compression, bounds: Bounds) -> Iterator[bytes]:
    if compression is Compression.BY_CONTENT:
        start = packed.peek(len(_ZSTD_MAGIC))
        if start == _ZSTD_MAGIC or _ZSTD_SKIPPABLE.fullmatch(start):
            compression = Compression.ZSTD
        elif start.startswith(_GZIP_MAGIC):
            compression = Compression.GZIP
    if compression is Compression.ZSTD:
        return _expand_zstd(packed, bounds)
    return _expand_gzip(packed) if compression is Compression.GZIP else iter(lambda: packed.read(PIECE_BYTES), b"")


def _expand_zstd(packed: _PackedStream, bounds: Bounds) -> Iterator[bytes]:
    """Expand frame by frame: the stream readers of zstandard accept a truncated frame as the end of the data."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=bounds.window_bytes)
    frame = None
    expanded = bytearray()
    try:
        while data := packed.read(_ZSTD_INPUT_BYTES):
            while data:
                if frame is None or frame.eof:
                    frame = decompressor.decompressobj()
                expanded += frame.decompress(data)
                data = frame.unused_data
            while len(expanded) >= PIECE_BYTES:
                yield bytes(expanded[:PIECE_BYTES])
                del expanded[:PIECE_BYTES]
    except zstandard.ZstdError as error:
        if "too much memory" in str(error):
            raise ExpandsTooMuch(
                f"the zstd archive asks for a larger window than the {bounds.window_bytes} bytes that Bounds allow"
            ) from error
        raise BrokenArchive(
            f"the zstd archive is damaged after {packed.bytes_read} bytes, or is none: {error}"
        ) from error
    if expanded:
        yield bytes(expanded)
    if frame is not None and not frame.eof:
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
