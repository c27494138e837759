"""Tables and progress bars on a terminal. The only module that imports rich.

rich honours NO_COLOR, COLUMNS and TERM=dumb.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from dataloader.app.cli import text
from dataloader.app.queue.job import Status

COLUMN_GAP, MIN_COLUMN_WIDTH, MIN_COLUMN_COUNT = 2, 8, 2
COLOURS = {
    Status.QUEUED: "cyan",
    Status.RUNNING: "blue",
    Status.SUCCEEDED: "green",
    Status.FAILED: "red",
    Status.CANCELED: "yellow",
    Status.LOST: "magenta",
}


def print_table(names: Sequence[str], rows: Sequence[Sequence[str]], *, uncut: Sequence[str] = ()) -> None:
    """Print a table no wider than the terminal.

    Columns named in `uncut` are never shortened. Where that leaves the others too narrow to read, the last columns are
    left out, as are those without content. A terminal too narrow for even that gets whole lines, and wraps them.
    """
    console = Console()
    shown = [i for i in range(len(names)) if names[i] in uncut or any(row[i] for row in rows)]
    widths = [max(len(names[i]), *(cell_len(row[i]) for row in rows)) for i in range(len(names))]
    min_widths = [w if name in uncut else min(w, MIN_COLUMN_WIDTH) for name, w in zip(names, widths, strict=True)]
    while sum(min_widths[i] + COLUMN_GAP for i in shown) - COLUMN_GAP > console.width:
        if len(shown) == MIN_COLUMN_COUNT:
            console.print("\n".join(text.align_columns(names, rows)), markup=False, highlight=False, soft_wrap=True)
            return
        shown.pop()

    table = Table(box=None, pad_edge=False, padding=(0, COLUMN_GAP, 0, 0), header_style="bold")
    for i in shown:
        table.add_column(names[i], no_wrap=names[i] in uncut, min_width=min_widths[i])
    for row in rows:
        table.add_row(*(_cell(row[i]) for i in shown))
    console.print(table, crop=False)


def _cell(value: str) -> Text:
    # Text, not str: a name with [brackets] in it is not markup.
    style = COLOURS[Status(value)] if value in set(Status) else ""
    return Text(value, style=style, no_wrap=True, overflow="ellipsis")


def can_redraw() -> bool:
    """Whether the terminal can redraw a line; a dumb one gets lines below each other."""
    return Console().is_terminal and not Console().is_dumb_terminal


class _MovingLine:
    """A line with a bar that is redrawn; notices are printed above it."""

    def __init__(self, *texts: TextColumn, total: int | None = None, stderr: bool = False) -> None:
        *first, last = texts
        bar = BarColumn(bar_width=None, table_column=Column(ratio=1))
        self._progress = Progress(
            SpinnerColumn(), *first, bar, last, TimeElapsedColumn(), console=Console(stderr=stderr),
            disable=not can_redraw(),
        )  # fmt: skip
        self._task_id = self._progress.add_task("", total=total, label="", status="")
        self._progress.start()

    def close(self) -> None:
        self._progress.stop()

    def print_notice(self, line: str) -> None:
        self._progress.console.print(Text(line), soft_wrap=True)


class BatchProgressView(_MovingLine):
    """The progress of a batch; shows nothing where nothing can move."""

    def __init__(self, total: int | None) -> None:
        super().__init__(TextColumn("{task.fields[label]}"), total=total, stderr=True)

    def show(self, done: int, label: str) -> None:
        self._progress.update(self._task_id, completed=done, label=label)


class BarView(_MovingLine):
    """A watched job."""

    def __init__(self) -> None:
        super().__init__(TextColumn("{task.fields[status]}"), TextColumn("{task.fields[label]}"))

    def show(self, state: text.Payload, estimate: str = "") -> None:
        status, amount = Status(state["status"]), text.parse_amount(state["progress"])
        if status.final:
            self._progress.update(self._task_id, total=1, completed=1 if status is Status.SUCCEEDED else 0)
        elif amount is not None:
            self._progress.update(self._task_id, completed=amount[0], total=amount[1])
        attempt = f", attempt {state['attempt']}" if state["attempt"] > 1 else ""
        label = ", ".join(part for part in (text.format_progress(state["progress"]), estimate) if part)
        shown_status = f"[{COLOURS[status]}]{status}[/]{attempt}"
        self._progress.update(self._task_id, status=shown_status, label=label.replace("[", "\\["))
