"""The events of which a webhook may be sent. A job may name its own receiver."""

from __future__ import annotations

from enum import StrEnum


class WebhookEvent(StrEnum):
    """An event that a webhook can deliver."""

    SUCCEEDED = "job.succeeded"
    FAILED = "job.failed"
    CANCELED = "job.canceled"
    LOST = "job.lost"
    RETRYING = "job.retrying"
    ALERT_FIRING = "alert.firing"
    ALERT_RESOLVED = "alert.resolved"
    PING = "webhook.ping"


FINAL_EVENTS = (WebhookEvent.SUCCEEDED, WebhookEvent.FAILED, WebhookEvent.CANCELED, WebhookEvent.LOST)
JOB_EVENTS = (*FINAL_EVENTS, WebhookEvent.RETRYING)
SUBSCRIBABLE_EVENTS = (*JOB_EVENTS, WebhookEvent.ALERT_FIRING, WebhookEvent.ALERT_RESOLVED)
