"""`load.opu`: start an export, wait for it, download it, and put it in the place of the table's content."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from psycopg2 import errors
from psycopg2.extensions import connection
from pydantic import Field

from pipelines import targets, warehouse
from pipelines.arguments import Arguments
from pipelines.contract import Args, Context, register
from pipelines.opu.export import Finished, Gmap2Brief
from pipelines.opu.records import Rows
from pipelines.opu.table import COLUMNS, TABLE, Column, create_statements
from pipelines.toolkit.decode import numbered_json_lines
from pipelines.toolkit.errors import DecodeError
from pipelines.toolkit.load import Loaded, replace_table
from pipelines.toolkit.rejects import Rejects
from pipelines.toolkit.unpack import Bounds, Packing

_BATCH = 5_000


class OpuArguments(Arguments):
    export: dict[str, Any] = Field(default_factory=dict, description="What the service is to export; sent as it is.")
    export_sec: float = Field(3600, gt=0, description="How long the export may take.")
    poll_sec: float = Field(5, gt=0, description="How often to ask for it, where the service does not say.")
    download_sec: float = Field(3600, gt=0, description="How long the download may take.")
    max_download_bytes: int = Field(8 * 1024**3, gt=0, description="The largest archive to take.")
    max_rejects: int = Field(100, ge=0, description="With more bad records the table keeps its old content.")
    at_least: int = Field(1, ge=0, description="With fewer rows the table keeps its old content.")


class ExportIncomplete(DecodeError):
    """The archive does not hold as many records as the service said. The next one may."""

    permanent = False


class RepeatedKey(DecodeError):
    """Two records of the archive have one key."""


@register("load.opu", args=OpuArguments)
def load_opu(args: Args, ctx: Context) -> dict[str, Any]:
    asked = OpuArguments.read(args)
    service = Gmap2Brief(url=targets.endpoint("gmap2brief"), headers=targets.authorization("gmap2brief"), ctx=ctx)
    rejects = Rejects(asked.max_rejects)
    rows = Rows(COLUMNS, rejects)

    with tempfile.TemporaryDirectory(prefix="load-opu-") as folder:
        finished = service.export(asked.export, timeout=asked.export_sec, every=asked.poll_sec)
        archive = Path(folder) / "export.jsonl.zst"
        download = service.fetch(
            finished.export_id, archive, timeout=asked.download_sec, max_bytes=asked.max_download_bytes
        )
        with warehouse.opened("opu", ctx) as conn:
            warehouse.ensure(conn, (TABLE,), create_statements())
            loaded = _replace(conn, archive, rows, rejects, finished, ctx, at_least=asked.at_least)
            _expect_all(finished, loaded.rows, rejects)
            conn.commit()

    return {
        "export": finished.export_id,
        "archive_bytes": download.size,
        "rows": loaded.rows,
        "rejected": rejects.count,
        "rejects": [asdict(bad) for bad in rejects.first],
        "unknown_fields": list(rows.unknown_fields),
    }


def _replace(
    conn: connection, archive: Path, rows: Rows, rejects: Rejects, finished: Finished, ctx: Context, *, at_least: int
) -> Loaded:
    """From the file into the table in one transaction, a piece of 64 KB at a time; nothing is seen before its end."""

    def tell(done: int) -> None:
        ctx.progress(done, finished.rows, "rows", stage="load", rejected=rejects.count)
        ctx.check()

    # Not BY_CONTENT: an archive that is cut off or replaced by an error page must be named as such.
    records = numbered_json_lines(archive, packing=Packing.ZSTD, bounds=Bounds(), rejects=rejects, ctx=ctx)
    try:
        loaded = replace_table(
            conn,
            TABLE,
            [column.name for column in COLUMNS],
            rows.read(records),
            at_least=at_least,
            ctx=ctx,
            on_batch=tell,
            batch=_BATCH,
            rejects=rejects,
        )
    except errors.UniqueViolation as error:
        detail = error.diag.message_detail or ""
        raise RepeatedKey(f"two records have one key ({', '.join(_key(COLUMNS))}): {detail}") from error
    tell(loaded.rows)
    return loaded


def _expect_all(finished: Finished, loaded: int, rejects: Rejects) -> None:
    if finished.rows is not None and finished.rows != loaded + rejects.count:
        raise ExportIncomplete(
            f"export {finished.export_id} was to have {finished.rows} records, and its archive had "
            f"{loaded + rejects.count}; the table keeps its old content"
        )


def _key(columns: Sequence[Column]) -> list[str]:
    return [column.name for column in columns if column.key]
