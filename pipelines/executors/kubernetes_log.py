"""Reads the log of a pod from a position: the time of the last line that was read, and how many lines of that time.

Kubernetes sends a log from a second on, with the time of each line. So a log is read once, and not whole each time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from dataloader.pipelines.offload import MAX_LOG_LINES, RESULT_PREFIX, OffloadFailed, check_json_result

_MAX_SKIPPED_BYTES = 64_000_000  # of the second in which the position is
_MAX_PIECE_BYTES = 2_000_000  # of lines that are returned at a time
_MAX_LINE_BYTES = 256_000
_MAX_RESULT_LINE_BYTES = 2_000_000  # longer than a result may be
_CUT_NOTE = " … this line is longer; the rest is left out …"
_TIME = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) ?")


@dataclass(frozen=True, order=True)
class Position:
    """Behind `count` lines of one time; at the beginning of the log by default."""

    second: int = 0
    nanosecond: int = 0
    count: int = 0

    @classmethod
    def parse(cls, text: str) -> Position:
        return cls(*map(int, text.split())) if text else cls()

    def __str__(self) -> str:
        return f"{self.second} {self.nanosecond} {self.count}" if self.count else ""

    @property
    def since(self) -> str | None:
        """The parameter `sinceTime`, which counts whole seconds."""
        return datetime.fromtimestamp(self.second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if self.second else None


def read_lines(pieces: Iterable[bytes], after: Position, *, is_over: bool) -> tuple[list[str], Position]:
    """The lines behind a position, at most MAX_LOG_LINES; the begun last one only if no more comes."""
    lines: list[str] = []
    size = skipped = 0
    position = after
    time, count = (0, 0), 0  # of the line before; how many lines of this time there were
    for line, is_whole in _split(pieces, _MAX_LINE_BYTES):
        if not (is_whole or is_over):
            break
        match = _TIME.match(line)
        line_time = time if match is None else _parse_time(match)
        time, count = line_time, count + 1 if line_time == time else 1
        here = Position(*time, count)
        if here <= after:
            skipped += len(line)
            if skipped > _MAX_SKIPPED_BYTES:
                raise OffloadFailed(f"it has more than {_MAX_SKIPPED_BYTES:,} bytes in one second")
            continue
        text = line if match is None else line[match.end() :]
        lines.append(text.decode("utf-8", "replace").rstrip("\r"))
        position, size = here, size + len(line)
        if len(lines) == MAX_LOG_LINES or size >= _MAX_PIECE_BYTES:
            break
    return lines, position


def _parse_time(match: re.Match[bytes]) -> tuple[int, int]:
    second, fraction, zone = (part.decode() if part else "" for part in match.groups())
    moment = datetime.fromisoformat(second + zone.replace("Z", "+00:00"))
    return int(moment.timestamp()), int(fraction.ljust(9, "0"))


def find_result(pieces: Iterable[bytes]) -> object:
    """The last `::result JSON` of a log without times; None without one. Of a long log one line at a time is kept."""
    prefix, last = RESULT_PREFIX.encode(), None
    for line, _ in _split(pieces, _MAX_RESULT_LINE_BYTES):
        for part in line.split(b"\r"):
            if part.startswith(prefix):
                last = part
    return None if last is None else check_json_result(last[len(prefix) :].decode("utf-8", "replace"))


def _split(pieces: Iterable[bytes], max_bytes: int) -> Iterator[tuple[bytes, bool]]:
    """Lines, and whether each has ended. Of a longer one the beginning, with a note."""
    line = bytearray()
    is_cut = False
    for piece in pieces:
        *ended, begun = piece.split(b"\n")
        for part in ended:
            line += part
            yield _cut(line, max_bytes, is_cut=is_cut), True
            line.clear()
            is_cut = False
        line += begun
        if len(line) > max_bytes:
            del line[max_bytes:]
            is_cut = True
    if line:
        yield _cut(line, max_bytes, is_cut=is_cut), False


def _cut(line: bytearray, max_bytes: int, *, is_cut: bool) -> bytes:
    if is_cut or len(line) > max_bytes:
        return bytes(line[:max_bytes]) + _CUT_NOTE.encode()
    return bytes(line)
