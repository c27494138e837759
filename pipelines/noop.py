"""Sleeps `sleep1`, `sleep2`, `sleep3` seconds, with a safe point after each: the reference, and a smoke test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from dataloader.pipelines.contract import Args, Context, register

_STEPS = ("sleep1", "sleep2", "sleep3")


class NoopArguments(BaseModel):
    """Seconds of each step. Other arguments are let through: load tests number their jobs by them."""

    model_config = ConfigDict(extra="allow", hide_input_in_errors=True)

    sleep1: float = Field(0, allow_inf_nan=False)
    sleep2: float = Field(0, allow_inf_nan=False)
    sleep3: float = Field(0, allow_inf_nan=False)


@register("noop", args=NoopArguments)
def noop(args: Args, ctx: Context) -> Iterator[dict[str, Any]]:
    for done, step in enumerate(_STEPS, 1):
        seconds = float(args.get(step, 0))
        if seconds > 0:
            ctx.sleep(seconds)
        yield {"processed": done, "total": len(_STEPS)}
