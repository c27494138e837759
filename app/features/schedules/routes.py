"""Schedules over HTTP: the routes that read. Those that change are in `acts.py`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated

from pydantic import Field

from dataloader.app.acts.act import acts_of
from dataloader.app.acts.web import add_routes
from dataloader.app.features.schedules import acts
from dataloader.app.features.schedules.calendar import Calendar, read_calendar
from dataloader.app.features.schedules.reader import Preview, ScheduleDetail, ScheduleReader
from dataloader.app.features.schedules.rows import Firing
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.json_io import FieldError
from dataloader.app.http.problems import DATABASE_PROBLEMS, InvalidRequest, ProblemCode
from dataloader.app.http.routing import ApiBlueprint, VersionedResponse
from dataloader.app.http.schemas import QueryModel, Timestamp
from dataloader.app.http.site import Site

MAX_CALENDAR_ENTRIES = 5_000
_MAX_CALENDAR_DAYS = 92


class ScheduleQuery(QueryModel):
    task: Annotated[str | None, Field(description="Only schedules of this task.")] = None


class FiringsQuery(QueryModel):
    before: Annotated[Timestamp, Field(description="Only earlier times.")] = None
    limit: Annotated[int, Field(ge=1, le=500, description="The maximum number of entries.")] = 50


class PreviewQuery(QueryModel):
    n: Annotated[int, Field(ge=1, le=100, description="How many times.")] = 10
    begin: Annotated[Timestamp, Field(alias="from", description="Times after this one; by default now.")] = None


class CalendarQuery(QueryModel):
    begin: Annotated[Timestamp, Field(alias="from", description="Its first moment; by default today.")] = None
    end: Annotated[
        Timestamp, Field(alias="to", description=f"Up to here, at most {_MAX_CALENDAR_DAYS} days; by default a day.")
    ] = None
    schedule: Annotated[str | None, Field(description="Only this schedule.")] = None


@dataclass(frozen=True)
class ScheduleList:
    schedules: list[ScheduleDetail]


@dataclass(frozen=True)
class FiringList:
    firings: list[Firing]


def create_schedules_blueprint(site: Site) -> ApiBlueprint:
    blueprint = ApiBlueprint("schedules", "/api/v1", problems=DATABASE_PROBLEMS)
    reader = ScheduleReader(site.executor, site.pipelines, site.options)
    unknown = (ProblemCode.SCHEDULE_NOT_FOUND,)

    @blueprint.get("/schedules", query=ScheduleQuery, response=ScheduleList, scope=Scope.READ, standby=True)
    def list_schedules(query: ScheduleQuery) -> ScheduleList:
        """List schedules by name: what applies, when each fires next, and whether it is paused."""
        return ScheduleList([reader.detail(schedule) for schedule in reader.list_visible(task=query.task)])

    @blueprint.post("/schedules/preview", body=acts.NewSchedule, query=PreviewQuery, response=Preview, scope=Scope.READ)
    def preview_new_schedule(body: acts.NewSchedule, query: PreviewQuery) -> Preview:
        """Show when a schedule would fire, with the effect of daylight saving, and which jobs. Nothing is saved."""
        return reader.preview(body.name, reader.validate(body.definition), query.begin, query.n)

    @blueprint.get("/schedules/<name>", response=ScheduleDetail, problems=unknown, scope=Scope.READ)
    def get_schedule(name: str) -> VersionedResponse:
        """Get a schedule: what applies, what the code declares, and what people changed."""
        schedule = reader.get(name)
        return VersionedResponse(reader.detail(schedule), str(schedule.version))

    @blueprint.get(
        "/schedules/<name>/firings",
        query=FiringsQuery,
        response=FiringList,
        problems=unknown,
        scope=Scope.READ,
        standby=True,
    )
    def list_firings(query: FiringsQuery, name: str) -> FiringList:
        """List what became of the times of a schedule, the latest first. Times that were skipped are one entry."""
        return FiringList(reader.schedules.firings(reader.get(name), before=query.before, limit=query.limit))

    @blueprint.get(
        "/schedules/<name>/preview", query=PreviewQuery, response=Preview, problems=unknown, scope=Scope.READ
    )
    def preview_schedule(query: PreviewQuery, name: str) -> Preview:
        """Show the next times of a schedule and their jobs."""
        return reader.preview(name, reader.definition(reader.get(name)), query.begin, query.n)

    @blueprint.get(
        "/calendar", query=CalendarQuery, response=Calendar, problems=unknown, scope=Scope.READ, standby=True
    )
    def get_calendar(query: CalendarQuery) -> Calendar:
        """Get what the schedules made in a range of time, and what they will make; at most 5,000 entries."""
        begin = query.begin or datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        end = query.end or begin + timedelta(days=1)
        if not timedelta() < end - begin <= timedelta(days=_MAX_CALENDAR_DAYS):
            raise InvalidRequest([FieldError("to", f"is 1 to {_MAX_CALENDAR_DAYS} days after from")])
        schedules = [reader.get(query.schedule)] if query.schedule else reader.list_visible()
        found = read_calendar(reader, schedules, [(begin, end)], limit=MAX_CALENDAR_ENTRIES)
        future = found.future[: MAX_CALENDAR_ENTRIES - len(found.past)]
        return Calendar(found.past, future, found.complete and len(future) == len(found.future))

    add_routes(blueprint, acts_of(acts), site.runner)
    return blueprint
