"""The failure handlers that tasks declare, written to the database when a worker process starts."""

from __future__ import annotations

from dataloader.app.features.failures.rows import Failures
from dataloader.workers.duties import Declaration


def declare(declaration: Declaration) -> None:
    pipelines = declaration.pipelines
    Failures(declaration.executor).declare_handlers(pipelines.names, pipelines.declared_failure_handlers())
