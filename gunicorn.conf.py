"""For `gunicorn wsgi:app`: the settings' address and threads, and the worker pool's life inside a gunicorn worker."""

# ruff: noqa: E402 - the first statement is for the time that the other imports take

import signal
import sys

from app.host.early_signals import leave_on

leave_on(signal.SIGTERM)  # the arbiter's handler replaces it

from app.config import Settings
from app.config.checks import shared_name
from app.errors import ConfigError
from app.host.database import Database
from app.host.door import try_the_door
from app.host.guest import BLOCKED_AT_BIRTH, block_signals_at_birth, gunicorn_settings
from app.host.service import set_up_logging

try:
    _settings = Settings.load(loads_pipelines=True)
except ConfigError as error:
    sys.stderr.write(f"Error: {error}\n")
    sys.exit(error.exit_code)

globals().update(gunicorn_settings(_settings))


def on_starting(server):  # type: ignore[no-untyped-def]
    set_up_logging(_settings)
    if faults := shared_name(_settings, server.cfg.workers):
        sys.stderr.write(f"Error: {ConfigError(faults)}\n")
        sys.exit(ConfigError.exit_code)
    block_signals_at_birth()
    if _settings.dsn is None and _settings.auth != "none":
        return  # the embedded server is not there yet; without a key others are not let in, whoever is listened to
    hosts = [
        address[0] for address in server.cfg.address if isinstance(address, tuple)
    ]  # the others are sockets' paths
    try:
        try_the_door(_settings, Database(_settings), hosts)
    except ConfigError as error:
        sys.stderr.write(f"Error: {error}\n")
        sys.exit(error.exit_code)


def pre_exec(server):  # type: ignore[no-untyped-def]
    signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED_AT_BIRTH)  # it was forked too, and a mask outlives exec


def post_worker_init(worker):  # type: ignore[no-untyped-def]
    worker.move_in(sys.modules["wsgi"].service)
