"""The audit log of requests: pages, filters, and the audit file."""

from __future__ import annotations

from dataloader.app.features.retention.rows import Retention
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.queue.retention_periods import RetentionPeriods
from tests.app.http.auth.test_guard import TRIGGER, bearer, code


def test_audit_is_paged_and_filtered(app, make, request_body, pool):
    headers = bearer(make(Scope.ADMIN, name="me"))
    for n in range(5):
        app.post(TRIGGER, json={**request_body, "lock_key": f"k{n}"}, headers=headers)

    first = app.get("/api/v1/audit?limit=3&action=trigger_job", headers=headers).json
    rest = app.get(f"/api/v1/audit?limit=3&action=trigger_job&before={first['next']}", headers=headers).json

    assert [len(first["entries"]), len(rest["entries"]), rest["next"]] == [3, 2, None]
    assert len({line["audit_id"] for line in first["entries"] + rest["entries"]}) == 5
    for no_one in ("actor=you", "key_id=x", "subject=queue", "until=2001-01-01T00:00:00Z", "request_id=none",
                   "since=2199-01-01T00:00:00%2B03:00"):  # fmt: skip
        assert app.get(f"/api/v1/audit?{no_one}", headers=headers).json["entries"] == []
    assert code(app.get("/api/v1/audit?since=yesterday", headers=headers)) == (400, "invalid_request")
    assert Retention(pool, RetentionPeriods(audit=0)).prune_audit() == 0, "nothing of the last day goes"


def test_audit_file_names_the_caller(app, make, captured, request_body):
    app.post(TRIGGER, json=request_body, headers=bearer(make(Scope.TRIGGER, name="billing")))

    result = [record.fields for record in captured.records if record.name == "dataloader.audit"]
    assert [fields.get("actor") for fields in result] == [None, "billing", "billing"]
