"""The blueprints of all pages."""

from __future__ import annotations

from collections.abc import Sequence

from dataloader.app.acts.web import ActRunner
from dataloader.app.features.alerts.pages import create_alerts_page
from dataloader.app.features.audit.pages import create_audit_page
from dataloader.app.features.backfills.pages import create_backfills_page
from dataloader.app.features.backfills.slices_page import create_slices_page
from dataloader.app.features.graphs.pages import create_graph_page
from dataloader.app.features.jobs.job_page import create_job_forms, create_job_page, create_log_page
from dataloader.app.features.jobs.jobs_page import create_jobs_page
from dataloader.app.features.keys.pages import create_keys_page
from dataloader.app.features.limits.pages import create_limits_page
from dataloader.app.features.overview.pages import create_overview_page
from dataloader.app.features.quality.pages import create_datasets_page
from dataloader.app.features.queues.pages import create_queues_page
from dataloader.app.features.schedules.calendar import create_calendar_page
from dataloader.app.features.schedules.pages import create_schedules_page
from dataloader.app.features.search.pages import create_search_page
from dataloader.app.features.settings.pages import create_settings_page
from dataloader.app.features.statistics.charts_page import create_charts_page
from dataloader.app.features.statistics.failures_page import create_failures_page
from dataloader.app.features.tasks.pages import create_tasks_page
from dataloader.app.features.webhooks.pages import create_webhooks_page
from dataloader.app.features.workers.pages import create_workers_page
from dataloader.app.http.options import WebOptions
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.ui.zone import create_zone_page
from dataloader.pipelines.contract import Pipelines

__all__ = ["create_pages"]


def create_pages(queue: JobQueue, pipelines: Pipelines, options: WebOptions) -> Sequence[ApiBlueprint]:
    """Return one blueprint for each page."""
    runner = ActRunner(queue.executor, pipelines)
    return (
        create_overview_page(queue.executor, pipelines, options),
        create_jobs_page(queue, pipelines, options),
        create_job_page(queue, runner, options),
        create_job_forms(queue, runner, options),
        create_log_page(queue.executor, options),
        create_graph_page(queue.executor, runner, options),
        create_tasks_page(queue, pipelines, options),
        create_failures_page(queue.executor, options),
        create_queues_page(queue.executor, pipelines, options),
        create_workers_page(queue.executor, runner, options),
        create_limits_page(queue.executor, pipelines, options),
        create_datasets_page(queue.executor, options),
        create_backfills_page(queue, pipelines, options),
        create_slices_page(queue, pipelines, options),
        create_schedules_page(queue.executor, pipelines, options),
        create_calendar_page(queue.executor, pipelines, options),
        create_charts_page(queue.executor, options),
        create_alerts_page(queue.executor, pipelines, options),
        create_webhooks_page(queue.executor, pipelines, options),
        create_keys_page(queue.executor, options),
        create_settings_page(queue.executor, options),
        create_audit_page(queue.executor, options),
        create_search_page(queue.executor, pipelines, options),
        create_zone_page(options),
    )
