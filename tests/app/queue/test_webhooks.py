"""What is to be told is written by whatever ends a run or a wait, in its transaction, and only if somebody asks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

from app.errors import DeliveryNotFound, InvalidJob, WebhookNotFound
from app.queue.job import Handback, Release, Settlement, Status
from app.queue.statements import statements
from app.queue.webhooks import SUBSCRIBABLE, DeliveryState, Due, Event, Outcome, Webhooks
from tests.support.desk import Desk

URL = "http://127.0.0.1:1/hook"
FAILED = Outcome(state=DeliveryState.WAITING, duration_ms=1.0, error="refused", pause_sec=60, down=True)
DONE = Outcome(state=DeliveryState.DELIVERED, duration_ms=1.0, status=200, answer="thanks")


@pytest.fixture
def hooks(desk: Desk) -> Webhooks:
    desk.sql("TRUNCATE dl_webhooks, dl_deliveries, dl_delivery_tries, dl_alerts")
    return Webhooks(desk.session)


def told(desk: Desk) -> list[str]:
    return [row[0] for row in desk.sql("SELECT event FROM dl_deliveries ORDER BY created_at, event")]


def take(hooks: Webhooks, **how: Any) -> tuple[list[Due], UUID]:
    claim = uuid4()
    dues, _ = hooks.take(claim, **{"most": 10, "of_each": 10, "busy": [], "lease_sec": 60, **how})
    return dues, claim


# ── what is written ─────────────────────────────────────────────────────────────────────────────────────────────────


def succeed(desk: Desk) -> None:
    desk.queue.settle([(desk.claimed(), Settlement(Status.SUCCEEDED, result={"rows": 7}))])


def fail(desk: Desk) -> None:
    desk.queue.settle([(desk.claimed(), Settlement(Status.FAILED, error="no good"))])


def try_again(desk: Desk) -> None:
    desk.queue.settle([(desk.claimed(), Settlement(Status.QUEUED, error="no good"))])


def cancel_waiting(desk: Desk) -> None:
    desk.queue.cancel(desk.enqueue())


def cancel_running(desk: Desk) -> None:
    run = desk.claimed()
    desk.queue.cancel(run.id)
    assert told(desk) == [], "it was only asked to stop"
    desk.queue.settle([(run, Settlement(Status.FAILED, error="stopped"))])


def hand_back_canceled(desk: Desk) -> None:
    run = desk.claimed()
    desk.queue.cancel(run.id)
    desk.queue.release([Handback(run, Release.SHUTDOWN)])


def vanish(desk: Desk) -> None:
    run = desk.claimed(max_attempts=1)
    desk.sql("UPDATE dl_jobs SET lease_expires_at = now() - interval '1 s' WHERE job_id = %s", str(run.id))
    assert desk.queue.reap([(run.id, run.run_id, run.lock_key)], pause_sec=1)


def vanish_and_be_tried_again(desk: Desk) -> None:
    run = desk.claimed()
    desk.sql("UPDATE dl_jobs SET lease_expires_at = now() - interval '1 s' WHERE job_id = %s", str(run.id))
    assert desk.queue.reap([(run.id, run.run_id, run.lock_key)], pause_sec=1)


MOVES: list[tuple[Callable[[Desk], None], Event]] = [
    (succeed, Event.SUCCEEDED),
    (fail, Event.FAILED),
    (try_again, Event.RETRYING),
    (cancel_waiting, Event.CANCELED),
    (cancel_running, Event.CANCELED),
    (hand_back_canceled, Event.CANCELED),
    (vanish, Event.LOST),
    (vanish_and_be_tried_again, Event.RETRYING),
]


@pytest.mark.parametrize(("move", "event"), MOVES, ids=lambda it: getattr(it, "__name__", str(it)))
def test_every_end_is_told_once_to_those_who_ask(desk, hooks, move, event):
    hooks.add(URL, events=SUBSCRIBABLE)

    move(desk)

    assert told(desk) == [event]
    job = desk.sql("SELECT job_id, status FROM dl_jobs")[0]
    (body,) = (json.loads(row[0]) for row in desk.sql("SELECT body FROM dl_deliveries"))
    assert body["type"] == event
    assert (body["data"]["job_id"], body["data"]["status"]) == tuple(map(str, job))
    assert "args" not in body["data"]


@pytest.mark.parametrize("move", [move for move, _ in MOVES], ids=lambda it: it.__name__)
def test_nothing_is_written_where_nobody_asks(desk, hooks, move):
    hooks.change(hooks.add(URL, events=SUBSCRIBABLE)[0].id, active=False)

    move(desk)

    assert told(desk) == []


def test_a_hand_back_and_a_retry_by_a_person_are_no_news(desk, hooks):
    hooks.add(URL, events=SUBSCRIBABLE)
    run = desk.claimed()
    desk.queue.release([Handback(run, Release.SHUTDOWN)])
    again = desk.claim()[0]
    desk.queue.settle([(again, Settlement(Status.FAILED, error="x"))])
    desk.queue.retry(run.id)

    assert told(desk) == [Event.FAILED]


def test_what_is_rolled_back_is_not_told(desk, hooks):
    hooks.add(URL)
    job = desk.enqueue()
    step = desk.connect()
    with step.cursor() as cursor:
        cursor.execute("UPDATE dl_jobs SET status = 'canceled' WHERE job_id = %s", (str(job),))
        cursor.execute("SELECT dl_tell(ARRAY[%s]::uuid[])", (str(job),))
        assert cursor.fetchone() == (1,)
    step.rollback()

    assert told(desk) == []


def test_a_job_may_have_a_webhook_of_its_own_for_the_ends_it_names(desk, hooks):
    desk.queue.settle([
        (desk.claimed("a", webhook={"url": "https://a.example/x?y=z"}), Settlement(Status.FAILED, error="x")),
        (desk.claimed("b", webhook={"url": URL, "events": ["job.succeeded"]}), Settlement(Status.FAILED, error="x")),
        (desk.claimed("c", webhook={"url": "nonsense"}), Settlement(Status.FAILED, error="x")),
        (desk.claimed("d"), Settlement(Status.FAILED, error="x")),
    ])  # fmt: skip

    ((url, target, hook),) = desk.sql("SELECT url, target, webhook_id FROM dl_deliveries")
    assert (url, target, hook) == ("https://a.example/x?y=z", "https://a.example", None)


def test_a_webhook_hears_of_its_queue_and_its_task_alone(desk, hooks):
    wanted = {
        name: hooks.add(URL, **narrow)[0].id
        for name, narrow in {"all": {}, "q": {"queue": "q"}, "t": {"task": "t"}, "other": {"queue": "r"}}.items()
    }
    succeed(desk)

    heard = {row[0] for row in desk.sql("SELECT webhook_id FROM dl_deliveries")}
    assert heard == {str(wanted[name]) for name in ("all", "q", "t")}


def test_a_large_result_is_left_out_and_one_that_is_no_text_fails_nothing(desk, hooks):
    hooks.add(URL)
    large, odd = desk.claimed("a"), desk.claimed("b")
    desk.sql("UPDATE dl_jobs SET progress = '{\"n\": 1e131071}' WHERE job_id = %s", str(odd.id))
    desk.queue.settle([
        (large, Settlement(Status.SUCCEEDED, result="x" * 70_000)), (odd, Settlement(Status.SUCCEEDED, result=1)),
    ])  # fmt: skip

    shown = {row[0]: json.loads(row[1])["data"] for row in desk.sql("SELECT job_id, body FROM dl_deliveries")}
    assert shown[str(large.id)]["result"].keys() == {"$dropped"}
    assert shown[str(odd.id)]["result"] == 1
    assert shown[str(odd.id)]["progress"].keys() == {"$dropped"}


def test_every_statement_that_journals_an_end_tells_of_it():
    ends = re.compile(r"'(done|failed|canceled|lost)'")
    for name, statement in statements("public").items():
        journaled = re.findall(r"INSERT INTO \S*dl_job_events.*?(?=jsonb_build_object)", statement.text, re.DOTALL)
        if any(ends.search(line) or "ELSE status::text" in line for line in journaled):
            assert "dl_tell(" in statement.text, f"{name} journals an end, and tells nobody"


# ── the outbox ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_taken_is_leased_and_falls_due_again_under_the_same_id(desk, hooks):
    hooks.add(URL)
    succeed(desk)

    (first,), _ = take(hooks)
    assert take(hooks)[0] == [], "it is in somebody's hands"
    desk.sql("UPDATE dl_deliveries SET due_at = now()")  # whoever took it has died
    (again,), _ = take(hooks)

    assert (again.id, again.body, again.tries) == (first.id, first.body, 2)
    assert again.secrets == first.secrets


def test_whoever_was_overtaken_writes_only_into_the_log(desk, hooks):
    hooks.add(URL)
    succeed(desk)
    (slow,), slow_claim = take(hooks)
    desk.sql("UPDATE dl_deliveries SET due_at = now()")
    (quick,), quick_claim = take(hooks)

    assert hooks.note(quick, quick_claim, DONE)
    assert not hooks.note(slow, slow_claim, FAILED)

    delivery, tries = hooks.delivery(quick.id)
    assert delivery.state is DeliveryState.DELIVERED
    assert [(one.n, one.status, one.answer, one.error) for one in tries] == [
        (1, None, "", "refused"),
        (2, 200, "thanks", None),
    ]


def test_two_takers_never_hold_the_same(desk, hooks):
    hooks.add(URL)
    for _ in range(6):
        succeed(desk)
    other = Webhooks(desk.another_session())

    taken = [due.id for mine, how in ((hooks, 4), (other, 4)) for due in take(mine, most=how)[0]]

    assert len(taken) == len(set(taken)) == 6


def test_of_each_receiver_a_few_and_of_a_busy_or_resting_one_none(desk, hooks):
    one, two = hooks.add(URL, queue="q")[0], hooks.add(URL, queue="q")[0]
    for _ in range(3):
        succeed(desk)

    first, claim = take(hooks, of_each=1)
    assert {due.webhook_id for due in first} == {one.id, two.id}
    assert [due.webhook_id for due in take(hooks, of_each=1, busy=[str(one.id)])[0]] == [two.id]
    hooks.note(next(due for due in first if due.webhook_id == one.id), claim, FAILED)
    assert {due.webhook_id for due in take(hooks)[0]} == {two.id}, "the other one rests"
    assert hooks.get(one.id).failures == 1


def test_when_to_look_again_is_told(desk, hooks):
    hooks.add(URL)
    assert hooks.take(uuid4(), most=1, of_each=1, busy=[], lease_sec=60)[1] is None
    succeed(desk)
    take(hooks)

    due_in = hooks.take(uuid4(), most=1, of_each=1, busy=[], lease_sec=60)[1]

    assert due_in is not None
    assert 0 < due_in <= 60


def test_a_webhook_that_fails_for_too_long_is_switched_off_and_the_others_are_told(desk, hooks):
    ill, _ = hooks.add(URL)
    hooks.add(URL, events=[Event.ALERT_FIRING, Event.ALERT_OVER])
    succeed(desk)
    assert not hooks.disable(ill.id, why="x", patience_sec=60)
    desk.sql(
        "UPDATE dl_webhooks SET failures = 10, failing_since = now() - interval '2 min' WHERE webhook_id = %s",
        str(ill.id),
    )

    assert hooks.disable(ill.id, why="it failed", patience_sec=60)
    assert not hooks.disable(ill.id, why="it failed", patience_sec=60), "told once"

    assert hooks.get(ill.id).disabled_why == "it failed"
    assert [d.state for d in hooks.deliveries(webhook_id=ill.id)] == [DeliveryState.GIVEN_UP]
    assert hooks.backlog().disabled == 1
    hooks.change(ill.id, active=True)
    assert [event for event in told(desk) if event.startswith("alert")] == ["alert.firing", "alert.over"]
    assert hooks.get(ill.id).failures == 0


def test_one_that_is_removed_takes_its_deliveries_and_its_alert_along(desk, hooks):
    ill, _ = hooks.add(URL)
    succeed(desk)
    assert hooks.disable(ill.id, why="gone", patience_sec=60, at_once=True)

    hooks.remove(ill.id)

    assert told(desk) == []
    assert desk.one("SELECT count(*) FROM dl_alerts WHERE ended_at IS NULL") == 0
    with pytest.raises(WebhookNotFound):
        hooks.get(ill.id)


def test_a_rotation_lets_both_secrets_sign_for_a_while(desk, hooks):
    hook, old = hooks.add(URL)
    _, new = hooks.rotate(hook.id, overlap_sec=60)
    succeed(desk)

    (due,), _ = take(hooks)
    assert due.secrets == (new, old)
    assert old not in repr(due)
    desk.sql("UPDATE dl_webhooks SET old_secret_until = now(); UPDATE dl_deliveries SET due_at = now()")
    assert take(hooks)[0][0].secrets == (new,)
    hooks.rotate(hook.id, overlap_sec=0)
    assert hooks.get(hook.id).old_secret_until is None


def test_a_redelivery_is_sent_at_once_under_the_same_id_with_a_fresh_day(desk, hooks):
    hook, _ = hooks.add(URL)
    succeed(desk)
    (due,), claim = take(hooks)
    hooks.note(due, claim, FAILED)
    hooks.redeliver(due.id)

    (again,), claim = take(hooks)
    assert (again.id, again.tries - again.first_try) == (due.id, 1)
    hooks.note(again, claim, DONE)
    assert hooks.get(hook.id).failing_since is None
    with pytest.raises(DeliveryNotFound):
        hooks.redeliver(uuid4())
    with pytest.raises(DeliveryNotFound):
        hooks.delivery(uuid4())


def test_lists_are_paged_and_old_deliveries_are_forgotten_unless_they_wait(desk, hooks):
    hooks.add(URL)
    for _ in range(3):
        succeed(desk)
    newest = hooks.deliveries(limit=2)
    rest = hooks.deliveries(before=newest[-1].id)
    assert len({d.id for d in (*newest, *rest)}) == 3
    assert hooks.deliveries(job_id=newest[0].job_id) == newest[:1]
    assert len(hooks.deliveries(state=DeliveryState.WAITING)) == 3
    (due, *_), claim = take(hooks, most=1)
    hooks.note(due, claim, DONE)
    desk.sql("UPDATE dl_deliveries SET created_at = now() - interval '2 days'")

    assert hooks.prune(keep_sec=86_400) == 1
    assert len(hooks.deliveries()) == 2
    assert hooks.backlog().waiting == 2


def test_a_ping_goes_also_to_one_that_is_off(desk, hooks):
    hook, _ = hooks.add(URL)
    hooks.change(hook.id, active=False)

    ping = hooks.ping(hook.id)

    assert [due.id for due in take(hooks)[0]] == [ping]
    with pytest.raises(WebhookNotFound):
        hooks.ping(uuid4())


def test_a_change_leaves_what_is_not_named_and_the_empty_text_takes_a_filter_away(hooks):
    hook, _ = hooks.add(URL, queue="q", task="t", description="d")

    assert hooks.change(hook.id, queue="", events=[Event.LOST]).queue is None
    now = hooks.get(hook.id)
    assert (now.task, now.description, now.events, now.url) == ("t", "d", ("job.lost",), URL)
    assert hooks.all() == [now]
    with pytest.raises(InvalidJob, match="NUL"):
        hooks.change(hook.id, description="\0")
