"""Labels of worker processes, and what tasks require of them.

A process claims no jobs of a task whose requirements its labels do not meet: it leaves the task out of its list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Labels = Mapping[str, bool | str]


def find_unmet(requires: Labels, labels: Labels) -> dict[str, bool | str]:
    """Return the requirements that these labels do not meet. A missing label is as good as false."""
    return {name: value for name, value in requires.items() if labels.get(name, False) != value}


def split_tasks(
    names: Iterable[str], requirements: Mapping[str, Labels], labels: Labels | None
) -> tuple[tuple[str, ...], dict[str, dict[str, bool | str]]]:
    """Return the tasks that a process with these labels serves, and what the others require. None: it serves all."""
    if labels is None:
        return tuple(names), {}
    unserved = {task: dict(requires) for task, requires in requirements.items() if find_unmet(requires, labels)}
    return tuple(name for name in names if name not in unserved), unserved


def format_labels(labels: Labels) -> str:
    """As on the command line: `gpu=true, zone=north`."""
    return ", ".join(
        f"{name}={value if isinstance(value, str) else str(value).lower()}" for name, value in labels.items()
    )


def describe_missing(
    task: str, requires: Labels, labels_of_workers: Iterable[Labels], *, queue: str | None = None
) -> str:
    """Say what no worker has: the requirements that none meets, or all if only together none does."""
    known = list(labels_of_workers)
    missing = {
        name: value for name, value in requires.items() if all(find_unmet({name: value}, labels) for labels in known)
    }
    of_queue = "" if queue is None else f" of queue {queue!r}"
    return (
        f"no live worker{of_queue} has {format_labels(missing or requires)} "
        f"(task {task!r} requires {format_labels(requires)})"
    )
