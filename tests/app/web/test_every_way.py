"""Each act by each way: the request, the form and the command do the same, and refuse the same.

By each way an act is performed in a database of the same rows. Compared are the rows that it changes, the changes in
the audit table, and the line in the audit file; of a request that is refused, that nothing changes and the message.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import requests
from click.testing import CliRunner

from app.cli.command import cli
from app.features.limits import acts
from tests.support.api_server import serving
from tests.support.databases import execute_sql
from tests.support.real_service import query_rows

OK, REFUSED_BY_PAGE = 303, (409, 422)


@dataclass(frozen=True)
class Case:
    """An act with values, by each way."""

    act: str
    request: tuple[str, str, Mapping[str, Any] | None]  # method, path, body
    form: tuple[str, Mapping[str, str]]
    command: Sequence[str]
    table: str
    before: str = ""  # SQL
    refused: str = ""  # the message; empty: it is done
    audit: Mapping[str, Any] = field(default_factory=dict)


LIMIT = "INSERT INTO dl_limits (name, concurrency) VALUES ('api', 1);"
BREAKER = "INSERT INTO dl_breakers (task, failures) VALUES ('load', 3);"
KNOWN = (
    "INSERT INTO dl_workers (worker_id, name, version, queues, tasks, threads, heartbeat_sec)"
    " VALUES (gen_random_uuid(), 'w', '1', '{etl}', '{load}', 1, 10);"
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
}  # fmt: skip


def by_request(url: str, case: Case) -> tuple[bool, str]:
    method, path, body = case.request
    response = requests.request(method, f"{url}/api/v1{path}", json=body, timeout=30)
    return response.ok, str(response.json().get("detail", ""))


def by_form(url: str, case: Case) -> tuple[bool, str]:
    path, fields = case.form
    response = requests.post(url + path, data=fields, allow_redirects=False, timeout=30)
    assert response.status_code in (OK, *REFUSED_BY_PAGE), response.text
    text = html.unescape(re.sub(r"<[^>]+>", " ", response.text))
    return response.status_code == OK, " ".join(text.split())


def by_command(url: str, case: Case) -> tuple[bool, str]:
    result = CliRunner().invoke(cli, [*case.command, "--url", url])
    return result.exit_code == 0, " ".join(result.output.split())


WAYS: Mapping[str, Callable[[str, Case], tuple[bool, str]]] = {
    "request": by_request, "form": by_form, "command": by_command,
}  # fmt: skip


@pytest.fixture(scope="module")
def url(shared_dsn: str) -> Iterator[str]:
    with serving(shared_dsn) as address:
        yield address


def rows_of(dsn: str, table: str) -> list[Any]:
    times_and_actors = ["changed_at", "opened_at", "failed_at", "created_at", "changed_by"]
    return query_rows(dsn, f"SELECT to_jsonb(t) - %s::text[] FROM {table} t", times_and_actors)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_way_does_the_same(case: Case, url: str, shared_dsn: str, captured: pytest.LogCaptureFixture):
    outcomes = {}
    for way, perform in WAYS.items():
        execute_sql(shared_dsn, f"TRUNCATE dl_limits, dl_breakers, dl_workers, dl_audit; {case.before}")
        rows_before = rows_of(shared_dsn, case.table)
        captured.clear()
        done, text = perform(url, case)
        lines = [
            (record.getMessage(), {name: vars(record).get("fields", {}).get(name) for name in case.audit})
            for record in captured.records
            if record.name == "dataloader.audit" and record.getMessage() == case.act
        ]
        rows = rows_of(shared_dsn, case.table)
        changes = query_rows(shared_dsn, "SELECT subject, subject_id, before, after FROM dl_audit ORDER BY audit_id")
        outcomes[way] = (done, rows, lines, len(changes))
        assert done is not bool(case.refused), f"{way}: {text}"
        if case.refused:
            assert case.refused in text, way
            assert (rows, changes) == (rows_before, []), way

    expected_lines = [] if case.refused else [(case.act, dict(case.audit))]
    assert outcomes["request"][2] == expected_lines
    assert outcomes["form"] == outcomes["command"] == outcomes["request"]


def test_every_act_has_a_case():
    names = {value.name for value in vars(acts).values() if hasattr(value, "perform")}

    assert names == {case.act for case in CASES.values()}
