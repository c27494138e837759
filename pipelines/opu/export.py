"""Client of Gmap2Brief: starts an export, waits for it, downloads it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dataloader.pipelines.contract import Context
from dataloader.pipelines.toolkit.errors import SourceAnswered, SourceBroken, SourceError
from dataloader.pipelines.toolkit.paths import segment
from dataloader.pipelines.toolkit.sources import Download, HttpSource, SourceResponse, Timeouts

_GONE_STATUSES = (404, 410)
_MAX_POLL_INTERVAL_SEC = 300.0  # also with a longer Retry-After, so that a stuck export is noticed


@dataclass(frozen=True, kw_only=True)
class ExportProtocol:
    """The service's paths, names of fields, and states. All but the first path stand for what is not public."""

    start: str = "/export/opu/start"
    status: str = "/export/opu/{id}/status"
    file: str = "/export/opu/{id}/download"
    id_field: str = "id"
    state_field: str = "state"
    rows_field: str = "rows"  # of a finished export, optional
    error_field: str = "error"  # of a failed one
    waiting: frozenset[str] = frozenset({"queued", "running"})
    done: frozenset[str] = frozenset({"done"})
    failed: frozenset[str] = frozenset({"failed", "canceled"})


class ExportFailed(SourceError):
    """Gmap2Brief failed the export. Another one may succeed."""


class ExportTooSlow(SourceError):
    """The export did not finish by its deadline."""


@dataclass(frozen=True)
class FinishedExport:
    export_id: str
    rows: int | None  # as the service says


@dataclass(frozen=True, kw_only=True)
class Gmap2Brief:
    """The service, for one job."""

    url: str
    headers: Mapping[str, str]
    ctx: Context
    protocol: ExportProtocol = field(default_factory=ExportProtocol)

    def export(self, parameters: Mapping[str, Any], *, timeout_sec: float, poll_interval_sec: float) -> FinishedExport:
        """Start an export and poll until it is done, at this interval or as the service requests by Retry-After."""
        deadline = time.monotonic() + timeout_sec
        with HttpSource(ctx=self.ctx, headers=self.headers, timeouts=Timeouts(total_sec=120)) as source:
            export_id = self._parse_export_id(source.post(self.url + self.protocol.start, json=dict(parameters)))
            while True:
                response = self._request_status(source, export_id)
                fields = _json_object(response)
                state = self._parse_state(fields, export_id)
                self.ctx.progress(stage="export", export=export_id, state=state)
                if state in self.protocol.done:
                    rows = fields.get(self.protocol.rows_field)
                    return FinishedExport(export_id, rows if type(rows) is int else None)
                pause, requested_delay = poll_interval_sec, response.headers.get("Retry-After", "")
                if requested_delay.isdecimal():
                    pause = min(float(requested_delay), _MAX_POLL_INTERVAL_SEC)
                if time.monotonic() + pause > deadline:
                    raise ExportTooSlow(f"export {export_id} is still {state!r} after {timeout_sec:g} s")
                self.ctx.sleep(pause)

    def fetch(self, export_id: str, path: Path, *, timeout_sec: float, max_bytes: int) -> Download:
        timeouts = Timeouts(total_sec=timeout_sec, stall_sec=60)
        with HttpSource(ctx=self.ctx, headers=self.headers, timeouts=timeouts) as source:
            return source.download(self._export_url(self.protocol.file, export_id), path, max_bytes=max_bytes)

    def _parse_export_id(self, response: SourceResponse) -> str:
        export_id = _json_object(response).get(self.protocol.id_field)
        if type(export_id) not in (str, int) or export_id == "":
            raise SourceBroken(f"{response.url} gave no {self.protocol.id_field!r} of an export: {_excerpt(response)}")
        return str(export_id)

    def _request_status(self, source: HttpSource, export_id: str) -> SourceResponse:
        try:
            return source.get(self._export_url(self.protocol.status, export_id))
        except SourceAnswered as error:
            if error.status in _GONE_STATUSES:
                raise ExportFailed(f"the service does not know export {export_id} any more") from error
            raise

    def _parse_state(self, fields: Mapping[str, Any], export_id: str) -> str:
        """Return the state; raise if the export failed or its state is unknown."""
        protocol, state = self.protocol, fields.get(self.protocol.state_field)
        if state in protocol.failed:
            reason = fields.get(protocol.error_field) or "no reason given"
            raise ExportFailed(f"export {export_id} is {state!r}: {reason}")
        if state not in protocol.waiting | protocol.done:
            known = ", ".join(sorted(protocol.waiting | protocol.done | protocol.failed))
            raise SourceBroken(f"export {export_id} is {state!r:.60}, which is none of {known}")
        return str(state)

    def _export_url(self, path: str, export_id: str) -> str:
        return self.url + path.format(id=segment(export_id))


def _json_object(response: SourceResponse) -> Mapping[str, Any]:
    payload = response.json()
    if not isinstance(payload, dict):
        raise SourceBroken(f"{response.url} answered no JSON object: {_excerpt(response)}")
    return payload


def _excerpt(response: SourceResponse) -> str:
    return repr(response.body[:80].decode(errors="replace"))
