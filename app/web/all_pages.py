"""The blueprints of all pages."""

from __future__ import annotations

from collections.abc import Sequence

from app.features.limits.pages import create_limits_page
from app.queue.jobs import JobQueue
from app.web.acts import ActRunner
from app.web.options import WebOptions
from app.web.pages.alerts import create_alerts_page
from app.web.pages.audit import create_audit_page
from app.web.pages.backfills import create_backfills_page
from app.web.pages.calendar import create_calendar_page
from app.web.pages.charts import create_charts_page
from app.web.pages.data_quality import create_datasets_page
from app.web.pages.failures import create_failures_page
from app.web.pages.graph import create_graph_page
from app.web.pages.job import create_job_forms, create_job_page, create_log_page
from app.web.pages.jobs import create_jobs_page
from app.web.pages.keys import create_keys_page
from app.web.pages.overview import create_overview_page
from app.web.pages.queues import create_queues_page
from app.web.pages.schedules import create_schedules_page
from app.web.pages.search import create_search_page
from app.web.pages.settings import create_settings_page
from app.web.pages.slices import create_slices_page
from app.web.pages.tasks import create_tasks_page
from app.web.pages.webhooks import create_webhooks_page
from app.web.pages.workers import create_workers_page
from app.web.pages.zone import create_zone_page
from app.web.routing import ApiBlueprint
from pipelines.contract import Pipelines

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
