"""A request on its way in: its bytes as they come, and whether they are all there.

It finds ends only (RFC 9112). What a request says, and whether it may say it, is for gunicorn's parser, which is handed
the same bytes; only a chunked body that is wrongly framed is refused here, since the parser would find it in the midst
of the app, and one of many chunks is handed on as one: for each chunk the parser copies all that follows, so that a few
megabytes in chunks of a byte would keep a thread for hours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

_HEAD_END = b"\r\n\r\n"
# Read as strictly as RFC 9112 has it: nobody sees these lines after us.
_WORD = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_QUOTED = rb'"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*"'
_CHUNK = re.compile(
    rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[ \t]*" + _WORD + rb"(?:[ \t]*=[ \t]*(?:" + _WORD + rb"|" + _QUOTED + rb"))?)*"
)
_SIZE = re.compile(rb"[0-9A-Fa-f]+")
_LONGEST_CHUNK_LINE = 4096
_DIGITS = re.compile(rb"[0-9]{1,15}")
_FREE_FRAMES = 65_536  # bytes: small bodies may come in any chunks


class Need(Enum):
    """What must happen next with a request."""

    MORE = auto()  # its head is not all here
    BODY = auto()  # its head is, and its body may come
    NOTHING = auto()  # it can be answered
    SMALLER_HEAD = auto()  # the rest: it is refused
    SMALLER_BODY = auto()
    SOUND_CHUNKS = auto()


@dataclass(frozen=True)
class Sizes:
    """What may be gathered of one request, in bytes."""

    head: int = 65_536
    body: int = 1_048_576

    @property
    def framed(self) -> int:
        """Of a chunked body with its frames."""
        return self.body + self.frames(self.body)

    @staticmethod
    def frames(content: int) -> int:
        """Of the frames around so much: chunks of a few bytes are waste, and of one byte an attack."""
        return content // 2 + _FREE_FRAMES


class Arrival:
    """One request, gathered piece by piece. What comes behind its end belongs to the next one."""

    def __init__(self, sizes: Sizes) -> None:
        self.data = bytearray()
        self.need = Need.MORE
        self.expects = False  # its sender waits for a word before the body
        self.too_long = False  # its body is not waited for: the app refuses it by its length
        self._sizes = sizes
        self._searched = 0
        self._body_at = 0
        self._ends_at: int | None = None  # None: the body is chunked
        self._chunk_at = 0
        self._content = 0  # bytes of all chunks

    def take(self, piece: bytes) -> Need:
        self.data += piece
        if self.need is Need.MORE:
            self._find_head()
        if self.need is Need.BODY:
            self._find_end()
        return self.need

    def whole(self) -> bytes:
        """The request as the parser is to see it, and what came behind it."""
        data, at, content = self.data, self._body_at, bytearray()
        if self._ends_at is not None or not self._content:
            return bytes(data)
        while at < self._chunk_at:
            begin = data.index(b"\r\n", at) + 2
            size = int(_SIZE.match(data, at)[0], 16)  # type: ignore[index] # it was passed over before
            content += memoryview(data)[begin : begin + size]
            at = begin + size + 2
        return b"".join((data[: self._body_at], b"%x\r\n" % len(content), content, b"\r\n", data[self._chunk_at :]))

    @property
    def is_simple(self) -> bool:
        """Is it all there, with a body of known length and nothing behind it?"""
        return self._ends_at == len(self.data) and not self.expects and not self.too_long

    def parts(self, begin: int) -> tuple[bytes, bytes]:
        """Of a simple one, the head without its first `begin` bytes and its end, and the body."""
        return bytes(self.data[begin : self._body_at - len(_HEAD_END)]), bytes(self.data[self._body_at :])

    @property
    def line(self) -> bytes:
        """The beginning of its first line."""
        return bytes(self.data[:64])

    @property
    def expected_bytes(self) -> int:
        """Of its body, as far as that is known."""
        return self._sizes.body if self._ends_at is None else self._ends_at - self._body_at

    def _find_head(self) -> None:
        while self.data.startswith(b"\r\n"):  # left over from the body before, by some clients
            del self.data[:2]
            self._searched = 0
        found = self.data.find(_HEAD_END, max(0, self._searched - 3))
        self._searched = len(self.data)
        if found > self._sizes.head or (found < 0 and len(self.data) > self._sizes.head):
            self.need = Need.SMALLER_HEAD
        elif found >= 0:
            self._body_at = self._chunk_at = found + len(_HEAD_END)
            self._read_head(bytes(self.data[:found]))

    def _read_head(self, head: bytes) -> None:
        lengths, codings = [], []
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            match name.lower():
                case b"content-length":
                    lengths.append(value.strip(b" \t"))
                case b"transfer-encoding":
                    codings.append(value.strip(b" \t").lower())
                case b"expect":
                    self.expects = value.strip(b" \t").lower() == b"100-continue"
        self.need = Need.BODY
        if codings == [b"chunked"] and not lengths:
            return
        if codings or not all(map(_DIGITS.fullmatch, lengths)) or len(lengths) > 1:
            lengths = []  # of two minds about its own end: the parser refuses it at once
        length = int(lengths[0]) if lengths else 0
        self.too_long = length > self._sizes.body
        self._ends_at = self._body_at + (0 if self.too_long else length)

    def _find_end(self) -> None:
        if self._ends_at is not None:
            if len(self.data) >= self._ends_at:
                self.need = Need.NOTHING
            return
        while self.need is Need.BODY and self._next_chunk():
            pass
        if self.need is Need.BODY and len(self.data) - self._body_at > self._sizes.framed:
            self.need = Need.SMALLER_BODY

    def _next_chunk(self) -> bool:
        """Pass over one chunk; False: it is not all here."""
        end = self.data.find(b"\r\n", self._chunk_at, self._chunk_at + _LONGEST_CHUNK_LINE)
        if end < 0:
            if len(self.data) - self._chunk_at >= _LONGEST_CHUNK_LINE or b"\n" in self.data[self._chunk_at :]:
                self.need = Need.SOUND_CHUNKS
            return False
        told = _CHUNK.fullmatch(self.data, self._chunk_at, end)
        if told is None:
            self.need = Need.SOUND_CHUNKS
            return False
        size = int(told[1], 16)
        if size == 0:
            return self._find_trailers(end)
        if self._content + size > self._sizes.body:
            self.need = Need.SMALLER_BODY
            return False
        after = end + 2 + size
        if len(self.data) < after + 2:
            return False
        if self.data[after : after + 2] != b"\r\n":
            self.need = Need.SOUND_CHUNKS
            return False
        self._chunk_at, self._content = after + 2, self._content + size
        if self._chunk_at - self._body_at - self._content > self._sizes.frames(self._content):
            self.need = Need.SMALLER_BODY
            return False
        return True

    def _find_trailers(self, last_line_end: int) -> bool:
        found = self.data.find(_HEAD_END, last_line_end)
        if found >= 0:
            self.need = Need.NOTHING
        elif len(self.data) - last_line_end > self._sizes.head:
            self.need = Need.SMALLER_HEAD
        return False
