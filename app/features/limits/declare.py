"""The breakers that tasks declare, written to the database when a worker process starts."""

from __future__ import annotations

from dataloader.app.features.limits.breakers import Breakers
from dataloader.workers.duties import Declaration


def declare(declaration: Declaration) -> None:
    Breakers(declaration.executor).declare(declaration.pipelines.declared_breakers())
