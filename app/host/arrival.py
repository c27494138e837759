"""A request on its way in: its bytes as they come, and whether they are all there.

It finds ends only (RFC 9112). Everything else in a request is for gunicorn's parser, which gets the same bytes. Refused
here is what that parser would read another way, or find out only while the app reads the body:

- a length or a coding that does not give the body exactly one end: the parser would accept some of them and wait, in a
  thread, for bytes that were not gathered;
- wrongly framed chunks and trailers: the parser raises in the app, which is a 500;
- more chunks than honest clients send: each costs the main thread some microseconds.

A body of many chunks is handed on as one, without trailers: for each chunk the parser copies all that follows it.
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
_TRAILER = re.compile(rb"(" + _WORD + rb"):[\t -~\x80-\xff]*")
_FORBIDDEN_TRAILERS = frozenset({b"authorization", b"content-length", b"host", b"te", b"trailer", b"transfer-encoding"})
_MAX_TRAILER_COUNT = 100
# One search instead of a split: a head of thousands of lines would keep the main thread.
_FRAMING_FIELD = re.compile(
    rb"\r\n(content-length|transfer-encoding|expect)([ \t]*):[ \t]*((?:[^\r]|\r(?!\n))*)", re.IGNORECASE
)
_LONGEST_CHUNK_LINE = 4096
_DIGITS = re.compile(rb"[0-9]+")
_MAX_LENGTH_DIGITS = 15
_FREE_FRAMES = 65_536  # bytes: small bodies may come in any chunks
# Clients write chunks of 4 kB and more, proxies what one read gives; a generator of lines sends one chunk a line.
_FREE_CHUNK_COUNT = 1_000
_MIN_CHUNK_BYTES = 1_024  # on average, of the chunks after those
_MAX_EMPTY_LINES = 2  # before a request line; RFC 9112 2.2 asks for one at least


class Need(Enum):
    """What must happen next with a request."""

    MORE = auto()  # its head is not all here
    BODY = auto()  # its head is, and its body may come
    NOTHING = auto()  # it can be answered
    SMALLER_HEAD = auto()  # the rest: it is refused
    SMALLER_BODY = auto()
    SOUND_CHUNKS = auto()
    FEWER_CHUNKS = auto()
    ONE_FRAMING = auto()
    KNOWN_CODING = auto()
    REQUEST_LINE = auto()


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
        self._next_at = 0  # where a chunked one ends
        self._content = 0  # bytes of all chunks
        self._chunk_count = 0
        self._empty_line_count = 0

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
        if self._ends_at is not None:
            return bytes(data)
        while at < self._chunk_at:
            begin = data.index(b"\r\n", at) + 2
            size = int(_SIZE.match(data, at)[0], 16)  # type: ignore[index] # it was passed over before
            content += memoryview(data)[begin : begin + size]
            at = begin + size + 2
        one_chunk = b"%x\r\n%s\r\n" % (len(content), content) if content else b""
        return b"".join((data[: self._body_at], one_chunk, b"0\r\n\r\n", data[self._next_at :]))

    @property
    def is_chunked(self) -> bool:
        """Does its body come in chunks? Known once the head has been read."""
        return self._ends_at is None

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
            self._empty_line_count += 1
            if self._empty_line_count > _MAX_EMPTY_LINES:
                self.need = Need.REQUEST_LINE
                return
        found = self.data.find(_HEAD_END, max(0, self._searched - 3))
        self._searched = len(self.data)
        if found > self._sizes.head or (found < 0 and len(self.data) > self._sizes.head):
            self.need = Need.SMALLER_HEAD
        elif found >= 0:
            self._body_at = self._chunk_at = found + len(_HEAD_END)
            self._read_head(bytes(self.data[:found]))

    def _read_head(self, head: bytes) -> None:
        lengths, codings, sound = [], [], True
        for name, blank, value in _FRAMING_FIELD.findall(head):
            match name.lower():
                case b"content-length":
                    lengths.append(value.rstrip(b" \t"))
                case b"transfer-encoding":
                    codings += [coding.strip(b" \t").lower() for coding in value.split(b",")]
                case b"expect":
                    self.expects = value.rstrip(b" \t").lower() == b"100-continue"
            sound = sound and not blank  # a blank before the colon: some read it as the field, others do not
        if not sound:
            self.need = Need.ONE_FRAMING
        elif codings:
            self.need = Need.ONE_FRAMING if lengths else _need_for(codings)
        else:
            self._read_length(lengths)

    def _read_length(self, lengths: list[bytes]) -> None:
        if len(lengths) > 1 or not all(map(_DIGITS.fullmatch, lengths)):
            self.need = Need.ONE_FRAMING
        elif lengths and len(lengths[0]) > _MAX_LENGTH_DIGITS:
            self.need = Need.SMALLER_BODY
        else:
            self.need = Need.BODY
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
        line = None if end < 0 else _CHUNK.fullmatch(self.data, self._chunk_at, end)
        if line is None:
            begun = len(self.data) - self._chunk_at
            if end >= 0 or begun >= _LONGEST_CHUNK_LINE or b"\n" in self.data[self._chunk_at :]:
                self.need = Need.SOUND_CHUNKS
            return False
        size = int(line[1], 16)
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
        self._chunk_count += 1
        if self._chunk_count > _FREE_CHUNK_COUNT + self._content // _MIN_CHUNK_BYTES:
            self.need = Need.FEWER_CHUNKS
            return False
        if self._chunk_at - self._body_at - self._content > self._sizes.frames(self._content):
            self.need = Need.SMALLER_BODY
            return False
        return True

    def _find_trailers(self, last_line_end: int) -> bool:
        found = self.data.find(_HEAD_END, last_line_end)
        end = len(self.data) if found < 0 else found
        if end - last_line_end > self._sizes.head or self.data.count(b"\r\n", last_line_end, end) > _MAX_TRAILER_COUNT:
            self.need = Need.SMALLER_HEAD
        elif found >= 0:
            trailers = bytes(self.data[last_line_end + 2 : found]).split(b"\r\n") if found > last_line_end else []
            self.need = Need.NOTHING if all(map(_is_trailer, trailers)) else Need.SOUND_CHUNKS
            self._next_at = found + len(_HEAD_END)
        return False


def _need_for(codings: list[bytes]) -> Need:
    """What must happen next with a body of these transfer codings (RFC 9112, 6.1 and 6.3)."""
    if codings == [b"chunked"]:
        return Need.BODY
    if codings[-1] == b"chunked" and codings.count(b"chunked") == 1:
        return Need.KNOWN_CODING
    return Need.ONE_FRAMING  # its end cannot be known


def _is_trailer(line: bytes) -> bool:
    field = _TRAILER.fullmatch(line)
    return field is not None and field[1].lower() not in _FORBIDDEN_TRAILERS
