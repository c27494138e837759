"""`dataloader worker`: a worker pool alone. The main thread waits for a signal and checks the other threads."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType

from app import log
from app.config import Settings
from app.errors import ConfigError, SettingError
from app.runtime.probe_server import ProbeEndpoints, probe_server
from app.runtime.service import Service, set_up_logging
from app.runtime.shutdown import EXIT_STOP_TIMEOUT, Shutdown
from app.runtime.startup import Startup

_log = log.get(__name__)
_CHECK_INTERVAL_SEC = 1.0


def run_worker(settings: Settings, *, banner: Callable[[Startup], None]) -> int:
    """Run jobs until SIGTERM, SIGINT or SIGHUP; return the exit code. Raises errors that an operator can fix."""
    if not settings.workers:
        raise ConfigError([SettingError("WORKERS_JSON", "no queue", "name one to work on, or use --queue")])
    set_up_logging(settings)
    service = Service(settings)
    shutdown = Shutdown(service, grace_sec=settings.shutdown_grace_sec)
    _install_signal_handlers(shutdown)
    try:
        outage = service.database.prepare_or_describe_outage()
        _ = service.pipeline_failures  # by the main thread, as some libraries ask for it
        if outage is not None:
            banner(Startup(service.database.describe(), outage))
        service.on_ready = lambda: banner(Startup(service.database.describe(), None, service.pipeline_failures))
        with probe_server(
            settings.app_host, settings.probe_port, lambda: ProbeEndpoints(service.probe, service.collectors())
        ):
            shutdown.start()
            service.start()
            return _supervise(service, shutdown)
    finally:
        service.close()
        log.tear_down()


def _install_signal_handlers(shutdown: Shutdown) -> None:
    def _on_signal(signal_number: int, frame: FrameType | None) -> None:
        shutdown.request(signal_number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
            continue  # nohup: a closed terminal means nothing
        signal.signal(number, _on_signal)


def _supervise(service: Service, shutdown: Shutdown) -> int:
    code = 0
    while not shutdown.stopped.wait(_CHECK_INTERVAL_SEC):
        broken = service.failure
        if broken and code == 0:
            _log.error("service.thread_crashed", detail=broken)
            code = EXIT_STOP_TIMEOUT
            shutdown.request(signal.SIGTERM)
    if code or not shutdown.clean:
        shutdown.exit_now(code)
    return code
