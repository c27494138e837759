"""The processes of an attempt, as the kernel has them: names and figures, no arguments. Of Linux alone."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

MAX_PROCESSES = 50
_PROC = "/proc"
_FIELDS_AFTER_NAME = 22  # of /proc/<pid>/stat, up to the resident pages
_STATES = {"R": "running", "S": "sleeping", "D": "waiting for a device", "T": "stopped", "t": "traced", "Z": "ended",
           "I": "idle", "X": "ended"}  # fmt: skip


@dataclass(frozen=True)
class ProcessStat:
    """A process or thread at one moment. `name` is the name of its program, without arguments."""

    pid: int
    parent_pid: int
    group: int
    session: int
    name: str
    state: str
    cpu_sec: float
    threads: int
    memory_mb: float


def read_processes() -> dict[int, ProcessStat]:
    """Every process that this one can see."""
    with suppress(OSError):
        pids = [int(name) for name in os.listdir(_PROC) if name.isdecimal()]
        return {stat.pid: stat for pid in pids if (stat := read_process(pid)) is not None}
    return {}


def read_process(pid: int) -> ProcessStat | None:
    """None: it is gone."""
    return read_stat(f"{_PROC}/{pid}/stat")


def read_thread(native_id: int) -> ProcessStat | None:
    """A thread of this process."""
    return read_stat(f"{_PROC}/self/task/{native_id}/stat")


def read_stat(path: str) -> ProcessStat | None:
    """None: it is gone."""
    try:
        with open(path, "rb") as file:
            line = file.read()
        # The name is in brackets, and may have any byte in it.
        head, _, tail = line.rpartition(b")")
        pid, _, name = head.partition(b" (")
        fields = tail.split()
        if len(fields) < _FIELDS_AFTER_NAME:
            return None
        ticks, page_size = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
        return ProcessStat(
            pid=int(pid),
            parent_pid=int(fields[1]),
            group=int(fields[2]),
            session=int(fields[3]),
            name=name.decode("utf-8", "replace"),
            state=_STATES.get(fields[0].decode("ascii", "replace"), "unknown"),
            cpu_sec=(int(fields[11]) + int(fields[12])) / ticks,
            threads=int(fields[17]),
            memory_mb=round(int(fields[21]) * page_size / 1_048_576, 1),
        )
    except (OSError, ValueError):
        return None


def select_tree(processes: Mapping[int, ProcessStat], root: int) -> list[tuple[ProcessStat, int]]:
    """The processes below `root`, and those of its session whose parents are gone, each with its depth; without `root`
    itself."""
    children: dict[int, list[ProcessStat]] = {}
    for stat in processes.values():
        children.setdefault(stat.parent_pid, []).append(stat)
    tree: list[tuple[ProcessStat, int]] = []
    seen = {root}
    _add_below(children, children.get(root, ()), 0, seen, tree)
    orphans = [stat for stat in processes.values() if stat.session == root and stat.pid not in seen]
    _add_below(children, orphans, 0, seen, tree)
    return tree


def _add_below(
    children: Mapping[int, list[ProcessStat]],
    begin: Iterable[ProcessStat],
    depth: int,
    seen: set[int],
    tree: list[tuple[ProcessStat, int]],
) -> None:
    pending = [(stat, depth) for stat in sorted(begin, key=lambda stat: -stat.pid)]
    while pending:
        stat, depth = pending.pop()
        if stat.pid in seen:
            continue
        seen.add(stat.pid)
        tree.append((stat, depth))
        below = sorted(children.get(stat.pid, ()), key=lambda child: -child.pid)
        pending += [(child, depth + 1) for child in below]
