"""What the context of a task asks of offloads: work on another engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataloader.workers.offloads.calls import OffloadCalls
from dataloader.workers.offloads.service import local_service

if TYPE_CHECKING:
    from dataloader.workers.context import JobContext


def make_calls(context: JobContext) -> OffloadCalls:
    return OffloadCalls(context, context.settings.offloads or local_service())
