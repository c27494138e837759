"""The act of undoing: its line in the audit file."""

from __future__ import annotations

import re

import pytest

from dataloader.app.features.limits.rows import Limits
from tests.support.databases import execute_sql


def test_undo_has_a_line_in_the_audit_file(client, queue, dsn, captured: pytest.LogCaptureFixture):
    execute_sql(dsn, "DELETE FROM dl_limits")
    page = client.get(client.post("/limits", data={"name": "crm", "concurrency": "3"}).location).text
    fields = dict(re.findall(r'name="(act|next)" value="([^"]*)"', page))
    captured.clear()

    answers = [client.post("/undo", data=fields) for _ in range(2)]

    lines = [vars(record)["fields"] for record in captured.records if record.getMessage() == "act.undone"]
    assert [answer.status_code for answer in answers] == [303, 409]
    assert [line["act"] for line in lines] == [fields["act"]]
    assert [limit for limit in Limits(queue.executor).statuses() if limit.setting == "crm"] == []
