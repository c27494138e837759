"""Browser sessions: a signed cookie with the id of the API key that logged in.

The server stores no sessions. A session ends with its time, with its key, or when the browser deletes the cookie; to end
a copied one, revoke the key.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from itsdangerous import BadData, Signer, URLSafeTimedSerializer

_SIGNER_OPTIONS = {"key_derivation": "hmac", "digest_method": hashlib.sha256}


@dataclass(frozen=True)
class Session:
    key_id: str
    expires_at: float  # seconds since the epoch
    id: str


class Sessions:
    """Creates and reads session cookies. `load_secret` is called with the first cookie and may query the database."""

    def __init__(self, load_secret: Callable[[], bytes], *, max_age_sec: float) -> None:
        self._load_secret, self.max_age_sec = load_secret, int(max_age_sec)

    def create(self, key_id: str) -> str:
        """Return the cookie of a new session."""
        return self._serializer.dumps([key_id, secrets.token_hex(16)])

    def read(self, cookie: str) -> Session | None:
        """Return the session of a cookie, or None if its signature is wrong or it has expired."""
        try:
            (key_id, session_id), signed_at = self._serializer.loads(
                cookie, max_age=self.max_age_sec, return_timestamp=True
            )
        except (BadData, ValueError):
            return None
        return Session(key_id, signed_at.timestamp() + self.max_age_sec, session_id)

    def csrf_token(self, session: Session) -> str:
        """The token that forms of the session send back; pages of other sites cannot know it."""
        return self._csrf_signer.get_signature(session.id).decode()

    @cached_property
    def _secret(self) -> bytes:
        return self._load_secret()

    @cached_property
    def _serializer(self) -> URLSafeTimedSerializer:
        return URLSafeTimedSerializer(self._secret, salt="dataloader.session", signer_kwargs=_SIGNER_OPTIONS)

    @cached_property
    def _csrf_signer(self) -> Signer:
        return Signer(self._secret, salt="dataloader.csrf", key_derivation="hmac", digest_method=hashlib.sha256)
