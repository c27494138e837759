"""Builds the Flask app from its blueprints and the middleware around them."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

from flask import Flask, request
from jinja2 import FileSystemLoader
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from dataloader.app import ui
from dataloader.app.acts.audit_log import AuditLog
from dataloader.app.db.pool import Pool
from dataloader.app.features.alerts.routes import create_alerts_blueprint
from dataloader.app.features.audit.routes import create_audit_blueprint
from dataloader.app.features.backfills.changes import BackfillEditor
from dataloader.app.features.backfills.routes import create_backfills_blueprint
from dataloader.app.features.bulk.routes import create_bulk_blueprint
from dataloader.app.features.graphs.routes import create_graphs_blueprint
from dataloader.app.features.jobs.batch_routes import create_batch_blueprint
from dataloader.app.features.jobs.edit_routes import create_edits_blueprint
from dataloader.app.features.jobs.event_routes import create_events_blueprint
from dataloader.app.features.jobs.list_routes import create_job_list_blueprint
from dataloader.app.features.jobs.log_routes import create_job_logs_blueprint
from dataloader.app.features.jobs.routes import JobIdConverter, JobWatcher, create_jobs_blueprint
from dataloader.app.features.jobs.trigger_request import trigger_request_model
from dataloader.app.features.limits.routes import create_breakers_blueprint, create_limits_blueprint
from dataloader.app.features.metrics.routes import QueueCollector, create_metrics_blueprint
from dataloader.app.features.overview.routes import create_overview_blueprint
from dataloader.app.features.overview.service_counts import ProblemCounter
from dataloader.app.features.quality.routes import DatasetConverter, create_data_quality_blueprint
from dataloader.app.features.queues.routes import create_queues_blueprint
from dataloader.app.features.scaling.routes import CachedScaling, ScalingCollector, create_scaling_blueprint
from dataloader.app.features.schedules.routes import create_schedules_blueprint
from dataloader.app.features.statistics.failure_routes import create_failures_blueprint
from dataloader.app.features.tasks.routes import create_task_stats_blueprint
from dataloader.app.features.undo.pages import ActHistory, create_undo_page, describe_act
from dataloader.app.features.webhooks.routes import create_webhooks_blueprint
from dataloader.app.http.all_pages import create_pages
from dataloader.app.http.auth.api_keys import ApiKeys
from dataloader.app.http.auth.guard import ACTOR, Authenticator, csrf_token, parse_networks
from dataloader.app.http.auth.login import create_login_blueprint
from dataloader.app.http.auth.sessions import Sessions
from dataloader.app.http.caches import KeyCache, QueueSettingsCache
from dataloader.app.http.docs import create_docs_blueprint
from dataloader.app.http.feedback import create_feedback_blueprint
from dataloader.app.http.health import Probe, ReadinessCheck, create_health_blueprint
from dataloader.app.http.links import LazyRule, NameConverter, quote_in_template
from dataloader.app.http.middleware import RequestMetrics, RequestMiddleware, handle_error
from dataloader.app.http.options import WebOptions
from dataloader.app.http.standby_reads import MAX_LAG_KEY
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.queue.labels import split_tasks
from dataloader.app.queue.queues import LiveWorker, QueueControl
from dataloader.app.tracing import Tracer
from dataloader.app.ui.shell import shell_values
from dataloader.pipelines.contract import Pipelines

OPERATIONS = "dataloader.operations"  # the key of all operations in the app's extensions


def create_app(
    queue: JobQueue,
    pipelines: Pipelines,
    options: WebOptions,
    *,
    probe: Probe | None = None,
    pool: Pool | None = None,
    keys: ApiKeys | None = None,
    collectors: Iterable[Collector] = (),
    tracer: Tracer | None = None,
    closing: threading.Event | None = None,
) -> Flask:
    """Build the WSGI app. It queries the database only to answer requests.

    `probe` returns the state of this process's worker pool for `/status`; a false `ready` makes the service not ready.
    `pool` is the pool of `queue`, whose state and schema version `/status` shows.
    `keys` are required of callers; without them only local callers are accepted, with all scopes.
    `collectors` add metrics of other components, such as the worker pool, to `/metrics`.
    `tracer` creates a span for each triggered job; None: tracing is off.
    `closing` ends waiting requests and streams once it is set.
    """
    app = Flask(ui.__name__)
    app.url_rule_class = LazyRule
    here = Path(__file__).parents[1]
    folders = [here / "ui", *sorted((here / "features").glob("*"))]
    app.jinja_loader = FileSystemLoader([folder / "templates" for folder in folders])
    app.config["MAX_CONTENT_LENGTH"] = options.max_body_bytes
    app.config[MAX_LAG_KEY] = options.max_data_age_sec
    app.url_map.converters |= {"job": JobIdConverter, "dataset": DatasetConverter, "path": NameConverter}
    app.url_map.merge_slashes = False  # no redirects from other spellings of a path
    app.context_processor(lambda: {"actor": request.environ.get(ACTOR), "csrf_token": csrf_token()})
    counter = ProblemCounter(queue.executor)
    app.context_processor(lambda: shell_values(options, counter))
    history = ActHistory(queue, pipelines, options)
    app.context_processor(lambda: {"last_act": history.shown_act, "describe_act": describe_act})
    app.jinja_env.filters["urlencode"] = quote_in_template
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True

    registry = CollectorRegistry()
    request_metrics, authenticator = RequestMetrics(registry), _make_authenticator(keys, options)
    scaling = CachedScaling(queue.executor, options)
    for collector in (QueueCollector(queue, options), ScalingCollector(scaling, options.queues), *collectors):
        registry.register(collector)
    app.register_error_handler(Exception, handle_error)
    app.wsgi_app = RequestMiddleware(app.wsgi_app, request_metrics, authenticator)  # type: ignore[method-assign]

    executor, closing = queue.executor, closing or threading.Event()
    own_worker = None if probe is None else _own_worker(options, pipelines)
    trigger_model = trigger_request_model(options, pipelines)
    queue_settings = QueueSettingsCache(QueueControl(executor), own_worker)
    watcher, check_readiness = JobWatcher(options.max_waiters, closing), ReadinessCheck(queue, options, probe, pool)
    blueprints = [
        create_jobs_blueprint(queue, pipelines, trigger_model, tracer, watcher, queue_settings),
        create_batch_blueprint(executor, pipelines, options, queue_settings),
        create_graphs_blueprint(queue, pipelines, options, queue_settings),
        create_job_list_blueprint(executor, pipelines),
        create_edits_blueprint(queue, pipelines, options),
        create_bulk_blueprint(executor, pipelines),
        create_failures_blueprint(executor),
        create_queues_blueprint(executor, pipelines),
        create_overview_blueprint(executor, options, counter.get),
        create_scaling_blueprint(scaling),
        create_limits_blueprint(executor, pipelines),
        create_breakers_blueprint(executor, pipelines),
        create_schedules_blueprint(executor, pipelines, options),
        create_backfills_blueprint(BackfillEditor(queue, pipelines, options)),
        create_data_quality_blueprint(executor),
        create_task_stats_blueprint(executor, pipelines),
        create_events_blueprint(executor, options, closing),
        create_job_logs_blueprint(queue, watcher),
        create_webhooks_blueprint(executor, pipelines, options),
        create_alerts_blueprint(executor, pipelines),
        create_health_blueprint(check_readiness, probe, options),
        create_metrics_blueprint(registry),
        create_feedback_blueprint(request_metrics),
        *create_pages(queue, pipelines, options),
        create_undo_page(history, options),
        create_audit_blueprint(executor),
        create_login_blueprint(authenticator, AuditLog(executor)),
    ]
    app.extensions[OPERATIONS] = []
    for blueprint in (*blueprints, create_docs_blueprint(blueprints)):
        app.register_blueprint(blueprint.blueprint)
        app.extensions[OPERATIONS] += blueprint.operations
    return app


def _make_authenticator(keys: ApiKeys | None, options: WebOptions) -> Authenticator:
    proxies = parse_networks(options.trusted_proxies)
    key_cache = sessions = None
    if keys is not None:
        key_cache, sessions = KeyCache(keys), Sessions(keys.signing_secret)
    return Authenticator(key_cache, sessions, auth_disabled=options.auth_disabled, proxies=proxies)


def _own_worker(options: WebOptions, pipelines: Pipelines) -> LiveWorker:
    """What the workers of this process serve."""
    served, unserved = split_tasks(pipelines.names, pipelines.declared_requirements(), options.worker_labels)
    labels = dict(options.worker_labels)
    return LiveWorker(frozenset(options.queues), frozenset(served), labels=labels, unserved_tasks=unserved)
