"""Creates tables that are missing in the databases that the shipped pipelines write to."""

from __future__ import annotations

from collections.abc import Sequence

from dataloader.pipelines.contract import Context


def ensure_tables(ctx: Context, target: str, tables: Sequence[str], statements: str) -> None:
    """Run the statements in a target if a table is missing. A role that may not create a schema may still load."""
    with ctx.transaction(target=target) as conn, conn.cursor() as cur:
        cur.execute("SELECT count(*) FROM unnest(%s) AS t (name) WHERE to_regclass(name) IS NULL", [list(tables)])
        (missing,) = cur.fetchone() or (0,)
        if missing:
            # With IF NOT EXISTS alone, the second of two jobs that run this at the same time fails.
            cur.execute("SELECT pg_advisory_xact_lock(hashtext('dataloader: tables of pipelines'), 0)")
            cur.execute(statements)
