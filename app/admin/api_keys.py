"""API keys and their scopes. The table holds digests, not keys.

A key has the form `dlk_<id>_<secret>`: the id finds its row, and the secret is 192 random bits. Such a secret cannot be
guessed, so one SHA-256 is enough: a slow hash would add no protection and cost every request.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from app.db.encoding import array, validate_text
from app.errors import ApiKeyNotFound, InvalidApiKey, NoOperatorKey

if TYPE_CHECKING:
    from app.queue.jobs import Executor

TOKEN_PATTERN = re.compile(r"dlk_([0-9a-f]{12})_[0-9a-f]{48}", re.ASCII)
MAX_KEY_NAME_LENGTH = 200
_SIGNING_BYTES = 32


class Scope(StrEnum):
    """What a key may do. `operate` includes `read` and `trigger`, `admin` includes all."""

    READ = "read"  # read jobs, their args and logs, tasks and statistics
    TRIGGER = "trigger"  # trigger jobs, of all or certain tasks and queues, and read their status
    OPERATE = "operate"  # cancel, retry, edit, and read the audit
    ADMIN = "admin"  # everything

    @property
    def includes(self) -> frozenset[Scope]:
        """This scope and all that it includes."""
        return _INCLUDED_SCOPES[self]


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
        self.executor = executor
        self._execute = executor.execute

    def create(self, request: NewApiKey, *, allow_lockout: bool = True) -> tuple[ApiKey, str]:
        """Create a key; return it with its token, which is not stored.

        Raises InvalidApiKey, and NoOperatorKey unless a lockout is allowed.
        """
        _validate(request)
        if not allow_lockout and self._would_lock_out(request):
            raise NoOperatorKey("no valid API key has the scope operate or admin")
        key_id = secrets.token_hex(6)
        token = f"dlk_{key_id}_{secrets.token_hex(24)}"
        rows = self._execute(
            "create_api_key",
            {
                "key_id": key_id,
                "name": validate_text("name", request.name),
                "digest": key_digest(token),
                "scopes": array(sorted(request.scopes)),
                "tasks": None if request.tasks is None else array(sorted(request.tasks)),
                "queues": None if request.queues is None else array(sorted(request.queues)),
                "created_by": request.created_by,
                "ttl_sec": request.ttl_sec,
            },
        )
        return _key_from_row(rows[0]), token

    def _would_lock_out(self, request: NewApiKey) -> bool:
        """Return whether no key could cancel or edit a job after this one is created."""
        if Scope.OPERATE in frozenset[Scope]().union(*(scope.includes for scope in request.scopes)):
            return False
        return not any(Scope.OPERATE in key.scopes for key in self.active().keys)

    def all(self) -> list[ApiKey]:
        """All keys, also expired and revoked ones, newest first."""
        return [_key_from_row(row) for row in self._execute("api_keys")]

    def revoke(self, id_or_name: str) -> list[ApiKey]:
        """Revoke the key with this id, or the valid ones with this name; return them. Raises ApiKeyNotFound."""
        revoked = [_key_from_row(row) for row in self._execute("revoke_api_key", {"id_or_name": id_or_name})]
        if not revoked:
            raise ApiKeyNotFound(id_or_name)
        return revoked

    def active(self) -> ActiveKeys:
        """All valid keys. Looking up single keys would let callers without a key load the database."""
        rows = self._execute("active_api_keys")
        return ActiveKeys(tuple(_active_key_from_row(row) for row in rows if row[1] is not None), bool(rows[0][0]))

    def record_use(self, key_ids: Iterable[str]) -> None:
        """Record that these keys were used now."""
        self._execute("record_key_use", {"key_ids": array(sorted(key_ids))})

    def signing_secret(self) -> bytes:
        """The secret that signs the sessions of all processes; generated on first use."""
        rows = self._execute("signing_secret", {"new_secret": secrets.token_bytes(_SIGNING_BYTES)})
        return bytes(rows[0][0])


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


def _key_from_row(row: tuple[Any, ...]) -> ApiKey:
    (key_id, name, scopes, tasks, queues, created_at, created_by, expires_at, last_used_at, revoked_at, state) = row
    return ApiKey(
        id=key_id,
        name=name,
        scopes=tuple(Scope(scope) for scope in scopes),
        tasks=None if tasks is None else tuple(tasks),
        queues=None if queues is None else tuple(queues),
        created_at=created_at,
        created_by=created_by,
        expires_at=expires_at,
        last_used_at=last_used_at,
        revoked_at=revoked_at,
        state=state,
    )


def _active_key_from_row(row: tuple[Any, ...]) -> ActiveKey:
    _, key_id, name, digest, scopes, tasks, queues, left = row
    implied = frozenset[Scope]().union(*(Scope(scope).includes for scope in scopes))
    return ActiveKey(
        id=key_id,
        name=name,
        digest=bytes(digest),
        scopes=implied,
        tasks=None if tasks is None else frozenset(tasks),
        queues=None if queues is None else frozenset(queues),
        expires_in_sec=left,
    )
