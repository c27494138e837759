"""`load.opu`: starts an export, waits for it, downloads it, and replaces the table's content by it."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from psycopg2 import errors
from psycopg2.extensions import connection
from pydantic import Field

from dataloader.pipelines import staging, targets
from dataloader.pipelines.arguments import Arguments
from dataloader.pipelines.contract import Context, register
from dataloader.pipelines.opu.export import FinishedExport, Gmap2Brief
from dataloader.pipelines.opu.table import COLUMNS, TABLE, RowDecoder, create_statements
from dataloader.pipelines.toolkit.decode import numbered_json_lines
from dataloader.pipelines.toolkit.errors import DecodeError
from dataloader.pipelines.toolkit.load import Loaded, replace_table
from dataloader.pipelines.toolkit.rejects import Rejects
from dataloader.pipelines.toolkit.unpack import Compression

_TARGET = "opu"


class OpuArguments(Arguments):
    export: dict[str, Any] = Field(default_factory=dict, description="What the service is to export; sent as it is.")
    export_sec: float = Field(3600, gt=0, description="How long the export may take.")
    poll_sec: float = Field(5, gt=0, description="How often to ask for it, where the service does not say.")
    download_sec: float = Field(3600, gt=0, description="How long the download may take.")
    max_download_bytes: int = Field(8 * 1024**3, gt=0, description="The largest archive to take.")
    max_rejects: int = Field(100, ge=0, description="With more bad records the table keeps its old content.")
    at_least: int = Field(1, ge=0, description="With fewer rows the table keeps its old content.")


class ExportIncomplete(DecodeError):
    """The archive has another number of records than the service reported. The next one may be complete."""

    permanent = False


class RepeatedKey(DecodeError):
    """Two records of the archive have one key."""


@register("load.opu", args=OpuArguments, target=_TARGET)
def load_opu(arguments: OpuArguments, ctx: Context) -> dict[str, Any]:
    service = Gmap2Brief(url=targets.endpoint("gmap2brief"), headers=targets.authorization("gmap2brief"), ctx=ctx)
    rejects = Rejects(arguments.max_rejects)
    rows = RowDecoder(COLUMNS, rejects)

    with tempfile.TemporaryDirectory(prefix="load-opu-") as folder:
        finished = service.export(
            arguments.export, timeout_sec=arguments.export_sec, poll_interval_sec=arguments.poll_sec
        )
        archive = Path(folder) / "export.jsonl.zst"
        download = service.fetch(
            finished.export_id, archive, timeout_sec=arguments.download_sec, max_bytes=arguments.max_download_bytes
        )
        staging.ensure_tables(ctx, _TARGET, (TABLE,), create_statements())
        result: dict[str, Any] = {}
        with ctx.transaction(target=_TARGET, final=True, result=result) as conn:
            loaded = _replace_rows(conn, archive, rows, finished, ctx, at_least=arguments.at_least)
            result |= {
                "export": finished.export_id,
                "archive_bytes": download.size,
                "rows": loaded.rows,
                "rejected": rejects.count,
                "rejects": [asdict(bad) for bad in rejects.first],
                "unknown_fields": list(rows.unknown_fields),
            }
    return result


def _replace_rows(
    conn: connection, archive: Path, rows: RowDecoder, finished: FinishedExport, ctx: Context, *, at_least: int
) -> Loaded:
    """Load the file into the table, a piece of 64 KB at a time."""
    rejects = rows.rejects

    def report_progress(done: int) -> None:
        ctx.progress(done, finished.rows, "rows", stage="load", rejected=rejects.count)
        ctx.check()

    # Not BY_CONTENT: an archive that is cut off or replaced by an error page must be named as such.
    records = numbered_json_lines(archive, compression=Compression.ZSTD, rejects=rejects, ctx=ctx)
    try:
        loaded = replace_table(
            conn,
            TABLE,
            [column.name for column in COLUMNS],
            rows.decode(records),
            at_least=at_least,
            ctx=ctx,
            on_batch=report_progress,
            rejects=rejects,
        )
    except errors.UniqueViolation as error:
        key = ", ".join(column.name for column in COLUMNS if column.key)
        raise RepeatedKey(f"two records have one key ({key}): {error.diag.message_detail or ''}") from error
    report_progress(loaded.rows)
    if finished.rows is not None and finished.rows != loaded.rows + rejects.count:
        raise ExportIncomplete(
            f"export {finished.export_id} was to have {finished.rows} records, and its archive had "
            f"{loaded.rows + rejects.count}; the table keeps its old content"
        )
    return loaded
