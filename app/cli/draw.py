"""What a terminal is shown: tables that fit its width, and a bar that moves. The only module that imports rich.

NO_COLOR, COLUMNS and TERM=dumb are honoured by rich itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from app.cli import text
from app.client import JobState
from app.queue.job import Status

GAP, NARROWEST = 2, 8
ALWAYS = 2  # columns that are never left out
EVEN = 4  # in how many steps an excess is spread over the columns
COLOURS = {
    Status.QUEUED: "cyan",
    Status.RUNNING: "blue",
    Status.SUCCEEDED: "green",
    Status.FAILED: "red",
    Status.CANCELED: "yellow",
    Status.LOST: "magenta",
}


def table(names: Sequence[str], rows: Sequence[Sequence[str]], *, whole: Sequence[str] = ()) -> None:
    """A table as wide as the terminal at most.

    Columns named in `whole` are never cut. The others are shortened, the widest first; where that would make them too
    narrow to be read, the last columns are left out. So are those without any content. A terminal too narrow for
    even that gets whole lines, and wraps them.
    """
    console = Console()
    shown = [i for i in range(len(names)) if names[i] in whole or any(row[i] for row in rows)]
    widths = {i: max(len(names[i]), *(cell_len(row[i]) for row in rows)) for i in shown}
    least = {i: width if names[i] in whole else min(width, NARROWEST) for i, width in widths.items()}
    while len(shown) > ALWAYS and _taken(least, shown) > console.width:
        shown.pop()
    if _taken(least, shown) > console.width:
        console.print("\n".join(text.columns(names, rows)), markup=False, highlight=False, soft_wrap=True)
        return
    while (excess := _taken(widths, shown) - console.width) > 0:
        widest = max(shown, key=lambda i: widths[i] - least[i])
        widths[widest] = max(least[widest], widths[widest] - max(1, excess // EVEN))

    drawn = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for i in shown:
        drawn.add_column(names[i], no_wrap=True, overflow="ellipsis", width=widths[i])
    for row in rows:
        drawn.add_row(*(_cell(row[i]) for i in shown))
    console.print(drawn, crop=False)


def _taken(widths: Mapping[int, int], shown: Sequence[int]) -> int:
    return sum(widths[i] + GAP for i in shown) - GAP


def _cell(value: str) -> Text:
    # Text, not str: a name with [brackets] in it is not markup.
    return Text(value, style=COLOURS[Status(value)] if value in set(Status) else "")


def can_move() -> bool:
    """Whether the terminal can redraw a line; a dumb one gets lines below each other."""
    return Console().is_terminal and not Console().is_dumb_terminal


class Amount:
    """How many of many are done, as one moving line; where nothing can move, nothing is shown."""

    def __init__(self, total: int | None) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            TextColumn("{task.fields[told]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=not can_move(),
        )
        self._line = self._progress.add_task("", total=total, told="")

    def __enter__(self) -> Amount:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, done: int, told: str) -> None:
        self._progress.update(self._line, completed=done, told=told)

    def say(self, line: str) -> None:
        self._progress.console.print(Text(line), soft_wrap=True)


class Bar:
    """A watched job as one moving line; outages are printed above it."""

    def __init__(self) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.fields[status]}"),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            TextColumn("{task.fields[amount]}"),
            TimeElapsedColumn(),
        )
        self._line = self._progress.add_task("", total=None, status="", amount="")

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, state: JobState) -> None:
        so_far = text.amount(state.progress)
        if state.status.final:
            self._progress.update(self._line, total=1, completed=1 if state.status is Status.SUCCEEDED else 0)
        elif so_far is not None:
            self._progress.update(self._line, total=so_far.total, completed=so_far.done)
        colour = COLOURS[state.status]
        attempt = f", attempt {state.attempt}" if state.attempt > 1 else ""
        told = text.progress_text(state.progress).replace("[", "\\[")
        self._progress.update(self._line, status=f"[{colour}]{state.status}[/]{attempt}", amount=told)

    def say(self, line: str) -> None:
        self._progress.console.print(Text(line))
