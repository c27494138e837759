"""Reads the log of work on another engine, and writes it to the job's log together with how far it was read."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from dataloader.app.features.offload.rows import DuePoll
from dataloader.pipelines.offload import Executor, OffloadFailed
from dataloader.workers.logs.writer import POSITION_STREAM, JobLogWriter

_MAX_POSITION_LENGTH = 1_000
_NOT_FOLLOWED = "dataloader:not-followed"  # in place of a position


def read_log(executor: Executor, name: str, after: str) -> tuple[list[str], str]:
    """Return the next lines and the position after them. If a database may not be able to store the position, nothing
    more is read: each poll would read the same lines again."""
    if after == _NOT_FOLLOWED:
        return [], after
    try:
        lines, position = executor.logs(name, after)
    except OffloadFailed as error:  # of this work alone: the engine answers
        return [f"… this log is not read any further: {error} …"], _NOT_FOLLOWED
    if position.isascii() and position.isprintable() and len(position) <= _MAX_POSITION_LENGTH:
        return lines, position
    allowed = f"printable ASCII text of at most {_MAX_POSITION_LENGTH:,} characters"
    note = f"… this log is not read any further: the engine's position must be {allowed}, not {position[:80]!a} …"
    return [*lines, note], _NOT_FOLLOWED


def position_line(name: str, run_id: UUID, position: str) -> str:
    """A line of POSITION_STREAM."""
    return f"{name} {run_id} {position}"


def write_log(logs: JobLogWriter, due: DuePoll, lines: Sequence[str], position: str) -> None:
    """Write lines of a waiting job and flush them: the next poll, by any process, reads from the position that commits
    with them."""
    if lines:
        logs.write(due.job_id, due.attempt, "INFO", due.engine, "\n".join(lines))
    logs.write(due.job_id, due.attempt, "INFO", POSITION_STREAM, position_line(due.name, due.run_id, position))
    logs.flush()
