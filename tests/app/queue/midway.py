"""A statement that is held between its steps until another session waits for it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

from dataloader.app.db.statements import statements
from dataloader.app.queue.jobs import JobQueue
from tests.support.queue_fixture import QueueFixture


class Midway:
    """A source whose statements are sent part by part, in a transaction that is left open after the last."""

    schema = "public"

    def __init__(self, queue_db: QueueFixture) -> None:
        self.connection = queue_db.connect()

    def execute(self, name: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            for part in statements("public")[name].parts:
                cursor.execute(part.text, parameters or {})
            return cursor.fetchall()


@contextmanager
def midway(queue_db: QueueFixture):
    """The queue of a session whose statement is done and not yet committed; at the end it is."""
    source = Midway(queue_db)
    yield JobQueue(source)
    source.connection.commit()
