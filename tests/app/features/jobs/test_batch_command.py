"""`dataloader trigger --from`, against the real app behind a client that needs no socket."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dataloader import Client, ServiceUnavailable
from dataloader.app.cli.command import cli
from dataloader.app.db.pool import Pool
from dataloader.app.features.jobs import trigger_command as trigger
from dataloader.app.http.app import create_app
from dataloader.app.http.options import WebOptions
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import Pipelines
from tests.support.queue_fixture import list_jobs


@pytest.fixture
def dsn(own_dsn: str) -> str:
    return own_dsn


@pytest.fixture
def queue(dsn):
    pool = Pool(dsn, size=1, overflow=1)
    yield JobQueue(pool)
    pool.close()


@pytest.fixture
def sent(queue, monkeypatch) -> list[dict[str, Any]]:
    """The bodies that were sent; a text in front of them is a service that goes away."""
    app = create_app(queue, Pipelines(), WebOptions(version="1")).test_client()
    bodies: list[Any] = []

    def ask(self: Client, method: str, path: str, *, body: Any = None, repeatable: bool = False) -> Any:
        if not any("debounce" in job for job in body["jobs"]):
            assert repeatable, "every line has a key"
        if bodies and bodies[-1] == "away":
            raise ServiceUnavailable("it went away", sent=True)
        bodies.append(body)
        return app.open(path, method=method, json=body).json

    monkeypatch.setattr(Client, "request", ask)
    return bodies


def run(lines: list[Any], *options: str) -> Result:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    return CliRunner().invoke(cli, ["trigger", *options, "--from", "-"], input=text)


def test_each_line_becomes_a_job_with_the_defaults(sent, queue):
    lines = [{"args": {"n": 1}}, {"task": "other", "queue": "q", "lock_key": "k", "priority": 1}, ""]

    shown = run(lines, "noop", "--arg", "day=2026-11-21", "--producer", "me")

    assert (shown.exit_code, shown.stdout) == (0, "2 created.\n")
    noop, other = sorted(list_jobs(queue), key=lambda job: job.task)
    assert (noop.task, noop.queue, noop.lock_key, noop.producer) == ("noop", "etl.default", "noop", "me")
    assert noop.args == {"n": 1, "day": "2026-11-21"}
    assert {noop.task, other.task} == {"noop", "other"}


def test_refused_lines_are_named_and_the_others_done(sent, queue):
    lines = ["{", "[]", {"task": "t", "queue": "q", "lock_key": "k", "priority": -1}, {"task": "t"}, {"queue": "q"}]

    shown = run(lines)

    assert shown.exit_code == 4
    assert shown.stdout == "1 created, 4 invalid.\n"
    for output in (
        "line 1: it is not JSON",
        "line 2: a JSON object is needed",
        "line 3: priority:",
        "line 5: task: is req",
    ):
        assert output in shown.stderr
    result = json.loads(run(lines, "--json").stdout)
    assert (result["lines"], result["invalid"], [one["line"] for one in result["rejected"]]) == (5, 4, [1, 2, 3, 5])


def test_rejected_lines_have_the_problems_of_a_trigger(sent):
    rejected = json.loads(run(["{", {"queue": "q", "priority": -1}], "--json").stdout)["rejected"]

    assert [(line["line"], line["outcome"], line["code"]) for line in rejected] == [
        (1, "invalid", "invalid_request"),
        (2, "invalid", "invalid_request"),
    ]
    assert {error["field"] for error in rejected[1]["errors"]} >= {"task", "priority"}


@pytest.mark.parametrize("is_option", [False, True])
def test_debounced_lines_change_one_job_and_are_not_rejected(sent, queue, is_option):
    rule = {"key": "reload", "wait_sec": 60}
    lines = [{"task": "t", "args": {"n": n}, **({} if is_option else {"debounce": rule})} for n in (1, 2)]

    shown = run(lines, *(["--debounce", json.dumps(rule)] if is_option else []))

    assert (shown.exit_code, shown.stdout) == (0, "1 created, 1 debounced.\n"), shown.output
    (job,) = list_jobs(queue)
    assert job.args == {"n": 2}


def test_the_same_command_goes_on_where_it_was_interrupted(sent, queue, monkeypatch):
    monkeypatch.setattr(trigger, "MAX_BATCH_LINES", 2)
    lines = [{"task": "t", "queue": "q", "lock_key": f"k{n}"} for n in range(5)]

    request = Client.request

    def answer_once(*args: Any, **options: Any) -> Any:
        answer = request(*args, **options)
        sent.append("away")
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(Client, "request", answer_once)
        broken = run(lines, "--idempotency-key", "load-1")
    assert broken.exit_code == 69
    assert "To continue: the same command with --idempotency-key load-1" in broken.stderr
    assert len(list_jobs(queue)) == 2
    sent.clear()

    shown = run(lines, "--idempotency-key", "load-1")

    assert shown.stdout == "3 created, 2 there already.\n"
    assert [len(body["jobs"]) for body in sent] == [2, 2, 1]
    assert {job.idempotency_key for job in list_jobs(queue)} == {f"load-1:{n}" for n in range(1, 6)}


def test_long_lines_make_smaller_batches(sent, monkeypatch):
    monkeypatch.setattr(trigger, "MAX_BATCH_BYTES", 300)

    run([{"task": "t", "queue": "q", "lock_key": "k" * 100} for _ in range(5)])

    assert [len(body["jobs"]) for body in sent] == [2, 2, 1]


@pytest.mark.parametrize("words", [["trigger"], ["trigger", "noop", "--watch", "--from", "-"]])
def test_what_cannot_be_meant_is_a_usage_error(words):
    assert CliRunner().invoke(cli, words, input="").exit_code == 2


def test_a_file_that_is_not_utf_8_is_named(sent, tmp_path):
    (tmp_path / "jobs.jsonl").write_bytes(b'{"task": "\xff"}\n')

    shown = CliRunner().invoke(cli, ["trigger", "--from", str(tmp_path / "jobs.jsonl")])

    assert shown.exit_code == 2
    assert "is not UTF-8" in shown.stderr
