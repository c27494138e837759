"""One signed POST to a receiver of webhooks: within a time that holds for all of it, and to a place that was looked at.

The signature is that of the Standard Webhooks specification, so that receivers may check it with a library they have.
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
from dataclasses import dataclass, field
from typing import Any

from app.addresses import Allowed, Place, Resolve, Unwelcome, place_of, resolve
from workers.threads import clock

_MOST_ANSWER = 1024  # bytes of an answer that are read
_SECRET_PREFIX = "whsec_"  # noqa: S105 - how secrets begin, and no secret
_MULTIPLE_CHOICES = 300
_SERVER_TROUBLE = 500
_TOO_MANY = 429


@dataclass(frozen=True)
class Answer:
    """What came of it. Without a status nobody has answered; `error` says why."""

    status: int | None
    text: str = ""
    error: str | None = None
    retry_after_sec: float | None = None
    never: bool = False  # trying again would not help before something is changed

    @property
    def welcome(self) -> bool:
        return self.status is not None and http.HTTPStatus.OK <= self.status < _MULTIPLE_CHOICES

    @property
    def down(self) -> bool:
        """It is not about this message: the receiver is in trouble."""
        return self.status is None or self.status >= _SERVER_TROUBLE or self.status == _TOO_MANY


def signatures(secrets: Sequence[str], message_id: str, timestamp: int, body: str) -> str:
    """One signature a secret, as they stand in the header `webhook-signature`."""
    signed = f"{message_id}.{timestamp}.{body}".encode()
    made = (hmac.new(_key(secret), signed, hashlib.sha256).digest() for secret in secrets)
    return " ".join(f"v1,{base64.b64encode(one).decode()}" for one in made)


def _key(secret: str) -> bytes:
    try:
        return base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
    except binascii.Error:  # one that a person has made up
        return secret.encode()


@dataclass(frozen=True)
class Post:
    """How to send. `tls` and `look_up` are for tests."""

    allowed: Allowed = field(default_factory=Allowed)
    timeout_sec: float = 15.0
    version: str = "0"
    tls: Callable[[], ssl.SSLContext] = ssl.create_default_context
    look_up: Resolve | None = None

    def send(self, url: str, body: str, headers: dict[str, str]) -> Answer:
        """Never raises for what lies at the other end. Redirects are an answer like any other."""
        deadline = Deadline(self.timeout_sec)
        try:
            place = place_of(url, self.allowed)
            addresses = resolve(place, self.allowed, self.look_up)
            with self._connected(place, addresses, deadline) as channel:
                return _exchange(channel, place, body.encode(), self._headers(headers), deadline)
        except Unwelcome as error:
            return Answer(None, error=str(error))
        except TimeoutError:
            return Answer(None, error=f"no answer within {self.timeout_sec:g} s")
        except ssl.SSLError as error:
            return Answer(None, error=f"TLS: {error.reason or error}")
        except (OSError, http.client.HTTPException) as error:
            told = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
            return Answer(None, error=told)

    def _headers(self, given: dict[str, str]) -> dict[str, str]:
        return {
            "Content-Type": "application/json",
            "User-Agent": f"dataloader/{self.version}",
            "Accept": "*/*",
            "Connection": "close",
            **given,
        }

    def _connected(self, place: Place, addresses: Sequence[str], deadline: Deadline) -> socket.socket:
        """To the first address that takes the connection."""
        last: OSError | None = None
        for address in addresses:
            try:
                plain = socket.create_connection((address, place.port), deadline.left())
                break
            except TimeoutError:
                raise
            except OSError as error:
                last = error
        else:
            raise last or OSError(f"{place.host} has no address")
        if place.scheme == "http":
            return plain
        try:
            plain.settimeout(deadline.left())
            return self.tls().wrap_socket(plain, server_hostname=place.host)
        except BaseException:
            plain.close()
            raise


class Deadline:
    """For all of it together: a socket's own time-out begins anew with each byte that drips in."""

    def __init__(self, seconds: float) -> None:
        self._until = clock() + seconds

    def left(self) -> float:
        """Seconds that are left. Raises TimeoutError when there are none."""
        seconds = self._until - clock()
        if seconds <= 0:
            raise TimeoutError
        return seconds


class _Ears(io.RawIOBase):
    """What arrives on a socket, for as long as the deadline lets it."""

    def __init__(self, channel: socket.socket, deadline: Deadline) -> None:
        self._channel, self._deadline = channel, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._channel.settimeout(self._deadline.left())
        return self._channel.recv_into(buffer)


@dataclass(frozen=True)
class _Heard:
    """What http.client takes for a socket."""

    ears: _Ears

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self.ears)


def _exchange(channel: socket.socket, place: Place, body: bytes, headers: dict[str, str], deadline: Deadline) -> Answer:
    head = [f"POST {place.target} HTTP/1.1", f"Host: {place.named}", f"Content-Length: {len(body)}"]
    head += [f"{name}: {value}" for name, value in headers.items()]
    channel.settimeout(deadline.left())  # of sendall it is the time for all
    channel.sendall("\r\n".join([*head, "", ""]).encode("ascii") + body)
    response = http.client.HTTPResponse(_Heard(_Ears(channel, deadline)), method="POST")  # type: ignore[arg-type]
    response.begin()
    return Answer(
        response.status,
        _first_bytes(response).decode("utf-8", "replace"),
        error=None if response.status < _MULTIPLE_CHOICES else _told(response),
        retry_after_sec=_retry_after(response),
        never=response.status == http.HTTPStatus.GONE,
    )


def _first_bytes(response: http.client.HTTPResponse) -> bytes:
    """The status is all that counts: what follows may drip, or break off."""
    heard = b""
    try:
        while len(heard) < _MOST_ANSWER and (more := response.read1(_MOST_ANSWER - len(heard))):
            heard += more
    except (OSError, http.client.HTTPException, ValueError):
        pass
    return heard


def _told(response: http.client.HTTPResponse) -> str:
    if response.status < http.HTTPStatus.BAD_REQUEST:
        return f"answered {response.status}; redirects are not followed"
    return f"answered {response.status}"


def _retry_after(response: http.client.HTTPResponse) -> float | None:
    told = response.getheader("Retry-After", "")
    return float(told) if told.isascii() and told.isdigit() and len(told) <= 6 else None  # noqa: PLR2004 - days
