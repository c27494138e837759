"""Sleeps `sleep1`, `sleep2`, `sleep3` seconds, with a safe point after each: the reference, and a smoke test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipelines.contract import Args, Context, register

_STEPS = ("sleep1", "sleep2", "sleep3")


@register("noop")
def noop(args: Args, ctx: Context) -> Iterator[dict[str, Any]]:
    for done, step in enumerate(_STEPS, 1):
        seconds = float(args.get(step, 0))
        if seconds > 0:
            ctx.sleep(seconds)
        yield {"processed": done, "total": len(_STEPS)}
