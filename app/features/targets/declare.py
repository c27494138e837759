"""The targets that tasks name, written to the database when a worker process starts."""

from __future__ import annotations

from dataloader.app.features.targets.rows import TargetRows
from dataloader.workers.duties import Declaration


def declare(declaration: Declaration) -> None:
    tasks = declaration.pipelines
    targets = {task.name: task.options.target for task in tasks if task.options.target is not None}
    TargetRows(declaration.executor).declare(tasks.names, targets)
