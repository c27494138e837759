"""The notice of a machine that is to be taken away, such as a spot instance: an address, a file or a signal."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from dataloader.app import log

_log = log.get(__name__)
RESERVE_SEC = 20.0  # of the notice, for stopping and settling
_POLL_INTERVAL_SEC = 2.0
_REQUEST_TIMEOUT_SEC = 2.0
_MAX_BODY_BYTES = 1_000
_NO_NOTICE = frozenset({"", "false", "none"})  # what an address answers while there is none
_OWN_SIGNALS = frozenset({"TERM", "INT", "QUIT", "HUP", "KILL", "STOP", "CHLD"})


@dataclass(frozen=True)
class PreemptionNotice:
    """Where the notice appears, and how many seconds before the end of the machine."""

    kind: str  # url, file, signal
    target: str
    notice_sec: float

    @classmethod
    def parse(cls, text: str, notice_sec: float) -> PreemptionNotice:
        """Parse an address, `file:PATH` or `signal:NAME`. Raises ValueError."""
        if text.startswith(("http://", "https://")):
            return cls("url", text, notice_sec)
        kind, _, target = text.partition(":")
        if kind == "signal":
            name = target.upper().removeprefix("SIG")
            if f"SIG{name}" not in signal.Signals.__members__ or name in _OWN_SIGNALS:
                raise ValueError(f"{target!r} is not a signal that may be used, such as USR1")
            return cls(kind, f"SIG{name}", notice_sec)
        if kind == "file" and target:
            return cls(kind, target, notice_sec)
        raise ValueError("expected http://…, https://…, file:PATH or signal:NAME")

    @property
    def grace_sec(self) -> float:
        return max(0.0, self.notice_sec - RESERVE_SEC)

    def has_appeared(self) -> bool:
        return os.path.exists(self.target) if self.kind == "file" else _has_notice(self.target)


def _has_notice(url: str) -> bool:
    """Whether the address answers 200 with something else than `false`: one that does not answer has no notice."""
    request = Request(url, headers={"Metadata-Flavor": "Google"})  # noqa: S310 - the operator's own
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=_REQUEST_TIMEOUT_SEC) as response:
            body = response.read(_MAX_BODY_BYTES).decode(errors="replace")
    except HTTPError as error:
        error.close()
        return False
    except (OSError, HTTPException, ValueError):
        return False
    return body.strip().lower() not in _NO_NOTICE


@contextmanager
def watching(notice: PreemptionNotice | None, stop_within: Callable[[float], None]) -> Iterator[None]:
    """While the block lasts, call `stop_within` with the grace once the notice appears. Of the main thread."""
    if notice is None:
        yield
        return

    def report() -> None:
        _log.warning("worker.preempted", notice=notice.target, grace_sec=notice.grace_sec)
        stop_within(notice.grace_sec)

    if notice.kind == "signal":
        signal.signal(signal.Signals[notice.target], lambda number, frame: stop_within(notice.grace_sec))
        yield
        return
    is_over = threading.Event()

    def poll() -> None:
        while not is_over.wait(_POLL_INTERVAL_SEC):
            if notice.has_appeared():
                report()
                return

    thread = threading.Thread(target=poll, name="preemption-notice", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(_REQUEST_TIMEOUT_SEC + 1)
