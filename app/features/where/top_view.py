"""What `dataloader top` shows, and what its keys do: lines of text, without a terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from dataloader.app.cli import text
from dataloader.app.wording import format_count, format_duration

_KEYS = "↑ ↓ choose   s stack   l log   c cancel   Esc back   q quit"
_CONFIRM = "Cancel job {job_id}? y: yes, any other key: no"
_HEADINGS = ("JOB", "TASK", "PROGRESS", "RUNNING", "CPU", "MEMORY", "WHERE")
_GAP = 2
_MIN_WHERE_WIDTH = 20
_MAX_COLUMN_WIDTHS = (11, 28, 26, 12, 5, 8)  # of all but the last


class Verb(StrEnum):
    QUIT = "quit"
    STACK = "stack"
    LOG = "log"
    CANCEL = "cancel"


class Action(NamedTuple):
    """What the view asks for. `job_id` is empty to quit."""

    verb: Verb
    job_id: str = ""


class Line(NamedTuple):
    text: str
    style: str = ""  # bold, dim, reverse or red


@dataclass
class TopView:
    """Used by one thread."""

    jobs: Sequence[text.Payload] = ()
    has_more: bool = False
    problem: str = "Reading …"  # why there is no list; shown above the keys
    notice: str = ""  # of the last act; shown above the keys
    selected: str = ""  # the id of a job
    detail: Sequence[str] = ()  # of the selected job, in place of the list
    detail_verb: Verb | None = None
    _is_confirming: bool = False

    def show_jobs(self, answer: text.Payload) -> None:
        position = self._position
        self.jobs, self.has_more, self.problem = answer["jobs"], answer["has_more"], ""
        if self.jobs and self.selected not in {job["job_id"] for job in self.jobs}:
            self.selected = self.jobs[min(position, len(self.jobs) - 1)]["job_id"]
            self._is_confirming = False

    def show_detail(self, verb: Verb, lines: Sequence[str]) -> None:
        self.detail_verb, self.detail = verb, lines

    def on_key(self, key: str) -> Action | None:
        """Change the view; return what is to be done."""
        self.notice = ""
        if self._is_confirming:
            self._is_confirming = False
            return Action(Verb.CANCEL, self.selected) if key == "y" else None
        if key == "q":
            return Action(Verb.QUIT)
        if key in ("escape", "left"):
            self.detail_verb, self.detail = None, ()
        elif key in ("up", "k", "down", "j") and self.jobs:
            step = -1 if key in ("up", "k") else 1
            self.selected = self.jobs[max(0, min(len(self.jobs) - 1, self._position + step))]["job_id"]
            return Action(self.detail_verb, self.selected) if self.detail_verb is not None else None
        elif key in ("s", "enter", "right") and self.selected:
            return Action(Verb.STACK, self.selected)
        elif key == "l" and self.selected:
            return Action(Verb.LOG, self.selected)
        elif key == "c" and self.selected:
            self._is_confirming = True
        return None

    @property
    def _position(self) -> int:
        return next((n for n, job in enumerate(self.jobs) if job["job_id"] == self.selected), 0)

    def lines(self, width: int, height: int) -> list[Line]:
        """As many lines as the terminal has, none longer than it is wide."""
        more = " and more" if self.has_more else ""
        shown = [Line(f"{format_count(len(self.jobs), 'running job')}{more}", "bold")]
        room = max(1, height - 3)
        if self.detail_verb is not None:
            last = self.detail[-room:] if self.detail_verb is Verb.LOG else self.detail[:room]
            shown += [Line(f"  {line}") for line in last]
        else:
            shown += self._list_lines(width, room)
        shown += [Line("")] * (height - 2 - len(shown))
        if self._is_confirming:
            shown.append(Line(_CONFIRM.format(job_id=self.selected), "reverse"))
        else:
            shown.append(Line(text.one_line(self.problem or self.notice), "red"))
        shown.append(Line(_KEYS, "dim"))
        return [Line(cut(line.text, width), line.style) for line in shown[:height]]

    def _list_lines(self, width: int, room: int) -> Iterator[Line]:
        """The heading and the rows around the selected one."""
        rows = [_cells(job) for job in self.jobs]
        widths = [
            min(max_width, max(_width(row[n]) for row in (_HEADINGS, *rows)))
            for n, max_width in enumerate(_MAX_COLUMN_WIDTHS)
        ]
        shown = [n for n, column in enumerate(widths) if n == 0 or column]
        while len(shown) > 1 and sum(widths[n] + _GAP for n in shown) + _MIN_WHERE_WIDTH > width:
            shown.pop()  # a narrow terminal does without the last ones
        yield Line(_row(_HEADINGS, widths, shown), "dim")
        rows_shown = max(1, room - 1)
        start = max(0, min(self._position - rows_shown // 2, len(rows) - rows_shown))
        for job, row in list(zip(self.jobs, rows, strict=True))[start : start + rows_shown]:
            style = "reverse" if job["job_id"] == self.selected else "red" if job["blocked"] else ""
            yield Line(_row(row, widths, shown), style)
        if not rows and not self.problem:
            yield Line("No job runs.")


def _cells(job: text.Payload) -> tuple[str, ...]:
    cpu = "" if job["cpu_percent"] is None else f"{job['cpu_percent']:.0f} %"
    memory = "" if job["memory_mb"] is None else f"{job['memory_mb']:.0f} MB"
    digits = str(job["job_id"])
    return (
        f"{digits[:4]}…{digits[-6:]}",
        text.one_line(job["task"]),
        text.format_progress(job["progress"]),
        format_duration(job["running_sec"]),
        cpu,
        memory,
        text.one_line(job["summary"]),
    )


def _row(cells: Sequence[str], widths: Sequence[int], shown: Sequence[int]) -> str:
    padded = (cut(cells[n], widths[n]) for n in shown)
    columns = (cell + " " * (widths[n] + _GAP - _width(cell)) for n, cell in zip(shown, padded, strict=True))
    return "".join(columns) + cells[-1]


def _width(raw: str) -> int:
    """How many columns of a terminal a text takes."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.combining(c) else 1 for c in raw)


def cut(raw: str, width: int) -> str:
    """The text in at most so many columns."""
    if _width(raw) <= width:
        return raw
    shown = raw
    while shown and _width(shown) > width - 1:
        shown = shown[:-1]
    return f"{shown}…" if width > 0 else ""
