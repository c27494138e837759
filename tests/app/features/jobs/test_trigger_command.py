from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from dataloader.app.cli.parsing import parse_object, parse_pair, parse_time
from tests.app.cli.fake_service import HANG_UP, problem


def test_a_trigger_needs_only_a_task(run, service):
    shown = run("trigger", "noop")

    (job_id,) = service.jobs
    sent = service.asked[0].body
    assert shown.exit_code == 0
    assert f"Job {job_id} is queued." in shown.stdout
    assert f"dataloader status {job_id} --watch" in shown.stdout
    assert sent.pop("idempotency_key").startswith("cli-")
    assert sent == {"task": "noop", "args": {}}


@pytest.mark.parametrize("options", [[], ["--watch"]])
def test_a_debounced_trigger_has_no_idempotency_key(run, service, options):
    service.next_lives = [{"status": "succeeded"}]

    shown = run("trigger", "noop", "--debounce", '{"key": "reload", "wait_sec": 60}', "--json", *options)

    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["idempotency_key"] is None
    assert "idempotency_key" not in service.asked[0].body


def test_task_without_queue_or_lock_key_gets_defaults(run, service):
    service.missing = {"queue": "is required", "lock_key": "is required"}

    shown = run("trigger", "noop")

    first, second = (asked.body for asked in service.asked)
    assert shown.exit_code == 0
    assert second == {**first, "queue": "etl.default", "lock_key": "noop"}


def test_only_what_is_missing_is_added(run, service):
    service.missing = {"lock_key": "is required"}

    run("trigger", "noop", "--queue", "q")

    assert service.asked[1].body["queue"] == "q"
    assert service.asked[1].body["lock_key"] == "noop"


def test_unfillable_lock_key_is_not_replaced(run, service):
    service.missing = {"lock_key": "cannot be made of the args: the argument 'id' is missing"}

    shown = run("trigger", "noop")

    assert shown.exit_code == 4
    assert "'id' is missing" in shown.stderr
    assert len(service.asked) == 1


def test_repeated_missing_field_ends_the_retry(run, service):
    service.unruly.append(
        problem(400, "invalid_request", "see errors", errors=[{"field": "queue", "message": "is required"}])
    )

    shown = run("trigger", "noop", "--queue", "q")

    assert shown.exit_code == 4
    assert len(service.asked) == 1


def test_every_option_reaches_the_service(run, service):
    run(
        "trigger", "t", "--queue", "q", "--lock-key", "k", "--arg", "a=1", "--priority", "0", "--max-attempts", "2",
        "--lease-ttl", "30", "--partition-key", "p", "--producer", "me", "--consumer-group", "g",
        "--idempotency-key", "once", "--available-at", "2026-11-21T06:00:00+03:00",
        "--live-key", "l", "--time-limit", "60", "--retry", '{"kind": "fixed", "seconds": 5}',
        "--tag", "finance", "--tag", "daily",
    )  # fmt: skip

    assert service.asked[0].body == {
        "queue": "q", "task": "t", "lock_key": "k", "args": {"a": 1}, "priority": 0, "max_attempts": 2,
        "lease_ttl_sec": 30, "partition_key": "p", "producer": "me", "consumer_group": "g",
        "idempotency_key": "once", "available_at": "2026-11-21T03:00:00+00:00",
        "live_key": "l", "time_limit_sec": 60, "retry": {"kind": "fixed", "seconds": 5},
        "tags": ["finance", "daily"],
    }  # fmt: skip


def test_the_narrower_source_of_an_argument_wins(run, service, tmp_path):
    (tmp_path / "args.json").write_text('{"a": "file", "b": "file", "c": "file"}')

    run(
        "trigger", "t", "--args-file", f"{tmp_path}/args.json", "--args", '{"b": "text", "c": "text"}', "--arg", "c=arg"
    )

    assert service.asked[0].body["args"] == {"a": "file", "b": "text", "c": "arg"}


def test_arguments_can_come_from_standard_input(run, service):
    run("trigger", "t", "--args-file", "-", input='{"a": "Банк"}')

    assert service.asked[0].body["args"] == {"a": "Банк"}


@pytest.mark.parametrize("held", ["", "[]", "{", '{"a": NaN}'])
def test_a_file_without_a_json_object_is_named(run, service, tmp_path, held):
    (tmp_path / "args.json").write_text(held)

    shown = run("trigger", "t", "--args-file", f"{tmp_path}/args.json")

    assert shown.exit_code == 2
    assert "args.json" in shown.stderr
    assert service.asked == []


def test_a_trigger_whose_answer_is_lost_makes_one_job(run, service):
    service.unruly.append(HANG_UP)

    shown = run("trigger", "noop", "--json")

    output = json.loads(shown.stdout)
    first, second = (asked.body["idempotency_key"] for asked in service.asked)
    assert first == second == output["idempotency_key"]
    assert output["status"] == "queued"


def test_two_triggers_are_two_jobs(run, service):
    run("trigger", "noop")
    run("trigger", "noop")

    assert len(service.jobs) == 2


def test_an_invalid_request_names_each_field_and_exits_with_4(run, service):
    plain, as_json = run("trigger", "bad"), run("trigger", "bad", "--json")

    assert plain.exit_code == as_json.exit_code == 4
    assert "--arg x: is required" in plain.stderr
    assert json.loads(as_json.stderr)["errors"] == [{"field": "args.x", "message": "is required"}]


def test_a_key_of_another_request_is_refused(run, service):
    run("trigger", "noop", "--idempotency-key", "k")

    shown = run("trigger", "other", "--idempotency-key", "k")

    assert shown.exit_code == 4
    assert "already belongs to job" in shown.stderr


def test_watching_shows_the_job_to_its_end(run, service):
    service.next_lives = [
        {"status": "running", "attempt": 1, "progress": {"processed": 500, "total": 1000}},
        {"status": "succeeded"},
    ]

    shown = run("trigger", "noop", "--watch")

    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[1:] == [
        "running, attempt 1, 500 of 1000 (50%)",
        "succeeded, attempt 1, 500 of 1000 (50%)",
    ]


def test_watch_prints_result_at_the_end(run, service):
    life = {"status": "succeeded", "attempt": 1, "result": {"rows": 3, "кто": "\u202e"}}
    service.next_lives = [life]

    shown = run("trigger", "noop", "--watch")

    assert shown.stdout.splitlines()[-1] == 'result: {"rows": 3, "кто": "\\u202e"}'

    service.next_lives = [life]
    assert json.loads(run("trigger", "noop", "--watch", "--json").stdout)["result"]["rows"] == 3


def test_watch_without_right_to_read_result_still_succeeds(run, service):
    job_id = service.add({"status": "succeeded"})
    service.unruly.extend([None, problem(403, "scope_missing", "it takes a key with the scope read")])

    shown = run("status", job_id, "--watch")

    assert (shown.exit_code, shown.stdout.splitlines()[-1]) == (0, "succeeded")


def test_watching_a_job_that_fails_exits_with_1(run, service):
    service.next_lives = [{"status": "failed", "attempt": 5, "error": "ValueError: no"}]

    shown = run("trigger", "noop", "--watch")

    assert shown.exit_code == 1
    assert "ValueError: no" in shown.stdout


def test_watching_in_json_gives_one_answer_with_the_key(run, service):
    service.next_lives = [{"status": "running"}, {"status": "canceled"}]

    shown = run("trigger", "noop", "--watch", "--json", "--idempotency-key", "k")

    output = json.loads(shown.stdout)
    assert (output["status"], output["idempotency_key"], shown.exit_code) == ("canceled", "k", 1)


def test_a_suggested_command_carries_the_address_that_was_typed(run, service):
    assert f"--watch --url {service.url}" in run("trigger", "noop", "--url", service.url).stdout


@pytest.mark.parametrize(
    "wrong",
    [
        ("--arg", "a"),
        ("--arg", "=1"),
        ("--args", "[1]"),
        ("--args", "{"),
        ("--priority", "-1"),
        ("--max-attempts", "0"),
        ("--time-limit", "0"),
        ("--retry", "5"),
        ("--available-at", "tomorrow"),
        ("--available-at", "2026-11-21T25:00:00"),
        ("--args-file", "/nowhere.json"),
    ],
    ids=" ".join,
)
def test_a_wrong_option_is_a_mistake_in_usage_and_sends_nothing(run, service, wrong):
    shown = run("trigger", "noop", *wrong)

    assert shown.exit_code == 2
    assert wrong[0] in shown.stderr
    assert service.asked == []


@pytest.mark.parametrize(
    ("result", "value"),
    [
        ("1", 1),
        ("true", True),
        ("[1]", [1]),
        ('"1"', "1"),
        ("2026-11-21", "2026-11-21"),
        ("", ""),
        ("a=b", "a=b"),
        ("NaN", "NaN"),
        ("[" * 100_000, "[" * 100_000),
    ],
    ids=range(9),
)
def test_an_argument_is_json_if_it_can_be_and_text_if_not(result, value):
    assert parse_pair(f"name={result}") == ("name", value)


def test_json_that_is_too_deep_is_refused():
    with pytest.raises(ValueError, match="too deeply"):
        parse_object("[" * 100_000)


@pytest.mark.parametrize(
    ("result", "seconds"),
    [("in 90s", 90), ("in 5m", 300), ("IN 1h 30m", 5400), ("in 2 d 1 h", 176_400), (" in 0s ", 0)],
)
def test_a_span_is_counted_from_now(result, seconds):
    before = datetime.now(UTC)
    at = parse_time(result)

    assert before <= at - timedelta(seconds=seconds) <= datetime.now(UTC)


@pytest.mark.parametrize(
    "result", ["in", "in 5", "5m", "in 5 fortnights", "in 9999999999d", "0001-01-01T00:00:00+03:00"]
)
def test_what_is_no_time_is_refused_with_examples(result):
    with pytest.raises(ValueError, match="in 5m"):
        parse_time(result)


def test_a_time_keeps_its_moment():
    assert parse_time("2026-11-21T06:00:00+03:00") == datetime(2026, 11, 21, 3, tzinfo=UTC)


def test_warnings_are_printed_to_standard_error(run, service):
    service.warnings = ["no live worker knows 'nop'; did you mean 'noop'?"]

    shown = run("trigger", "nop")

    assert shown.exit_code == 0
    assert shown.stderr == "Warning: no live worker knows 'nop'; did you mean 'noop'?\n"


def test_strict_trigger_that_is_refused_exits_with_4(run, service):
    service.unruly.append(problem(409, "would_not_run", "no live worker knows 'nop'"))

    shown = run("trigger", "nop", "--strict")

    assert shown.exit_code == 4
    assert "no live worker knows 'nop'" in shown.stderr
    assert service.asked[0].query == {"strict": ["true"]}
