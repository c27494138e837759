"""What callers were told, line by line in a file: the only thing beside the tables that the checker believes."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.chaos.moments import clock


@dataclass(frozen=True)
class Told:
    """One answer. `at` is when it had arrived."""

    what: str  # accepted | canceled | retried | unsure
    at: float
    job_id: str = ""
    task: str = ""
    key: str = ""  # the idempotency key, where one was given
    status: str = ""  # what a cancel or a retry said the job was


class Record:
    """Written by many threads, kept whatever happens to the one who writes it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._lock = threading.Lock()
        self._open = file.open("a", encoding="utf-8")
        self._told: list[Told] = []  # under the lock

    def accepted(self, job_id: str, task: str, key: str = "") -> None:
        self._keep(Told("accepted", clock(), job_id, task, key))

    def canceled(self, job_id: str, status: str) -> None:
        self._keep(Told("canceled", clock(), job_id, status=status))

    def retried(self, job_id: str, status: str) -> None:
        self._keep(Told("retried", clock(), job_id, status=status))

    def unsure(self, task: str, key: str) -> None:
        """No answer ever came: the job may be there or not."""
        self._keep(Told("unsure", clock(), task=task, key=key))

    def _keep(self, told: Told) -> None:
        with self._lock:
            self._told.append(told)
            self._open.write(json.dumps(asdict(told)) + "\n")
            self._open.flush()

    @property
    def told(self) -> Sequence[Told]:
        with self._lock:
            return list(self._told)

    def close(self) -> None:
        self._open.close()


def read_record(file: Path) -> list[Told]:
    return [Told(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
