"""Explanations of jobs, tasks and queues over HTTP."""

from __future__ import annotations

from dataloader.app.acts.known_names import NameCheck
from dataloader.app.acts.reasons import JobExplanation
from dataloader.app.features.why.explain import JobExplainer, QueueExplanation, TaskExplanation
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.problems import DATABASE_PROBLEMS, ProblemCode
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.schemas import parse_job_id
from dataloader.app.http.site import Site
from dataloader.pipelines.task import DEFAULT_QUEUE


def create_why_blueprint(site: Site) -> ApiBlueprint:
    executor, pipelines = site.executor, site.pipelines
    blueprint = ApiBlueprint("why", "/api/v1", problems=DATABASE_PROBLEMS)
    explainer, names = JobExplainer(executor, site.features, site.options.features), NameCheck(executor, pipelines)

    @blueprint.get(
        "/jobs/<job:job_id>/why", response=JobExplanation, problems=(ProblemCode.JOB_NOT_FOUND,), scope=Scope.READ
    )
    def explain_job(job_id: str) -> JobExplanation:
        """Explain why a job waits, still runs, or ended as it did.

        Each reason has a stable `code`, details, and a message.
        """
        return explainer.explain(parse_job_id(job_id))

    @blueprint.get("/tasks/<path:task>/why", response=TaskExplanation, scope=Scope.READ)
    def explain_task(task: str) -> TaskExplanation:
        """Explain what keeps jobs of a task from being made or from starting, and when its schedules make the next one.

        It may be a paused queue, schedule or backfill, an open circuit breaker, a limit at 0, or that no live worker
        serves its queue or knows the task.
        """
        known = pipelines.get(task)
        return explainer.explain_task(
            task, queue=None if known is None else known.options.queue, default_queue=DEFAULT_QUEUE
        )

    @blueprint.get(
        "/queues/<path:queue>/why", response=QueueExplanation, problems=(ProblemCode.NAME_NOT_FOUND,), scope=Scope.READ
    )
    def explain_queue(queue: str) -> QueueExplanation:
        """Explain what keeps jobs of a queue from starting: that it is paused, a limit, a breaker, or no worker."""
        names.warnings(queue=queue, strict=True)
        return explainer.explain_queue(queue)

    return blueprint
