"""Detects a pooler in transaction mode, which loses LISTEN, session locks and prepared statements."""

from __future__ import annotations

from app.db.connection import translate_errors
from app.doctor.facts import detect_pooler
from app.errors import DatabaseUnavailable

POOLER_REMEDY = (
    "DL_WORKER_DSN must name PostgreSQL itself, or a pooler with pool_mode = session; `dataloader doctor` looks again"
)


def describe_pooler(dsn: str, *, timeout_sec: float) -> str | None:
    """Return why workers cannot use this connection; None if they can, or if the database does not answer."""
    try:
        with translate_errors():
            found = detect_pooler(dsn, timeout_sec=timeout_sec)
    except DatabaseUnavailable:
        return None
    if not (found.shared or found.wandered or found.lost_state or found.lost_prepared):
        return None
    lost = ["LISTEN", "session locks"]
    lost += ["settings"] if found.lost_state else []
    lost += ["prepared statements"] if found.lost_prepared else []
    return (
        f"workers reach the database through a pooler in transaction mode, which loses {', '.join(lost)}: no job is "
        f"started; {POOLER_REMEDY}"
    )
