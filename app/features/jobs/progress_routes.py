"""The progress of a job over time, over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import Field

from dataloader.app.errors import JobNotFound
from dataloader.app.features.jobs.job_detail import JobReader
from dataloader.app.features.jobs.progress_history import (
    MAX_POINTS,
    JobProgress,
    ProgressReader,
    estimate,
    select_attempt,
    thin,
)
from dataloader.app.features.jobs.run_follower import make_run_follower
from dataloader.app.http.auth.guard import current_actor
from dataloader.app.http.problems import DATABASE_PROBLEMS, ProblemCode
from dataloader.app.http.routing import ANY_KEY, ApiBlueprint
from dataloader.app.http.schemas import INT4_MAX, QueryModel, parse_job_id
from dataloader.app.http.site import Site


class ProgressQuery(QueryModel):
    """Which progress of a job to read."""

    attempt: Annotated[
        int | None, Field(ge=0, le=INT4_MAX, description="The progress of this attempt; by default of the last one.")
    ] = None
    limit: Annotated[
        int, Field(ge=1, le=MAX_POINTS, description="The maximum number of points, which are chosen evenly in time.")
    ] = MAX_POINTS


def create_progress_blueprint(site: Site) -> ApiBlueprint:
    blueprint = ApiBlueprint("job_progress", "/api/v1", problems=DATABASE_PROBLEMS)
    reader, progress, follower = JobReader(site.executor), ProgressReader(site.executor), site.shared(make_run_follower)

    @blueprint.get(
        "/jobs/<job:job_id>/progress",
        query=ProgressQuery,
        response=JobProgress,
        problems=(ProblemCode.JOB_NOT_FOUND,),
        scope=ANY_KEY,
    )
    def get_job_progress(query: ProgressQuery, job_id: str) -> JobProgress:
        """Get the progress of a job's attempt over time, with its rate and the time left.

        The progress of a running attempt is saved every second in its first minute, and then every five seconds; every
        second while this route is asked for it.
        """
        job = reader.get_with_version(parse_job_id(job_id)).job
        if not current_actor().can_see(job.task, job.queue):
            raise JobNotFound(job.id)
        follower.follow(job.status, job.run_id)
        attempts = reader.attempts(job.id)
        record = select_attempt(attempts, query.attempt)
        last_progress = job.progress if attempts and record is attempts[-1] else None
        points = [] if record is None else progress.points(job.id, record, last_progress=last_progress)
        has_ended = record is not None and record.finished_at is not None
        return JobProgress(
            **vars(estimate(points, now=datetime.now(UTC), has_ended=has_ended)),
            job_id=job.id,
            status=job.status,
            attempt=None if record is None else record.attempt,
            run=None if record is None else record.run,
            run_id=None if record is None else record.run_id,
            started_at=None if record is None else record.started_at,
            finished_at=None if record is None else record.finished_at,
            points=thin(points, query.limit),
        )

    return blueprint
