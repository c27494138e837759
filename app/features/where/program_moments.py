"""What a program of an attempt does at a moment, by the tree of its processes: names, states and CPU time."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from dataloader.app.features.where.process_tree import ProcessStat, read_process
from dataloader.workers import syscalls

_MAX_PROCESSES, _MAX_THREADS = 50, 30
_COMPUTES_SHARE = 0.5
_KINDS = {
    "running": "program", "sleep": "sleep", "socket": "network", "poll": "network", "sync": "file", "file": "file",
    "file lock": "file", "futex": "threads", "child": "child", "memory": "memory",
}  # fmt: skip


class ProgramMoments:
    """Looks at the processes below one, again and again."""

    def __init__(self, root: int, now: float) -> None:
        self._root, self._looked_at = root, now
        self._cpu_sec: dict[int, float] = {}
        self.cpu_sec, self.peak_mb, self.memory_mb = 0.0, 0.0, 0.0

    def look(self, now: float) -> dict[str, Any] | None:
        """Describe the time since the last look; None: there is no process."""
        tree = _read_tree(self._root)
        if not tree:
            return None
        span = max(0.001, now - self._looked_at)
        self._looked_at = now
        spent = {stat.pid: max(0.0, stat.cpu_sec - self._cpu_sec.get(stat.pid, stat.cpu_sec)) for stat in tree}
        self.cpu_sec += sum(spent.values())
        self._cpu_sec = {stat.pid: stat.cpu_sec for stat in tree}
        self.memory_mb = sum(stat.memory_mb for stat in tree)
        self.peak_mb = max(self.peak_mb, self.memory_mb)
        busiest = max(tree, key=lambda stat: spent[stat.pid])
        if all(stat.state in ("stopped", "traced") for stat in tree):
            kind, detail, shown = "stopped", None, tree[-1]
        elif sum(spent.values()) >= _COMPUTES_SHARE * span:
            kind, detail, shown = "program", None, busiest
        else:
            shown = tree[-1]  # the deepest: those above wait for it
            kind, detail = _read_kind(shown.pid)
        place = f"{shown.name} (a program)"
        return {
            "sec": span, "kind": kind, "detail": detail, "place": place, "calls": None, "handles": None,
            "driver": kind in ("network", "other"), "interpreter_sec": 0.0, "queued_sec": 0.0,
        }  # fmt: skip


def _read_kind(pid: int) -> tuple[str, str | None]:
    wait, argument = syscalls.read_wait_of(f"/proc/{pid}")
    if wait != "descriptor":
        return _KINDS.get(wait, "other"), None
    what = syscalls.describe_descriptor(f"/proc/{pid}", argument)
    if what in ("pipe", "terminal"):
        return "input", what
    return ("network" if what == "socket" else "file"), None


def _read_tree(root: int) -> list[ProcessStat]:
    """The processes below `root`, each after its parent."""
    tree: list[ProcessStat] = []
    pending = _children(root)
    while pending and len(tree) < _MAX_PROCESSES:
        pid = pending.pop(0)
        stat = read_process(pid)
        if stat is not None and stat.state != "ended":
            tree.append(stat)
            pending += _children(pid)
    return tree


def _children(pid: int) -> list[int]:
    children: list[int] = []
    with suppress(OSError, ValueError):
        for thread in os.listdir(f"/proc/{pid}/task")[:_MAX_THREADS]:
            children += [int(child) for child in syscalls.read_file(f"/proc/{pid}/task/{thread}/children").split()]
    return children


def read_child_state(root: int) -> ProcessStat | None:
    """The process of a task, which the watchdog `root` has started."""
    children = _children(root)
    return read_process(children[0]) if children else None
