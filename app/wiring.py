"""The commands that run or change something here, as the command line calls them."""

from __future__ import annotations

from app.config import Settings
from app.host import web, worker
from app.host.database import Database
from app.host.service import set_up_logging
from app.queue.schema import Migration

serve = web.serve
work = worker.work


def migrate(settings: Settings) -> Migration:
    set_up_logging(settings)
    database = Database(settings)
    try:
        return database.migrate()
    finally:
        database.close()


__all__ = ["migrate", "serve", "work"]
