"""The service inside a gunicorn worker: what is started after the fork, and ended before the process is."""

from __future__ import annotations

import os
import signal
from functools import partial
from types import FrameType
from typing import Any

from gunicorn.glogging import Logger  # type: ignore[import-untyped]

from app.config import Settings
from app.host.arrival import Sizes
from app.host.client import Limits
from app.host.ending import STOP_MARGIN, Ending
from app.host.front import Front
from app.host.service import Service
from app.web.express import express_of

_STUCK = 120.0  # seconds: far above any pause in which a pipeline holds the interpreter
BLOCKED_AT_BIRTH = (signal.SIGTERM, signal.SIGQUIT)  # a signal between fork and handler would be the arbiter's copy's


def gunicorn_settings(settings: Settings) -> dict[str, Any]:
    """For `dataloader serve` and gunicorn.conf.py alike."""
    longest_end = settings.shutdown_grace_sec + STOP_MARGIN
    return {
        "bind": f"{_bracketed(settings.app_host)}:{settings.app_port}",
        "worker_class": Host,
        "workers": 1,
        "threads": settings.http_threads,
        "timeout": int(max(_STUCK, longest_end + 10)),  # an ending worker does not say that it lives
        "graceful_timeout": int(longest_end),
        "max_requests": 0,
        "preload_app": False,
        "control_socket_disable": True,
        "keepalive": 5,
        "sendfile": False,  # a file is written as any answer is: without waiting for a client
        "logger_class": GunicornLog,
        "errorlog": None,
        "loglevel": "warning",
    }


def block_signals_at_birth() -> None:
    """For the arbiter of `gunicorn wsgi:app`. A SIGTERM between fork and `init_signals` would be swallowed by the
    worker's copy of the arbiter's handler, and the arbiter would wait for that worker until the grace is over."""
    arbiter = os.getpid()

    def mask(how: int) -> None:
        if os.getpid() == arbiter:  # a worker that forks has this hook too
            signal.pthread_sigmask(how, BLOCKED_AT_BIRTH)

    os.register_at_fork(before=partial(mask, signal.SIG_BLOCK), after_in_parent=partial(mask, signal.SIG_UNBLOCK))


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


class GunicornLog(Logger):  # type: ignore[misc]
    """gunicorn's own lines go where all others go, and only there."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        self.error_log.propagate = True


class Host(Front):
    """gunicorn's threaded worker with a service beside its requests.

    Ctrl-C and a closed terminal reach every process of the group: the arbiter decides what they mean, and sends SIGTERM
    or, when somebody is in a hurry, SIGQUIT.
    """

    ending: Ending | None = None
    service: Service | None = None

    def init_signals(self) -> None:
        super().init_signals()
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED_AT_BIRTH)

    def move_in(self, service: Service) -> None:
        """Called when the app is loaded, just before requests are taken."""
        self.service = service
        self.limits = Limits(sizes=Sizes(body=max(service.settings.max_body_bytes, service.settings.max_batch_bytes)))
        self.open_lane(express_of(self.wsgi))
        self.ending = Ending(service, grace=service.settings.shutdown_grace_sec)
        self.ending.start()
        service.start()

    def run(self) -> None:
        try:
            super().run()
        finally:
            self._move_out()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._note(sig)  # claims end now, not when gunicorn is done with its requests
        super().handle_exit(sig, frame)

    def handle_quit(self, sig: int, frame: FrameType | None) -> None:
        # gunicorn's own handler leaves from wherever the main thread is, with jobs still running.
        self._note(sig)
        super().handle_exit(sig, frame)

    def _note(self, number: int) -> None:
        if self.ending is not None:
            self.ending.note(number)

    def _move_out(self) -> None:
        if self.ending is None or self.service is None:
            return
        self.ending.note(signal.SIGTERM)  # gunicorn also ends by itself, when its arbiter has gone
        self.ending.over.wait()
        if not self.ending.clean:
            self.ending.leave_now()
        self.service.close()
