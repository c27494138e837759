"""Targets over HTTP: where the attempts of a job wrote, and the targets of the settings."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from dataloader.app.errors import JobNotFound
from dataloader.app.features.targets.rows import JobTarget, JobTargets, TargetStatus, TargetStatuses
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.problems import DATABASE_PROBLEMS, ProblemCode
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.schemas import parse_job_id
from dataloader.app.http.site import Site
from dataloader.app.queue.job import Status


@dataclass(frozen=True)
class JobTargetList:
    """The targets in which attempts of the job wrote, by name. The queue's own database is none of them."""

    job_id: UUID
    status: Status
    targets: list[JobTarget]


@dataclass(frozen=True)
class TargetList:
    """The targets of the settings of this process, and those that tasks name, by name."""

    targets: list[TargetStatus]


def create_targets_blueprint(site: Site) -> ApiBlueprint:
    blueprint = ApiBlueprint("targets", "/api/v1", problems=DATABASE_PROBLEMS)
    queue, servers = site.queue, site.options.features.get("targets")
    of_jobs, statuses = JobTargets(site.executor, servers), TargetStatuses(site.executor, servers)

    @blueprint.get(
        "/jobs/<job:job_id>/targets",
        response=JobTargetList,
        problems=(ProblemCode.JOB_NOT_FOUND,),
        scope=Scope.READ,
    )
    def list_job_targets(job_id: str) -> JobTargetList:
        """List the targets in which attempts of a job wrote: whether they are fenced, the position, and who holds the
        job's row.

        Each target is asked now, for a few seconds at most: `unread` says why one could not be read.
        """
        parsed_id = parse_job_id(job_id)
        job = queue.get(parsed_id)
        if job is None:
            raise JobNotFound(parsed_id)
        return JobTargetList(job.id, job.status, of_jobs.of_job(parsed_id))

    @blueprint.get("/targets", response=TargetList, scope=Scope.READ)
    def list_targets() -> TargetList:
        """List targets by name: whether they can be reached and are fenced, the tasks that name them, and their rows.

        Each one is asked now, for a few seconds at most.
        """
        return TargetList(statuses.all())

    return blueprint
