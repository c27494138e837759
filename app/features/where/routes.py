"""Where a running job is, over HTTP."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dataloader.app.features.where.sampler_options import WhereOptions
from dataloader.app.features.where.where import JobWhere, RunningJobs, WhereReader
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.problems import DATABASE_PROBLEMS, ProblemCode
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.schemas import QueryModel, parse_job_id
from dataloader.app.http.site import Site


class RunningQuery(QueryModel):
    """Which running jobs to locate."""

    queue: Annotated[str | None, Field(max_length=1000, description="Only jobs of this queue.")] = None
    task: Annotated[str | None, Field(max_length=1000, description="Only jobs of this task.")] = None
    limit: Annotated[int, Field(ge=1, le=100, description="The maximum number of jobs.")] = 50


def make_where_reader(site: Site) -> WhereReader:
    """For `Site.shared`: one for the route and the page."""
    options: WhereOptions = site.options.features.get("where") or WhereOptions()
    return WhereReader(site.queue, site.watcher, options.servers)


def create_where_blueprint(site: Site) -> ApiBlueprint:
    blueprint = ApiBlueprint("where", "/api/v1", problems=DATABASE_PROBLEMS)
    reader = site.shared(make_where_reader)

    @blueprint.get(
        "/jobs/<job:job_id>/where",
        response=JobWhere,
        problems=(ProblemCode.JOB_NOT_FOUND, ProblemCode.TOO_MANY_WAITING),
        scope=Scope.READ,
    )
    def locate_job(job_id: str) -> JobWhere:
        """Locate a running job: the stack of its task, its processes, its SQL, and who blocks that.

        Its worker process is asked now, for three seconds at most; targets are asked as well. Frames have names and
        lines, never values; statements have no text constants.
        """
        return reader.read(parse_job_id(job_id))

    @blueprint.get(
        "/running",
        query=RunningQuery,
        response=RunningJobs,
        problems=(ProblemCode.TOO_MANY_WAITING,),
        scope=Scope.READ,
    )
    def list_running_jobs(query: RunningQuery) -> RunningJobs:
        """List running jobs, and locate each of them: those first that have been running longest.

        Their worker processes are asked now, for a second at most.
        """
        return reader.read_running(queue=query.queue, task=query.task, limit=query.limit)

    return blueprint
