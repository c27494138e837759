"""doc.llm_check against a service that speaks as OpenAI's does, in all its moods."""

from __future__ import annotations

import json
import time

import psycopg2
import pytest

from dataloader.app.db.schema import migrate
from dataloader.pipelines import targets
from dataloader.pipelines.contract import Fail, Stop
from dataloader.pipelines.llm_check import AnswerCutOff, AnswerUnreadable, ModelRefused
from dataloader.pipelines.toolkit.errors import (
    SourceAnswered,
    SourceBroken,
    SourceBusy,
    SourceError,
    SourceStalled,
    SourceTooLarge,
    SourceTooSlow,
    SourceTruncated,
    SourceUnreachable,
    UnsafePath,
)
from tests.support import eventually
from tests.support.databases import query_value
from tests.support_sources import RecordingContext, Reply, SourceServer, start_task

PATH = "/v1/chat/completions"
ARGS = {"model": "judge-1", "text": "Договор № 5", "rules": ["It has a number", "It is signed"]}
VERDICT = {
    "verdict": "fail",
    "summary": "Nobody signed it.",
    "findings": [
        {"rule": "It has a number", "passed": True, "reason": "№ 5", "quote": "Договор № 5"},
        {"rule": "It is signed", "passed": False, "reason": "no signature", "quote": ""},
    ],
}


def reply_with(content, finish_reason="stop", **message):
    text = content if isinstance(content, str) or content is None else json.dumps(content)
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": finish_reason}
    return Reply.from_json({"id": "c-1", "model": "judge-1-0131", "choices": [choice], "usage": {"total_tokens": 99}})


@pytest.fixture(autouse=True)
def endpoints(source: SourceServer):
    targets.configure({"llm": source.url, "documents": f"{source.url}/documents"}, {}, {"llm": "t0ken"})
    yield
    targets.configure({}, {})


def check(ctx=None, **other):
    return start_task("doc.llm_check", {**ARGS, **other}, ctx)


def test_the_verdict_comes_back_with_the_number_of_the_try(source):
    source.add_route("POST", PATH, reply_with(VERDICT))

    result = check(RecordingContext(attempt=3))

    assert result.pop("seconds") >= 0
    assert result == {**VERDICT, "model": "judge-1-0131", "usage": {"total_tokens": 99}, "attempt": 3}


def test_request_has_rules_and_document_as_data(source):
    source.add_route("POST", PATH, reply_with(VERDICT))

    check(prompt="Be strict.", max_tokens=500)

    (request,) = source.requests
    system, user = request.json["messages"]
    assert request.headers["Authorization"] == "Bearer t0ken"
    assert (request.json["model"], request.json["max_tokens"]) == ("judge-1", 500)
    assert "Be strict." in system["content"]
    assert "1. It has a number\n2. It is signed" in system["content"]
    assert user == {"role": "user", "content": "<document>\nДоговор № 5\n</document>"}


def test_a_prompt_will_do_without_rules(source):
    source.add_route("POST", PATH, reply_with({"verdict": "unclear"}))

    result = check(rules=[], prompt="Is it a contract?")

    assert (result["verdict"], result["findings"]) == ("unclear", [])
    assert "max_tokens" not in source.requests[0].json


def test_a_document_is_fetched_by_its_id(source):
    source.add_route("GET", "/documents/a%2Fb%3Fc", Reply("Текст".encode()))
    source.add_route("POST", PATH, reply_with(VERDICT))

    check(text=None, document="a/b?c")

    assert "Текст" in source.requests[1].json["messages"][1]["content"]


@pytest.mark.parametrize("document", ["..", ".", "a/../b", "..\\x", "a//b", "a\0b", "x" * 2_000])
def test_unsafe_document_id_is_refused_unsent(source, document):
    with pytest.raises(UnsafePath, match="cannot stand in an address"):
        check(text=None, document=document)

    assert source.requests == []


def test_missing_binary_or_large_document_is_an_error(source):
    with pytest.raises(SourceAnswered, match="404"):
        check(text=None, document="x")

    source.add_route("GET", "/documents/x", Reply(b"%PDF\xff"))
    with pytest.raises(SourceBroken, match="'x' is no text in UTF-8"):
        check(text=None, document="x")
    with pytest.raises(SourceTooLarge):
        check(text=None, document="x", max_document_bytes=2)

    assert not source.requests_to(PATH)


@pytest.mark.parametrize("fence", ["```json\n{}\n```", "\n```\n{}\n```\n"])
def test_a_verdict_in_a_code_fence_is_read(source, fence):
    source.add_route("POST", PATH, reply_with(fence.replace("{}", json.dumps(VERDICT))))

    assert check()["verdict"] == "fail"


@pytest.mark.parametrize(
    ("reply", "error", "error_text"),
    [
        (reply_with("The document seems fine."), AnswerUnreadable, "gave no verdict.*seems fine"),
        (reply_with({"verdict": "maybe"}), AnswerUnreadable, "verdict: Input should be"),
        (reply_with({"verdict": "pass", "findings": [{"rule": "x"}]}), AnswerUnreadable, r"findings\.0\.passed"),
        (reply_with(None), AnswerUnreadable, "gave no verdict"),
        (reply_with('{"verdict": "pa', finish_reason="length"), AnswerCutOff, "larger max_tokens"),
        (reply_with("", finish_reason="content_filter"), ModelRefused, "content filter"),
        (reply_with(None, refusal="I cannot."), ModelRefused, "I cannot"),
        (Reply(b'{"choices": [{"mess'), AnswerUnreadable, "Invalid JSON"),
        (Reply(b"<html>Bad gateway</html>"), AnswerUnreadable, "Bad gateway"),
        (Reply.from_json({"choices": []}), AnswerUnreadable, "without a choice"),
        (Reply.from_json({"error": "overloaded"}), AnswerUnreadable, "overloaded"),
        (Reply.from_json([1]), AnswerUnreadable, "without a choice"),
        (Reply.from_json({"choices": "none"}), AnswerUnreadable, "without a choice"),
        (Reply.from_json({"choices": [{"text": "pass"}]}), AnswerUnreadable, r"choices\.0\.message"),
        (Reply(b"", length=100), SourceTruncated, "closed the connection"),
        (Reply(status=401), SourceAnswered, "401"),
        (Reply(b'{"error": "no such model"}', status=404), SourceAnswered, "no such model"),
        (Reply(b"x" * (4 * 1024**2 + 1)), SourceTooLarge, "4194304"),
    ],
)
def test_invalid_verdict_is_an_error(source, reply, error, error_text):
    source.add_route("POST", PATH, reply)

    with pytest.raises(error, match=error_text):
        check()

    assert len(source.requests) == 1


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 529])
def test_a_busy_service_is_left_to_the_next_try(source, status):
    source.add_route("POST", PATH, Reply(status=status, headers={"Retry-After": "30"}))
    ctx = RecordingContext()

    with pytest.raises(SourceBusy, match=str(status)) as caught:
        check(ctx)

    assert not caught.value.permanent
    assert caught.value.retry_after == (None if status == 529 else 30)
    assert (len(source.requests), ctx.sleeps) == (1, [])


def test_errors_say_whether_another_try_may_do_better():
    assert not any(error.permanent for error in (SourceBusy, SourceStalled, SourceTooSlow, AnswerUnreadable))
    assert all(error.permanent for error in (SourceAnswered, AnswerCutOff, ModelRefused))
    assert issubclass(AnswerUnreadable, SourceError)


def test_a_silent_service_is_given_up_after_a_while(source):
    source.add_route("POST", PATH, Reply(stall=True))

    with pytest.raises((SourceStalled, SourceTooSlow)):
        check(stall_sec=0.3)


def test_a_dripping_service_ends_by_the_deadline(source):
    source.add_route("POST", PATH, Reply(reply_with(VERDICT).body, drip_interval_sec=0.05))

    with pytest.raises(SourceTooSlow):
        check(timeout_sec=0.5)


def test_a_slow_service_is_waited_for(source):
    source.add_route("POST", PATH, Reply(reply_with({"verdict": "pass"}).body, drip_interval_sec=0.002))

    assert check()["verdict"] == "pass"


def test_unreachable_service_is_reported(source):
    targets.configure({"llm": "http://127.0.0.1:9"}, {})

    with pytest.raises(SourceUnreachable):
        check()


def test_a_stop_ends_the_call_while_the_service_is_silent(source):
    source.add_route("POST", PATH, Reply(stall=True))
    ctx = RecordingContext(stop_when=lambda: bool(source.requests))
    began = time.monotonic()

    with pytest.raises(Stop):
        check(ctx)

    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("other", "error_text"),
    [
        ({"text": None}, "either text or document"),
        ({"document": "x"}, "either text or document"),
        ({"rules": []}, "rules or a prompt"),
        ({"model": ""}, "model"),
        ({"rules": "one"}, "rules: Input should be a valid"),
        ({"base_url": "http://evil"}, "base_url"),
    ],
)
def test_args_that_do_not_fit_are_named_without_the_document(other, error_text):
    with pytest.raises(Fail, match=error_text) as caught:
        check(**other)

    assert "Договор" not in str(caught.value)


def test_worker_killed_in_the_call_costs_one_attempt(source, empty_dsn, start):
    source.add_route("POST", PATH, Reply(stall=True), reply_with(VERDICT))
    env = {
        "DL_DB_DSN": empty_dsn,
        "WORKERS_JSON": '[{"queue": "docs", "concurrency": 1}]',
        "DL_ENDPOINTS": json.dumps({"llm": source.url}),
        "DL_HEARTBEAT_SEC": "0.5",
        "DL_REAPER_PERIOD_SEC": "0.2",
        "DL_DEFAULT_LEASE_TTL_SEC": "5",
        "DL_CLAIM_BACKOFF_SEC": "0.5",
    }
    migrate(empty_dsn, "public")
    first = start("worker", env=env)
    with psycopg2.connect(empty_dsn) as conn, conn.cursor() as cur:
        cur.execute(
            "INSERT INTO dl_jobs (queue, task, lock_key, lease_ttl_sec, args) "
            "VALUES ('docs', 'doc.llm_check', 'd', 5, %s)",
            [json.dumps(ARGS)],
        )
    conn.close()
    eventually(lambda: len(source.requests) == 1, 40, lambda: first.text)
    first.kill()

    life = "SELECT string_agg(concat_ws(' ', ts, kind, payload), E'\\n' ORDER BY event_id) FROM dl_job_events"
    others = [start("worker", env=env), start("worker", env=env)]  # two reapers, which both find it
    eventually(
        lambda: query_value(empty_dsn, "SELECT status FROM dl_jobs") in ("succeeded", "failed", "lost"),
        80,
        lambda: "\n".join([query_value(empty_dsn, life), *(other.text for other in others)]),
    )

    assert query_value(
        empty_dsn, "SELECT (status, attempt, result ->> 'verdict', result ->> 'attempt') FROM dl_jobs"
    ) == ("(succeeded,2,fail,2)")
    assert query_value(
        empty_dsn, "SELECT string_agg(kind, ' ' ORDER BY event_id) FROM dl_job_events WHERE kind <> 'heartbeat'"
    ) == ("queued picked requeue picked done")
    assert len(source.requests) == 2
