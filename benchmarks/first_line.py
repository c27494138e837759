"""The tasks of the isolation benchmark. Their module imports no more than a small module of a user does."""

from __future__ import annotations

import os
from typing import Any

from dataloader.pipelines.contract import Context, register
from dataloader.pipelines.portable import clock


@register("bench.of_code", isolation="process")
def first_line() -> float:
    """Return when the first line of the job ran."""
    return clock()


def wait_for_file(args: dict[str, Any], ctx: Context) -> None:
    """Run until the file is there."""
    ctx.progress(pid=os.getpid(), watchdog=os.getppid())
    while not os.path.exists(args["file"]):
        ctx.sleep(0.1)
