"""The app: every subject on one Flask, with the same steps around each request."""

from __future__ import annotations

from collections.abc import Iterable

from flask import Flask
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from app.queue.jobqueue import JobQueue
from app.queue.pool import Pool
from app.web.docs import docs
from app.web.exchange import Around, fail
from app.web.feedback import feedback
from app.web.home import home
from app.web.infrastructure import Probe, infrastructure
from app.web.joblogs import joblogs
from app.web.jobs import JobId, jobs
from app.web.metrics import QueueCollector, Traffic, metrics
from app.web.options import WebOptions
from pipelines.contract import Pipelines

OPERATIONS = "dataloader.operations"  # in the app's extensions: every operation there is


def create_app(
    queue: JobQueue,
    pipelines: Pipelines,
    options: WebOptions,
    *,
    probe: Probe | None = None,
    pool: Pool | None = None,
    collectors: Iterable[Collector] = (),
) -> Flask:
    """Build the WSGI app. Nothing is asked of the database before a request asks for it.

    `probe` tells `/status` how the worker pool of this process is; a false `ready` in it makes the service not ready.
    `pool` is the one `queue` asks through: `/status` tells how it does, and whether the schema is the right one.
    `collectors` add numbers of others, such as the worker pool's, to `/metrics`.
    """
    app = Flask(__name__)
    app.config["MAX_CONTENT_LENGTH"] = options.max_body_bytes
    app.url_map.converters["job"] = JobId
    app.url_map.merge_slashes = False  # an address is right or it is not; no redirects
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True

    registry = CollectorRegistry()
    traffic = Traffic(registry)
    for collector in (QueueCollector(queue, options), *collectors):
        registry.register(collector)

    app.register_error_handler(Exception, fail)
    app.wsgi_app = Around(app.wsgi_app, traffic)  # type: ignore[method-assign]
    subjects = [
        jobs(queue, pipelines, options),
        joblogs(queue, options),
        infrastructure(queue, options, probe, pool),
        metrics(registry, options),
        feedback(traffic, options),
        home(queue, options),
    ]
    app.extensions[OPERATIONS] = []
    for subject in (*subjects, docs(subjects, options)):
        app.register_blueprint(subject.blueprint)
        app.extensions[OPERATIONS] += subject.operations
    return app
