"""A file of the responses that callers got, one per line; the checker reads it in addition to the tables."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.chaos.clock import clock


@dataclass(frozen=True)
class ClientResponse:
    """One answer. `at` is when it had arrived."""

    what: str  # accepted | canceled | retried | unsure
    at: float
    job_id: str = ""
    task: str = ""
    key: str = ""  # the idempotency key, where one was given
    status: str = ""  # the status in the response to a cancel or retry


class ClientLog:
    """Written by many threads, kept whatever happens to the one who writes it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._lock = threading.Lock()
        self._stream = file.open("a", encoding="utf-8")
        self._responses: list[ClientResponse] = []  # under the lock

    def accepted(self, job_id: str, task: str, key: str = "") -> None:
        self._append(ClientResponse("accepted", clock(), job_id, task, key))

    def canceled(self, job_id: str, status: str) -> None:
        self._append(ClientResponse("canceled", clock(), job_id, status=status))

    def retried(self, job_id: str, status: str) -> None:
        self._append(ClientResponse("retried", clock(), job_id, status=status))

    def unanswered(self, task: str, key: str) -> None:
        """No answer ever came: the job may be there or not."""
        self._append(ClientResponse("unsure", clock(), task=task, key=key))

    def _append(self, response: ClientResponse) -> None:
        with self._lock:
            self._responses.append(response)
            self._stream.write(json.dumps(asdict(response)) + "\n")
            self._stream.flush()

    @property
    def responses(self) -> Sequence[ClientResponse]:
        with self._lock:
            return list(self._responses)

    def close(self) -> None:
        self._stream.close()


def read_client_log(file: Path) -> list[ClientResponse]:
    return [ClientResponse(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
