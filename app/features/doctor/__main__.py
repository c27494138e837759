"""Writes catalogue.json, the objects of schema.sql: run `python -m dataloader.app.features.doctor` after a change."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from dataloader.app.db.pool import Pool
from dataloader.app.db.schema import migrate
from dataloader.app.features.doctor.facts import DatabaseFacts
from dataloader.app.features.doctor.schema import EXPECTED_SCHEMA_FILE
from dataloader.app.postgres import EmbeddedServer


def expected_schema_text(dsn: str) -> str:
    """The catalogue of a database that schema.sql was applied to."""
    pool = Pool(dsn)
    try:
        objects = {name: item.definition for name, item in DatabaseFacts(pool).schema_objects().items()}
    finally:
        pool.close()
    return json.dumps(dict(sorted(objects.items())), indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        with EmbeddedServer(Path(folder) / "postgres") as server:
            migrate(server.dsn)
            text = expected_schema_text(server.dsn)
    (Path(__file__).parent / EXPECTED_SCHEMA_FILE).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
