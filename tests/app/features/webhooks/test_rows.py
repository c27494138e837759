"""What is to be told is written by whatever ends a run or a wait, in its transaction, and only if somebody asks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

from dataloader.app.db.statements import statements
from dataloader.app.errors import DeliveryNotFound, InvalidJob, WebhookNotFound
from dataloader.app.features.webhooks.rows import DeliveryResult, DeliveryState, LeasedDelivery, Webhooks
from dataloader.app.queue.job import Released, ReleaseReason, Settlement, Status
from dataloader.app.queue.webhook_events import SUBSCRIBABLE_EVENTS, WebhookEvent
from tests.support.queue_fixture import QueueFixture

URL = "http://127.0.0.1:1/hook"
FAILED = DeliveryResult(
    state=DeliveryState.PENDING, duration_ms=1.0, error="refused", retry_in_sec=60, receiver_down=True
)
DONE = DeliveryResult(state=DeliveryState.DELIVERED, duration_ms=1.0, status=200, response="thanks")


@pytest.fixture
def hooks(queue_db: QueueFixture) -> Webhooks:
    queue_db.sql("TRUNCATE dl_webhooks, dl_deliveries, dl_delivery_attempts, dl_alerts")
    return Webhooks(queue_db.session)


def output(queue_db: QueueFixture) -> list[str]:
    return [row[0] for row in queue_db.sql("SELECT event FROM dl_deliveries ORDER BY created_at, event")]


def take(hooks: Webhooks, **how: Any) -> tuple[list[LeasedDelivery], UUID]:
    claim = uuid4()
    dues, _ = hooks.lease(claim, **{"limit": 10, "max_per_target": 10, "busy_targets": [], "lease_sec": 60, **how})
    return dues, claim


# ── what is written ─────────────────────────────────────────────────────────────────────────────────────────────────


def succeed(queue_db: QueueFixture) -> None:
    queue_db.queue.settle([(queue_db.enqueue_and_claim(), Settlement(Status.SUCCEEDED, result={"rows": 7}))])


def fail(queue_db: QueueFixture) -> None:
    queue_db.queue.settle([(queue_db.enqueue_and_claim(), Settlement(Status.FAILED, error="no good"))])


def try_again(queue_db: QueueFixture) -> None:
    queue_db.queue.settle([(queue_db.enqueue_and_claim(), Settlement(Status.QUEUED, error="no good"))])


def cancel_waiting(queue_db: QueueFixture) -> None:
    queue_db.queue.cancel(queue_db.enqueue())


def cancel_running(queue_db: QueueFixture) -> None:
    run = queue_db.enqueue_and_claim()
    queue_db.queue.cancel(run.id)
    assert output(queue_db) == [], "it was only asked to stop"
    queue_db.queue.settle([(run, Settlement(Status.FAILED, error="stopped"))])


def hand_back_canceled(queue_db: QueueFixture) -> None:
    run = queue_db.enqueue_and_claim()
    queue_db.queue.cancel(run.id)
    queue_db.queue.release([(run, Released(ReleaseReason.SHUTDOWN))])


def vanish(queue_db: QueueFixture) -> None:
    run = queue_db.enqueue_and_claim(max_attempts=1)
    queue_db.sql("UPDATE dl_jobs SET lease_expires_at = now() - interval '1 s' WHERE job_id = %s", str(run.id))
    assert queue_db.queue.reap([(run.id, run.run_id, run.lock_key)], pause_sec=1)


def vanish_and_be_tried_again(queue_db: QueueFixture) -> None:
    run = queue_db.enqueue_and_claim()
    queue_db.sql("UPDATE dl_jobs SET lease_expires_at = now() - interval '1 s' WHERE job_id = %s", str(run.id))
    assert queue_db.queue.reap([(run.id, run.run_id, run.lock_key)], pause_sec=1)


MOVES: list[tuple[Callable[[QueueFixture], None], WebhookEvent]] = [
    (succeed, WebhookEvent.SUCCEEDED),
    (fail, WebhookEvent.FAILED),
    (try_again, WebhookEvent.RETRYING),
    (cancel_waiting, WebhookEvent.CANCELED),
    (cancel_running, WebhookEvent.CANCELED),
    (hand_back_canceled, WebhookEvent.CANCELED),
    (vanish, WebhookEvent.LOST),
    (vanish_and_be_tried_again, WebhookEvent.RETRYING),
]


@pytest.mark.parametrize(("move", "event"), MOVES, ids=lambda it: getattr(it, "__name__", str(it)))
def test_every_end_is_delivered_once_to_subscribers(queue_db, hooks, move, event):
    hooks.add(URL, events=SUBSCRIBABLE_EVENTS)

    move(queue_db)

    assert output(queue_db) == [event]
    job = queue_db.sql("SELECT job_id, status FROM dl_jobs")[0]
    (body,) = (json.loads(row[0]) for row in queue_db.sql("SELECT body FROM dl_deliveries"))
    assert body["type"] == event
    assert (body["data"]["job_id"], body["data"]["status"]) == tuple(map(str, job))
    assert "args" not in body["data"]


@pytest.mark.parametrize("move", [move for move, _ in MOVES], ids=lambda it: it.__name__)
def test_nothing_is_written_without_subscribers(queue_db, hooks, move):
    hooks.change(hooks.add(URL, events=SUBSCRIBABLE_EVENTS)[0].webhook_id, active=False)

    move(queue_db)

    assert output(queue_db) == []


def test_a_hand_back_and_a_retry_by_a_person_are_no_news(queue_db, hooks):
    hooks.add(URL, events=SUBSCRIBABLE_EVENTS)
    run = queue_db.enqueue_and_claim()
    queue_db.queue.release([(run, Released(ReleaseReason.SHUTDOWN))])
    again = queue_db.claim()[0]
    queue_db.queue.settle([(again, Settlement(Status.FAILED, error="x"))])
    queue_db.queue.retry(run.id)

    assert output(queue_db) == [WebhookEvent.FAILED]


def test_rolled_back_end_is_not_delivered(queue_db, hooks):
    hooks.add(URL)
    job = queue_db.enqueue()
    step = queue_db.connect()
    with step.cursor() as cursor:
        cursor.execute("UPDATE dl_jobs SET status = 'canceled' WHERE job_id = %s", (str(job),))
        cursor.execute("SELECT dl_create_deliveries(ARRAY[%s]::uuid[])", (str(job),))
        assert cursor.fetchone() == (1,)
    step.rollback()

    assert output(queue_db) == []


def test_job_webhook_gets_its_final_events(queue_db, hooks):
    own = {"url": "https://a.example/x?y=z"}
    queue_db.queue.settle([
        (queue_db.enqueue_and_claim("a", webhook=own), Settlement(Status.FAILED, error="x")),
        (
            queue_db.enqueue_and_claim("b", webhook={"url": URL, "events": ["job.succeeded"]}),
            Settlement(Status.FAILED, error="x"),
        ),
        (queue_db.enqueue_and_claim("c", webhook={"url": "nonsense"}), Settlement(Status.FAILED, error="x")),
        (queue_db.enqueue_and_claim("d"), Settlement(Status.FAILED, error="x")),
    ])  # fmt: skip

    ((url, target, hook),) = queue_db.sql("SELECT url, target, webhook_id FROM dl_deliveries")
    assert (url, target, hook) == ("https://a.example/x?y=z", "https://a.example", None)


def test_webhook_receives_its_queue_and_task_only(queue_db, hooks):
    wanted = {
        name: hooks.add(URL, **narrow)[0].webhook_id
        for name, narrow in {"all": {}, "q": {"queue": "q"}, "t": {"task": "t"}, "other": {"queue": "r"}}.items()
    }
    succeed(queue_db)

    answer = {row[0] for row in queue_db.sql("SELECT webhook_id FROM dl_deliveries")}
    assert answer == {str(wanted[name]) for name in ("all", "q", "t")}


def test_large_or_unencodable_result_is_left_out_of_delivery(queue_db, hooks):
    hooks.add(URL)
    large, odd = queue_db.enqueue_and_claim("a"), queue_db.enqueue_and_claim("b")
    queue_db.sql("UPDATE dl_jobs SET progress = '{\"n\": 1e131071}' WHERE job_id = %s", str(odd.id))
    queue_db.queue.settle([
        (large, Settlement(Status.SUCCEEDED, result="x" * 70_000)), (odd, Settlement(Status.SUCCEEDED, result=1)),
    ])  # fmt: skip

    shown = {row[0]: json.loads(row[1])["data"] for row in queue_db.sql("SELECT job_id, body FROM dl_deliveries")}
    assert shown[str(large.id)]["result"].keys() == {"$dropped"}
    assert shown[str(odd.id)]["result"] == 1
    assert shown[str(odd.id)]["progress"].keys() == {"$dropped"}


def test_every_statement_that_ends_a_job_creates_deliveries():
    ends = re.compile(r"'(done|failed|canceled|lost)'")
    for name, statement in statements("public").items():
        journaled = re.findall(r"INSERT INTO \S*dl_job_events.*?(?=jsonb_build_object)", statement.text, re.DOTALL)
        if any(ends.search(line) or "ELSE status::text" in line for line in journaled):
            assert "dl_jobs_ended(" in statement.text, f"{name} writes the event of an end and creates no delivery"


# ── the outbox ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_leased_delivery_becomes_due_again_with_same_id(queue_db, hooks):
    hooks.add(URL)
    succeed(queue_db)

    (first,), _ = take(hooks)
    assert take(hooks)[0] == [], "it is in somebody's hands"
    queue_db.sql("UPDATE dl_deliveries SET due_at = now()")  # whoever took it has died
    (again,), _ = take(hooks)

    assert (again.id, again.body, again.attempts) == (first.id, first.body, 2)
    assert again.secrets == first.secrets


def test_fenced_attempt_writes_only_to_the_log(queue_db, hooks):
    hooks.add(URL)
    succeed(queue_db)
    (slow,), slow_claim = take(hooks)
    queue_db.sql("UPDATE dl_deliveries SET due_at = now()")
    (quick,), quick_claim = take(hooks)

    assert hooks.save_result(quick, quick_claim, DONE)
    assert not hooks.save_result(slow, slow_claim, FAILED)

    delivery = hooks.delivery(quick.id)
    assert delivery.state is DeliveryState.DELIVERED
    assert [(one.number, one.status, one.response, one.error) for one in delivery.attempt_log] == [
        (1, None, "", "refused"),
        (2, 200, "thanks", None),
    ]


def test_two_takers_never_hold_the_same(queue_db, hooks):
    hooks.add(URL)
    for _ in range(6):
        succeed(queue_db)
    other = Webhooks(queue_db.new_session())

    taken = [due.id for mine, how in ((hooks, 4), (other, 4)) for due in take(mine, limit=how)[0]]

    assert len(taken) == len(set(taken)) == 6


def test_lease_limits_each_receiver_and_skips_busy_or_paused(queue_db, hooks):
    one, two = hooks.add(URL, queue="q")[0], hooks.add(URL, queue="q")[0]
    for _ in range(3):
        succeed(queue_db)

    first, claim = take(hooks, max_per_target=1)
    assert {due.webhook_id for due in first} == {one.webhook_id, two.webhook_id}
    assert [due.webhook_id for due in take(hooks, max_per_target=1, busy_targets=[str(one.webhook_id)])[0]] == [
        two.webhook_id
    ]
    hooks.save_result(next(due for due in first if due.webhook_id == one.webhook_id), claim, FAILED)
    assert {due.webhook_id for due in take(hooks)[0]} == {two.webhook_id}, "the other one rests"
    assert hooks.get(one.webhook_id).failures == 1


def test_next_check_time_is_returned(queue_db, hooks):
    hooks.add(URL)
    assert hooks.lease(uuid4(), limit=1, max_per_target=1, busy_targets=[], lease_sec=60)[1] is None
    succeed(queue_db)
    take(hooks)

    due_in = hooks.lease(uuid4(), limit=1, max_per_target=1, busy_targets=[], lease_sec=60)[1]

    assert due_in is not None
    assert 0 < due_in <= 60


def test_failing_webhook_is_disabled_and_alerts_others(queue_db, hooks):
    ill, _ = hooks.add(URL)
    hooks.add(URL, events=[WebhookEvent.ALERT_FIRING, WebhookEvent.ALERT_RESOLVED])
    succeed(queue_db)
    assert not hooks.disable(ill.webhook_id, reason="x", failing_for_sec=60)
    queue_db.sql(
        "UPDATE dl_webhooks SET failures = 10, failing_since = now() - interval '2 min' WHERE webhook_id = %s",
        str(ill.webhook_id),
    )

    assert hooks.disable(ill.webhook_id, reason="it failed", failing_for_sec=60)
    assert not hooks.disable(ill.webhook_id, reason="it failed", failing_for_sec=60), "told once"

    assert hooks.get(ill.webhook_id).disabled_reason == "it failed"
    assert [d.state for d in hooks.deliveries(webhook_id=ill.webhook_id)] == [DeliveryState.FAILED]
    assert hooks.backlog().disabled_webhooks == 1
    hooks.change(ill.webhook_id, active=True)
    assert [event for event in output(queue_db) if event.startswith("alert")] == ["alert.firing", "alert.resolved"]
    assert hooks.get(ill.webhook_id).failures == 0


def test_removed_webhook_loses_deliveries_and_alert(queue_db, hooks):
    ill, _ = hooks.add(URL)
    succeed(queue_db)
    assert hooks.disable(ill.webhook_id, reason="gone", failing_for_sec=60, immediately=True)

    hooks.remove(ill.webhook_id)

    assert output(queue_db) == []
    assert queue_db.fetch_row("SELECT count(*) FROM dl_alerts WHERE ended_at IS NULL") == 0
    with pytest.raises(WebhookNotFound):
        hooks.get(ill.webhook_id)


def test_a_rotation_lets_both_secrets_sign_for_a_while(queue_db, hooks):
    hook, old = hooks.add(URL)
    _, new = hooks.rotate(hook.webhook_id, overlap_sec=60)
    succeed(queue_db)

    (due,), _ = take(hooks)
    assert due.secrets == (new, old)
    assert old not in repr(due)
    queue_db.sql("UPDATE dl_webhooks SET old_secret_until = now(); UPDATE dl_deliveries SET due_at = now()")
    assert take(hooks)[0][0].secrets == (new,)
    hooks.rotate(hook.webhook_id, overlap_sec=0)
    assert hooks.get(hook.webhook_id).old_secret_expires_at is None


def test_redelivery_keeps_id_and_restarts_attempts(queue_db, hooks):
    hook, _ = hooks.add(URL)
    succeed(queue_db)
    (due,), claim = take(hooks)
    hooks.save_result(due, claim, FAILED)
    hooks.redeliver(due.id)

    (again,), claim = take(hooks)
    assert (again.id, again.attempts - again.earlier_attempts) == (due.id, 1)
    hooks.save_result(again, claim, DONE)
    assert hooks.get(hook.webhook_id).failing_since is None
    with pytest.raises(DeliveryNotFound):
        hooks.redeliver(uuid4())
    with pytest.raises(DeliveryNotFound):
        hooks.delivery(uuid4())


def test_deliveries_are_paged_and_old_finished_ones_pruned(queue_db, hooks):
    hooks.add(URL)
    for _ in range(3):
        succeed(queue_db)
    newest = hooks.deliveries(limit=2)
    rest = hooks.deliveries(before=newest[-1].delivery_id)
    assert len({d.delivery_id for d in (*newest, *rest)}) == 3
    assert hooks.deliveries(job_id=newest[0].job_id) == newest[:1]
    assert len(hooks.deliveries(state=DeliveryState.PENDING)) == 3
    (due, *_), claim = take(hooks, limit=1)
    hooks.save_result(due, claim, DONE)
    queue_db.sql("UPDATE dl_deliveries SET created_at = now() - interval '2 days'")

    assert hooks.prune(keep_sec=86_400) == 1
    assert len(hooks.deliveries()) == 2
    assert hooks.backlog().pending == 2


def test_a_ping_goes_also_to_one_that_is_off(queue_db, hooks):
    hook, _ = hooks.add(URL)
    hooks.change(hook.webhook_id, active=False)

    ping = hooks.ping(hook.webhook_id)

    assert [due.id for due in take(hooks)[0]] == [ping]
    with pytest.raises(WebhookNotFound):
        hooks.ping(uuid4())


def test_change_keeps_other_fields_and_empty_text_clears_filter(hooks):
    hook, _ = hooks.add(URL, queue="q", task="t", description="d")

    assert hooks.change(hook.webhook_id, queue="", events=[WebhookEvent.LOST]).queue is None
    now = hooks.get(hook.webhook_id)
    assert (now.task, now.description, now.events, now.url) == ("t", "d", ["job.lost"], URL)
    assert hooks.all() == [now]
    with pytest.raises(InvalidJob, match="NUL"):
        hooks.change(hook.webhook_id, description="\0")


def test_alert_is_sent_with_durations_as_people_read_them(queue_db, hooks):
    hooks.add(URL, events=["alert.firing"])
    queue_db.sql(
        """INSERT INTO dl_alerts (kind, name, subject, detail)
           VALUES ('queue_age', 'waits 90 s', 'q', 'a job of q has been ready for 5561 s')"""
    )
    queue_db.sql("SELECT dl_create_alert_deliveries(ARRAY(SELECT alert_id FROM dl_alerts), 'alert.firing')")

    (due,), _ = take(hooks)

    data = json.loads(due.body)["data"]
    assert (data["detail"], data["name"]) == ("a job of q has been ready for 1 h 32 min", "waits 90 s")
    assert json.loads(hooks.delivery(due.id).body)["data"] == data
