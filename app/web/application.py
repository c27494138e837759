"""The app: every subject on one Flask, with the same steps around each request."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from flask import Flask, request
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from app.queue.audit import Audit
from app.queue.jobqueue import JobQueue
from app.queue.keys import Keys
from app.queue.lists import Lists
from app.queue.pool import Pool
from app.queue.queues import LiveWorker, Queues
from app.queue.together import Together
from app.traces import Quiet, Tracer
from app.web.alerts import alerts
from app.web.audit import audit
from app.web.auth import ACTOR, Guard, csrf_token
from app.web.batch import batch
from app.web.bulk import bulk
from app.web.callers import networks
from app.web.docs import docs
from app.web.edits import edits
from app.web.exchange import Around, fail
from app.web.express import EXPRESS, Express
from app.web.feedback import feedback
from app.web.infrastructure import Look, Probe, infrastructure
from app.web.joblists import joblists
from app.web.joblogs import joblogs
from app.web.jobs import JobId, jobs
from app.web.keyring import KeyRing
from app.web.login import login
from app.web.metrics import QueueCollector, Traffic, metrics
from app.web.models import trigger_request
from app.web.options import WebOptions
from app.web.pages import pages
from app.web.probes import probes
from app.web.queues import Drains, queues
from app.web.sessions import Sessions
from app.web.stream import stream
from app.web.tasklist import tasklist
from app.web.waiting import Waiting
from app.web.webhooks import webhooks
from pipelines.contract import Pipelines

OPERATIONS = "dataloader.operations"  # in the app's extensions: every operation there is


def create_app(
    queue: JobQueue,
    pipelines: Pipelines,
    options: WebOptions,
    *,
    probe: Probe | None = None,
    pool: Pool | None = None,
    keys: Keys | None = None,
    collectors: Iterable[Collector] = (),
    tracer: Tracer | None = None,
    closing: threading.Event | None = None,
) -> Flask:
    """Build the WSGI app. Nothing is asked of the database before a request asks for it.

    `probe` tells `/status` how the worker pool of this process is; a false `ready` in it makes the service not ready.
    `pool` is the one `queue` asks through: `/status` tells how it does, and whether the schema is the right one.
    `keys` open the door; without them only callers of this machine are let in, and all of those.
    `collectors` add numbers of others, such as the worker pool's, to `/metrics`.
    `tracer` draws a span for each job that is asked for.
    `closing`, once it is set, ends the requests that wait for something to happen.
    """
    app = Flask(__name__)
    app.config["MAX_CONTENT_LENGTH"] = options.max_body_bytes
    app.url_map.converters["job"] = JobId
    app.url_map.merge_slashes = False  # an address is right or it is not; no redirects
    app.context_processor(lambda: {"actor": request.environ.get(ACTOR), "csrf_token": csrf_token()})
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True

    registry = CollectorRegistry()
    traffic = Traffic(registry)
    for collector in (QueueCollector(queue, options), *collectors):
        registry.register(collector)

    app.register_error_handler(Exception, fail)
    guard = _guard(keys, options)
    around = Around(app.wsgi_app, traffic, guard)
    app.wsgi_app = around  # type: ignore[method-assign]
    look = Look(queue, options, probe, pool)
    source, closing = queue.source, closing or threading.Event()
    own = None if probe is None else (lambda: LiveWorker(frozenset(options.queues), frozenset(pipelines.names)))
    together, asked, drains = Together(queue), trigger_request(options, pipelines), Drains(Queues(source), own)
    if tracer is None or isinstance(tracer, Quiet):  # a span is drawn by the thread that asks
        app.extensions[EXPRESS] = Express(around, guard, together, pipelines, options, asked, drains)
    waiting = Waiting(Lists(source), options.most_waiting, closing)
    subjects = [
        jobs(queue, together, pipelines, options, asked, tracer or Quiet(), waiting, drains),
        batch(source, pipelines, options, drains),
        joblists(source, options),
        edits(queue, pipelines, options),
        bulk(source, options),
        queues(source, options),
        tasklist(source, pipelines, options),
        stream(source, options, closing),
        joblogs(queue, options),
        webhooks(queue.source, options),
        alerts(queue.source, options),
        infrastructure(look, options),
        probes(lambda: look().ready, probe, options),
        metrics(registry, options),
        feedback(traffic, options),
        *pages(queue, pipelines, options),
        audit(queue.source, options),
        login(guard, Audit(queue.source), options),
    ]
    app.extensions[OPERATIONS] = []
    for subject in (*subjects, docs(subjects, options)):
        app.register_blueprint(subject.blueprint)
        app.extensions[OPERATIONS] += subject.operations
    return app


def _guard(keys: Keys | None, options: WebOptions) -> Guard:
    if keys is None:
        return Guard(None, None, wide_open=options.wide_open, proxies=networks(options.trusted_proxies))
    given = options.session_secret
    secret = keys.signing_secret if given is None else given.encode
    return Guard(
        KeyRing(keys),
        Sessions(secret, lasts_sec=options.session_sec),
        wide_open=options.wide_open,
        proxies=networks(options.trusted_proxies),
    )
