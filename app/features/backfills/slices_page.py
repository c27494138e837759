"""The grid of a task's slices by calendar, and the forms that load slices again or cancel them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from flask import Response
from pydantic import Field

from dataloader.app.acts.task_parts import TaskPart
from dataloader.app.acts.web import refusing_form
from dataloader.app.features.backfills import acts
from dataloader.app.features.backfills.forms import ended_count, extent
from dataloader.app.features.backfills.reader import BackfillReader
from dataloader.app.http.links import quote_name
from dataloader.app.http.problems import ProblemCode
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.site import Site
from dataloader.app.ui.base import FormModel, FormText, InvalidForm, PageRenderer, parse_choice, redirect_to
from dataloader.app.ui.forms import parse_texts
from dataloader.pipelines.partitions import Listed, Partitions, Slice, is_listed_key

CELLS_SHOWN = 750  # two years of days, a month of hours
_CELLS_OF_TASK = 366
_LIST_COLUMNS = 24
_BACKFILLS_SHOWN = 24
_BAD = ("failed", "canceled", "lost")
_SHOWN_AS, _NAMES = {"queued": "ready"}, {"none": "missing", "warning": "succeeded with warnings"}


class GridFields(FormModel):
    """Which slices are shown."""

    after: FormText = Field("", description="Those that follow this key.")
    before: FormText = Field("", description="Those before this key.")


class SlicesForm(FormModel):
    """An action on slices of a task."""

    action: FormText = Field(description="run or cancel.")
    first: FormText = Field("", description="The first slice that was shown.")
    last: FormText = Field("", description="The last slice that was shown.")
    failed: FormText = Field("", description="yes: those whose last job did not succeed.")
    missing: FormText = Field("", description="yes: those that have had no job.")
    slices: str = Field("", description="Keys, or ranges such as 2026-02-01..2026-02-07, with commas.")
    concurrency: FormText = Field("2", description="run: how many run at a time.")


@dataclass(frozen=True)
class Cell:
    """A slice in a grid. `shown_as` names its symbol and colour."""

    key: str
    shown_as: str
    title: str
    job_id: str | None


@dataclass(frozen=True)
class Grid:
    """Slices in their order: rows with a label, and cells that stand under one another by column; None: no slice."""

    columns: list[str]
    rows: list[tuple[str, list[Cell | None]]]
    counts: Counter[str]
    first: str
    last: str
    earlier: str | None  # the key before which there are more
    later: str | None  # the key after which there are more


def slices_of_task(site: Site, task: str) -> Iterator[TaskPart]:
    reader = BackfillReader(site.executor, site.pipelines, site.options)
    if (partitions := reader.partitions_of_task(task)) is not None:
        grid = make_grid(reader, task, partitions, GridFields(), _CELLS_OF_TASK)
        yield TaskPart(template="task_slices.html", data={"grid": grid}, is_wide=True)


def create_slices_page(site: Site) -> ApiBlueprint:
    pages = PageRenderer("slices_page", site.options)
    reader, runner = BackfillReader(site.executor, site.pipelines, site.options), site.runner

    @pages.page("/slices/<path:task>", query=GridFields)
    def show_slices(query: GridFields, task: str) -> Response:
        """Show the slices of a task that have ended, and what their last jobs did."""
        return render_slices(task, query)

    def render_slices(task: str, query: GridFields) -> Response:
        partitions = reader.partitions_of_task(task) or _known_slices(reader, task)
        grid, problem = (None, "") if partitions is None else grid_or_problem(reader, task, partitions, query)
        return pages.render(
            "slices.html",
            task=task,
            grid=grid,
            problem=problem,
            backfills=reader.newest(task=task, limit=_BACKFILLS_SHOWN),
            ended_count=ended_count,
            extent=extent,
            slices_path=f"/slices/{quote_name(task)}",
        )

    @pages.action(
        "/slices/<path:task>",
        form=SlicesForm,
        page_url="/slices/{task}",
        page=lambda task: render_slices(task, GridFields()),
        problems=(ProblemCode.OUTSIDE_KEY_LIMITS,),
    )
    def act_on_slices(form: SlicesForm, task: str) -> Response | None:
        """Load the chosen slices of a task again, or cancel their jobs that have not started."""
        action = parse_choice("action", form.action, ("run", "cancel"))
        partitions = reader.partitions_of_task(task) or _known_slices(reader, task)
        keys = [] if partitions is None else _chosen_keys(reader, task, partitions, form)
        if not keys:
            raise InvalidForm.at_field("slices", "no slice is chosen")
        with refusing_form():
            if action == "cancel":
                runner.perform(acts.cancel_slices, {"task": task}, acts.SlicesToCancel(keys=keys))
                return None
            texts = {"concurrency": form.concurrency}
            body = acts.SlicesToRun(keys=keys, **parse_texts(acts.SlicesToRun, texts, "UTC"))
            backfill = runner.perform(acts.run_task_slices, {"task": task}, body)
        return redirect_to(f"/backfills/{backfill.backfill_id}")

    return pages.blueprint


def _known_slices(reader: BackfillReader, task: str) -> Partitions | None:
    """The last slices of a task that has had jobs with slices, though this process knows no partitions of it."""
    keys = [key for key in reader.backfills.last_keys(task, limit=CELLS_SHOWN) if is_listed_key(key)]
    return Listed(keys) if keys else None


def grid_or_problem(reader: BackfillReader, task: str, partitions: Partitions, query: GridFields) -> tuple[Grid, str]:
    """The slices that the query asks for; the last ones and why, if it asks for none that exist."""
    try:
        return make_grid(reader, task, partitions, query), ""
    except ValueError as error:
        return make_grid(reader, task, partitions, GridFields()), str(error)


def make_grid(
    reader: BackfillReader, task: str, partitions: Partitions, query: GridFields, limit: int = CELLS_SHOWN
) -> Grid:
    """The slices that the query asks for; by default the last ones. Raises ValueError for an unknown key."""
    if query.after:
        shown = list(islice(partitions.slices(query.after), limit))
    else:
        shown = list(islice(partitions.slices(query.before or None, newest_first=True), limit))[::-1]
    if not shown:
        raise ValueError("there are no more slices")
    earlier = next(partitions.slices(shown[0].key, newest_first=True), None)
    later = next(partitions.slices(shown[-1].key), None)
    jobs = _last_jobs(reader, task, shown)
    cells = [_cell(part.key, *jobs.get(part.key, ("none", None))) for part in shown]
    columns, rows = _in_rows(partitions, shown, cells)
    counts = Counter(cell.shown_as for cell in cells)
    first, last = shown[0].key, shown[-1].key
    return Grid(columns, rows, counts, first, last, first if earlier else None, last if later else None)


def _last_jobs(reader: BackfillReader, task: str, shown: Sequence[Slice]) -> dict[str, tuple[str, str]]:
    return reader.backfills.last_jobs(task, [part.key for part in shown])


def _cell(key: str, state: str, job_id: str | None) -> Cell:
    return Cell(key, _SHOWN_AS.get(state, state), f"{key}: {_NAMES.get(state, state)}", job_id)


def _in_rows(
    partitions: Partitions, shown: Sequence[Slice], cells: Sequence[Cell]
) -> tuple[list[str], list[tuple[str, list[Cell | None]]]]:
    """Days stand in rows of a month, hours of a day, months and weeks of a year; others in rows of one length."""
    if isinstance(partitions, Listed):
        rows: list[tuple[str, list[Cell | None]]] = [
            (cells[n].key, list(cells[n : n + _LIST_COLUMNS])) for n in range(0, len(cells), _LIST_COLUMNS)
        ]
        return [str(n + 1) for n in range(max(len(row) for _, row in rows))], rows
    zone = ZoneInfo(partitions.zone or "UTC")
    by_row: dict[str, dict[int, Cell]] = {}
    for part, cell in zip(shown, cells, strict=True):
        assert part.start is not None  # noqa: S101 - slices of a calendar have times
        label, column = _place(partitions.unit, part.start.astimezone(zone))
        row = by_row.setdefault(label, {})
        while column in row:  # an hour that a clock change repeats
            column += 1
        row[column] = cell
    first = min(min(row) for row in by_row.values())
    last = max(max(row) for row in by_row.values())
    return [str(n) for n in range(first, last + 1)], [
        (label, [row.get(n) for n in range(first, last + 1)]) for label, row in by_row.items()
    ]


def _place(unit: str, begin: datetime) -> tuple[str, int]:
    """The row of a slice, and its column."""
    match unit:
        case "hour":
            return f"{begin:%Y-%m-%d}", begin.hour
        case "day":
            return f"{begin:%Y-%m}", begin.day
        case "week":
            year, week, _ = begin.isocalendar()
            return str(year), week
        case _:
            return f"{begin:%Y}", begin.month


def _chosen_keys(reader: BackfillReader, task: str, partitions: Partitions, form: SlicesForm) -> list[str]:
    """The keys that the form names, each once, in their order. Raises InvalidForm."""
    chosen: dict[str, Any] = {}
    for text in filter(None, (part.strip() for part in form.slices.split(","))):
        first, dots, last = text.partition("..")
        found = _slices_between(partitions, first.strip(), last.strip() if dots else first.strip(), CELLS_SHOWN + 1)
        chosen |= dict.fromkeys(part.key for part in found)
    if form.failed == "yes" or form.missing == "yes":
        shown = _slices_between(partitions, form.first or None, form.last or None, CELLS_SHOWN)
        jobs = _last_jobs(reader, task, shown)
        for part in shown:
            state, _ = jobs.get(part.key, ("none", ""))
            if (state == "none" and form.missing == "yes") or (state in _BAD and form.failed == "yes"):
                chosen[part.key] = True
    if len(chosen) > CELLS_SHOWN:
        message = f"more than {CELLS_SHOWN:,} are chosen; create a backfill of the range instead"
        raise InvalidForm.at_field("slices", message)
    return list(chosen)


def _slices_between(partitions: Partitions, first: str | None, last: str | None, limit: int) -> list[Slice]:
    """Raises InvalidForm for keys of no slices."""
    try:
        return list(islice(partitions.between(first, last).slices(), limit))
    except ValueError as error:
        raise InvalidForm.at_field("slices", str(error)) from None
