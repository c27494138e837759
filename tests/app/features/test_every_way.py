"""Each act by each way: the request, the form and the command do the same, and refuse the same."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from dataloader.app.acts.act import acts_of
from dataloader.app.features.registry import NAMES
from dataloader.app.http.jobs import acts as core_acts
from tests.support.api_server import serving
from tests.support.every_way import Case, check_every_way

LIMIT = "INSERT INTO dl_limits (name, concurrency) VALUES ('api', 1);"
BREAKER = "INSERT INTO dl_breakers (task, failures) VALUES ('load', 3);"
WORKER = "01900000-0000-7000-8000-000000000003"
KNOWN = (
    "INSERT INTO dl_workers (worker_id, name, version, queues, tasks, threads, heartbeat_sec)"
    f" VALUES ('{WORKER}', 'w', '1', '{{etl}}', '{{load}}', 1, 10);"
)
CASES = {
    "limit set": Case(
        "limit.set", ("PUT", "/limits/api", {"concurrency": 4, "rate": 10, "per_sec": 60, "burst": 2, "note": "n"}),
        ("/limits", {"name": "api", "concurrency": "4", "rate": "10", "per_sec": "1m", "burst": "2", "note": "n"}),
        ["limits", "set", "api", "--concurrency", "4", "--rate", "10/1m", "--burst", "2", "--note", "n"],
        "dl_limits", audit={"name": "api", "concurrency": 4, "rate": 10, "per_sec": 60, "burst": 2},
    ),
    "limit replaced": Case(
        "limit.set", ("PUT", "/limits/api", {"rate": 5}), ("/limits", {"name": "api", "rate": "5"}),
        ["limits", "set", "api", "--rate", "5/s"], "dl_limits", before=LIMIT, audit={"name": "api", "rate": 5},
    ),
    "limit of nothing": Case(
        "limit.set", ("PUT", "/limits/api", {}), ("/limits", {"name": "api"}), ["limits", "set", "api"],
        "dl_limits", refused="limits nothing",
    ),
    "limit with a name that none has": Case(
        "limit.set", ("PUT", "/limits/a*", {"concurrency": 1}), ("/limits", {"name": "a*", "concurrency": "1"}),
        ["limits", "set", "a*", "--concurrency", "1"], "dl_limits", refused="which only a prefix may precede",
    ),
    "limit deleted": Case(
        "limit.deleted", ("DELETE", "/limits/api", None), ("/limits", {"name": "api", "action": "delete"}),
        ["limits", "delete", "api"], "dl_limits", before=LIMIT, audit={"name": "api"},
    ),
    "limit that is none deleted": Case(
        "limit.deleted", ("DELETE", "/limits/api", None), ("/limits", {"name": "api", "action": "delete"}),
        ["limits", "delete", "api"], "dl_limits", refused="'api'",
    ),
    "breaker set": Case(
        "breaker.set", ("PUT", "/tasks/load/breaker", {"failures": 5, "window_sec": 3600, "resume_sec": 60}),
        ("/breakers", {"task": "load", "action": "set", "failures": "5", "window_sec": "1h", "resume_sec": "1m"}),
        ["breakers", "set", "load", "--failures", "5", "--window", "1h", "--resume", "60"], "dl_breakers",
        before=KNOWN, audit={"task": "load", "failures": 5, "window_sec": 3600, "resume_sec": 60},
    ),
    "task paused": Case(
        "breaker.set", ("PUT", "/tasks/load/breaker", {"state": "open", "reason": "moving"}),
        ("/breakers", {"task": "load", "action": "pause", "reason": "moving"}),
        ["breakers", "pause", "load", "--note", "moving"], "dl_breakers", before=KNOWN,
        audit={"task": "load", "state": "open"},
    ),
    "task resumed": Case(
        "breaker.set", ("PUT", "/tasks/load/breaker", {"state": "closed"}),
        ("/breakers", {"task": "load", "action": "resume"}), ["breakers", "resume", "load"], "dl_breakers",
        before=KNOWN + BREAKER, audit={"task": "load", "state": "closed"},
    ),
    "unknown task": Case(
        "breaker.set", ("PUT", "/tasks/laod/breaker?strict=true", {"state": "open"}),
        ("/breakers", {"task": "laod", "action": "pause"}), ["breakers", "pause", "laod"], "dl_breakers",
        before=KNOWN, refused="there is no task 'laod'",
    ),
    "period without failures": Case(
        "breaker.set", ("PUT", "/tasks/load/breaker", {"window_sec": 60}),
        ("/breakers", {"task": "load", "action": "set", "window_sec": "60"}),
        ["breakers", "set", "load", "--window", "60"], "dl_breakers", before=KNOWN, refused="belongs to failures",
    ),
    "breaker deleted": Case(
        "breaker.deleted", ("DELETE", "/tasks/load/breaker", None),
        ("/breakers", {"task": "load", "action": "delete"}), ["breakers", "delete", "load"], "dl_breakers",
        before=BREAKER, audit={"task": "load"},
    ),
    "breaker that is none deleted": Case(
        "breaker.deleted", ("DELETE", "/tasks/load/breaker", None),
        ("/breakers", {"task": "load", "action": "delete"}), ["breakers", "delete", "load"], "dl_breakers",
        refused="'load'",
    ),
    "queue paused": Case(
        "queue.settings_changed", ("PATCH", "/queues", {"queue": "etl", "state": "paused", "note": "moving"}),
        ("/queues", {"queue": "etl", "state": "paused", "note": "moving"}),
        ["queue", "etl", "--pause", "--note", "moving"], "dl_queues", before=KNOWN,
        audit={"queue": "etl", "state": "paused"},
    ),
    "unknown queue": Case(
        "queue.settings_changed", ("PATCH", "/queues?strict=true", {"queue": "elt", "state": "paused"}),
        ("/queues", {"queue": "elt", "state": "paused"}), ["queue", "elt", "--pause"], "dl_queues",
        before=KNOWN, refused="there is no queue 'elt'",
    ),
    "worker drained": Case(
        "worker.draining", ("POST", f"/workers/{WORKER}/drain", None), (f"/workers/{WORKER}", {"draining": "yes"}),
        ["workers", "--drain", WORKER], "dl_workers", before=KNOWN, audit={"worker_id": WORKER},
    ),
    "worker that is none drained": Case(
        "worker.draining", ("POST", f"/workers/{WORKER}/drain", None), (f"/workers/{WORKER}", {"draining": "yes"}),
        ["workers", "--drain", WORKER], "dl_workers", refused="worker",
    ),
    "worker resumed": Case(
        "worker.resumed", ("POST", f"/workers/{WORKER}/undrain", None), (f"/workers/{WORKER}", {"draining": "no"}),
        ["workers", "--undrain", WORKER], "dl_workers", before=KNOWN, audit={"worker_id": WORKER},
    ),
    "host drained": Case(
        "host.draining", ("POST", "/hosts/w/drain", None), ("/hosts/w/drain", {}), ["workers", "--drain-host", "w"],
        "dl_workers", before=KNOWN, audit={"host": "w"},
    ),
    "host without a worker drained": Case(
        "host.draining", ("POST", "/hosts/x/drain", None), ("/hosts/x/drain", {}), ["workers", "--drain-host", "x"],
        "dl_workers", before=KNOWN, refused="no live worker process runs on the host 'x'; hosts with one: w",
    ),
    "host resumed": Case(
        "host.resumed", ("POST", "/hosts/w/undrain", None), ("/hosts/w/undrain", {}),
        ["workers", "--undrain-host", "w"], "dl_workers", before=KNOWN, audit={"host": "w"},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def url(shared_dsn: str) -> Iterator[str]:
    with serving(shared_dsn) as address:
        yield address


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_way_does_the_same(case: Case, url: str, shared_dsn: str, captured: pytest.LogCaptureFixture):
    check_every_way(case, url, shared_dsn, captured)


def test_every_act_has_a_case():
    folders = [name for name in NAMES if find_spec(f"dataloader.app.features.{name}.acts")]
    modules = [import_module(f"dataloader.app.features.{name}.acts") for name in folders]
    tests = Path(__file__).parent.glob("*/test_acts.py")
    others = (import_module(f"tests.app.features.{path.parent.name}.test_acts") for path in tests)
    cases = [CASES, *(module.CASES for module in others if hasattr(module, "CASES"))]

    acts = {act.name for module in (core_acts, *modules) for act in acts_of(module)}
    has_tests_of_its_own = {"act.undone"}  # what it does depends on the act before
    assert acts - has_tests_of_its_own == {case.act for part in cases for case in part.values()}
