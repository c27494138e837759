from __future__ import annotations

from dataloader.app.db.schema import SCHEMA_VERSION
from dataloader.app.features.settings.server import server_facts


def test_server_facts_name_the_database_and_the_schema(queue_db):
    facts = server_facts(queue_db.session)

    assert facts.schema_version == SCHEMA_VERSION
    assert facts.size_bytes > 1_000_000
    assert facts.started_at < facts.migrated_at
