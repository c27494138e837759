"""Numbers in sentences for people."""

from __future__ import annotations


def format_count(count: int, noun: str, plural: str | None = None) -> str:
    """`1 job`, `2 jobs`, `12,000 jobs`."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"
