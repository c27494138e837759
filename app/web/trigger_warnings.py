"""Reasons to doubt that a job will ever run, by what the live workers are known to serve."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches

from app.admin.queues import LiveWorker, QueueSettings, QueueState

NO_WORKER_WARNING = "no worker process is live; the job waits until one is started"
# To compare two names costs up to half a millisecond, and a caller who may trigger jobs chooses one of them.
_MAX_NAME_LENGTH = 100  # characters of a name for which a similar one is looked for, and of that one
_MAX_NEIGHBOURS = 10  # names compared on each side, in the order of their beginnings and in that of their ends
_MIN_SIMILARITY = 0.75

IsVisible = Callable[[str], bool]


def run_warnings(
    queue: str,
    task: str,
    workers: Sequence[LiveWorker],
    rule: QueueSettings | None,
    *,
    can_see_queue: IsVisible = lambda _: True,
    can_see_task: IsVisible = lambda _: True,
    suggest: bool = True,
) -> list[str]:
    """List the reasons why no live worker would claim a job of this task in this queue; empty if one would.

    With `suggest`, a similar name is suggested if the caller may know it.
    """
    found = []
    if rule is not None and rule.state is QueueState.PAUSED:
        note = f": {rule.note}" if rule.note else ""
        found.append(f"queue {queue!r} is paused{note}")
    if not workers:
        return [*found, NO_WORKER_WARNING]
    serving = [worker for worker in workers if queue in worker.queues]
    knowing = [worker for worker in serving if task in worker.tasks]
    if not serving:
        names = {name for worker in workers for name in worker.queues if can_see_queue(name)}
        found.append(f"no live worker serves queue {queue!r}{_suggestion(queue, names) if suggest else ''}")
    if not any(task in worker.tasks for worker in workers):
        names = {name for worker in serving or workers for name in worker.tasks if can_see_task(name)}
        found.append(f"no live worker knows {task!r}{_suggestion(task, names) if suggest else ''}")
    elif serving and not knowing:
        found.append(f"no live worker of queue {queue!r} knows {task!r}")
    elif knowing and not any(worker.can_claim for worker in knowing):
        found.append(f"all live workers of queue {queue!r} that know {task!r} are drained or shut down")
    return found


def _suggestion(name: str, names: Iterable[str]) -> str:
    if len(name) > _MAX_NAME_LENGTH:
        return ""
    short = [other for other in names if len(other) <= _MAX_NAME_LENGTH]
    close = _neighbours(name, short) | {other[::-1] for other in _neighbours(name[::-1], [n[::-1] for n in short])}
    near = get_close_matches(name, sorted(close), n=1, cutoff=_MIN_SIMILARITY)
    return f"; did you mean {near[0]!r}?" if near else ""


def _neighbours(name: str, names: Sequence[str]) -> set[str]:
    """The names that sort next to this one. A misspelt name has the first, or the last, letters of the right one."""
    in_order = sorted(names)
    at = bisect_left(in_order, name)
    return set(in_order[max(0, at - _MAX_NEIGHBOURS) : at + _MAX_NEIGHBOURS])
