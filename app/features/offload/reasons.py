"""That a job waits for work that it gave to another engine."""

from __future__ import annotations

from collections.abc import Iterator

from dataloader.app.acts.reasons import MAX_LISTED, ExplanationReason, ReasonCode, Reasons, WaitingJob
from dataloader.app.features.offload.rows import Offload, Offloads
from dataloader.app.wording import format_duration


class OffloadReasons(Reasons):
    def of_job(self, waiting: WaitingJob) -> Iterator[ExplanationReason]:
        if waiting.wait_state == "waiting":
            offloads = Offloads(self.executor.execute).of_job(waiting.job.id)
            if awaited := [offload for offload in offloads if offload.is_awaited]:
                yield engine_reason(awaited)


def engine_reason(awaited: list[Offload]) -> ExplanationReason:
    shown = ", ".join(f"{offload.name} on {offload.engine}" for offload in awaited[:MAX_LISTED])
    more = len(awaited) - MAX_LISTED
    away = next((offload for offload in awaited if offload.unavailable_sec is not None), None)
    silent_for = "" if away is None else format_duration(away.unavailable_sec)
    outage = "" if away is None else f" The engine {away.engine!r} has not answered for {silent_for}."
    pending = next((offload for offload in awaited if offload.detail and away is None), None)
    cause = "" if pending is None else f" {pending.name} has not started: {pending.detail}"
    message = f"It waits for the end of {shown}{f' and {more} more' if more > 0 else ''}.{outage}{cause}"
    details = {
        "offloads": [
            {"name": o.name, "engine": o.engine, "address": o.address, "detail": o.detail} for o in awaited[:MAX_LISTED]
        ]
    }
    return ExplanationReason(ReasonCode.WAITS_FOR_ENGINE, message, details)
