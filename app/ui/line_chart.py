"""A chart of lines over time, as charts.js draws it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

# Lines whose colours dashboard.css and charts.js have by name.
_NAMED = frozenset({
    "blocked", "canceled", "failed", "high", "limited", "lost", "low", "p50", "p95", "queued", "ready", "retries",
    "running", "scheduled", "succeeded", "value", "waiting",
})  # fmt: skip
_OTHER_COLORS = 7  # of lines with other names, such as those of tasks, in turn


@dataclass(frozen=True)
class LineChart:
    """One chart: its times and a line for each name."""

    title: str
    unit: str
    names: tuple[str, ...]
    timestamps: list[int]  # seconds since 1970
    values: list[list[float | None]]
    is_evenly_spaced: bool = False  # one point after the other, however much time lies between them

    @property
    def as_json(self) -> str:
        chart: dict[str, Any] = {"unit": self.unit, "names": self.names, "data": [self.timestamps, *self.values]}
        if self.is_evenly_spaced:
            chart |= {"times": self.timestamps, "data": [list(range(len(self.timestamps))), *self.values]}
        return json.dumps(chart)

    @property
    def figures(self) -> list[tuple[str, float | None, float | None]]:
        """Of each line its name, its last value and its largest one."""
        known = [[value for value in line if value is not None] for line in self.values]
        return [
            (name, line[-1] if line else None, max(line, default=None))
            for name, line in zip(self.names, known, strict=True)
        ]

    @property
    def classes(self) -> dict[str, str]:
        """Of each line the class that has its colour."""
        return {
            name: f"series-{name}" if name in _NAMED else f"series-{n % _OTHER_COLORS}"
            for n, name in enumerate(self.names)
        }

    @property
    def segments(self) -> list[tuple[str, str]]:
        """Of each part of a line without a gap its name and its points, in a box of 600 × 200: the chart without
        scripts."""
        top = max((value for line in self.values for value in line if value is not None), default=0) or 1
        step = 600 / max(1, len(self.timestamps) - 1)
        found = []
        for name, line in zip(self.names, self.values, strict=True):
            points: list[str] = []
            for index, value in enumerate([*line, None]):
                if value is not None:
                    points.append(f"{index * step:.1f},{200 - 190 * max(0, value) / top:.1f}")
                elif points:
                    found.append((name, " ".join(points)))
                    points = []
        return found

    @property
    def has_data(self) -> bool:
        return any(any(line) for line in self.values)

    @property
    def rows(self) -> list[tuple[int, list[float | None]]]:
        """The buckets that hold data as rows of a table, the newest first."""
        rows = zip(self.timestamps, map(list, zip(*self.values, strict=True)), strict=True)
        return [(at, values) for at, values in rows if any(values)][::-1]
