"""The engine of the campaign: the fake one with faults from the seed, and a look at the intent before each start."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from tests.chaos.history import Execution
from tests.support.fake_engine import FakeEngine

PROGRAM = Path(__file__).with_name("offload_program.sh")
NAME = "fake"
_FAULT_RATE = 0.08  # of the requests
_FAULTS = {
    "GET": ("500", "lost", "slow", "hang"),
    "POST": ("500", "lost", "slow", "hang", "twice", "late"),
    "DELETE": ("500", "lost", "slow", "hang", "twice"),
}


class CampaignEngine(FakeEngine):
    """Requests come in threads. `has_intent` looks for the row of a name; None: the database does not answer."""

    def __init__(self, folder: Path, seed: int, *, has_intent: Callable[[str], bool | None]) -> None:
        super().__init__(folder)
        self._has_intent = has_intent
        self._random = random.Random(f"engine {seed}")
        self._lock = threading.Lock()  # held while a program is started or stopped
        self._intents: dict[str, bool | None] = {}  # by name, at its start; under the lock
        self.is_faulty = True

    def handle(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if self.is_faulty and self._random.random() < _FAULT_RATE:
            self.faults[method].append(self._random.choice(_FAULTS[method]))
        with suppress(IndexError):  # another thread took the fault
            return super().handle(method, path, body)
        return 500, {}

    def _post(self, name: str, part: str, body: Any) -> tuple[int, Any]:
        has_intent = None if name in self.programs else self._has_intent(name)
        with self._lock:
            started_before = self.starts[name]
            answer = super()._post(name, part, body)
            if self.starts[name] > started_before:
                self._intents[name] = has_intent
            return answer

    def _delete(self, name: str, part: str, body: Any) -> tuple[int, Any]:
        with self._lock:
            return super()._delete(name, part, body)

    def heal(self) -> None:
        self.is_faulty = False
        self.faults.clear()
        if self._server is None:
            self.up()

    def executions(self) -> list[Execution]:
        """What was started, by name."""
        return [
            Execution(
                name=name,
                starts=self.starts[name],
                had_intent=self._intents.get(name),
                state=str(program.state()["state"]),
            )
            for name, program in self.programs.items()
        ]

    def close(self) -> None:
        """Also what the programs have started."""
        self.down()
        for program in self.programs.values():
            with suppress(psutil.NoSuchProcess):
                for child in psutil.Process(program.process.pid).children():
                    child.kill()
        super().close()
