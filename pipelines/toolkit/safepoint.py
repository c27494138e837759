"""The interface by which a job is stopped during a long step."""

from __future__ import annotations

import threading
from typing import Protocol


class SafePoint(Protocol):
    """The part of a pipeline's context that the toolkit uses; pass it the context itself."""

    def check(self) -> None:
        """Raise if the work is to end. Called often, and from a thread of the toolkit while a source is silent."""

    def sleep(self, seconds: float) -> None:
        """Wait, and raise as soon as the work is to end."""


class NoSafePoints:
    """A replacement for the context outside a job; the work is never stopped."""

    def check(self) -> None:
        pass

    def sleep(self, seconds: float) -> None:
        threading.Event().wait(seconds)
