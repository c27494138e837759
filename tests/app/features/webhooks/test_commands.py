"""webhooks, alerts and doctor, as a shell sees them: against the real routes, and a real database."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import psycopg2
import pytest
from click.testing import CliRunner, Result
from werkzeug.serving import make_server

from dataloader.app.cli.command import cli
from dataloader.app.db.pool import Pool
from dataloader.app.http.app import create_app
from dataloader.app.http.options import WebOptions
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import Pipelines
from tests.support import Databases

Shell = Callable[..., Result]
URL = "https://hooks.example.com/x"


@pytest.fixture(scope="module")
def webhook_dsn(databases: Databases) -> Iterator[str]:
    with databases.fresh() as dsn:
        yield dsn


@pytest.fixture(scope="module")
def shell(webhook_dsn: str) -> Iterator[Shell]:
    pool = Pool(webhook_dsn)
    app = create_app(JobQueue(pool), Pipelines(), WebOptions(version="1"), pool=pool)
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()

    def run(*words: str, code: int = 0) -> Result:
        done = CliRunner().invoke(cli, [*words, "--url", f"http://127.0.0.1:{server.server_port}"])
        assert done.exit_code == code, (words, done.output, done.exception)
        return done

    yield run
    server.shutdown()
    server.server_close()
    thread.join(10)
    pool.close()


def last_word(result: Result, line: int = 0) -> str:
    return result.output.splitlines()[line].split()[-1]


def test_a_webhook_from_its_making_to_its_end(shell: Shell):
    assert "No webhooks" in shell("webhooks", "list").output
    made = shell("webhooks", "create", URL, "--event", "job.failed", "--task", "t")
    hook, secret = last_word(made, 1), last_word(made, 2)
    assert "Warning: there is no task 't'" in made.output

    assert secret.startswith("whsec_")
    assert secret not in shell("webhooks", "list").output
    assert last_word(shell("webhooks", "rotate", hook, "--overlap", "60")) != secret
    assert "is off" in shell("webhooks", "edit", hook, "--off", "--task", "").output
    (line,) = json.loads(shell("webhooks", "list", "--json").output)["webhooks"]
    assert (line["active"], line["task"], line["events"]) == (False, None, ["job.failed"])
    assert "off: by hand" in shell("webhooks", "list").output

    ping = last_word(shell("webhooks", "ping", hook))
    assert ping in shell("webhooks", "deliveries", "--webhook", hook, "--state", "pending").output
    assert "webhook.ping" in shell("webhooks", "delivery", ping).output
    assert "it will be sent" in shell("webhooks", "redeliver", ping).output
    assert shell("webhooks", "redeliver", "--webhook", hook).output == "1 delivery will be sent\n"
    shell("webhooks", "redeliver", code=2)

    assert "is deleted" in shell("webhooks", "delete", hook).output
    shell("webhooks", "remove", hook, code=3)  # as it was called in 0.2.0
    shell("webhooks", "delivery", ping, code=3)


def test_each_try_of_a_delivery_is_a_line(shell: Shell, webhook_dsn: str):
    hook = last_word(shell("webhooks", "add", URL))
    ping = last_word(shell("webhooks", "ping", hook))
    connection = psycopg2.connect(webhook_dsn)
    with connection, connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO dl_delivery_attempts (delivery_id, number, status, duration_ms, answer, error)"
            " VALUES (%s, 1, NULL, 15000, '', 'no answer'), (%s, 2, 503, 3, 'upstream down', 'answered 503'),"
            " (%s, 3, 200, 3, 'thanks', NULL)",
            (ping, ping, ping),
        )
    connection.close()

    _, first, second, third = shell("webhooks", "delivery", ping).output.splitlines()

    assert first.endswith("-  15000 ms  no answer")
    assert second.endswith("503  3 ms  upstream down")
    assert third.endswith("200  3 ms  thanks")


def test_invalid_request_item_is_reported(shell: Shell):
    assert "not public" in shell("webhooks", "add", "http://10.0.0.1/", code=4).stderr
    shell("webhooks", "edit", "0b7e8f4e-9f5e-4a51-9a3a-0f0f5a1d7d11", code=2)
    shell("alerts", "edit", "0b7e8f4e-9f5e-4a51-9a3a-0f0f5a1d7d11", code=2)
    shell("webhooks", "add", URL, "--event", "job.exploded", code=2)


def test_a_rule_and_what_it_fires(shell: Shell, webhook_dsn: str):
    assert "No rules" in shell("alerts", "rules").output
    rule = last_word(shell("alerts", "add", "rates fail", "failure_rate", "--threshold", "0.2", "--min-runs", "3"))
    shell("alerts", "create", "rates fail", "stalled", "--threshold", "60", code=4)

    assert "is off" in shell("alerts", "edit", rule, "--off", "--threshold", "0.3").output
    assert "0.3" in shell("alerts", "rules").output
    assert "No alerts fire" in shell("alerts", "list").output
    connection = psycopg2.connect(webhook_dsn)
    with connection, connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO dl_alerts (kind, name, subject, detail, ended_at)"
            " VALUES ('stalled', 'a', 's', 'it stands', NULL), ('stalled', 'b', 's', 'it stood', now())"
        )
    connection.close()
    assert "it stood" not in shell("alerts", "list").output
    assert "it stood" in shell("alerts", "list", "--all").output
    (firing,) = json.loads(shell("alerts", "list", "--json").output)["alerts"]
    assert "acknowledged by" in shell("alerts", "acknowledge", firing["alert_id"]).output
    assert "acknowledged by" in shell("alerts", "list").output
    shell("alerts", "edit", rule, "--on")
    assert "is muted until" in shell("alerts", "mute", rule, "--for", "8h").output
    assert "muted until" in shell("alerts", "rules").output
    assert "is on" in shell("alerts", "unmute", rule).output
    assert "is deleted" in shell("alerts", "remove", rule).output


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("alerts", "create", "r", "failure_rate", "--threshold", "5"), "--threshold: must be below 1"),
        (("alerts", "create", "r", "stalled", "--threshold", "-1"), "--threshold: Input should be greater"),
        (("alerts", "create", "r", "no_success", "--threshold", "5"), "--task: is required for no_success"),
        (("alerts", "create", "r", "stalled", "--threshold", "5", "--by", "07:00"), "--by: belongs to"),
        (
            ("alerts", "create", "r", "stale_dataset", "--threshold", "1h", "--dataset", "d", "--by", "25:00"),
            "--by: is no valid HH:MM.",
        ),
        (("alerts", "create", "r", "stalled", "--threshold", "5", "--window", "1s"), "--window: Input should"),
        (("limits", "set", "w", "--burst", "2"), "the request: limits nothing"),
        (("limits", "set", "w", "--concurrency", "2", "--burst", "2"), "--burst: belongs to a rate"),
        (("limits", "set", "a*", "--concurrency", "2"), "NAME: ends in *"),
        (("breakers", "set", "t", "--window", "5"), "--window: belongs to failures"),
        (("webhooks", "create", "http://10.0.0.1/"), "ADDRESS: "),
        (("webhooks", "edit", str(UUID(int=1)), "--to", "http://10.0.0.1/"), "--to: "),
        (
            ("queue", "q", "--fair", "colour"),
            "--fair: is no valid RULE. Serve tenants in turn: by partition_key",
        ),
        (("jobs", "--args", "day"), "--args: is no valid ARGS. Only jobs with this value in their args, `key:value`"),
        (("trigger", "t", "--limits", '{"a*": 1}'), "--limits"),
        (("trigger", "t", "--limits", '{"a": "b"}'), "--limits a: Input should be a valid integer"),
        (("trigger", "t", "--throttle", '{"key": "k"}'), "--throttle per_sec: is required"),
        (("trigger", "t", "--tag", "x", "--tag", ""), "--tag: String should have at least 1"),
        (("trigger", "t", "--debounce", '{"key": "k", "wait_sec": 5}', "--live-key", "k"), "--debounce: cannot be"),
        (("bulk", "cancel", "--all", "--priority", "5", "--expected", "0"), "--priority: is required for reprioritise"),
        (("backfill", "t", "--from", "2026-01-01"), "--from, --to, --partition-key: takes"),
        (("backfill", "t", "--from", "2026-01-01", "--to", "2026-01-01", "--zone", "UTC"), "unit is required: "),
        (("schedules", "create", "s", "--task", "t", "--cron", "x"), "Error: --cron: "),
        (("schedules", "create", "s", "--task", "t", "--cron", "@daily", "--exclude", "x"), "--exclude: is no day"),
        (
            ("schedules", "create", "s", "--task", "t", "--cron", "@daily", "--lock-key", "{partition}"),
            "--lock-key: this",
        ),
        (("schedules", "create", "s", "--task", "t", "--every", "60s", "--zone", "Mars"), "--zone: "),
        (("audit", "--subject", "x" * 2000), "--subject"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else "",
)
def test_refused_command_names_option_to_change(shell: Shell, words: tuple[str, ...], error: str):
    result = shell(*words, code=4)

    assert error in result.stderr
    assert "body" not in result.stderr


def test_refusal_in_json_names_field_of_api(shell: Shell):
    result = shell("alerts", "create", "r", "failure_rate", "--threshold", "5", "--json", code=4)

    assert json.loads(result.stderr)["errors"][0]["field"] == "threshold"


@pytest.mark.parametrize("group", ["alerts", "webhooks", "schedules", "backfills", "limits", "breakers", "graphs"])
def test_group_without_subcommand_lists(shell: Shell, group: str):
    assert shell(group).output == shell(group, "list").output


@pytest.fixture
def doctor(webhook_dsn: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Callable[..., Result]:
    monkeypatch.setenv("DL_DB_DSN", webhook_dsn)
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(cli, ["doctor", *words])


def test_doctor_sorts_by_severity_and_exits_with_worst(doctor: Callable[..., Result]):
    short, whole, report = doctor(), doctor("--all"), doctor("--json")

    answer = json.loads(report.output)
    assert {short.exit_code, whole.exit_code, report.exit_code} == {1}, "the tests' own server has fsync off"
    assert answer["worst"] == answer["findings"][0]["severity"] == "error"
    assert answer["findings"][0].keys() == {"check", "severity", "message", "remedy", "facts"}
    assert short.output.splitlines()[0].startswith("ERROR")
    assert "--all shows them" in short.output
    assert "That was all." in whole.output
    assert "ok      PostgreSQL" in whole.output


@pytest.mark.parametrize(("severity", "code"), [("WARNING", 5), ("INFO", 0), ("OK", 0)])
def test_how_bad_it_is_is_the_exit_code(doctor, monkeypatch, severity, code):
    from dataloader.app.acts.findings import Finding, Severity
    from dataloader.app.runtime import commands

    monkeypatch.setattr(commands, "run_doctor", lambda settings: [Finding("x", Severity[severity], "told", "")])

    assert doctor().exit_code == code
