"""Alerts from a worker process to a receiver."""

from __future__ import annotations

from app.addresses import Allowed
from app.queue.alerts import Alerts, NewRule, RuleKind
from app.queue.job import Status
from app.queue.webhooks import Event, Webhooks
from tests.support.plant import Plant
from tests.support.receiver import Receiver
from workers.courier import CourierOptions
from workers.watch import Watch


def test_a_queue_that_nobody_works_on_is_told_of_and_that_it_is_over(plant: Plant):
    session = plant.desk.another_session()
    hooks, alerts = Webhooks(session), Alerts(session)
    with Receiver() as receiver:
        hooks.add(receiver.url, events=[Event.ALERT_FIRING, Event.ALERT_OVER])
        alerts.add(NewRule(name="old", kind=RuleKind.QUEUE_AGE, threshold=0.2, queue="other"))
        courier = CourierOptions(allowed=Allowed.of(["127.0.0.0/8"]))
        plant.pool({"q": 1}, courier=courier, alert_period_sec=0.1)
        job = plant.add(queue="other")

        (begun,) = receiver.wait_for(1)
        assert (begun.json["type"], begun.json["data"]["subject"]) == ("alert.firing", "other")
        plant.pool({"other": 1}, courier=courier, alert_period_sec=0.1)
        plant.until(job, Status.SUCCEEDED)
        _, over = receiver.wait_for(2)

    assert (over.json["type"], over.json["data"]["alert_id"]) == ("alert.over", begun.json["data"]["alert_id"])


def test_old_alerts_are_forgotten_now_and_then(plant: Plant, said):
    session = plant.desk.another_session()
    plant.desk.sql(
        "INSERT INTO dl_alerts (kind, name, subject, detail, ended_at)"
        " VALUES ('x', 'n', 's', 'd', now() - interval '100 days')"
    )
    watch = Watch(Alerts(session), every=0.01, died=plant.died.append)
    watch._prune_at = 0.0

    assert watch.turn() == 0.01

    assert plant.desk.one("SELECT count(*) FROM dl_alerts") == 0
