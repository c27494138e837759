"""Settings of gunicorn: address and threads, and the worker pool's life inside a gunicorn worker.

`gunicorn wsgi:app` finds this file in a checkout; elsewhere `gunicorn --config python:dataloader.gunicorn_conf
dataloader.wsgi:app` names it.
"""

# ruff: noqa: E402 - the first statement is for the time that the other imports take

import signal
import sys
from typing import Any

from dataloader.app.__main__ import exit_on

exit_on(signal.SIGTERM)  # the arbiter's handler replaces it

from dataloader.app.config import load_settings
from dataloader.app.config.checks import check_worker_name
from dataloader.app.errors import ConfigError
from dataloader.app.runtime.database import Database
from dataloader.app.runtime.serve import (
    SIGNALS_BLOCKED_AT_FORK,
    ServiceWorker,
    block_signals_at_fork,
    gunicorn_settings,
    require_key_if_public,
)
from dataloader.app.runtime.service import set_up_logging

try:
    _settings = load_settings(loads_pipelines=True)
except ConfigError as error:
    sys.stderr.write(f"Error: {error}\n")
    sys.exit(error.exit_code)

globals().update(gunicorn_settings(_settings))


def on_starting(server):  # type: ignore[no-untyped-def]
    set_up_logging(_settings)
    _choose_worker(server)
    if faults := check_worker_name(_settings, server.cfg.workers):
        sys.stderr.write(f"Error: {ConfigError(faults)}\n")
        sys.exit(ConfigError.exit_code)
    block_signals_at_fork()
    if _settings.dsn is None and _settings.auth != "none":
        return  # the embedded server is not there yet; without a key only callers on this machine are let in
    hosts = [
        address[0] for address in server.cfg.address if isinstance(address, tuple)
    ]  # the others are sockets' paths
    try:
        require_key_if_public(_settings, Database(_settings), hosts)
    except ConfigError as error:
        sys.stderr.write(f"Error: {error}\n")
        sys.exit(error.exit_code)


def _choose_worker(server: Any) -> None:
    if server.cfg.is_ssl:  # requests inside TLS cannot be buffered
        server.worker_class = ServiceWorker


on_reload = _choose_worker


def pre_exec(server):  # type: ignore[no-untyped-def]
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS_BLOCKED_AT_FORK)  # it was forked too, and a mask outlives exec


def post_worker_init(worker):  # type: ignore[no-untyped-def]
    worker.attach_service(sys.modules["dataloader.wsgi"].service)
