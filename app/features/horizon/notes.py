"""The part of the overview."""

from __future__ import annotations

from collections.abc import Iterator

from dataloader.app.acts.notes import Note
from dataloader.app.db.statements import Executor
from dataloader.app.features.horizon.rows import Horizon
from dataloader.app.features.horizon.sentences import describe_holder


def horizon_notes(executor: Executor) -> Iterator[Note]:
    """The oldest holder alone: those of other kinds matter when it has ended."""
    oldest = next((holder for holder in Horizon(executor).holders() if holder.is_long), None)
    if oldest is not None:
        yield describe_holder(oldest)
