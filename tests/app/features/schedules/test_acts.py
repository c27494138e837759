"""Each act of a schedule by each way: the request, the form and the command do the same, and refuse the same."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.api_server import serving
from tests.support.every_way import Case, check_every_way

DAILY = {"name": "sales", "task": "load", "queue": "etl", "expression": "0 6 * * *", "zone": "UTC"}
OPTIONS = {
    "priority": 7, "overlap": "skip", "catch_up": "all", "catch_up_window_sec": 86_400, "excluded": ["2030-12-31"],
    "starts_at": "2030-01-01T00:00:00+00:00", "args": {"day": "{interval_start:%Y-%m-%d}"}, "jitter_sec": 60,
}  # fmt: skip
OPTION_TEXTS = {
    "priority": "7", "overlap": "skip", "catch_up": "all", "catch_up_window_sec": "86400", "excluded": "2030-12-31",
    "starts_at": "2030-01-01T00:00:00+00:00", "args": '{"day": "{interval_start:%Y-%m-%d}"}', "jitter_sec": "60",
}  # fmt: skip
OPTION_WORDS = [
    "--priority", "7", "--overlap", "skip", "--catch-up", "all", "--catch-up-window", "1d", "--exclude", "2030-12-31",
    "--starts", "2030-01-01T00:00:00+00:00", "--arg", "day={interval_start:%Y-%m-%d}", "--jitter", "60",
]  # fmt: skip
KEPT = json.dumps({name: value for name, value in DAILY.items() if name not in ("name", "task")})
OF_PEOPLE = (
    f"INSERT INTO dl_schedules (name, source, task, overrides, last_at, next_at) VALUES ('sales', 'people', 'load',"
    f" '{KEPT}', now(), now() + interval '1 day');"
)
PAUSED = OF_PEOPLE + "UPDATE dl_schedules SET paused_at = now(), paused_by = 'ann', paused_reason = 'moving';"
OF_CODE = (
    OF_PEOPLE + "UPDATE dl_schedules SET source = 'code', declared = overrides, overrides = '{\"priority\": 3}',"
    " declared_at = '2026-01-01Z', seen_at = now();"
)
ORPHANED = OF_CODE + "UPDATE dl_schedules SET orphaned_at = now();"
FIRED = OF_PEOPLE + (
    "INSERT INTO dl_firings (schedule_id, fire_at, due_at, outcome, made_by)"
    " SELECT schedule_id, '2030-01-31T06:00Z', '2030-01-31T06:00Z', 'made', 'clock' FROM dl_schedules;"
)
AT, AT_TEXT = "2030-01-31T06:00:00+00:00", "2030-01-31T06:00+00:00"
PATH, ACT = "/schedules/sales", "/schedules/sales/act"
CREATE = ["schedules", "create", "sales", "--task", "load", "--queue", "etl", "--zone", "UTC"]
CASES = {
    "created": Case(
        "schedule.created", ("POST", "/schedules", {**DAILY, **OPTIONS}), ("/schedules", {**DAILY, **OPTION_TEXTS}),
        [*CREATE, "--cron", "0 6 * * *", *OPTION_WORDS], "dl_schedules", audit={"schedule": "sales", "task": "load"},
    ),
    "created by interval and paused": Case(
        "schedule.created",
        ("POST", "/schedules", {**DAILY, "kind": "interval", "expression": "600", "is_paused": True}),
        ("/schedules", {**DAILY, "kind": "interval", "expression": "600", "is_paused": "yes"}),
        [*CREATE, "--every", "10m", "--paused"], "dl_schedules", audit={"schedule": "sales", "task": "load"},
    ),
    "created with a name that is taken": Case(
        "schedule.created", ("POST", "/schedules", DAILY), ("/schedules", DAILY), [*CREATE, "--cron", "0 6 * * *"],
        "dl_schedules", before=OF_PEOPLE, refused="sales",
    ),
    "created with a wrong expression": Case(
        "schedule.created", ("POST", "/schedules", {**DAILY, "expression": "61 * * * *"}),
        ("/schedules", {**DAILY, "expression": "61 * * * *"}), [*CREATE, "--cron", "61 * * * *"], "dl_schedules",
        refused="'61' is no valid minute",
    ),
    "changed": Case(
        "schedule.changed", ("PATCH", PATH, OPTIONS), (f"{PATH}/change", OPTION_TEXTS),
        ["schedules", "edit", "sales", *OPTION_WORDS], "dl_schedules", before=OF_PEOPLE,
        audit={"schedule": "sales", "fields": sorted(OPTIONS)},
    ),
    "changed to what fires never": Case(
        "schedule.changed", ("PATCH", PATH, {"expression": "0 0 30 2 *"}),
        (f"{PATH}/change", {"expression": "0 0 30 2 *"}), ["schedules", "edit", "sales", "--cron", "0 0 30 2 *"],
        "dl_schedules", before=OF_PEOPLE, refused="never fires",
    ),
    "changed in nothing": Case(
        "schedule.changed", ("PATCH", PATH, {}), (f"{PATH}/change", {"expression": "0 6 * * *"}),
        ["schedules", "edit", "sales"], "dl_schedules", before=OF_PEOPLE, refused="change",
    ),
    "put where there is none": Case(
        "schedule.created", ("PUT", PATH, {"task": "load", "expression": "0 6 * * *"}), None, None, "dl_schedules",
        audit={"schedule": "sales", "task": "load"},
    ),
    "replaced": Case(
        "schedule.replaced", ("PUT", PATH, {"task": "load", "queue": "other", "expression": "0 7 * * *"}), None, None,
        "dl_schedules", before=OF_PEOPLE, audit={"schedule": "sales", "task": "load"},
    ),
    "put where the code has one": Case(
        "schedule.replaced", ("PUT", PATH, {"task": "load", "expression": "0 7 * * *"}), None, None,
        "dl_schedules", before=OF_CODE, refused="is that of a schedule in code",
    ),
    "paused": Case(
        "schedule.paused", ("POST", f"{PATH}/pause", {"reason": "moving"}),
        (ACT, {"action": "pause", "reason": "moving"}), ["schedules", "pause", "sales", "--note", "moving"],
        "dl_schedules", before=OF_PEOPLE, audit={"schedule": "sales"},
    ),
    "resumed": Case(
        "schedule.resumed", ("POST", f"{PATH}/resume", None), (ACT, {"action": "resume"}),
        ["schedules", "resume", "sales"], "dl_schedules", before=PAUSED, audit={"schedule": "sales", "catch_up": False},
    ),
    "resumed to catch up": Case(
        "schedule.resumed", ("POST", f"{PATH}/resume?catch_up=true", None), (ACT, {"action": "catch_up"}),
        ["schedules", "resume", "sales", "--catch-up"], "dl_schedules", before=PAUSED,
        audit={"schedule": "sales", "catch_up": True},
    ),
    "none resumed": Case(
        "schedule.resumed", ("POST", f"{PATH}/resume", None), (ACT, {"action": "resume"}),
        ["schedules", "resume", "sales"], "dl_schedules", refused="sales",
    ),
    "run": Case(
        "schedule.run", ("POST", f"{PATH}/run", {"at": AT}), (ACT, {"action": "run", "at": AT_TEXT}),
        ["schedules", "run", "sales", "--at", AT], "dl_firings", before=OF_PEOPLE,
        audit={"schedule": "sales", "created": True},
    ),
    "run again": Case(
        "schedule.run", ("POST", f"{PATH}/run", {"at": AT, "again": True}),
        (ACT, {"action": "run", "at": AT_TEXT, "again": "yes"}), ["schedules", "run", "sales", "--at", AT, "--again"],
        "dl_firings", before=FIRED, audit={"schedule": "sales", "created": True},
    ),
    "run for a time that has fired": Case(
        "schedule.run", ("POST", f"{PATH}/run", {"at": AT}), (ACT, {"action": "run", "at": AT_TEXT}),
        ["schedules", "run", "sales", "--at", AT], "dl_firings", before=FIRED, refused="has fired",
    ),
    "reset": Case(
        "schedule.reset", ("POST", f"{PATH}/reset", {"fields": ["priority"]}),
        (ACT, {"action": "reset", "fields": "priority"}), ["schedules", "reset", "sales", "priority"], "dl_schedules",
        before=OF_CODE, audit={"schedule": "sales", "fields": ["priority"]},
    ),
    "one of people reset": Case(
        "schedule.reset", ("POST", f"{PATH}/reset", {}), (ACT, {"action": "reset"}), ["schedules", "reset", "sales"],
        "dl_schedules", before=OF_PEOPLE, refused="no code declares this schedule",
    ),
    "adopted": Case(
        "schedule.adopted", ("POST", f"{PATH}/adopt", None), (ACT, {"action": "adopt"}),
        ["schedules", "adopt", "sales"], "dl_schedules", before=ORPHANED, audit={"schedule": "sales"},
    ),
    "one that the code has adopted": Case(
        "schedule.adopted", ("POST", f"{PATH}/adopt", None), (ACT, {"action": "adopt"}),
        ["schedules", "adopt", "sales"], "dl_schedules", before=OF_CODE, refused="code",
    ),
    "deleted": Case(
        "schedule.deleted", ("DELETE", PATH, None), (ACT, {"action": "delete", "confirmed": "yes"}),
        ["schedules", "delete", "sales"], "dl_schedules", before=OF_PEOPLE, audit={"schedule": "sales"},
    ),
    "none deleted": Case(
        "schedule.deleted", ("DELETE", PATH, None), (ACT, {"action": "delete", "confirmed": "yes"}),
        ["schedules", "delete", "sales"], "dl_schedules", refused="sales",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def url(shared_dsn: str) -> Iterator[str]:
    with serving(shared_dsn) as address:
        yield address


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_way_does_the_same(case: Case, url: str, shared_dsn: str, captured: pytest.LogCaptureFixture):
    check_every_way(case, url, shared_dsn, captured)
