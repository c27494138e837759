"""Mutants of work on an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.chaos.mutant import Mutant, StatementEdit


def _submit_before_intent() -> None:
    from dataloader.workers.offloads.calls import OffloadCalls
    from dataloader.workers.offloads.handle import RemoteHandle

    intend, submit = OffloadCalls._intend, RemoteHandle.submit
    waiting: dict[str, Callable[[], None]] = {}

    def intend_later(self: OffloadCalls, work: Any, **call: Any) -> None:
        waiting[work.name] = lambda: intend(self, work, **call)

    def submit_first(self: RemoteHandle) -> None:
        submit(self)
        waiting.pop(self.name, lambda: None)()

    OffloadCalls._intend = intend_later  # type: ignore[method-assign]
    RemoteHandle.submit = submit_first  # type: ignore[method-assign]


def _never_attach() -> None:
    from dataloader.workers.offloads.calls import OffloadCalls

    OffloadCalls._reusable = lambda self, rows, digest, options: None  # type: ignore[method-assign]


def _leave_offloads() -> None:
    from dataloader.workers.offloads.stopping import OffloadStopper

    OffloadStopper.run = lambda self: None  # type: ignore[method-assign]


OFFLOAD_MUTANTS: Sequence[Mutant] = (
    Mutant(
        "offload-intent-after-submission",
        "work is submitted to the engine, and its intent written afterwards",
        "offloads",
        patch=_submit_before_intent,
        expects=("offload without intent",),
    ),
    Mutant(
        "offload-not-attached",
        "an attempt ignores what an earlier one has submitted",
        "offloads",
        patch=_never_attach,
        expects=("offload executed again",),
    ),
    Mutant(
        "offload-orphans-not-stopped",
        "neither the attempt that ends nor the poller stops work of a job that has ended",
        "offloads",
        patch=_leave_offloads,
        edits=[
            StatementEdit(
                "claim_offload_polls",
                r" OR coalesce\(j\.status::text NOT IN \('queued', 'running'\), true\)\)",
                ")",
            )
        ],
        expects=("offload left running",),
    ),
)
