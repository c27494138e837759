"""The dashboard: HTML pages that read the same classes of `app.admin` and `app.queue` as the API.

base.py      what all pages share: rendering, form actions, formatting of times and sizes
overview.py  problems and running jobs
jobs.py      list and search of jobs, bulk actions (state_counts.py: the counts of its tabs)
job.py       one job: status, attempts; cancel, retry, edit, clone, delete; its full log, with search
job_attempts.py, job_history.py, job_timeline.py  parts of it: its attempts, its events in words, its picture
tasks.py     what each task did and what is wrong with it, and a form that starts a job of it
start_form.py, args_form.py  that form, made from the schema of the task's args
run_chart.py the durations of a task's last runs
failures.py  failed and lost jobs, grouped by the fingerprint of the error
graph.py     jobs that wait for one another, by layer
queues.py    queues, and one queue with its jobs, workers, limits and settings (picture in queue_charts.py)
workers.py   worker processes, and what each runs
limits.py    limits: what each allows, who holds it, who waits
data_quality.py  datasets: last updates, who updates and reads them
backfills.py backfills: their progress, what runs and what failed
slices.py    the slices of a task by calendar, to load again or to cancel
schedules.py schedules: when they fire, and what became of each time
calendar.py  what schedules made and will make, by month and day
charts.py    statistics over time
alerts.py    what fires, alert rules, what was resolved
webhooks.py  webhooks and their deliveries
keys.py      API keys
settings.py  settings in force, the database, retention, findings of doctor
audit.py     the audit log
shell.py     the frame around every page: navigation, number of problems, zone
problems.py  what is wrong, by subject
service_counts.py  the number of problems in the header, and the counts of the navigation
undo.py      the message after an act, and its undo
search.py    the search of the header, and what the command palette offers
zone.py      the choice of the zone in which pages show times

All pages work without scripts: links are links and actions are forms. With scripts, the live part of a page refreshes
every two seconds unless the user works in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.queue.jobs import JobQueue
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
from app.web.pages.limits import create_limits_page
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
    return (
        create_overview_page(queue.executor, pipelines, options),
        create_jobs_page(queue, pipelines, options),
        create_job_page(queue, options),
        create_job_forms(queue, pipelines, options),
        create_log_page(queue.executor, options),
        create_graph_page(queue.executor, options),
        create_tasks_page(queue, pipelines, options),
        create_failures_page(queue.executor, options),
        create_queues_page(queue.executor, pipelines, options),
        create_workers_page(queue.executor, options),
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
