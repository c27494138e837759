"""`dataloader worker`: a worker pool alone. The main thread waits for the end, and watches that the others live."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType

from app import log
from app.config import Settings
from app.errors import ConfigError, DatabaseUnavailable, Fault
from app.host.ending import DID_NOT_END, Ending
from app.host.porch import Porch, porch
from app.host.service import Service, set_up_logging
from app.host.startup import Startup

_log = log.get(__name__)
_LOOK = 1.0  # seconds between two looks at the threads


def work(settings: Settings, *, banner: Callable[[Startup], None]) -> int:
    """Run jobs until SIGTERM, SIGINT or SIGHUP; returns the exit code. Raises what a person can mend."""
    if not settings.workers:
        raise ConfigError([Fault("WORKERS_JSON", "no queue", "name one to work on, or use --queue")])
    set_up_logging(settings)
    service = Service(settings)
    ending = Ending(service, grace=settings.shutdown_grace_sec)
    _listen_to_signals(ending)
    try:
        outage = _prepare(service)
        _ = service.loading  # by the main thread, as some libraries ask for it
        if outage is not None:
            banner(Startup(service.database.describe(), outage))
        service.on_ready = lambda: banner(Startup(service.database.describe(), None, service.loading.failures))
        with porch(settings.app_host, settings.probe_port, lambda: Porch(service.probe, service.collectors())):
            ending.start()
            service.start()
            return _watch(service, ending)
    finally:
        service.close()
        log.tear_down()


def _listen_to_signals(ending: Ending) -> None:
    def leave_a_note(number: int, frame: FrameType | None) -> None:
        ending.note(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
            continue  # nohup: a closed terminal means nothing
        signal.signal(number, leave_a_note)


def _prepare(service: Service) -> str | None:
    """What is not there yet, if anything."""
    try:
        service.database.prepare()
    except DatabaseUnavailable as error:
        _log.warning("database.away", error=str(error), detail="waiting for it")
        return service.database.describe_outage(error)
    return None


def _watch(service: Service, ending: Ending) -> int:
    code = 0
    while not ending.over.wait(_LOOK):
        broken = service.broken
        if broken and code == 0:
            _log.error("service.broken", detail=broken)
            code = DID_NOT_END
            ending.note(signal.SIGTERM)
    if code or not ending.clean:
        ending.leave_now(code)
    return code
