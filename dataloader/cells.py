"""A client of several independent services, the cells: a key decides which of them gets a job.

::

    cells = CellClient(CellMap(1, {"north": "http://10.0.0.1:8081", "south": "http://10.0.0.2:8081"}))
    job = cells.trigger("load", {"shop": 7}, queue="etl", lock_key="shop:7")
    print(job["cell"], cells.find(job["job_id"])["status"])
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal, Unpack

from dataloader._enqueue import TriggerOptions
from dataloader.client import Client, Fields, JobId, Payload
from dataloader.errors import CellUnavailable, ClientError, KeyMoving, NotFound, ServiceUnavailable

KeyField = Literal["lock_key", "partition_key", "queue"]

_NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9_-]{0,49}")
_OPEN_STATUSES = "queued,running"
# What the dashboard sets after a change: no standby answers, whose data may be too old to see an open job.
_PRIMARY_HEADERS = {"Cookie": "dl_changed=1"}


@dataclass(frozen=True)
class CellMap:
    """Which cells there are, by name. A new map has a higher version.

    A key belongs to the cell whose name and key have the highest hash. A further cell takes over its share of the keys,
    and no key moves between the others. A cell's address and key may change, its name must not.
    """

    version: int
    cells: Mapping[str, str | Client] = field(repr=False)

    def __post_init__(self) -> None:
        if not self.cells:
            raise ValueError("a map needs at least one cell")
        for name in self.cells:
            if not _NAME_PATTERN.fullmatch(name):
                raise ValueError(f"{name!r} is not a cell's name: up to 50 of a-z, 0-9, _ and -")

    def cell_of(self, key: str) -> str:
        """Return the name of the cell of a key: the same on each machine and by each version of Python."""
        return max(self.cells, key=lambda name: sha256(f"{name}\n{key}".encode()).digest())

    def moved_keys(self, previous: CellMap, keys: Iterable[str]) -> list[str]:
        """List those of the keys that have another cell in the previous map."""
        return [key for key in keys if self.cell_of(key) != previous.cell_of(key)]


class CellClient:
    """Triggers each job in the cell of its key, the field `by` of the job, and finds jobs in all cells.

    Lock keys, limits, graphs, schedules and idempotency keys hold within a cell only. With `previous`, the map before
    this one, a key that moves is sent to its new cell once no job with it is open in the old one; until then, and with
    `holds_moved_keys` at all times, a trigger raises KeyMoving. For another API key or timeout a map has a `Client`
    in place of an address.
    """

    def __init__(
        self,
        cells: CellMap,
        *,
        by: KeyField = "lock_key",
        previous: CellMap | None = None,
        holds_moved_keys: bool = False,
    ) -> None:
        if previous is not None and previous.version >= cells.version:
            raise ValueError(f"the previous map has version {previous.version}, not less than {cells.version}")
        if previous is None and holds_moved_keys:
            raise ValueError("holds_moved_keys needs the previous map: which keys move is not known without it")
        self.map, self.previous = cells, previous
        self._by, self._holds_moved_keys = by, holds_moved_keys
        known = {**({} if previous is None else previous.cells), **cells.cells}
        self._clients = {name: Client(cell) if isinstance(cell, str) else cell for name, cell in known.items()}

    def client(self, cell: str) -> Client:
        """Return the client of one cell, for everything but triggers. Raises KeyError if there is no such cell."""
        return self._clients[cell]

    def trigger(
        self, task: str, args: Fields | None = None, *, strict: bool = False, **options: Unpack[TriggerOptions]
    ) -> Payload:
        """Put a job into the queue of its cell; return what `Client.trigger` does, and `cell`.

        Raises ValueError without a key, KeyMoving, or CellUnavailable: no other cell gets the job.
        """
        key = options.get(self._by)
        if not key:
            raise ValueError(f"a job needs a {self._by}: it decides in which cell the job runs")
        cell = self.map.cell_of(str(key))
        self._await_move(str(key), cell)
        job = self._ask(cell, lambda client: client.trigger(task, args, strict=strict, **options))
        return {**job, "cell": cell}

    def find(self, job_id: JobId) -> Payload:
        """Ask all cells for a job, at the same time; return it as `Client.job` does, and `cell`.

        Raises NotFound if no cell has it, and CellUnavailable if those that answer do not have it.
        """
        with ThreadPoolExecutor(len(self._clients), thread_name_prefix="find-job") as pool:
            answers = {cell: pool.submit(self._ask, cell, lambda client: client.job(job_id)) for cell in self._clients}
        errors: list[ClientError] = []
        for cell, answer in answers.items():
            error = answer.exception()
            if error is None:
                return {**answer.result(), "cell": cell}
            if not isinstance(error, ClientError):
                raise error
            errors.append(error)
        raise next((error for error in errors if not isinstance(error, NotFound)), errors[0])

    def _await_move(self, key: str, cell: str) -> None:
        """Raise KeyMoving if the key may still run elsewhere."""
        old = cell if self.previous is None else self.previous.cell_of(key)
        if old == cell:
            return
        if self._holds_moved_keys:
            raise KeyMoving(f"{self._by} {key!r} moves from cell {old!r} to {cell!r}, and is held until then")
        if self._ask(old, lambda client: _has_open_job(client, self._by, key)):
            raise KeyMoving(f"{self._by} {key!r} moves from cell {old!r} to {cell!r} once its jobs there have ended")

    def _ask(self, cell: str, request: Any) -> Any:
        try:
            return request(self._clients[cell])
        except ServiceUnavailable as outage:
            raise CellUnavailable(cell, outage) from outage


def _has_open_job(client: Client, field_name: str, key: str) -> bool:
    query: dict[str, Any] = {field_name: key, "status": _OPEN_STATUSES, "fields": "job_id", "limit": 1}
    while True:
        page = client.request("GET", "/api/v1/jobs", query=query, headers=_PRIMARY_HEADERS)
        if page["jobs"] or page.get("next") is None:
            return bool(page["jobs"])
        query["after"] = page["next"]
