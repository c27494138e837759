"""Sends due webhook deliveries: each at least once, with retries for about a day.

All worker processes share the table of deliveries and lease what they send. If a process dies between the request and
the saving of its result, the delivery falls due again and is sent again under the same id.

Signatures follow the Standard Webhooks specification, so that receivers can verify them with an existing library.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import http.client
import io
import math
import random
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from http import HTTPStatus
from typing import Any
from uuid import UUID, uuid4

from dataloader.app import log
from dataloader.app.config.smtp import SmtpServer
from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.features.webhooks.chats import format_body
from dataloader.app.features.webhooks.mail import MailNotSent, format_mail, send_mail
from dataloader.app.features.webhooks.messages import Origin, compose_message
from dataloader.app.features.webhooks.receivers import Format, mail_addresses
from dataloader.app.features.webhooks.rows import DeliveryResult, DeliveryState, LeasedDelivery, Webhooks
from dataloader.app.log import Alert
from dataloader.app.net import AllowedHosts, ForbiddenAddress, ParsedUrl, Resolver, parse_url, resolve
from dataloader.app.queue.workers import HeartbeatResult
from dataloader.pipelines.portable import clock
from dataloader.workers.duties import ThreadContext
from dataloader.workers.metrics import PoolCounters
from dataloader.workers.threads import BackgroundThread

_log = log.get(__name__)
_POLL_INTERVAL_SEC = 5.0  # while no notifications arrive
_FALLBACK_POLL_SEC = 30.0  # while they do
_MIN_POLL_INTERVAL_SEC = 0.05
_MAX_PER_TARGET = 2  # concurrent requests of this process to one receiver
_LEASE_MARGIN_SEC = 30.0  # a lease outlives the longest request by this

RETRY_DELAYS_SEC = (5, 30, 120, 300, 900, 1800, 3600, 7200, 14_400, 21_600, 36_000)  # twelve attempts in about a day
RETRY_JITTER = 0.2  # of a delay: deliveries that failed together are not retried together

_MAX_EXCERPT_BYTES = 1024
_MAX_RETRY_AFTER_DIGITS = 6
_SECRET_PREFIX = "whsec_"  # noqa: S105 - how secrets begin, and no secret


# Reading the system's certificates takes some 60 ms of CPU: once for a process.
_default_tls_context = cache(ssl.create_default_context)


@dataclass(frozen=True, kw_only=True)
class WebhookOptions:
    timeout_sec: float = 15.0
    threads: int = 8
    allowed_hosts: AllowedHosts = field(default_factory=AllowedHosts)
    secret: str | None = field(default=None, repr=False)  # signs webhooks of single jobs
    disable_after_sec: float = 3 * 86_400.0
    version: str = "0"
    smtp: SmtpServer | None = None
    origin: Origin = field(default_factory=Origin)  # of messages to people
    retry_delays_sec: tuple[float, ...] = RETRY_DELAYS_SEC
    tls_context: Callable[[], ssl.SSLContext] = _default_tls_context  # for tests, as the next one
    resolver: Resolver | None = None


@dataclass(frozen=True)
class PostResult:
    """The response, or why there is none."""

    status: int | None
    excerpt: str = ""  # the beginning of the response body
    error: str | None = None
    retry_after_sec: float | None = None
    is_permanent: bool = False  # a further attempt would have the same response

    @property
    def ok(self) -> bool:
        return self.status is not None and HTTPStatus.OK <= self.status < HTTPStatus.MULTIPLE_CHOICES

    @property
    def receiver_down(self) -> bool:
        """Whether the receiver fails for every message, not for this one only."""
        return (
            self.status is None
            or self.status >= HTTPStatus.INTERNAL_SERVER_ERROR
            or self.status == HTTPStatus.TOO_MANY_REQUESTS
        )


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
    if response.status == HTTPStatus.GONE or response.is_permanent or attempts > len(retry_delays_sec):
        return replace(result, state=DeliveryState.FAILED)
    delay = retry_delays_sec[attempts - 1] * (1 + RETRY_JITTER * jitter)
    delay = max(delay, min(response.retry_after_sec or 0.0, retry_delays_sec[-1]))
    return replace(result, state=DeliveryState.PENDING, retry_in_sec=delay, receiver_down=response.receiver_down)


def create_sender(context: ThreadContext) -> WebhookSender:
    return WebhookSender(
        Webhooks(context.executor),
        context.options.get("webhooks") or WebhookOptions(),
        on_crash=context.on_crash,
        counters=context.counters,
        is_notified=context.is_notified,
    )


class WebhookSender:
    """One thread leases due deliveries; a short-lived thread sends each."""

    def __init__(
        self,
        webhooks: Webhooks,
        options: WebhookOptions,
        *,
        on_crash: Callable[[str], None],
        counters: PoolCounters,
        is_notified: Callable[[], bool] = lambda: False,
    ) -> None:
        self._webhooks, self._options, self._counters = webhooks, options, counters
        self._is_notified = is_notified
        self._lock = threading.Lock()
        self._in_flight: Counter[str] = Counter()  # requests by target; under the lock
        self._drained = threading.Condition(self._lock)
        self._is_requested = threading.Event()  # a delivery may be due
        self._answered_at = self._due_at = -math.inf  # the last heartbeat that found none due; when the next one is due
        self.thread = BackgroundThread("webhooks", self.run_once, on_crash=on_crash)

    control = "deliver"

    def wake(self, argument: str = "") -> None:
        """Send what is due. May be called by any thread."""
        self._is_requested.set()
        self.thread.wake()

    def on_heartbeat(self, heartbeat: HeartbeatResult) -> None:
        """Count a heartbeat that found no delivery due as a poll. Called by the heartbeat's thread."""
        if not heartbeat.has_due_deliveries:
            self._answered_at = clock()

    def run_once(self) -> float:
        quiet_sec = min(self._answered_at + _FALLBACK_POLL_SEC, self._due_at) - clock()
        if quiet_sec > 0 and self._is_notified() and not self._is_requested.is_set():
            return quiet_sec
        self._is_requested.clear()
        with self._lock:
            free = self._options.threads - self._in_flight.total()
            busy = [target for target, count in self._in_flight.items() if count >= _MAX_PER_TARGET]
            half_busy = [target for target, count in self._in_flight.items() if 0 < count < _MAX_PER_TARGET]
        if free <= 0:
            return _POLL_INTERVAL_SEC  # a request that ends wakes this thread
        claim_id = uuid4()
        try:
            deliveries, due_in = self._webhooks.lease(
                claim_id,
                limit=free,
                max_per_target=_MAX_PER_TARGET,
                busy_targets=busy,
                half_busy_targets=half_busy,
                lease_sec=self._options.timeout_sec + _LEASE_MARGIN_SEC,
            )
        except DatabaseUnavailable:
            self._is_requested.set()  # else an earlier heartbeat would answer the retry
            raise
        for delivery in deliveries:
            with self._lock:
                self._in_flight[delivery.target] += 1
            threading.Thread(
                target=self._send_and_save, args=(delivery, claim_id), name="webhook-send", daemon=True
            ).start()
        if deliveries:
            self._is_requested.set()  # there may be more
            return _MIN_POLL_INTERVAL_SEC
        self._due_at = math.inf if due_in is None else clock() + due_in
        poll_sec = _FALLBACK_POLL_SEC if self._is_notified() else _POLL_INTERVAL_SEC
        return poll_sec if due_in is None else min(poll_sec, max(_MIN_POLL_INTERVAL_SEC, due_in))

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
            self.wake()

    def _send(self, delivery: LeasedDelivery) -> DeliveryResult:
        started_at = clock()
        response = self._post(delivery) if delivery.format is Format.JSON else self._send_message(delivery)
        duration_ms = round((clock() - started_at) * 1000, 1)
        jitter = random.uniform(-1, 1)  # noqa: S311 - no secret
        return next_delivery_state(delivery, response, duration_ms, self._options.retry_delays_sec, jitter)

    def _post(self, delivery: LeasedDelivery) -> PostResult:
        secrets = delivery.secrets
        if delivery.webhook_id is None:
            secrets = () if self._options.secret is None else (self._options.secret,)
        if not secrets:
            error = "DL_WEBHOOK_SECRET is not set in this worker: it signs jobs' own webhooks"
            return PostResult(None, error=error)
        headers = {
            "webhook-id": str(delivery.id),
            "webhook-timestamp": str(delivery.now),
            "webhook-signature": sign_message(secrets, str(delivery.id), delivery.now, delivery.body),
        }
        return send_post(delivery.url, delivery.body, headers, self._options)

    def _send_message(self, delivery: LeasedDelivery) -> PostResult:
        options = self._options
        message = compose_message(delivery.event, delivery.body, options.origin)
        if delivery.format is not Format.EMAIL:
            return send_post(delivery.url, format_body(message, delivery.format), {}, options)
        if options.smtp is None:
            return PostResult(None, error="DL_SMTP_URL is not set in this worker: it names the mail server")
        mail = format_mail(message, options.smtp.sender, mail_addresses(delivery.url), str(delivery.id))
        try:
            reply = send_mail(options.smtp, mail, timeout_sec=options.timeout_sec, tls_context=options.tls_context)
        except MailNotSent as error:
            return PostResult(error.status, error=str(error), is_permanent=not error.is_temporary)
        return PostResult(HTTPStatus.OK, reply)

    def _save_result(self, delivery: LeasedDelivery, claim_id: UUID, result: DeliveryResult) -> None:
        is_delivered = result.state is DeliveryState.DELIVERED
        (self._counters.webhooks_delivered if is_delivered else self._counters.webhooks_failed).inc()
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
        if (webhook_id := delivery.webhook_id) is not None:
            is_gone, limit_sec = result.status == HTTPStatus.GONE, self._options.disable_after_sec
            reason = "it answered 410 Gone" if is_gone else f"it has failed for {limit_sec / 3600:.10g} hours"
            if self._webhooks.disable(webhook_id, reason=reason, failing_for_sec=limit_sec, immediately=is_gone):
                _log.error(Alert.WEBHOOK_DISABLED, webhook=str(webhook_id), reason=reason)

    def drain(self, timeout: float) -> bool:
        """Wait until the results of all requests are saved; return False if some are not, and will be sent again."""
        with self._drained:
            return self._drained.wait_for(lambda: self._in_flight.total() == 0, timeout)


# ── the request ─────────────────────────────────────────────────────────────────────────────────────────────────────


def sign_message(secrets: Sequence[str], message_id: str, timestamp: int, body: str) -> str:
    """Return the header `webhook-signature`: one signature for each secret."""
    signed = f"{message_id}.{timestamp}.{body}".encode()
    signatures = []
    for secret in secrets:
        try:
            key = base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
        except binascii.Error:  # not base64: an operator chose it
            key = secret.encode()
        signatures.append(f"v1,{base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()}")
    return " ".join(signatures)


def send_post(url: str, body: str, headers: Mapping[str, str], options: WebhookOptions) -> PostResult:
    """Send a POST within one deadline, and only to addresses that were checked; return the response or the error.
    Redirects are not followed."""
    deadline = clock() + options.timeout_sec
    try:
        endpoint = parse_url(url, options.allowed_hosts)
        addresses = resolve(endpoint, options.allowed_hosts, options.resolver)
        with _connect(endpoint, addresses, deadline, options.tls_context) as channel:
            connection = http.client.HTTPConnection(endpoint.host)
            connection.sock = _DeadlineSocket(channel, deadline)  # it has the methods that http.client uses
            defaults = {
                "Host": endpoint.host_header,
                "Content-Type": "application/json",
                "User-Agent": f"dataloader/{options.version}",
                "Accept": "*/*",
                "Connection": "close",
            }
            connection.request("POST", endpoint.request_target, body.encode(), {**defaults, **headers})
            return _read_response(connection.getresponse())
    except ForbiddenAddress as error:
        return PostResult(None, error=str(error))
    except TimeoutError:
        return PostResult(None, error=f"no answer within {options.timeout_sec:g} s")
    except ssl.SSLError as error:
        return PostResult(None, error=f"TLS: {error.reason or error}")
    except (OSError, http.client.HTTPException) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        return PostResult(None, error=reason or str(error) or type(error).__name__)


def _connect(
    endpoint: ParsedUrl, addresses: Sequence[str], deadline: float, tls_context: Callable[[], ssl.SSLContext]
) -> socket.socket:
    """Connect to the first address that accepts."""
    failure: OSError = OSError(f"{endpoint.host} has no address")
    for address in addresses:
        try:
            channel = socket.create_connection((address, endpoint.port), _remaining_sec(deadline))
            break
        except TimeoutError:
            raise
        except OSError as error:
            failure = error
    else:
        raise failure
    if endpoint.scheme == "http":
        return channel
    try:
        channel.settimeout(_remaining_sec(deadline))
        return tls_context().wrap_socket(channel, server_hostname=endpoint.host)
    except BaseException:
        channel.close()
        raise


def _read_response(response: http.client.HTTPResponse) -> PostResult:
    is_redirect = HTTPStatus.MULTIPLE_CHOICES <= response.status < HTTPStatus.BAD_REQUEST
    error = f"answered {response.status}{'; redirects are not followed' if is_redirect else ''}"
    retry_after = response.getheader("Retry-After", "")
    is_seconds = retry_after.isascii() and retry_after.isdigit() and len(retry_after) <= _MAX_RETRY_AFTER_DIGITS
    excerpt = b""  # only the status counts: the body may come slowly or break off
    with suppress(OSError, http.client.HTTPException, ValueError):
        while len(excerpt) < _MAX_EXCERPT_BYTES and (chunk := response.read1(_MAX_EXCERPT_BYTES - len(excerpt))):
            excerpt += chunk
    return PostResult(
        response.status,
        excerpt.decode("utf-8", "replace"),
        error=None if response.status < HTTPStatus.MULTIPLE_CHOICES else error,
        retry_after_sec=float(retry_after) if is_seconds else None,
    )


def _remaining_sec(deadline: float) -> float:
    seconds = deadline - clock()
    if seconds <= 0:
        raise TimeoutError
    return seconds


class _DeadlineSocket(io.RawIOBase):
    """A socket with one deadline for all operations: a socket's own timeout restarts with each byte."""

    def __init__(self, channel: socket.socket, deadline: float) -> None:
        self._channel, self._deadline = channel, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._channel.settimeout(_remaining_sec(self._deadline))
        return self._channel.recv_into(buffer)

    def sendall(self, data: bytes) -> None:
        self._channel.settimeout(_remaining_sec(self._deadline))
        self._channel.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def close(self) -> None:
        """http.client closes its socket before the body is read; `send_post` closes the channel."""
