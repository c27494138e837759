"""Sessions of browsers: a cookie that says which key was shown and until when, and is signed.

Nothing is kept of a session. It ends with its time, with its key, or when the browser throws it away; to end one that
was copied, revoke its key.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

_VERSION = "v1"
_PARTS = 5


@dataclass(frozen=True)
class Session:
    key_id: str
    expires_at: int  # seconds since the epoch, by this machine's clock: sessions are for hours
    id: str


class Sessions:
    """Makes cookies and reads them. `secret` is called when a cookie is made or seen, and may ask the database."""

    def __init__(self, secret: Callable[[], bytes], *, lasts_sec: float) -> None:
        self._draw, self.lasts_sec = secret, int(lasts_sec)
        self._secret: bytes | None = None

    def begin(self, key_id: str) -> tuple[Session, str]:
        """A session, and the cookie that proves it."""
        session = Session(key_id, int(time.time()) + self.lasts_sec, secrets.token_hex(16))
        told = f"{_VERSION}.{session.key_id}.{session.expires_at}.{session.id}"
        return session, f"{told}.{self._sign('session', told)}"

    def read(self, cookie: str) -> Session | None:
        """The session that a cookie proves; None: it was not made by us, or has run out."""
        parts = cookie.split(".")
        if len(parts) != _PARTS or parts[0] != _VERSION or not parts[2].isdecimal() or not cookie.isascii():
            return None
        told, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(signature, self._sign("session", told)):
            return None
        session = Session(parts[1], int(parts[2]), parts[3])
        return session if session.expires_at > time.time() else None

    def token(self, session: Session) -> str:
        """What a page of ours sends along when it changes something: a page of another site cannot know it."""
        return self._sign("csrf", session.id)

    def _sign(self, purpose: str, told: str) -> str:
        if self._secret is None:
            self._secret = self._draw()
        return hmac.new(self._secret, f"{purpose}:{told}".encode(), hashlib.sha256).hexdigest()
