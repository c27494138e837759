"""Run ids, drawn in batches: each system call may hand the GIL to another thread."""

from __future__ import annotations

import os
from uuid import UUID


def new_run_ids(count: int) -> list[UUID]:
    return [UUID(text) for text in new_run_id_texts(count)]


def new_run_id_texts(count: int) -> list[str]:
    """Return random UUIDs (version 4) as text."""
    digits = os.urandom(16 * count).hex()
    return [
        f"{digits[n : n + 12]}4{digits[n + 13 : n + 16]}a{digits[n + 17 : n + 32]}" for n in range(0, 32 * count, 32)
    ]
