"""Whether workers reach PostgreSQL through a pooler in transaction mode, which loses LISTEN, locks and statements."""

from __future__ import annotations

from app.errors import DatabaseUnavailable
from app.queue.examination import find_pooler
from app.queue.refusals import translated

REMEDY = (
    "DL_WORKER_DSN must name PostgreSQL itself, or a pooler with pool_mode = session; `dataloader doctor` looks again"
)


def describe_pooler(dsn: str, *, timeout: float) -> str | None:
    """What is wrong with this way for workers; None: nothing, or the database does not answer."""
    try:
        with translated():
            found = find_pooler(dsn, timeout=timeout)
    except DatabaseUnavailable:
        return None
    if not (found.shared or found.wandered or found.lost_state or found.lost_prepared):
        return None
    lost = ["LISTEN", "session locks"]
    lost += ["settings"] if found.lost_state else []
    lost += ["prepared statements"] if found.lost_prepared else []
    return (
        f"workers reach the database through a pooler in transaction mode, which loses {', '.join(lost)}: no job is "
        f"started; {REMEDY}"
    )
