"""How a process shows that it runs: with the banner for people, or with one more line among lines of JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dataloader.app import log
from dataloader.app.runtime.startup import Startup, last_error

if TYPE_CHECKING:
    from dataloader.app.config import Settings

_log = log.get(__name__)


def announce(settings: Settings, startup: Startup, banner: str) -> None:
    """Print the banner; with DL_LOG_FORMAT=json, as in a container, log what it says."""
    if settings.log_format != "json":
        click.echo(banner)
    elif startup.outage is not None:
        _log.warning("service.waiting", database=startup.database, reason=startup.outage)
    else:
        broken = {module: last_error(trace) for module, trace in startup.failures.items()}
        queues = {worker.queue: worker.concurrency for worker in settings.workers}
        _log.info("service.ready", database=startup.database, queues=queues, broken=broken)
