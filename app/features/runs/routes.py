"""The grid of tasks and days over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from typing import Annotated
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field

from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.features.runs.grid import MAX_DAYS, DayGrids, DayRuns
from dataloader.app.features.runs.rows import DailyRuns
from dataloader.app.features.schedules.reader import ScheduleReader
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.auth.guard import current_actor
from dataloader.app.http.problems import DATABASE_PROBLEMS
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.schemas import QueryModel
from dataloader.app.http.site import Site
from dataloader.pipelines.zone_clock import find_zone


def _parse_day(raw: str) -> str:
    date.fromisoformat(raw)
    return raw


def _validate_zone(raw: str) -> str:
    find_zone(raw)
    return raw


class RunsQuery(QueryModel):
    days: Annotated[int, Field(ge=1, le=MAX_DAYS, description="The number of days.")] = 7
    until: Annotated[
        Annotated[str, AfterValidator(_parse_day)] | None, Field(description="The last day; by default today.")
    ] = None
    zone: Annotated[
        Annotated[str, AfterValidator(_validate_zone)] | None,
        Field(description="The time zone of the days; by default that of the service."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class RunsOfDay:
    """What a task did on a day. `missed`: times of its schedules that made no job; `open`: jobs of times of that day
    that have not ended."""

    day: Annotated[str, Field(examples=["2030-01-31"])]
    succeeded: int
    failed: int
    lost: int
    canceled: int
    missed: int
    open: int


@dataclass(frozen=True)
class RunsOfTask:
    task: str
    days: list[RunsOfDay]


@dataclass(frozen=True)
class RunsByDay:
    """Tasks that ran or should have, first those of which a job failed or was not made. `counted_at`: when it was
    read."""

    zone: str
    counted_at: datetime
    tasks: list[RunsOfTask]


def _runs_of_day(day: DayRuns) -> RunsOfDay:
    return RunsOfDay(**vars(day) | {"day": day.day.isoformat()})


def day_grids(site: Site) -> DayGrids:
    return DayGrids(DailyRuns(site.executor), ScheduleReader(site.executor, site.pipelines, site.options))


def create_runs_blueprint(site: Site) -> ApiBlueprint:
    blueprint = ApiBlueprint("runs", "/api/v1", problems=DATABASE_PROBLEMS)
    grids = day_grids(site)

    @blueprint.get("/runs", query=RunsQuery, response=RunsByDay, scope=Scope.READ, standby=True)
    def list_runs_by_day(query: RunsQuery) -> RunsByDay:
        """List what each task did on each day: jobs that ended, and times of schedules that made no job.

        Of the statistics by the hour, which are kept for ninety days. The answer may be ten seconds old.
        """
        zone = query.zone or site.options.timezone
        last_day = date.fromisoformat(query.until) if query.until else datetime.now(ZoneInfo(zone)).date()
        grid = grids.get(zone, last_day, query.days)
        if grid is None:
            raise DatabaseUnavailable("the statistics cannot be read in time")
        can_see_task = current_actor().can_see_task
        tasks = [
            RunsOfTask(task.task, [_runs_of_day(day) for day in task.days])
            for task in grid.tasks
            if can_see_task(task.task)
        ]
        return RunsByDay(grid.zone, grid.counted_at, tasks)

    return blueprint
