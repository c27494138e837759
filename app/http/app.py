"""Builds the Flask app from the blueprints of the core and of the features, and the middleware around them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from flask import Flask, request
from jinja2 import FileSystemLoader
from prometheus_client.registry import Collector

from dataloader.app import ui
from dataloader.app.acts.audit_log import AuditLog
from dataloader.app.acts.feature import Feature, load_all
from dataloader.app.acts.web import ActRunner
from dataloader.app.db.pool import Pool
from dataloader.app.features.registry import FEATURES
from dataloader.app.http.auth.api_keys import ApiKeys
from dataloader.app.http.auth.guard import ACTOR, Authenticator, csrf_token, parse_networks
from dataloader.app.http.auth.login import create_login_blueprint
from dataloader.app.http.auth.sessions import Sessions
from dataloader.app.http.caches import KeyCache, QueueSettingsCache
from dataloader.app.http.docs import create_docs_blueprint
from dataloader.app.http.feedback import create_feedback_blueprint
from dataloader.app.http.health import Probe, create_health_blueprint
from dataloader.app.http.jobs.job_maker import JobMaker
from dataloader.app.http.jobs.routes import JobIdConverter, create_jobs_blueprint
from dataloader.app.http.jobs.watcher import JobWatcher
from dataloader.app.http.links import SHAPES_KEY, LazyRule, NameConverter, quote_in_template, shapes_of
from dataloader.app.http.middleware import RequestMetrics, RequestMiddleware, handle_error
from dataloader.app.http.options import WebOptions
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.site import Site
from dataloader.app.http.standby_reads import MAX_LAG_KEY
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.queue.labels import split_tasks
from dataloader.app.queue.queues import LiveWorker, QueueControl
from dataloader.app.tracing import Tracer
from dataloader.app.ui.shell import shell_values
from dataloader.app.ui.zone import create_zone_page
from dataloader.pipelines.contract import Pipelines

OPERATIONS = "dataloader.operations"  # the key of all operations in the app's extensions


def create_app(
    queue: JobQueue,
    pipelines: Pipelines,
    options: WebOptions,
    *,
    features: Sequence[Feature] = FEATURES,
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
    closing = closing or threading.Event()
    own_worker = None if probe is None else _own_worker(options, pipelines)
    queue_settings = QueueSettingsCache(QueueControl(queue.executor), own_worker)
    maker = JobMaker(queue, pipelines, queue_settings, tracer)
    site = Site(
        queue=queue,
        pipelines=pipelines,
        options=options,
        features=features,
        jobs=maker,
        watcher=JobWatcher(options.max_waiters, closing),
        runner=ActRunner(queue.executor, pipelines, options, maker),
        closing=closing,
        pool=pool,
        probe=probe,
    )
    app = _create_flask(site)
    request_metrics, authenticator = RequestMetrics(site.registry), _make_authenticator(keys, options)
    for collector in (*(create(site) for create in load_all(features, "collectors")), *collectors):
        site.registry.register(collector)
    app.wsgi_app = RequestMiddleware(app.wsgi_app, request_metrics, authenticator)  # type: ignore[method-assign]
    blueprints: list[ApiBlueprint] = [
        create_jobs_blueprint(site),
        *(create(site) for create in load_all(features, "blueprints")),
        create_health_blueprint(site),
        create_feedback_blueprint(request_metrics),
        create_zone_page(site),
        create_login_blueprint(authenticator, AuditLog(queue.executor)),
    ]
    app.extensions[OPERATIONS] = []
    for blueprint in (*blueprints, create_docs_blueprint(blueprints)):
        app.register_blueprint(blueprint.blueprint)
        app.extensions[OPERATIONS] += blueprint.operations
    app.config[SHAPES_KEY] = shapes_of(app.url_map)
    return app


def _create_flask(site: Site) -> Flask:
    """Create the app without routes: converters of paths, templates and what all of them may use."""
    app = Flask(ui.__name__)
    app.url_rule_class = LazyRule
    here = Path(__file__).parents[1]
    folders = [here / "ui", *(here / "features" / feature.name for feature in site.features)]
    app.jinja_loader = FileSystemLoader([folder / "templates" for folder in folders])
    app.config["MAX_CONTENT_LENGTH"] = site.options.max_body_bytes
    app.config[MAX_LAG_KEY] = site.options.max_data_age_sec
    app.url_map.converters |= {"job": JobIdConverter, "path": NameConverter}
    for feature in site.features:
        app.url_map.converters |= {name: feature.load(path) for name, path in feature.converters.items()}
    app.url_map.merge_slashes = False  # no redirects from other spellings of a path
    app.context_processor(lambda: {"actor": request.environ.get(ACTOR), "csrf_token": csrf_token()})
    app.context_processor(lambda: shell_values(site.options, site.navigation))
    for page_values in load_all(site.features, "page_values"):
        app.context_processor(page_values(site))
    app.jinja_env.filters["urlencode"] = quote_in_template
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    app.register_error_handler(Exception, handle_error)
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
