"""Whether the memory of a worker process is short, so that it takes no new jobs.

Used memory is that of the process's cgroup (version 2 or 1), without file cache that the kernel frees first. A limit
may be set on an outer cgroup: the one with the least room counts. Without a limit it is the memory of the machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dataloader.app import log

_log = log.get(__name__)
_STATM = Path("/proc/self/statm")
_CHECK_INTERVAL_SEC = 1.0
_MAX_PRESSURE_PERCENT = 20.0
_HYSTERESIS_PERCENT = 10.0  # without it a process would stop and resume with each job
_CURRENT_LIMIT_CACHE = (
    ("memory.current", "memory.max", "inactive_file"),
    ("memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file"),
)


def rss_bytes() -> int | None:
    """Return the resident memory of this process, or None if the system does not report it."""
    try:
        pages = int(_STATM.read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class MemoryReading:
    """What the system reports; None: nothing. Pressure is the time in which some task waited, over ten seconds."""

    used_percent: float | None = None
    limit_bytes: int | None = None  # of which `used_percent` is a part
    pressure_percent: float | None = None
    cpu_pressure_percent: float | None = None  # shown only


class MemoryReader:
    """Reads the files of the kernel. One that is missing or has unknown content reports nothing."""

    def __init__(self, proc: Path = Path("/proc"), cgroup_root: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc, self._cgroup_root = proc, cgroup_root

    def read(self) -> MemoryReading:
        levels = list(self._cgroup_levels())
        machine = _machine_usage(_read_table(self._proc / "meminfo"))
        used_percent, limit_bytes, level = None, None, levels[0] if levels else None
        if machine is not None:
            used_percent, limit_bytes = machine
        has_limit = False
        for candidate in levels:
            usage = _cgroup_usage(candidate)
            # Version 1 has no limit as a number larger than any machine.
            if usage is None or (machine is not None and usage[1] > machine[1]):
                continue
            if not has_limit or used_percent is None or usage[0] > used_percent:
                (used_percent, limit_bytes), level, has_limit = usage, candidate, True
        return MemoryReading(
            used_percent,
            limit_bytes,
            self._pressure(level, "memory"),
            self._pressure(level, "cpu"),
        )

    def _cgroup_levels(self) -> Iterator[Path]:
        """The folders of the process's memory cgroup and of those around it, as far as they can be seen."""
        for line in _read_text(self._proc / "self/cgroup").splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if controllers and "memory" not in controllers.split(","):
                continue
            root = self._cgroup_root / "memory" if controllers else self._cgroup_root
            relative = PurePosixPath(path.strip().lstrip("/"))
            if ".." in relative.parts:  # outside of this container's view
                relative = PurePosixPath()
            for part in (relative, *relative.parents):
                if os.path.isdir(root / part):
                    yield root / part

    def _pressure(self, level: Path | None, resource: str) -> float | None:
        in_cgroup = None if level is None else _read_pressure(level / f"{resource}.pressure")
        return in_cgroup if in_cgroup is not None else _read_pressure(self._proc / "pressure" / resource)


@dataclass(frozen=True)
class MemoryState(MemoryReading):
    """The last reading, and whether the process therefore takes no new job while one is running."""

    high: bool = False


class MemoryMonitor:
    """Decides with hysteresis. A thread calls `check` often; at most one call a second reads."""

    def __init__(
        self,
        max_used_percent: float,  # 0: the memory is not watched
        *,
        on_change: Callable[[bool], None],
        read: Callable[[], MemoryReading] | None = None,
    ) -> None:
        self._max_used_percent, self._on_change = max_used_percent, on_change
        self._read = read or MemoryReader().read
        self._next_check_at = 0.0
        self.state: MemoryState | None = None  # written by the checking thread, read by any

    def check(self, now: float) -> None:
        if not self._max_used_percent or now < self._next_check_at:
            return
        self._next_check_at = now + _CHECK_INTERVAL_SEC
        was_high = self.state is not None and self.state.high
        reading = self._read()
        state = self.state = MemoryState(**vars(reading), high=self._is_high(reading, was_high=was_high))
        if state.high != was_high:
            write = _log.warning if state.high else _log.info
            write("worker.memory_changed", **vars(state))
            self._on_change(state.high)

    def _is_high(self, reading: MemoryReading, *, was_high: bool) -> bool:
        return any(
            value is not None and value > limit - (min(_HYSTERESIS_PERCENT, limit / 2) if was_high else 0.0)
            for value, limit in (
                (reading.used_percent, self._max_used_percent),
                (reading.pressure_percent, _MAX_PRESSURE_PERCENT),
            )
        )


def _cgroup_usage(level: Path) -> tuple[float, int] | None:
    """The used part of a cgroup's limit in percent, and the limit; None without a limit."""
    for current_name, limit_name, cache_name in _CURRENT_LIMIT_CACHE:
        current, limit = _read_int(level / current_name), _read_int(level / limit_name)
        if current is not None and limit:
            cache = _read_table(level / "memory.stat").get(cache_name, 0)
            return round(100 * max(0, current - cache) / limit, 1), limit
    return None


def _machine_usage(meminfo: dict[str, int]) -> tuple[float, int] | None:
    total, available = meminfo.get("MemTotal"), meminfo.get("MemAvailable")
    if not total or available is None:
        return None
    return round(100 * (total - available) / total, 1), total * 1024


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""


def _read_int(path: Path) -> int | None:
    text = _read_text(path).strip()
    return int(text) if text.isdecimal() else None


def _read_table(path: Path) -> dict[str, int]:
    """Parse lines of a name and a number."""
    rows = (line.split() for line in _read_text(path).splitlines())
    return {row[0].rstrip(":"): int(row[1]) for row in rows if len(row) > 1 and row[1].isdecimal()}


def _read_pressure(path: Path) -> float | None:
    for line in _read_text(path).splitlines():
        kind, _, values = line.partition(" ")
        name, _, value = values.partition(" ")[0].partition("=")
        if kind == "some" and name == "avg10":
            try:
                return float(value)
            except ValueError:
                return None
    return None
