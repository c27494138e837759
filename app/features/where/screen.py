"""The whole terminal as a screen: drawn at once, keys one by one, and left as it was found."""

from __future__ import annotations

import os
import re
import select
import sys
import termios
import tty
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from dataloader.app.features.where.top_view import Line

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _END_OF_LINE, _END_OF_SCREEN = "\x1b[H", "\x1b[0m\x1b[K", "\x1b[J"
_STYLES = {"": "", "bold": "\x1b[1m", "dim": "\x1b[2m", "reverse": "\x1b[7m", "red": "\x1b[31m"}
_KEYS = {
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1bOA": "up", b"\x1bOB": "down", b"\x1b[C": "right", b"\x1b[D": "left",
    b"\x1b": "escape", b"\r": "enter", b"\n": "enter",
}  # fmt: skip
_SEQUENCE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.)")
_MAX_KEY_BYTES = 64
_DEFAULT_SIZE = (80, 24)  # of a terminal that does not say


class Screen:
    """The terminal of this process. Ctrl-C stays what it is."""

    def __enter__(self) -> Self:
        self._input, self._output = sys.stdin.fileno(), sys.stdout.fileno()
        self._drawn: list[Line] = []
        self._pressed = b""  # keys that were not returned yet
        self._before = termios.tcgetattr(self._input)
        tty.setcbreak(self._input)
        self._write(_ENTER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._write(_LEAVE)
        termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        with suppress(OSError):
            size = os.get_terminal_size(self._output)
            return size.columns or _DEFAULT_SIZE[0], size.lines or _DEFAULT_SIZE[1]
        return _DEFAULT_SIZE

    def draw(self, lines: Sequence[Line]) -> None:
        """Draw these lines, if they are others than the last."""
        if list(lines) == self._drawn:
            return
        self._drawn = list(lines)
        drawn = (f"{_STYLES[line.style]}{line.text}{_END_OF_LINE}" for line in lines)
        self._write(_HOME + "\r\n".join(drawn) + _END_OF_SCREEN)

    def read_key(self, timeout_sec: float) -> str | None:
        """The next key, such as `s` or `up`; None: there was none in time. Raises EOFError if the terminal is gone."""
        if not self._pressed:
            if not select.select([self._input], [], [], timeout_sec)[0]:
                return None
            self._pressed = os.read(self._input, _MAX_KEY_BYTES)
            if not self._pressed:
                raise EOFError
        key, self._pressed = split_key(self._pressed)
        return key

    def _write(self, raw: str) -> None:
        data = raw.encode("utf-8", "replace")
        while data:
            data = data[os.write(self._output, data) :]


def split_key(pressed: bytes) -> tuple[str, bytes]:
    """The first key of what a terminal has sent, and the rest. An unknown sequence is a key without a meaning."""
    found = _SEQUENCE.match(pressed)
    key = pressed[:1] if found is None else found[0]
    return _KEYS.get(key) or key[:1].decode("ascii", "replace"), pressed[len(key) :]
