"""Puts pictures together to a moving one: an animated WebP file of encoded frames."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_HAS_ANIMATION, _NO_BLENDING = 0x02, 0x02
_IMAGE_CHUNKS = (b"VP8 ", b"VP8L", b"ALPH")


@dataclass(frozen=True)
class Part:
    """A rectangle that replaces what the canvas shows there. `x` and `y` are even."""

    x: int
    y: int
    width: int
    height: int
    shown_ms: int
    image: bytes  # a WebP file


def animation(width: int, height: int, parts: Sequence[Part]) -> bytes:
    """Return the file. It repeats for ever."""
    header = struct.pack("<B3x", _HAS_ANIMATION) + _uint24(width - 1) + _uint24(height - 1)
    body = b"WEBP" + _chunk(b"VP8X", header) + _chunk(b"ANIM", struct.pack("<IH", 0xFFFFFFFF, 0))
    for part in parts:
        numbers = (part.x // 2, part.y // 2, part.width - 1, part.height - 1, part.shown_ms)
        image = b"".join(_chunk(name, data) for name, data in chunks(part.image) if name in _IMAGE_CHUNKS)
        body += _chunk(b"ANMF", b"".join(map(_uint24, numbers)) + bytes([_NO_BLENDING]) + image)
    return _chunk(b"RIFF", body)


def chunks(file: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The names and contents of a file's chunks."""
    if file[:4] != b"RIFF" or file[8:12] != b"WEBP":
        raise ValueError("this is no WebP file")
    position = 12
    while position < len(file):
        name, size = struct.unpack_from("<4sI", file, position)
        yield name, file[position + 8 : position + 8 + size]
        position += 8 + size + size % 2


def _chunk(name: bytes, data: bytes) -> bytes:
    return name + struct.pack("<I", len(data)) + data + bytes(len(data) % 2)


def _uint24(value: int) -> bytes:
    return value.to_bytes(3, "little")
