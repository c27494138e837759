"""Archives opened as a stream of small pieces, with bounds on what may come out of them."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, Protocol, cast

import zstandard

from pipelines.toolkit.errors import BrokenArchive, ExpandsTooMuch, TruncatedArchive
from pipelines.toolkit.safepoint import SafePoint, Unattended

PIECE = 64 * 1024

_CHECK_EVERY = 1024 * 1024  # bytes taken

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_GZIP_MAGIC = b"\x1f\x8b"
_RATIO_COUNTS_FROM = 64 * 1024 * 1024  # small and very even files compress past any ratio, and do no harm


class Packing(StrEnum):
    BY_CONTENT = "by content"  # told by its first bytes
    ZSTD = "zstd"
    GZIP = "gzip"
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What a file may grow to, and what reading it may cost."""

    expanded_bytes: int = 32 * 1024**3
    ratio: int = 1_000  # expanded to packed
    window_bytes: int = 32 * 1024**2  # memory that a zstd file may ask for; `zstd --long` asks for 128 MB
    line_bytes: int = 1024**2


class Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


Source = Path | BinaryIO


@contextmanager
def opened(source: Source) -> Iterator[BinaryIO]:
    """The source as a stream; a file is closed at the end, a stream stays its owner's."""
    if isinstance(source, Path):
        with source.open("rb") as file:
            yield file
    else:
        yield source


def pieces(
    source: Source,
    *,
    packing: Packing = Packing.BY_CONTENT,
    bounds: Bounds | None = None,
    ctx: SafePoint | None = None,
) -> Iterator[bytes]:
    """What the archive holds, in pieces of at most 64 KB. `ctx` is checked before each."""
    bounds, ctx = bounds or Bounds(), ctx or Unattended()
    with opened(source) as stream:
        packed = _Packed(stream, ctx)
        expanded = 0
        for piece in _expanded(packed, packing, bounds):
            ctx.check()
            expanded += len(piece)
            _bound(expanded, packed.taken, bounds)
            yield piece


def _bound(expanded: int, taken: int, bounds: Bounds) -> None:
    if expanded > bounds.expanded_bytes:
        raise ExpandsTooMuch(f"the archive holds more than the {bounds.expanded_bytes} bytes that Bounds allow")
    if expanded > _RATIO_COUNTS_FROM and expanded > taken * bounds.ratio:
        raise ExpandsTooMuch(
            f"{taken} packed bytes became {expanded} already: more than the {bounds.ratio} to 1 that Bounds allow"
        )


class _Packed:
    """The packed stream, counted, and with its first bytes to be looked at.

    `ctx` is checked here too: an archive may hold much that becomes nothing, such as a name without end.
    """

    def __init__(self, stream: BinaryIO, ctx: SafePoint) -> None:
        self._stream, self._ctx = stream, ctx
        self._checked = 0
        self._ahead = b""
        self.taken = 0

    def peek(self, size: int) -> bytes:
        while len(self._ahead) < size and (more := self._stream.read(size - len(self._ahead))):
            self._ahead += more
        return self._ahead

    def read(self, size: int = -1, /) -> bytes:
        if self._ahead:
            found, self._ahead = (self._ahead, b"") if size < 0 else (self._ahead[:size], self._ahead[size:])
        else:
            found = self._stream.read(size)
        self.taken += len(found)
        if self.taken - self._checked >= _CHECK_EVERY:
            self._checked = self.taken
            self._ctx.check()
        return found


def _expanded(packed: _Packed, packing: Packing, bounds: Bounds) -> Iterator[bytes]:
    if packing is Packing.BY_CONTENT:
        packing = _told_by_content(packed.peek(len(_ZSTD_MAGIC)))
    if packing is Packing.ZSTD:
        return _unzstd(packed, bounds)
    return _gunzip(packed) if packing is Packing.GZIP else iter(lambda: packed.read(PIECE), b"")


def _told_by_content(start: bytes) -> Packing:
    if start == _ZSTD_MAGIC or _is_skippable(start):
        return Packing.ZSTD
    return Packing.GZIP if start.startswith(_GZIP_MAGIC) else Packing.NONE


def _unzstd(packed: _Packed, bounds: Bounds) -> Iterator[bytes]:
    watched = _ZstdFrames(packed)
    decompressor = zstandard.ZstdDecompressor(max_window_size=bounds.window_bytes)
    try:
        # read_across_frames: files written in several goes are several frames, and by default only the first is read
        with decompressor.stream_reader(
            cast(BinaryIO, watched), read_size=PIECE, read_across_frames=True, closefd=False
        ) as reader:
            while piece := reader.read(PIECE):
                yield piece
    except zstandard.ZstdError as error:
        if "too much memory" in str(error):
            raise ExpandsTooMuch(
                f"the zstd archive asks for a larger window than the {bounds.window_bytes} bytes that Bounds allow"
            ) from error
        raise BrokenArchive(f"the zstd archive is damaged after {packed.taken} bytes, or is none: {error}") from error
    if not watched.whole:
        raise TruncatedArchive(f"the zstd archive ends in the middle, after {packed.taken} bytes")


def _gunzip(packed: _Packed) -> Iterator[bytes]:
    try:
        with gzip.GzipFile(fileobj=cast(BinaryIO, packed), mode="rb") as reader:
            while piece := reader.read(PIECE):
                yield piece
    except EOFError as error:
        raise TruncatedArchive(f"the gzip archive ends in the middle, after {packed.taken} bytes") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise BrokenArchive(f"the gzip archive is damaged after {packed.taken} bytes, or is none: {error}") from error


def _is_skippable(magic: bytes) -> bool:
    return len(magic) == 4 and magic[1:] == b"\x2a\x4d\x18" and magic[0] >> 4 == 5  # noqa: PLR2004


class _ZstdFrames:
    """Follows a zstd stream from block to block, because its reader takes an early end for the end.

    It reads lengths only (RFC 8878, section 3.1); whether the content is sound is for the reader to say.
    """

    def __init__(self, packed: Readable) -> None:
        self._packed = packed
        self._head = b""  # of a frame or a block, as far as it has come
        self._skip = 0  # bytes to pass over until the next head
        self._in_frame = False
        self._last_block = False
        self._checksum = 0

    @property
    def whole(self) -> bool:
        return not (self._head or self._skip or self._in_frame)

    def read(self, size: int = -1, /) -> bytes:
        data = self._packed.read(size)
        self._follow(memoryview(data))
        return data

    def _follow(self, data: memoryview) -> None:
        while data:
            if self._skip:
                passed = min(self._skip, len(data))
                self._skip -= passed
                data = data[passed:]
            else:
                missing = self._head_size() - len(self._head)
                self._head += data[:missing]
                data = data[missing:]
                if len(self._head) == self._head_size():
                    self._take_head()
            if not self._skip and self._in_frame and self._last_block:
                self._in_frame = self._last_block = False
                self._skip, self._checksum = self._checksum, 0

    def _head_size(self) -> int:
        if self._in_frame:
            return 3
        if len(self._head) < 5:  # noqa: PLR2004 - magic and descriptor
            return 5
        if _is_skippable(self._head[:4]):
            return 8
        descriptor = self._head[4]
        single_segment = descriptor >> 5 & 1
        content_size = (single_segment, 2, 4, 8)[descriptor >> 6]
        return 5 + (1 - single_segment) + (0, 1, 2, 4)[descriptor & 3] + content_size

    def _take_head(self) -> None:
        head, self._head = self._head, b""
        if not self._in_frame and _is_skippable(head[:4]):
            self._skip = int.from_bytes(head[4:8], "little")
        elif not self._in_frame:
            self._in_frame = True
            self._checksum = 4 if head[4] & 4 else 0
        else:
            block = int.from_bytes(head, "little")
            self._last_block = bool(block & 1)
            repeated = block >> 1 & 3 == 1
            self._skip = 1 if repeated else block >> 3
