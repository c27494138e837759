"""Sends one signed POST to a webhook receiver: within one deadline, and only to addresses that were checked.

Signatures follow the Standard Webhooks specification, so that receivers can verify them with an existing library.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import http.client
import io
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from app.net import AllowedHosts, ForbiddenAddress, ParsedUrl, Resolver, parse_url, resolve
from workers.threads import clock

_MAX_EXCERPT_BYTES = 1024
_MAX_RETRY_AFTER_DIGITS = 6
_SECRET_PREFIX = "whsec_"  # noqa: S105 - how secrets begin, and no secret


@dataclass(frozen=True)
class PostResult:
    """The response, or why there is none."""

    status: int | None
    excerpt: str = ""  # the beginning of the response body
    error: str | None = None
    retry_after_sec: float | None = None
    is_permanent: bool = False  # a retry would not help

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


def sign_message(secrets: Sequence[str], message_id: str, timestamp: int, body: str) -> str:
    """Return the header `webhook-signature`: one signature for each secret."""
    signed = f"{message_id}.{timestamp}.{body}".encode()
    signatures = (hmac.new(_decode_secret(secret), signed, hashlib.sha256).digest() for secret in secrets)
    return " ".join(f"v1,{base64.b64encode(signature).decode()}" for signature in signatures)


def _decode_secret(secret: str) -> bytes:
    try:
        return base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
    except binascii.Error:  # not base64: an operator chose it
        return secret.encode()


@dataclass(frozen=True)
class HttpPost:
    """Options of a POST. `tls_context` and `resolver` are for tests."""

    allowed_hosts: AllowedHosts = field(default_factory=AllowedHosts)
    timeout_sec: float = 15.0
    version: str = "0"
    tls_context: Callable[[], ssl.SSLContext] = ssl.create_default_context
    resolver: Resolver | None = None

    def send(self, url: str, body: str, headers: dict[str, str]) -> PostResult:
        """Send the request and return the response or the error, without raising. Redirects are not followed."""
        deadline = clock() + self.timeout_sec
        try:
            endpoint = parse_url(url, self.allowed_hosts)
            addresses = resolve(endpoint, self.allowed_hosts, self.resolver)
            with self._connect(endpoint, addresses, deadline) as channel:
                return self._request(_DeadlineSocket(channel, deadline), endpoint, body.encode(), headers)
        except ForbiddenAddress as error:
            return PostResult(None, error=str(error))
        except TimeoutError:
            return PostResult(None, error=f"no answer within {self.timeout_sec:g} s")
        except ssl.SSLError as error:
            return PostResult(None, error=f"TLS: {error.reason or error}")
        except (OSError, http.client.HTTPException) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            return PostResult(None, error=reason or str(error) or type(error).__name__)

    def _connect(self, endpoint: ParsedUrl, addresses: Sequence[str], deadline: float) -> socket.socket:
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
            return self.tls_context().wrap_socket(channel, server_hostname=endpoint.host)
        except BaseException:
            channel.close()
            raise

    def _request(
        self, channel: _DeadlineSocket, endpoint: ParsedUrl, body: bytes, headers: dict[str, str]
    ) -> PostResult:
        connection = http.client.HTTPConnection(endpoint.host)
        connection.sock = channel  # it has the methods that http.client uses
        defaults = {
            "Host": endpoint.host_header,
            "Content-Type": "application/json",
            "User-Agent": f"dataloader/{self.version}",
            "Accept": "*/*",
            "Connection": "close",
        }
        connection.request("POST", endpoint.request_target, body, defaults | headers)
        response = connection.getresponse()
        is_redirect = HTTPStatus.MULTIPLE_CHOICES <= response.status < HTTPStatus.BAD_REQUEST
        error = f"answered {response.status}{'; redirects are not followed' if is_redirect else ''}"
        retry_after = response.getheader("Retry-After", "")
        is_seconds = retry_after.isascii() and retry_after.isdigit() and len(retry_after) <= _MAX_RETRY_AFTER_DIGITS
        return PostResult(
            response.status,
            _read_excerpt(response).decode("utf-8", "replace"),
            error=None if response.status < HTTPStatus.MULTIPLE_CHOICES else error,
            retry_after_sec=float(retry_after) if is_seconds else None,
            is_permanent=response.status == HTTPStatus.GONE,
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
        """http.client closes its socket before the body is read; `send` closes the channel."""


def _read_excerpt(response: http.client.HTTPResponse) -> bytes:
    """Read the beginning of the body. Only the status counts: the body may come slowly or break off."""
    excerpt = b""
    with suppress(OSError, http.client.HTTPException, ValueError):
        while len(excerpt) < _MAX_EXCERPT_BYTES and (chunk := response.read1(_MAX_EXCERPT_BYTES - len(excerpt))):
            excerpt += chunk
    return excerpt
