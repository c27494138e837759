"""Write catalogue.json anew: what schema.sql makes. `python -m app.doctor`, after each change of schema.sql."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from app.doctor.schema import CATALOGUE
from app.postgres import EmbeddedServer
from app.queue.examination import Examination
from app.queue.pool import Pool
from app.queue.schema import migrate


def catalogue_text(dsn: str) -> str:
    """Of a database that schema.sql was applied to."""
    pool = Pool(dsn)
    try:
        made = {name: thing.form for name, thing in Examination(pool).catalogue().items()}
    finally:
        pool.close()
    return json.dumps(dict(sorted(made.items())), indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        with EmbeddedServer(Path(folder) / "postgres") as server:
            migrate(server.dsn)
            text = catalogue_text(server.dsn)
    (Path(__file__).parent / CATALOGUE).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
