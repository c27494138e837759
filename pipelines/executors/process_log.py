"""Reads the log of a child process in pieces, by the position in its file."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from dataloader.pipelines.offload import MAX_LOG_LINES

MAX_LINE_BYTES = 256_000
_CUT_NOTE = f" … this line has more than {MAX_LINE_BYTES:,} bytes; the rest is left out …"
_IN_CUT_LINE = "+"  # behind a position: the rest of its line is left out


def read_lines(path: Path, after: str, *, is_over: bool) -> tuple[list[str], str]:
    """The next lines, and the position behind them. The begun last one only if no more comes."""
    with path.open("rb") as file:
        position = file.seek(int(after.rstrip(_IN_CUT_LINE) or 0))
        if after.endswith(_IN_CUT_LINE):
            position, has_ended = _skip_line(file)
            if not has_ended:
                return [], f"{position}{_IN_CUT_LINE}"
        content = file.read(MAX_LINE_BYTES)
    whole = content[: content.rfind(b"\n") + 1]
    if not whole and len(content) == MAX_LINE_BYTES:
        return [content.decode("utf-8", "replace") + _CUT_NOTE], f"{position + len(content)}{_IN_CUT_LINE}"
    if is_over and len(content) < MAX_LINE_BYTES:
        whole = content
    lines = whole.removesuffix(b"\n").split(b"\n")[:MAX_LOG_LINES] if whole else []
    size = min(len(whole), sum(len(line) + 1 for line in lines))
    return [line.decode("utf-8", "replace") for line in lines], str(position + size)


def _skip_line(file: BinaryIO) -> tuple[int, bool]:
    """Go behind the end of the line; return the position, and whether the end is there."""
    while content := file.read(MAX_LINE_BYTES):
        end = content.find(b"\n")
        if end >= 0:
            return file.seek(end + 1 - len(content), 1), True
    return file.tell(), False
