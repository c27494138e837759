"""Makes schema.sql of the core's schema and those of the features: run `make generated` after a change of a part."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dataloader.app.db.job_field_lists import fill_lists

_APP = Path(__file__).parents[1]
SCHEMA = _APP.parent / "schema.sql"
CORE = "queue"
# In this order: triggers of the audit are on the tables of later parts, and a hook has the version of the last part.
FEATURES = (
    "features/audit",
    "features/keys",
    "features/limits",
    "features/graphs",
    "features/schedules",
    "features/backfills",
    "features/quality",
    "features/lineage",
    "features/tasks",
    "features/offload",
    "features/targets",
    "features/where",
    "features/bulk",
    "features/statistics",
    "features/webhooks",
    "features/alerts",
    "features",
)
_HEAD = """\
-- The schema of dataloader, as it is today. Needs PostgreSQL 15 or newer, and no extension.
-- Made by `make generated` of app/queue/schema.sql and app/features/*/schema.sql: change those.
--
-- Builds all tables in an empty schema: the first one of the search path. Where tables of dataloader are already, it
-- changes nothing and fails: `dataloader migrate` upgrades them (app/db/migrations/), and applies this file to an
-- empty database. Other services read these tables and insert into dl_jobs directly.

"""


def make_schema(features: Iterable[str] = FEATURES) -> str:
    """Return the schema of the core and these features: one transaction, which begins and ends in the core's file."""
    _, begin, core = _read(CORE).partition("BEGIN;\n")
    parts = [_HEAD + begin + core.removesuffix("COMMIT;\n")]
    parts += [f"{f'-- ── app/{folder} '.ljust(119, '─')}\n\n{_read(folder)}\n" for folder in features]
    return fill_lists("".join(parts)) + "COMMIT;\n"


def _read(folder: str) -> str:
    return (_APP / folder / "schema.sql").read_text(encoding="utf-8")


if __name__ == "__main__":
    SCHEMA.write_text(make_schema(), encoding="utf-8")
