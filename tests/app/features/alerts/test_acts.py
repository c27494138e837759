"""Each act of an alert or rule by each way: the request, the form and the command do the same, and refuse the same."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.api_server import serving
from tests.support.every_way import Case, check_every_way

RULE, ALERT = (f"01900000-0000-7000-8000-00000000000{n}" for n in (1, 2))
KNOWN = (
    "INSERT INTO dl_workers (worker_id, name, version, queues, tasks, threads, heartbeat_sec)"
    f" VALUES ('{RULE}', 'w', '1', '{{etl}}', '{{load}}', 1, 10);"
)
OF_QUEUE = (
    "INSERT INTO dl_alert_rules (rule_id, name, kind, queue, threshold, window_sec, min_runs)"
    f" VALUES ('{RULE}', 'old', 'queue_age', 'etl', 60, 3600, 1);"
)
FIRING = OF_QUEUE + (
    "INSERT INTO dl_alerts (alert_id, rule_id, kind, name, subject, detail)"
    f" VALUES ('{ALERT}', '{RULE}', 'queue_age', 'old', 'etl', 'it waits');"
)
SOON = (datetime.now(UTC) + timedelta(hours=5)).strftime("%Y-%m-%dT%H:%M:00Z")
PATH, PAGE = f"/alerts/rules/{RULE}", f"/alerts/rules/{RULE}"
RATES = {"name": "rates", "kind": "failure_rate", "task": "load"}
CASES = {
    "rule created": Case(
        "alert_rule.created",
        ("POST", "/alerts/rules", {**RATES, "threshold": 0.2, "window_sec": 1800, "min_runs": 5}),
        ("/alerts/rules", {**RATES, "threshold": "20 %", "window_sec": "30m", "min_runs": "5"}),
        ["alerts", "create", "rates", "failure_rate", "--task", "load", "--threshold", "0.2", "--window", "1800",
         "--min-runs", "5"],
        "dl_alert_rules", before=KNOWN,
        audit={"name": "rates", "task": "load", "threshold": 0.2, "window_sec": 1800, "min_runs": 5},
    ),
    "rule of a time of day created": Case(
        "alert_rule.created",
        ("POST", "/alerts/rules", {"name": "d", "kind": "stale_dataset", "threshold": 3600, "dataset": "sales",
                                   "by_time": "07:00", "zone": "Europe/Moscow"}),
        ("/alerts/rules", {"name": "d", "kind": "stale_dataset", "threshold": "1h", "dataset": "sales",
                           "by_time": "07:00", "zone": "Europe/Moscow"}),
        ["alerts", "create", "d", "stale_dataset", "--threshold", "3600", "--dataset", "sales", "--by", "07:00",
         "--zone", "Europe/Moscow"],
        "dl_alert_rules", audit={"dataset": "sales", "by_time": "07:00"},
    ),
    "rule that names no task created": Case(
        "alert_rule.created", ("POST", "/alerts/rules", {"name": "n", "kind": "no_success", "threshold": 60}),
        ("/alerts/rules", {"name": "n", "kind": "no_success", "threshold": "1m"}),
        ["alerts", "create", "n", "no_success", "--threshold", "60"], "dl_alert_rules",
        refused="is required for no_success",
    ),
    "rule of an unknown queue created on the page": Case(
        "alert_rule.created", None,
        ("/alerts/rules", {"name": "n", "kind": "queue_age", "threshold": "1m", "queue": "elt"}), None,
        "dl_alert_rules", before=KNOWN, refused="there is no queue 'elt'",
    ),
    "second rule of a name created": Case(
        "alert_rule.created", ("POST", "/alerts/rules", {"name": "old", "kind": "queue_age", "threshold": 5}),
        ("/alerts/rules", {"name": "old", "kind": "queue_age", "threshold": "5"}),
        ["alerts", "create", "old", "queue_age", "--threshold", "5"], "dl_alert_rules", before=OF_QUEUE,
        refused="is there already",
    ),
    "rule changed": Case(
        "alert_rule.changed", ("PATCH", PATH, {"threshold": 0}), (PAGE, {"action": "change", "threshold": "0"}),
        ["alerts", "edit", RULE, "--threshold", "0"], "dl_alert_rules", before=OF_QUEUE,
        audit={"rule_id": RULE, "threshold": 0},
    ),
    "rule switched off": Case(
        "alert_rule.changed", ("PATCH", PATH, {"active": False}), (PAGE, {"action": "off"}),
        ["alerts", "edit", RULE, "--off"], "dl_alert_rules", before=OF_QUEUE,
        audit={"rule_id": RULE, "active": False},
    ),
    "rule muted": Case(
        "alert_rule.muted", ("POST", f"{PATH}/mute", {"mute_sec": 3600}), (PAGE, {"action": "mute", "mute_sec": "1h"}),
        ["alerts", "mute", RULE, "--for", "1h"], "dl_alert_rules", before=OF_QUEUE,
        audit={"rule_id": RULE, "mute_sec": 3600},
    ),
    "rules of alerts muted": Case(
        "alert_rule.muted", ("POST", f"{PATH}/mute", {"mute_sec": 3600}),
        ("/alerts", {"action": "mute", "mute_sec": "1h", f"alert-{ALERT}": "yes"}),
        ["alerts", "mute", RULE, "--for", "1h"], "dl_alert_rules", before=FIRING,
        audit={"rule_id": RULE, "mute_sec": 3600},
    ),
    "mute ended": Case(
        "alert_rule.muted", ("POST", f"{PATH}/mute", {"mute_sec": 0}), (PAGE, {"action": "unmute"}),
        ["alerts", "unmute", RULE], "dl_alert_rules",
        before=OF_QUEUE + "UPDATE dl_alert_rules SET muted_until = now() + interval '1 h', muted_by = 'ann';",
        audit={"rule_id": RULE, "mute_sec": 0},
    ),
    "test sent": Case(
        "alert.tested", ("POST", "/alerts/test", None), ("/alerts/test", {}), ["alerts", "test"], "dl_deliveries",
        before="INSERT INTO dl_webhooks (webhook_id, url, events, secret, format)"
        f" VALUES ('{RULE}', 'https://hooks.slack.com/x', '{{alert.firing}}', 'whsec_eA==', 'slack');",
        audit={"deliveries": 1},
    ),
    "rule muted until a time": Case(
        "alert_rule.muted", ("POST", f"{PATH}/mute", {"until": SOON}),
        (PAGE, {"action": "mute", "mute_sec": "8h", "until": SOON}), ["alerts", "mute", RULE, "--until", SOON],
        "dl_alert_rules", before=OF_QUEUE, audit={"rule_id": RULE},
    ),
    "rule muted until a time that is over": Case(
        "alert_rule.muted", ("POST", f"{PATH}/mute", {"until": "2020-01-01T00:00:00Z"}),
        (PAGE, {"action": "mute", "until": "2020-01-01T00:00:00Z"}),
        ["alerts", "mute", RULE, "--until", "2020-01-01T00:00:00Z"], "dl_alert_rules", before=OF_QUEUE,
        refused="within the next 30 days",
    ),
    "rule that is none muted": Case(
        "alert_rule.muted", ("POST", f"{PATH}/mute", {"mute_sec": 60}), (PAGE, {"action": "mute", "mute_sec": "60"}),
        ["alerts", "mute", RULE, "--for", "60"], "dl_alert_rules", refused="rule",
    ),
    "rule deleted": Case(
        "alert_rule.deleted", ("DELETE", PATH, None), (PAGE, {"action": "delete"}), ["alerts", "delete", RULE],
        "dl_alert_rules", before=OF_QUEUE, audit={"rule_id": RULE},
    ),
    "alert acknowledged": Case(
        "alert.acknowledged", ("POST", f"/alerts/{ALERT}/acknowledge", None),
        ("/alerts", {"action": "acknowledge", f"alert-{ALERT}": "yes"}), ["alerts", "acknowledge", ALERT],
        "dl_alerts", before=FIRING, audit={"alert_id": ALERT},
    ),
    "alert that is none acknowledged": Case(
        "alert.acknowledged", ("POST", f"/alerts/{ALERT}/acknowledge", None), None, ["alerts", "acknowledge", ALERT],
        "dl_alerts", refused="alert",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def url(shared_dsn: str) -> Iterator[str]:
    with serving(shared_dsn) as address:
        yield address


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_way_does_the_same(case: Case, url: str, shared_dsn: str, captured: pytest.LogCaptureFixture):
    check_every_way(case, url, shared_dsn, captured)
