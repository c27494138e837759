"""schema.sql is made of the core's schema and those of the features."""

from __future__ import annotations

from pathlib import Path

from dataloader.app.db.job_field_lists import enqueue_parameters
from dataloader.app.db.make_schema import CORE, FEATURES, SCHEMA, make_schema

APP = Path(__file__).parents[3] / "app"


def test_schema_is_made_of_its_parts():
    assert SCHEMA.read_text(encoding="utf-8") == make_schema(), "run `make generated`"


def test_every_part_is_in_the_schema():
    folders = {path.parent.relative_to(APP).as_posix() for path in APP.rglob("schema.sql")}

    assert folders == {CORE, *FEATURES}


def test_parameters_of_dl_enqueue_keep_the_positions_of_release_0_2_0():
    released = [
        *("queue", "task", "lock_key", "args", "idempotency_key", "partition_key", "priority", "available_at"),
        *("max_attempts", "lease_ttl_sec", "producer", "consumer_group", "live_key", "time_limit_sec", "retry"),
        "parent_id",
    ]

    assert enqueue_parameters()[: len(released)] == released
