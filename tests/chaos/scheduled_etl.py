"""Pipelines of a campaign that have schedules and slices."""

from __future__ import annotations

import random
from typing import Any

from dataloader.pipelines.contract import Context, Hourly, register, schedule
from tests.chaos.etl import RETRY_POLICY
from tests.chaos.observer import observed_run, pass_safe_point

FIRST_SLICE = "2026-01-01T00"
DECLARED_SCHEDULE = "declared"
_FAILURES = 0.4  # of the runs of a slice


@schedule(every=2, name=DECLARED_SCHEDULE, queue="chaos", overlap="allow", catch_up="all", catch_up_max=1000)
@register("chaos.declared", retry=RETRY_POLICY)
def declared(args: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """Has a schedule in its code, which each process that starts declares again."""
    with observed_run(ctx) as run:
        ctx.progress(1, 1, run=run)
        pass_safe_point(ctx)
    return {"run": run}


@register("chaos.slice", retry=RETRY_POLICY, queue="chaos", partitions=Hourly(FIRST_SLICE))
def load_slice(args: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """Loads a slice; some runs fail."""
    with observed_run(ctx) as run:
        ctx.progress(run=run)
        for _ in range(max(1, int(args["seconds"] * 5))):
            pass_safe_point(ctx)
            ctx.sleep(0.2)
        if random.random() < _FAILURES:
            raise RuntimeError(f"failed on purpose in run {run}")
    return {"run": run}
