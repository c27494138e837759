"""The part of doctor: schedules that do not fire."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

from dataloader.app.acts.findings import Finding, error, join_names, warning
from dataloader.app.db.statements import Executor


def read_findings(executor: Executor) -> list[Finding]:
    return list(check_schedules(executor))


def check_schedules(executor: Executor, _options: Any = None) -> Iterator[Finding]:
    taken, orphaned, stopped, late = (json.loads(names) for names in executor.execute("schedules_to_check")[0])
    if late:
        yield error(
            "schedules_late",
            f"no process fires what is due: {join_names(late)}",
            "dataloader worker; any worker process fires schedules",
            *(("schedule", name) for name in late),
            schedules=late,
        )
    for name, problem in stopped:
        yield error(
            "schedules_stopped",
            f"the schedule {name} makes no jobs: {problem}",
            f"dataloader schedules edit {shlex.quote(name)} changes a field of it; or correct it in the code",
            ("schedule", name),
            schedule=name,
        )
    if taken:
        yield error(
            "schedules_taken",
            f"declared in code, but people have made schedules of the same name: {join_names(taken)}",
            "; ".join(f"dataloader schedules delete {shlex.quote(name)}" for name in taken)
            + "; then restart a worker with the code, which creates its own; or rename it in the code",
            *(("schedule", name) for name in taken),
            schedules=taken,
        )
    if orphaned:
        yield warning(
            "schedules_orphaned",
            f"no live worker has them in its code, so they do not fire: {join_names(orphaned)}",
            "; ".join(f"dataloader schedules adopt {shlex.quote(name)}" for name in orphaned)
            + "; or delete them, or start a worker with their code",
            schedules=orphaned,
        )
