"""The address of each page of the dashboard, with something to see on it."""

from __future__ import annotations

from dataloader import Client
from dataloader.app.queue.job import Status

PAGES = {
    "overview": "/",
    "jobs": "/jobs",
    "tasks": "/tasks",
    "task": "/tasks/load.cbr.rates",
    "checks": "/tasks/test.measure",
    "datasets": "/datasets",
    "dataset": "/datasets/warehouse.sales",
    "failures": "/failures",
    "runs": "/runs",
    "logs": "/logs?text=reading",
    "graphs": "/graphs",
    "queues": "/queues",
    "queue": "/queues/q",
    "limits": "/limits",
    "schedules": "/schedules?expression=0+6+*+*+*&task=noop&queue=etl",
    "calendar": "/calendar",
    "backfills": "/backfills",
    "slices": "/slices/load.cbr.rates",
    "workers": "/workers",
    "alerts": "/alerts",
    "webhooks": "/webhooks",
    "keys": "/keys",
    "settings": "/settings?preview=retention",
    "doctor": "/settings/doctor",
    "charts": "/charts",
    "compare": "/compare",
    "audit": "/audit",
    "search": "/search?q=test",
    "api": "/docs",
    "login": "/login",
}


def create_addresses(client: Client) -> dict[str, str]:
    """Return every page's address by name; make what some of them show."""
    running = client.jobs(status=Status.RUNNING, limit=1)[0]
    failed = client.jobs(status=Status.FAILED, limit=1)[0]
    warned = client.jobs(warnings="true", limit=1)[0]
    client.request("PUT", "/api/v1/limits/warehouse", body={"concurrency": 4, "note": "four slots"}, repeatable=True)
    client.request("PUT", "/api/v1/limits/partner:*", body={"rate": 10, "burst": 2}, repeatable=True)
    client.request("PUT", "/api/v1/tasks/unserved/breaker", body={"state": "open", "reason": "moving"}, repeatable=True)
    job = {"queue": "unserved", "task": "noop"}
    graph = client.trigger_graph([
        job | {"key": "load", "lock_key": "load"},
        job | {"key": "report", "lock_key": "report", "after": [{"job": "load", "on": "ended"}]},
    ], name="daily", idempotency_key="for the page")  # fmt: skip
    client.request("PUT", "/api/v1/schedules/daily", body={"expression": "0 6 * * *"} | job, repeatable=True)
    client.request("POST", "/api/v1/schedules/daily/run", body={})
    slices = {"from": "2026-01-01", "to": "2026-03-15", "unit": "day"}
    filled = client.request("POST", "/api/v1/backfills", body={"task": "noop", "queue": "unserved", "slices": slices})
    bulk = {"action": "reprioritise", "filter": {"queue": "unserved", "lock_key": "load"}, "priority": 90}
    changed = client.request("POST", "/api/v1/bulk", body=bulk | {"expected": 1})
    hook = {"url": "https://receiver.invalid/none", "events": ["job.failed"], "task": "noop"}
    webhook_id = client.request("POST", "/api/v1/webhooks", body=hook)["webhook_id"]
    client.request("POST", f"/api/v1/webhooks/{webhook_id}/ping")
    sent = client.request("GET", "/api/v1/deliveries", query={"webhook_id": webhook_id})["deliveries"]
    return {
        **PAGES,
        "bulk": f"/bulk/{changed['bulk_id']}",
        "webhook": f"/webhooks/{webhook_id}",
        "delivery": f"/deliveries/{sent[0]['delivery_id']}",
        "job": f"/jobs/{running['job_id']}",
        "failed": f"/jobs/{failed['job_id']}",
        "warned": f"/jobs/{warned['job_id']}",
        "where": f"/jobs/{running['job_id']}/where",
        "account": f"/jobs/{running['job_id']}/account",
        "log": f"/jobs/{running['job_id']}/log?level=WARNING",
        "edit": f"/jobs/{failed['job_id']}/edit",
        "clone": f"/jobs/{failed['job_id']}/clone",
        "graph": f"/graphs/{graph['graph_id']}",
        "schedule": "/schedules/daily",
        "backfill": f"/backfills/{filled['backfill']['backfill_id']}",
    }
