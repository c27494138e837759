"""How the toolkit lets a job be stopped in the middle of a long step."""

from __future__ import annotations

import threading
from typing import Protocol


class SafePoint(Protocol):
    """The part of a pipeline's context that the toolkit needs: hand it the context itself."""

    def check(self) -> None:
        """Raise if the work is to end. Called often, and while a source is silent from a thread of the toolkit's."""

    def sleep(self, seconds: float) -> None:
        """Wait, and raise as soon as the work is to end."""


class Unattended:
    """Stands for a context where there is none: nobody will ask the work to end."""

    def check(self) -> None:
        pass

    def sleep(self, seconds: float) -> None:
        threading.Event().wait(seconds)
