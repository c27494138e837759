"""The part of doctor: whether old jobs are deleted."""

from __future__ import annotations

from collections.abc import Iterator

from dataloader.app.acts.findings import Finding, info
from dataloader.app.db.statements import Executor


def check_retention(executor: Executor, is_decided: bool | None) -> Iterator[Finding]:
    """`is_decided`: DL_RETENTION_ENABLED is set."""
    if executor.execute("is_retention_paused")[0][0] and not is_decided:
        yield info(
            "retention",
            "the tables were upgraded from version 0, and workers delete nothing from them",
            "DL_RETENTION_ENABLED=true lets workers delete what is older than DL_KEEP_…, "
            "DL_RETENTION_ENABLED=false keeps everything",
        )
