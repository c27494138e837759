"""How Gmap2Brief is asked for an export: start it, wait for it, fetch it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines.contract import Context
from pipelines.toolkit.errors import SourceAnswered, SourceBroken, SourceError
from pipelines.toolkit.paths import segment
from pipelines.toolkit.sources import Answer, Download, HttpSource, Patience

_GONE = (404, 410)
_LONGEST_PAUSE = 300.0  # seconds, whatever Retry-After says: a stuck export shall be noticed


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """The service's paths, names of fields, and states. All but the first path stand for what is not public."""

    start: str = "/export/opu/start"
    status: str = "/export/opu/{id}/status"
    file: str = "/export/opu/{id}/download"
    id_field: str = "id"
    state_field: str = "state"
    rows_field: str = "rows"  # of a finished export, if it tells
    error_field: str = "error"  # of a failed one
    waiting: frozenset[str] = frozenset({"queued", "running"})
    done: frozenset[str] = frozenset({"done"})
    failed: frozenset[str] = frozenset({"failed", "canceled"})


class ExportFailed(SourceError):
    """Gmap2Brief gave the export up. Another one may do better."""


class ExportTooSlow(SourceError):
    """The export was not done in the time it was given."""


@dataclass(frozen=True)
class Finished:
    export_id: str
    rows: int | None  # as the service says


@dataclass(frozen=True, kw_only=True)
class Gmap2Brief:
    """The service, as one job talks to it."""

    url: str
    headers: Mapping[str, str]
    ctx: Context
    protocol: Protocol = field(default_factory=Protocol)

    def export(self, wanted: Mapping[str, Any], *, timeout: float, every: float) -> Finished:
        """Start an export and wait until it is done, asking `every` so many seconds or when the service says."""
        deadline = time.monotonic() + timeout
        with HttpSource(ctx=self.ctx, headers=self.headers, patience=Patience(total_sec=120)) as source:
            export_id = self._started(source.post(self.url + self.protocol.start, json=dict(wanted)))
            while True:
                answer = self._status(source, export_id)
                state = self._state(answer, export_id)
                self.ctx.progress(stage="export", export=export_id, state=state)
                if state in self.protocol.done:
                    return Finished(export_id, _whole(answer.json().get(self.protocol.rows_field)))
                pause = _asked_pause(answer, every)
                if time.monotonic() + pause > deadline:
                    raise ExportTooSlow(f"export {export_id} is still {state!r} after {timeout:g} s")
                self.ctx.sleep(pause)

    def fetch(self, export_id: str, path: Path, *, timeout: float, max_bytes: int) -> Download:
        patience = Patience(total_sec=timeout, stall_sec=60)
        with HttpSource(ctx=self.ctx, headers=self.headers, patience=patience) as source:
            return source.download(self._place(self.protocol.file, export_id), path, max_bytes=max_bytes)

    def _started(self, answer: Answer) -> str:
        export_id = _object(answer).get(self.protocol.id_field)
        if isinstance(export_id, bool) or not isinstance(export_id, str | int) or export_id == "":
            raise SourceBroken(f"{answer.url} gave no {self.protocol.id_field!r} of an export: {_beginning(answer)}")
        return str(export_id)

    def _status(self, source: HttpSource, export_id: str) -> Answer:
        try:
            return source.get(self._place(self.protocol.status, export_id))
        except SourceAnswered as error:
            if error.status in _GONE:
                raise ExportFailed(f"the service does not know export {export_id} any more") from error
            raise

    def _state(self, answer: Answer, export_id: str) -> str:
        """Waiting or done; raises if it failed, or is in a state nobody told us of."""
        protocol, told = self.protocol, _object(answer)
        state = told.get(protocol.state_field)
        if state in protocol.failed:
            raise ExportFailed(
                f"export {export_id} is {state!r}: {told.get(protocol.error_field) or 'no reason given'}"
            )
        if state not in protocol.waiting | protocol.done:
            known = ", ".join(sorted(protocol.waiting | protocol.done | protocol.failed))
            raise SourceBroken(f"export {export_id} is {state!r:.60}, which is none of {known}")
        return str(state)

    def _place(self, path: str, export_id: str) -> str:
        return self.url + path.format(id=segment(export_id))


def _object(answer: Answer) -> Mapping[str, Any]:
    told = answer.json()
    if not isinstance(told, dict):
        raise SourceBroken(f"{answer.url} answered no JSON object: {_beginning(answer)}")
    return told


def _beginning(answer: Answer) -> str:
    return repr(answer.body[:80].decode(errors="replace"))


def _asked_pause(answer: Answer, otherwise: float) -> float:
    asked = next((value for name, value in answer.headers.items() if name.lower() == "retry-after"), "")
    return min(float(asked), _LONGEST_PAUSE) if asked.isdecimal() else otherwise


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
