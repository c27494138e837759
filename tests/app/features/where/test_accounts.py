"""Accounts: what is kept of them, how they are compared with the usual run, and their totals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dataloader.app.features.where.account import MAX_ACCOUNT_BYTES, Account, Cause, find_cause
from dataloader.app.features.where.account_pages import day_charts
from dataloader.app.features.where.account_reader import AccountReader
from dataloader.app.features.where.accounts import Accounts
from dataloader.app.features.where.duty import AccountsDuty, LostAccountsDuty
from dataloader.app.features.where.sampler_options import Prices
from dataloader.app.features.where.server_looks import SessionLook, shorten_statement
from dataloader.app.queue.job import Status
from tests.app.features.where.conftest import WhereFixture
from tests.support.accounts import LOAD, LOCKED, make_account

MOMENT: dict[str, Any] = {
    "sec": 1.0, "kind": "network", "detail": None, "place": "load in a/b.py:1", "calls": None, "handles": None,
    "driver": False, "interpreter_sec": 0.0, "queued_sec": 0.0,
}  # fmt: skip


def session(**values: Any) -> SessionLook:
    fields: dict[str, Any] = {
        "server": "s", "is_own": True, "pid": 1, "state": "active", "wait_event_type": None, "wait_event": None,
        "statement": "SELECT …", "statement_sec": 5.0, "state_sec": 5.0,
    }  # fmt: skip
    return SessionLook(**fields | values)


@pytest.mark.parametrize(
    ("moment", "sessions", "kind"),
    [
        ({}, [], "network"),
        ({}, [session()], "sql"),
        ({}, [session(statement_sec=0.001)], "sql_short"),
        ({}, [session(state="idle in transaction", state_sec=0.001)], "sql_short"),
        ({}, [session(state="idle")], "network"),
        ({}, [session(wait_event_type="Lock")], "sql_lock"),
        ({}, [session(wait_event_type="Client")], "sql_client"),
        ({}, [session(state=None)], "network"),
        ({"kind": "python"}, [session()], "python"),
        ({"kind": "python"}, [session(statement_sec=0.001)], "sql_short"),
        ({"kind": "sleep"}, [session()], "sleep"),
    ],
)
def test_cause_joins_program_and_server(moment: dict[str, Any], sessions: list[SessionLook], kind: str):
    assert find_cause(MOMENT | moment, sessions).kind == kind


def test_waits_for_interpreter_and_cpu_are_apart():
    account = Account()

    account.add_moment(MOMENT | {"kind": "python", "interpreter_sec": 0.5, "queued_sec": 0.25}, [])

    assert {cause.kind: sec for cause, sec in account.seconds.items()} == {
        "python": 0.25, "interpreter": 0.5, "queued": 0.25,
    }  # fmt: skip


def test_account_is_short_however_long_its_texts_are():
    account = Account(problems={f"server {number}": "p" * 300 for number in range(10)})
    for number in range(700):
        account.add(
            Cause("sql", f"{'f' * 200}:{number}", "d" * 200, f"SELECT \N{SNOWMAN}{'s' * 300}", "h" * 200), number
        )

    text = account.encode(lambda value: value.replace("SELECT", "***"))

    stored = json.loads(text)
    assert len(text.encode()) <= MAX_ACCOUNT_BYTES
    assert 0 < len(stored["entries"]) <= 10
    assert "SELECT" not in text
    assert sum(stored["kinds"].values()) == pytest.approx(sum(range(700)), rel=0.01)


@pytest.mark.parametrize(
    ("statement", "shown"),
    [
        ("SELECT 1 FROM sales2024 WHERE id IN (1, 2.5, 3)", "SELECT … FROM sales2024 WHERE id IN (…)"),
        ("INSERT INTO t VALUES (1, 'a'), (2, 'b');", "INSERT INTO t VALUES (…)"),
        ("SELECT * FROM t WHERE a = $1", "SELECT * FROM t WHERE a = $1"),
    ],
)
def test_statements_have_no_constants(statement: str, shown: str):
    assert shorten_statement(statement) == shown


def test_slower_run_names_what_took_more(where: WhereFixture):
    queue_db = where.pools.queue_fixture
    accounts, reader = Accounts(where.app_pool), AccountReader(queue_db.queue, "EUR")
    for _ in range(3):
        run = queue_db.enqueue_and_claim()
        accounts.write([make_account(run, 60.0)])
        queue_db.settle(run)
    failed = queue_db.enqueue_and_claim()
    accounts.write([make_account(failed, 1.0)])
    queue_db.settle(failed, Status.FAILED)
    slow = queue_db.enqueue_and_claim()
    accounts.write([make_account(slow, 120.0, {LOAD: 65.0, LOCKED: 50.0})])

    found = reader.of_job(slow.id)

    assert found.summary.startswith(
        "2.0 × slower than usual (1 min, the median of 3 runs): 50 s of the 1 min more are waits for a lock on sales"
        " held by psql (user ann)."
    )
    assert found.comparison is not None
    assert (found.comparison.ratio, found.comparison.usual_runs) == (2.0, 3)
    assert [entry.kind for entry in found.attempts[0].entries] == ["python", "sql_lock"]


def test_totals_count_each_attempt_once(where: WhereFixture):
    queue_db = where.pools.queue_fixture
    accounts, run = Accounts(where.app_pool), queue_db.enqueue_and_claim()
    accounts.write([make_account(run, 3600.0, has_ended=False)])
    assert accounts.days(days=1, limit=10) == []

    for _ in range(2):  # the answer to the first was lost
        accounts.write([make_account(run, 7200.0)])
    totals = AccountReader(queue_db.queue, "EUR").totals(days=1)

    (day,) = totals.days
    assert (day.task, day.attempts, day.run_hours, day.cpu_hours) == (run.task, 1, 2.0, 1.0)
    assert (day.memory_gb_hours, day.rows, day.bytes, day.cost) == (0.2, 1000, 20_000, 0.5)
    charts = {chart.unit: [line[-1] for line in chart.values] for chart in day_charts(totals)}
    assert charts == {"CPU hours": [1.0], "GB hours": [0.2], "rows": [1000], "money, EUR": [0.5]}


def test_lost_attempt_is_in_the_totals_once(where: WhereFixture):
    queue_db, prices = where.pools.queue_fixture, Prices(run_hour=3600.0)
    accounts = Accounts(where.app_pool)
    lost, running, recent = (queue_db.enqueue_and_claim(key, max_attempts=1) for key in "abc")
    accounts.write([make_account(run, 3600.0, has_ended=False) for run in (lost, running)])
    queue_db.sql("UPDATE dl_accounts SET written_at = written_at - interval '1 hour'")
    accounts.write([make_account(recent, 600.0, has_ended=False)])
    for run in (lost, recent):  # of the second one the process may live, and write its account
        queue_db.lose_attempt(run)

    for _ in range(2):
        assert LostAccountsDuty(accounts, prices).run() is None

    (day,) = accounts.days(days=2, limit=10)
    assert (day.attempts, day.cpu_sec, day.rows) == (1, 1800.0, 1000)
    assert day.wall_sec == pytest.approx(7200, abs=60)  # until its loss was found
    assert day.cost == pytest.approx(day.wall_sec)
    (account,) = accounts.of_job(lost.id)
    assert (account.ended_at is not None, account.account["kinds"]) == (True, {"python": 3600.0})
    assert [found.ended_at for found in accounts.of_job(running.id)] == [None]
    assert accounts.usual(lost.task) == []


def test_accounts_of_deleted_jobs_are_deleted(where: WhereFixture):
    queue_db = where.pools.queue_fixture
    accounts, kept = Accounts(where.app_pool), queue_db.enqueue_and_claim("kept")
    deleted = queue_db.enqueue_and_claim("deleted")
    accounts.write([make_account(run, 60.0) for run in (kept, deleted)])
    queue_db.sql("UPDATE dl_accounts SET written_at = written_at - interval '2 minutes'")
    queue_db.sql("DELETE FROM dl_jobs WHERE job_id = %s", str(deleted.id))
    duty = AccountsDuty(accounts)

    while duty.run() is not None:
        pass

    assert [str(run) for (run,) in queue_db.sql("SELECT run_id FROM dl_accounts")] == [kept.run_text]


def test_pages_and_api_show_an_account(where: WhereFixture):
    queue_db = where.pools.queue_fixture
    run = queue_db.enqueue_and_claim()
    Accounts(where.app_pool).write([make_account(run, 60.0, {LOCKED: 50.0, LOAD: 10.0})])

    answer = where.client.get(f"/api/v1/jobs/{run.id}/account").get_json()
    page = where.client.get(f"/jobs/{run.id}/account").get_data(as_text=True)
    charts = where.client.get("/charts").get_data(as_text=True)

    assert answer["summary"] == "83 % of 1 min: waits for a lock on sales held by psql (user ann)."
    assert (answer["comparison"], answer["currency"]) == (None, None)
    assert 'id="account-now"' in page
    assert "UPDATE sales SET amount = …" in page
    assert "CPU by task and day" in charts
    assert where.client.get("/api/v1/accounts").get_json()["days"][0]["attempts"] == 1
