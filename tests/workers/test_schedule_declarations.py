"""What the schedules in code of a process do when it starts."""

from __future__ import annotations

from contextlib import closing
from uuid import uuid4

import psycopg2

from dataloader.app.queue.workers import WorkerInfo, WorkerLiveness
from tests.support.schedule_fixture import ScheduleFixture

HOURLY = {"expression": "0 * * * *", "queue": "q", "zone": "UTC"}


def test_declaration_notifies_the_leader(schedule_db: ScheduleFixture):
    worker = WorkerInfo(uuid4(), "w", "1", ("q",), ("t",), 1, schedules=("s",))
    WorkerLiveness(schedule_db.queue.session).send_heartbeat(worker, heartbeat_sec=10)
    with closing(psycopg2.connect(schedule_db.queue.dsn)) as listening:
        listening.autocommit = True
        listening.cursor().execute("LISTEN dl_control")

        schedule_db.schedules.declare([{"name": "s", "task": "t", "definition": HOURLY}], worker.id)

        listening.cursor().execute("SELECT 1")
        assert [notification.payload for notification in listening.notifies] == ["schedules"]
