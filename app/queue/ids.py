"""Ids, drawn many at a time: at each question to the system another thread takes the interpreter."""

from __future__ import annotations

import os
import time
from uuid import UUID

_VERSION_7, _VARIANT = 7 << 76, 2 << 62
_OF_RANDOM = 8  # bytes of an id that are chance


def draw_jobs(count: int) -> list[UUID]:
    """As dl_new_id() makes them: they begin with the time, and here each is after the one before."""
    now = time.time_ns() * 4096 // 1_000_000  # to a quarter of a microsecond
    drawn = os.urandom(_OF_RANDOM * count)
    return [_of(now + n, drawn[_OF_RANDOM * n : _OF_RANDOM * (n + 1)]) for n in range(count)]


def _of(time_: int, drawn: bytes) -> UUID:
    milliseconds, rest = time_ >> 12, time_ & 0xFFF
    chance = int.from_bytes(drawn) >> 2  # the variant stands before it
    return UUID(int=milliseconds << 80 | _VERSION_7 | rest << 64 | _VARIANT | chance)


def draw_runs(count: int) -> list[UUID]:
    return [UUID(text) for text in draw_run_texts(count)]


def draw_run_texts(count: int) -> list[str]:
    """Random UUIDs (version 4) as the server reads them."""
    drawn = os.urandom(16 * count).hex()
    return [f"{drawn[n : n + 12]}4{drawn[n + 13 : n + 16]}a{drawn[n + 17 : n + 32]}" for n in range(0, 32 * count, 32)]
