"""Gmap2Brief as `load.opu` meets it, with archives as large as wanted and never whole in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import orjson
import zstandard

from tests.support_sources.server import Reply, SourceServer

START, STATUS, DOWNLOAD = "/export/opu/start", "/export/opu/e-1/status", "/export/opu/e-1/download"
_CHUNK_RECORDS = 2_000  # records


def record(number: int, **other: Any) -> dict[str, Any]:
    return {
        "opu_id": number,
        "region_code": f"R{number % 83:02}",
        "field_code": f"F{number % 911}",
        "object_code": f"O-{number % 7001}",
        "section_code": "S1",
        "indicator_code": ("debit", "water", "pressure")[number % 3],
        "period_start": f"2024-{number % 12 + 1:02}-01",
        "revision": number % 5,
        "period_end": f"2024-{number % 12 + 1:02}-28",
        "certificate_number": f"ЦП-{number:08}",
        "opu_name": f"Участок № {number % 400}",
        "field_name": "Северо-Западное",
        "object_name": f"Объект {number % 7001}",
        "indicator_name": "Дебит жидкости",
        "unit": "м³/сут",
        "plan_value": number / 8,
        "fact_value": number,
        "forecast_value": None,
        "is_final": number % 2 == 0,
        "status": "approved",
        "author": "gmap",
        "note": None if number % 10 else 'tab\t, "quotes" and \\ in it',
        "changed_at": "2024-02-01T10:30:00+03:00",
        **other,
    }


def archive(records: Iterable[dict[str, Any] | bytes]) -> Iterator[bytes]:
    """A zstd archive of JSON Lines, in pieces; bytes are put in as lines of their own."""
    packer = zstandard.ZstdCompressor(level=1).compressobj()
    remaining = iter(records)
    while some := list(islice(remaining, _CHUNK_RECORDS)):
        lines = [item if isinstance(item, bytes) else orjson.dumps(item) for item in some]
        if piece := packer.compress(b"\n".join(lines) + b"\n"):
            yield piece
    yield packer.flush()


def serve(
    source: SourceServer, packed: Iterable[bytes], *, rows: int | None = None, polls_before_done: int = 2
) -> None:
    """Have the service make one export: `waits` times it is not ready, then it is `packed`."""
    source.add_route("POST", START, Reply.from_json({"id": "e-1"}))
    busy = [Reply.from_json({"state": "queued"})] + [
        Reply.from_json({"state": "running"}, headers={"Retry-After": "3"})
    ] * polls_before_done
    source.add_route(
        "GET",
        STATUS,
        *busy[:polls_before_done],
        Reply.from_json({"state": "done"} | ({} if rows is None else {"rows": rows})),
    )
    source.add_route("GET", DOWNLOAD, Reply(packed))
