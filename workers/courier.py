"""Delivers what the database has written down to be told: each webhook at least once, for about a day.

The outbox is shared by all worker processes. What one takes is leased to it: if it dies between the sending and the
note, the delivery falls due again and is sent again, under the same id.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from uuid import UUID, uuid4

from app import log
from app.addresses import Allowed
from app.errors import DatabaseUnavailable
from app.log import Alert
from app.queue.webhooks import DeliveryState, Due, Outcome, Webhooks
from workers.posting import Answer, Post, signatures
from workers.threads import Loop, clock

_log = log.get(__name__)
_IDLE = 5.0  # seconds between two looks when nobody rings
_SOON = 0.05
_OF_EACH = 2  # of one receiver at the same time, in this process; one that has one can take one more
_MARGIN = 30.0  # seconds that a lease outlives the longest sending
_PRUNE_EVERY = 600.0
_PRUNED_AT_ONCE = 1000

# After each try so many seconds until the next: twelve tries in about a day.
PAUSES = (5, 30, 120, 300, 900, 1800, 3600, 7200, 14_400, 21_600, 36_000)
JITTER = 0.2  # of a pause, so that what failed together does not come back together


@dataclass(frozen=True, kw_only=True)
class CourierOptions:
    timeout_sec: float = 15.0
    threads: int = 8
    allowed: Allowed = field(default_factory=Allowed)
    secret: str | None = field(default=None, repr=False)  # signs jobs' own webhooks
    disable_after_sec: float = 3 * 86_400.0
    keep_sec: float = 14 * 86_400.0
    version: str = "0"
    pauses: tuple[float, ...] = PAUSES


def judge(due: Due, answer: Answer, duration_ms: float, pauses: tuple[float, ...], jitter: float) -> Outcome:
    """What a try means for the delivery. `jitter` is a number from -1 to 1."""
    told = Outcome(
        state=DeliveryState.DELIVERED,
        duration_ms=duration_ms,
        status=answer.status,
        answer=answer.text,
        error=answer.error,
    )
    if answer.welcome:
        return told
    tries = due.tries - due.first_try
    if answer.never or tries > len(pauses):
        return Outcome(**{**vars(told), "state": DeliveryState.GIVEN_UP})
    pause = pauses[tries - 1] * (1 + JITTER * jitter)
    pause = max(pause, min(answer.retry_after_sec or 0.0, pauses[-1]))
    return Outcome(**{**vars(told), "state": DeliveryState.WAITING, "pause_sec": pause, "down": answer.down})


class Courier:
    """One loop that takes what is due, and a short-lived thread for each sending."""

    def __init__(
        self,
        webhooks: Webhooks,
        options: CourierOptions,
        *,
        died: Callable[[str], None],
        post: Post | None = None,
    ) -> None:
        self._webhooks, self._options = webhooks, options
        self._post = post or Post(options.allowed, options.timeout_sec, options.version)
        self._lock = threading.Lock()
        self._out: Counter[str] = Counter()  # sendings under way, by target; under the lock
        self._quiet = threading.Condition(self._lock)
        self._prune_at = 0.0
        self._sendings: Counter[str] = Counter(delivered=0, failed=0)  # by what came of it; under the lock
        self.loop = Loop("courier", self.turn, died=died)

    def turn(self) -> float:
        self._prune()
        with self._lock:
            room = self._options.threads - self._out.total()
            busy = [target for target, out in self._out.items() if out >= _OF_EACH]
            half_busy = [target for target, out in self._out.items() if 0 < out < _OF_EACH]
        if room <= 0:
            return _IDLE  # whoever comes back rings
        claim_id = uuid4()
        dues, due_in = self._webhooks.take(
            claim_id,
            most=room,
            of_each=_OF_EACH,
            busy=busy,
            half_busy=half_busy,
            lease_sec=self._options.timeout_sec + _MARGIN,
        )
        for due in dues:
            self._begin(due, claim_id)
        if dues:
            return _SOON
        return _IDLE if due_in is None else min(_IDLE, max(_SOON, due_in))

    def _begin(self, due: Due, claim_id: UUID) -> None:
        with self._lock:
            self._out[due.target] += 1
        threading.Thread(target=self._deliver, args=(due, claim_id), name="courier-send", daemon=True).start()

    def _deliver(self, due: Due, claim_id: UUID) -> None:
        try:
            how = self._sent(due)
            self._note(due, claim_id, how)
        except DatabaseUnavailable as error:  # it is due again when its lease is over, and is then sent again
            _log.warning("webhook.note.failed", delivery=str(due.id), error=str(error))
        except Exception:
            _log.exception("webhook.send.broke", delivery=str(due.id))
        finally:
            with self._lock:
                self._out[due.target] -= 1
                self._out += Counter()  # without those that are at zero
                self._quiet.notify_all()
            self.loop.ring()

    def _sent(self, due: Due) -> Outcome:
        secrets = due.secrets if due.webhook_id is not None else tuple(s for s in (self._options.secret,) if s)
        began = clock()
        if secrets:
            answer = self._post.send(due.url, due.body, headers_of(due, secrets))
        else:
            answer = Answer(None, error="DL_WEBHOOK_SECRET is not set in this worker: it signs jobs' own webhooks")
        duration = round((clock() - began) * 1000, 1)
        return judge(due, answer, duration, self._options.pauses, random.uniform(-1, 1))  # noqa: S311 - no secret

    def _note(self, due: Due, claim_id: UUID, how: Outcome) -> None:
        facts: Mapping[str, object] = {
            "delivery": str(due.id), "webhook": due.webhook_id and str(due.webhook_id), "event": due.event,
            "job": due.job_id and str(due.job_id), "status": how.status, "tries": due.tries,
        }  # fmt: skip
        with self._lock:
            self._sendings["delivered" if how.state is DeliveryState.DELIVERED else "failed"] += 1
        self._webhooks.note(due, claim_id, how)
        if how.state is DeliveryState.DELIVERED:
            _log.debug("webhook.delivered", **facts)
            return
        say = _log.info if how.state is DeliveryState.WAITING else _log.warning
        say("webhook.failed" if how.state is DeliveryState.WAITING else "webhook.given_up", error=how.error, **facts)
        if due.webhook_id is not None:
            self._disable(due.webhook_id, gone=how.status == HTTPStatus.GONE)

    def _disable(self, webhook_id: UUID, *, gone: bool) -> None:
        patience = self._options.disable_after_sec
        why = "it answered 410 Gone" if gone else f"it has failed for {patience / 3600:.10g} hours"
        if self._webhooks.disable(webhook_id, why=why, patience_sec=patience, at_once=gone):
            _log.error(Alert.WEBHOOK_DISABLED, webhook=str(webhook_id), reason=why)

    def _prune(self) -> None:
        now = clock()
        if now >= self._prune_at:
            pruned = self._webhooks.prune(keep_sec=self._options.keep_sec, most=_PRUNED_AT_ONCE)
            self._prune_at = now + (_PRUNE_EVERY if pruned < _PRUNED_AT_ONCE else 1.0)

    def counted(self) -> Mapping[str, int]:
        with self._lock:
            return dict(self._sendings)

    def finish(self, timeout: float) -> bool:
        """Wait until what is being sent has been noted; False: some were not. Those are sent again by others."""
        with self._quiet:
            return self._quiet.wait_for(lambda: self._out.total() == 0, timeout)


def headers_of(due: Due, secrets: tuple[str, ...]) -> dict[str, str]:
    return {
        "webhook-id": str(due.id),
        "webhook-timestamp": str(due.now),
        "webhook-signature": signatures(secrets, str(due.id), due.now, due.body),
    }
