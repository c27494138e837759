"""Sends due webhook deliveries: each at least once, with retries for about a day.

All worker processes share the table of deliveries and lease what they send. If a process dies between the request and
the saving of its result, the delivery falls due again and is sent again under the same id.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from uuid import UUID, uuid4

from app import log
from app.admin.webhooks import DeliveryResult, DeliveryState, LeasedDelivery, Webhooks
from app.errors import DatabaseUnavailable
from app.log import Alert
from app.net import AllowedHosts
from workers.http_post import HttpPost, PostResult, sign_message
from workers.threads import BackgroundThread, clock

_log = log.get(__name__)
_POLL_INTERVAL_SEC = 5.0  # without a notification
_MIN_POLL_INTERVAL_SEC = 0.05
_MAX_PER_TARGET = 2  # concurrent requests of this process to one receiver
_LEASE_MARGIN_SEC = 30.0  # a lease outlives the longest request by this

RETRY_DELAYS_SEC = (5, 30, 120, 300, 900, 1800, 3600, 7200, 14_400, 21_600, 36_000)  # twelve attempts in about a day
RETRY_JITTER = 0.2  # of a delay: deliveries that failed together are not retried together


@dataclass(frozen=True, kw_only=True)
class WebhookOptions:
    timeout_sec: float = 15.0
    threads: int = 8
    allowed_hosts: AllowedHosts = field(default_factory=AllowedHosts)
    secret: str | None = field(default=None, repr=False)  # signs webhooks of single jobs
    disable_after_sec: float = 3 * 86_400.0
    version: str = "0"
    retry_delays_sec: tuple[float, ...] = RETRY_DELAYS_SEC


def next_delivery_state(
    delivery: LeasedDelivery,
    response: PostResult,
    duration_ms: float,
    retry_delays_sec: tuple[float, ...],
    jitter: float,
) -> DeliveryResult:
    """Decide whether and when to retry a delivery. `jitter` is a number from -1 to 1."""
    result = DeliveryResult(
        state=DeliveryState.DELIVERED,
        duration_ms=duration_ms,
        status=response.status,
        response=response.excerpt,
        error=response.error,
    )
    if response.ok:
        return result
    attempts = delivery.attempts - delivery.earlier_attempts
    if response.is_permanent or attempts > len(retry_delays_sec):
        return replace(result, state=DeliveryState.FAILED)
    delay = retry_delays_sec[attempts - 1] * (1 + RETRY_JITTER * jitter)
    delay = max(delay, min(response.retry_after_sec or 0.0, retry_delays_sec[-1]))
    return replace(result, state=DeliveryState.PENDING, retry_in_sec=delay, receiver_down=response.receiver_down)


class WebhookSender:
    """One thread leases due deliveries; a short-lived thread sends each."""

    def __init__(
        self,
        webhooks: Webhooks,
        options: WebhookOptions,
        *,
        on_crash: Callable[[str], None],
        post: HttpPost | None = None,
    ) -> None:
        self._webhooks, self._options = webhooks, options
        self._post = post or HttpPost(options.allowed_hosts, options.timeout_sec, options.version)
        self._lock = threading.Lock()
        self._in_flight: Counter[str] = Counter()  # requests by target; under the lock
        self._drained = threading.Condition(self._lock)
        self._counts: Counter[str] = Counter(delivered=0, failed=0)  # under the lock
        self.thread = BackgroundThread("webhooks", self.run_once, on_crash=on_crash)

    def run_once(self) -> float:
        with self._lock:
            free = self._options.threads - self._in_flight.total()
            busy = [target for target, count in self._in_flight.items() if count >= _MAX_PER_TARGET]
            half_busy = [target for target, count in self._in_flight.items() if 0 < count < _MAX_PER_TARGET]
        if free <= 0:
            return _POLL_INTERVAL_SEC  # a request that ends wakes this thread
        claim_id = uuid4()
        deliveries, due_in = self._webhooks.lease(
            claim_id,
            limit=free,
            max_per_target=_MAX_PER_TARGET,
            busy_targets=busy,
            half_busy_targets=half_busy,
            lease_sec=self._options.timeout_sec + _LEASE_MARGIN_SEC,
        )
        for delivery in deliveries:
            with self._lock:
                self._in_flight[delivery.target] += 1
            sending = (delivery, claim_id)
            threading.Thread(target=self._send_and_save, args=sending, name="webhook-send", daemon=True).start()
        if deliveries:
            return _MIN_POLL_INTERVAL_SEC
        return _POLL_INTERVAL_SEC if due_in is None else min(_POLL_INTERVAL_SEC, max(_MIN_POLL_INTERVAL_SEC, due_in))

    def _send_and_save(self, delivery: LeasedDelivery, claim_id: UUID) -> None:
        try:
            self._save_result(delivery, claim_id, self._send(delivery))
        except DatabaseUnavailable as error:  # it is sent again when its lease expires
            _log.warning("webhook.result_not_saved", delivery=str(delivery.id), error=str(error))
        except Exception:
            _log.exception("webhook.send_error", delivery=str(delivery.id))
        finally:
            with self._lock:
                self._in_flight[delivery.target] -= 1
                self._in_flight += Counter()  # drops targets at zero
                self._drained.notify_all()
            self.thread.wake()

    def _send(self, delivery: LeasedDelivery) -> DeliveryResult:
        secrets = delivery.secrets
        if delivery.webhook_id is None:
            secrets = () if self._options.secret is None else (self._options.secret,)
        started_at = clock()
        if secrets:
            response = self._post.send(delivery.url, delivery.body, signed_headers(delivery, secrets))
        else:
            error = "DL_WEBHOOK_SECRET is not set in this worker: it signs jobs' own webhooks"
            response = PostResult(None, error=error)
        duration_ms = round((clock() - started_at) * 1000, 1)
        jitter = random.uniform(-1, 1)  # noqa: S311 - no secret
        return next_delivery_state(delivery, response, duration_ms, self._options.retry_delays_sec, jitter)

    def _save_result(self, delivery: LeasedDelivery, claim_id: UUID, result: DeliveryResult) -> None:
        is_delivered = result.state is DeliveryState.DELIVERED
        with self._lock:
            self._counts["delivered" if is_delivered else "failed"] += 1
        self._webhooks.save_result(delivery, claim_id, result)
        fields: Mapping[str, object] = {
            "delivery": str(delivery.id), "webhook": delivery.webhook_id and str(delivery.webhook_id),
            "event": delivery.event, "job": delivery.job_id and str(delivery.job_id), "status": result.status,
            "attempts": delivery.attempts,
        }  # fmt: skip
        if is_delivered:
            _log.debug("webhook.delivered", **fields)
            return
        if result.state is DeliveryState.PENDING:
            _log.info("webhook.failed", error=result.error, **fields)
        else:
            _log.warning("webhook.abandoned", error=result.error, **fields)
        if delivery.webhook_id is not None:
            self._disable_if_failing(delivery.webhook_id, is_gone=result.status == HTTPStatus.GONE)

    def _disable_if_failing(self, webhook_id: UUID, *, is_gone: bool) -> None:
        limit_sec = self._options.disable_after_sec
        reason = "it answered 410 Gone" if is_gone else f"it has failed for {limit_sec / 3600:.10g} hours"
        if self._webhooks.disable(webhook_id, reason=reason, failing_for_sec=limit_sec, immediately=is_gone):
            _log.error(Alert.WEBHOOK_DISABLED, webhook=str(webhook_id), reason=reason)

    def counts(self) -> Mapping[str, int]:
        """Deliveries sent by this process, by outcome."""
        with self._lock:
            return dict(self._counts)

    def drain(self, timeout: float) -> bool:
        """Wait until the results of all requests are saved; return False if some are not, and will be sent again."""
        with self._drained:
            return self._drained.wait_for(lambda: self._in_flight.total() == 0, timeout)


def signed_headers(delivery: LeasedDelivery, secrets: tuple[str, ...]) -> dict[str, str]:
    return {
        "webhook-id": str(delivery.id),
        "webhook-timestamp": str(delivery.now),
        "webhook-signature": sign_message(secrets, str(delivery.id), delivery.now, delivery.body),
    }
