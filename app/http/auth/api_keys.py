"""API keys and their scopes. The table holds digests, not keys.

A key has the form `dlk_<id>_<secret>`: the id finds its row, and the secret is 192 random bits. Such a secret cannot be
guessed, so one SHA-256 is enough: a slow hash would add no protection and cost every request.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from dataloader.app.db.encoding import array, from_row, validate_text
from dataloader.app.errors import ApiKeyNotFound, InvalidApiKey, NoOperatorKey

if TYPE_CHECKING:
    from dataloader.app.db.statements import Executor

TOKEN_PATTERN = re.compile(r"dlk_([0-9a-f]{12})_[0-9a-f]{48}", re.ASCII)
MAX_KEY_NAME_LENGTH = 200
_SIGNING_BYTES = 32


class Scope(StrEnum):
    """What a key may do. `operate` includes `read` and `trigger`, `admin` includes all."""

    READ = "read"  # read jobs, their args and logs, tasks and statistics
    TRIGGER = "trigger"  # trigger jobs, of all or certain tasks and queues, and read their status
    OPERATE = "operate"  # cancel, retry, edit, and read the audit
    ADMIN = "admin"  # everything


_READ_AND_TRIGGER = frozenset({Scope.READ, Scope.TRIGGER})
_INCLUDED_SCOPES = {
    Scope.READ: frozenset({Scope.READ}),
    Scope.TRIGGER: frozenset({Scope.TRIGGER}),
    Scope.OPERATE: _READ_AND_TRIGGER | {Scope.OPERATE},
    Scope.ADMIN: frozenset(Scope),
}


@dataclass(frozen=True, kw_only=True)
class NewApiKey:
    """A key to create. Without limits it may trigger every task in every queue."""

    name: str
    scopes: frozenset[Scope]
    created_by: str
    tasks: frozenset[str] | None = None
    queues: frozenset[str] | None = None
    ttl_sec: float | None = None  # None: does not expire


@dataclass(frozen=True, kw_only=True)
class ApiKey:
    """A stored key."""

    id: str
    name: str
    scopes: tuple[Scope, ...]
    tasks: tuple[str, ...] | None
    queues: tuple[str, ...] | None
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None
    state: str  # valid | expired | revoked


@dataclass(frozen=True, kw_only=True)
class ActiveKey:
    """A valid key, with what is needed to verify it."""

    id: str
    name: str
    digest: bytes = field(repr=False)
    scopes: frozenset[Scope]  # with included scopes
    tasks: frozenset[str] | None
    queues: frozenset[str] | None
    expires_in_sec: float | None  # by the database's clock


@dataclass(frozen=True)
class ActiveKeys:
    """All valid keys, and whether any key was ever created: without valid keys such a service rejects all requests."""

    keys: tuple[ActiveKey, ...]
    has_any_key: bool


class ApiKeys:
    """Creates, lists and revokes keys."""

    def __init__(self, executor: Executor) -> None:
        self._execute = executor.execute

    def create(self, request: NewApiKey, *, allow_lockout: bool = True) -> tuple[ApiKey, str]:
        """Create a key; return it with its token, which is not stored.

        Raises InvalidApiKey, and NoOperatorKey unless a lockout is allowed.
        """
        _validate(request)
        if not allow_lockout:  # some key must be able to cancel and edit jobs
            scopes = [_with_included(request.scopes), *(key.scopes for key in self.active().keys)]
            if not any(Scope.OPERATE in granted for granted in scopes):
                raise NoOperatorKey("no valid API key has the scope operate or admin")
        key_id, token = _new_token()
        rows = self._execute(
            "create_api_key",
            {
                name: array(sorted(value)) if isinstance(value, frozenset) else value
                for name, value in vars(request).items()
            }
            | {"key_id": key_id, "name": validate_text("name", request.name), "digest": key_digest(token)},
        )
        return from_row(ApiKey, rows[0]), token

    def all(self) -> list[ApiKey]:
        """All keys, also expired and revoked ones, newest first."""
        return [from_row(ApiKey, row) for row in self._execute("api_keys")]

    def can_change(self) -> bool:
        """Whether the database lets this account create and revoke keys."""
        return bool(self._execute("can_change_keys")[0][0])

    def revoke(self, id_or_name: str, *, allow_lockout: bool = True) -> list[ApiKey]:
        """Revoke the key with this id, or the valid ones with this name; return them.

        Raises ApiKeyNotFound, and NoOperatorKey unless a lockout is allowed.
        """
        if not allow_lockout:
            active = self.active().keys
            left = [key for key in active if id_or_name not in (key.id, key.name)]
            if len(left) < len(active) and not any(Scope.OPERATE in key.scopes for key in left):
                raise NoOperatorKey("no other valid API key has the scope operate or admin")
        revoked = [from_row(ApiKey, row) for row in self._execute("revoke_api_key", {"id_or_name": id_or_name})]
        if not revoked:
            raise ApiKeyNotFound(id_or_name)
        return revoked

    def rotate(self, id_or_name: str, *, created_by: str, overlap_sec: float) -> tuple[ApiKey, str, datetime]:
        """Create a key like the valid one with this id or name, which stays valid for `overlap_sec`; return the new
        one, its token, and when the old one ends.

        Raises ApiKeyNotFound, and InvalidApiKey if several keys have the name.
        """
        found = [key for key in self.all() if key.state == "valid" and id_or_name in (key.id, key.name)]
        if len(found) > 1:
            raise InvalidApiKey(f"{len(found)} valid keys have the name {id_or_name!r}; give the id of one")
        new_id, token = _new_token()
        new = {"key_id": new_id, "digest": key_digest(token), "created_by": created_by, "overlap_sec": overlap_sec}
        rows = self._execute("rotate_api_key", new | {"old_id": found[0].id}) if found else []
        if not rows:
            raise ApiKeyNotFound(id_or_name)
        return from_row(ApiKey, rows[0][:-1]), token, rows[0][-1]

    def active(self) -> ActiveKeys:
        """All valid keys. Looking up single keys would let callers without a key load the database."""
        rows = self._execute("active_api_keys")
        keys = [from_row(ActiveKey, row[1:]) for row in rows if row[1] is not None]
        return ActiveKeys(tuple(replace(key, scopes=_with_included(key.scopes)) for key in keys), bool(rows[0][0]))

    def record_use(self, key_ids: Iterable[str]) -> None:
        """Record that these keys were used now."""
        self._execute("record_key_use", {"key_ids": array(sorted(key_ids))})

    def signing_secret(self) -> bytes:
        """The secret that signs the sessions of all processes; generated on first use."""
        rows = self._execute("signing_secret", {"new_secret": secrets.token_bytes(_SIGNING_BYTES)})
        return bytes(rows[0][0])


def _with_included(scopes: frozenset[Scope]) -> frozenset[Scope]:
    return scopes.union(*(_INCLUDED_SCOPES[scope] for scope in scopes))


def _new_token() -> tuple[str, str]:
    """A random id, and the token of the key with this id."""
    key_id = secrets.token_hex(6)
    return key_id, f"dlk_{key_id}_{secrets.token_hex(24)}"


def key_digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _validate(request: NewApiKey) -> None:
    if not request.name.strip() or len(request.name) > MAX_KEY_NAME_LENGTH or not request.name.isprintable():
        raise InvalidApiKey(f"a key's name is a printable text of 1 to {MAX_KEY_NAME_LENGTH} characters")
    if not request.scopes:
        raise InvalidApiKey(f"a key needs a scope: {', '.join(Scope)}")
    limited = request.tasks is not None or request.queues is not None
    if limited and not request.scopes <= _READ_AND_TRIGGER:
        raise InvalidApiKey(
            "tasks and queues limit what a key may trigger; operate and admin may trigger everything, "
            "so give such a key read and trigger alone"
        )
    if limited and Scope.TRIGGER not in request.scopes:
        raise InvalidApiKey("tasks and queues limit what a key may trigger; this one may trigger nothing")
    if request.ttl_sec is not None and request.ttl_sec <= 0:
        raise InvalidApiKey("a key has to live for some time; leave its end out, or put it into the future")
