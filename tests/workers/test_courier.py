"""From the outbox to a receiver: whatever it does, what is told arrives, and nobody else waits for it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from app.addresses import Allowed
from app.queue.job import Status
from app.queue.webhooks import DeliveryState, Due, Event, Webhooks
from tests.support.plant import Plant
from tests.support.receiver import OK, Receiver, answering, dying, hanging
from tests.support.waiting import eventually
from workers.courier import PAUSES, CourierOptions, judge
from workers.posting import Answer

HERE = Allowed.of(["127.0.0.0/8"])
DOCS = Path(__file__).parents[2] / "docs" / "webhooks.md"


def options(**more: Any) -> CourierOptions:
    return CourierOptions(**{"allowed": HERE, "timeout_sec": 2.0, "pauses": (0.01,) * 11, **more})


@pytest.fixture
def hooks(plant: Plant) -> Webhooks:
    return Webhooks(plant.desk.another_session())


@pytest.fixture(scope="module")
def verify() -> Callable[..., bool]:
    """The lines that the docs give to receivers."""
    (snippet,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(snippet, names)  # noqa: S102 - our own page
    found: Callable[..., bool] = names["is_from_dataloader"]
    return found


def until(hooks: Webhooks, state: DeliveryState, count: int = 1) -> None:
    eventually(lambda: len(hooks.deliveries(state=state)) >= count, 20, lambda: str(hooks.deliveries()))


def test_the_end_of_a_job_is_told_by_notification_and_the_receiver_can_check_it(plant, hooks, verify):
    plant.listening(courier=options())
    with Receiver() as receiver:
        _, secret = hooks.add(receiver.url)
        job = plant.add()
        (told,) = receiver.wait_for(1)
        until(hooks, DeliveryState.DELIVERED)

    assert told.json["data"]["job_id"] == str(job)
    assert told.json["type"] == Event.SUCCEEDED
    assert verify(secret, told.headers, told.body)
    assert not verify(secret, told.headers, told.body + b" ")
    assert not verify("whsec_MDEyMw==", told.headers, told.body)
    assert not verify(secret, told.headers | {"webhook-timestamp": "1"}, told.body)
    ((delivery, tries),) = [hooks.delivery(d.id) for d in hooks.deliveries()]
    assert (tries[0].status, tries[0].answer, delivery.tries) == (200, "thanks", 1)


def test_it_is_tried_again_with_the_same_id_until_it_arrives(plant, hooks):
    with Receiver(answering(500, body="not yet"), dying, answering(302, "Location: /"), OK) as receiver:
        hook, _ = hooks.add(receiver.url)
        plant.pool(courier=options())
        plant.add()

        def hurried() -> bool:
            plant.desk.sql("UPDATE dl_webhooks SET rest_until = NULL")
            return len(hooks.deliveries(state=DeliveryState.DELIVERED)) == 1

        eventually(hurried, 30, lambda: str(hooks.deliveries()))

    assert len({told.id for told in receiver.received}) == 1
    assert len({told.body for told in receiver.received}) == 1
    (delivery,) = hooks.deliveries()
    assert [one.status for one in hooks.delivery(delivery.id)[1]] == [500, None, 302, 200]
    assert hooks.get(hook.id).failures == 0


def test_a_receiver_that_hangs_holds_up_nobody_but_itself(plant, hooks):
    with Receiver(hanging) as slow, Receiver() as quick:
        hooks.add(slow.url)
        hooks.add(quick.url)
        plant.listening(courier=options(timeout_sec=60))
        plant.until_all([plant.add() for _ in range(6)])

        quick.wait_for(6)
        assert len(slow.received) == 2
        eventually(lambda: plant.pools[0].sent()["delivered"] >= 5)  # which is counted when the answer has been read


def test_a_private_address_is_refused_when_it_is_sent_to_and_the_log_says_why(plant, hooks):
    with Receiver() as receiver:
        hooks.add(receiver.url)
        plant.pool(courier=options(allowed=Allowed(), pauses=()))
        plant.add()
        until(hooks, DeliveryState.GIVEN_UP)

        assert receiver.received == []
    (delivery,) = hooks.deliveries()
    assert "not public; DL_WEBHOOK_ALLOW" in (delivery.error or "")


def test_a_jobs_own_webhook_is_signed_with_the_services_secret(plant, hooks, verify):
    secret = "whsec_c2VjcmV0LW9mLXRoZS1zZXJ2aWNl"
    with Receiver() as receiver:
        plant.pool(courier=options(secret=secret))
        plant.add(webhook={"url": receiver.url})
        (told,) = receiver.wait_for(1)

    assert verify(secret, told.headers, told.body)


def test_without_a_secret_of_the_service_a_jobs_own_webhook_waits_and_says_why(plant, hooks):
    with Receiver() as receiver:
        plant.pool(courier=options(pauses=PAUSES))
        plant.add(webhook={"url": receiver.url})
        eventually(lambda: hooks.deliveries() and hooks.deliveries()[0].error, message="a try")

        assert receiver.received == []
    assert "DL_WEBHOOK_SECRET is not set" in (hooks.deliveries()[0].error or "")


def test_a_receiver_that_says_it_is_gone_is_switched_off(plant, hooks, said):
    with Receiver(answering(410)) as receiver:
        hook, _ = hooks.add(receiver.url)
        plant.pool(courier=options())
        plant.add()
        eventually(lambda: hooks.get(hook.id).disabled_at is not None, message="switched off")

    assert hooks.get(hook.id).disabled_why == "it answered 410 Gone"
    eventually(lambda: said("webhook.disabled"), message="and said so")


def test_a_sending_that_is_under_way_at_the_end_of_the_process_is_noted(plant, hooks):
    with Receiver(hanging) as receiver:
        hooks.add(receiver.url)
        pool = plant.listening(courier=options(timeout_sec=30))
        plant.until(plant.add(), Status.SUCCEEDED)
        receiver.wait_for(1)
        receiver.over.set()  # it lets go, without an answer

        assert pool.stop(grace=5)
    (delivery,) = hooks.deliveries()
    assert [one.n for one in hooks.delivery(delivery.id)[1]] == [1]


# ── what a try means ────────────────────────────────────────────────────────────────────────────────────────────────


def due(tries: int, first_try: int = 0) -> Due:
    return Due(
        id=uuid4(), webhook_id=uuid4(), url="", target="", job_id=None, event="", body="", tries=tries,
        first_try=first_try, secrets=(), now=0,
    )  # fmt: skip


def test_the_pauses_grow_for_about_a_day_and_then_it_is_given_up():
    waits = [judge(due(n), Answer(500), 1.0, PAUSES, 0.0) for n in range(1, len(PAUSES) + 1)]

    assert [how.pause_sec for how in waits] == list(PAUSES)
    assert 23 * 3600 < sum(PAUSES) < 25 * 3600
    assert {how.state for how in waits} == {DeliveryState.WAITING}
    assert judge(due(len(PAUSES) + 1), Answer(500), 1.0, PAUSES, 0.0).state is DeliveryState.GIVEN_UP
    assert judge(due(len(PAUSES) + 1, first_try=5), Answer(500), 1.0, PAUSES, 0.0).state is DeliveryState.WAITING


def test_a_pause_is_a_fifth_more_or_less_and_the_receivers_own_word_counts():
    assert [judge(due(3), Answer(500), 1.0, PAUSES, j).pause_sec for j in (-1, 1)] == [96, 144]
    assert judge(due(1), Answer(429, retry_after_sec=90), 1.0, PAUSES, 0.0).pause_sec == 90
    assert judge(due(1), Answer(429, retry_after_sec=999_999), 1.0, PAUSES, 0.0).pause_sec == PAUSES[-1]
    assert judge(due(1), Answer(410, never=True), 1.0, PAUSES, 0.0).state is DeliveryState.GIVEN_UP
    assert not judge(due(1), Answer(400), 1.0, PAUSES, 0.0).down
