"""API keys: what each may do, and where they are kept. The table holds no key, only what tells a right one.

A key reads `dlk_<id>_<secret>`: the id finds its row, and the secret is 192 random bits. Nothing that can be guessed or
tried out is hashed, so one SHA-256 is enough: a slow hash would protect nothing here and cost every request.
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

from app.errors import InvalidKey, KeyNotFound, NoOperatorKey
from app.queue.values import array, checked_text

if TYPE_CHECKING:
    from app.queue.jobqueue import Source

TOKEN = re.compile(r"dlk_([0-9a-f]{12})_[0-9a-f]{48}", re.ASCII)
LONGEST_NAME = 200
_SIGNING_BYTES = 32


class Scope(StrEnum):
    """What a key may do. `operate` may also read and trigger; `admin` may do everything; the first two are apart."""

    READ = "read"  # look at everything: jobs, their args and logs, tasks, numbers
    TRIGGER = "trigger"  # put jobs into the queue, of all tasks and queues or of named ones, and ask how a job does
    OPERATE = "operate"  # cancel, retry, change; and read who did
    ADMIN = "admin"  # whatever there is

    @property
    def implied(self) -> frozenset[Scope]:
        """This scope and all that come with it."""
        return _IMPLIED[self]


_BOTH = frozenset({Scope.READ, Scope.TRIGGER})
_IMPLIED = {
    Scope.READ: frozenset({Scope.READ}),
    Scope.TRIGGER: frozenset({Scope.TRIGGER}),
    Scope.OPERATE: _BOTH | {Scope.OPERATE},
    Scope.ADMIN: frozenset(Scope),
}


@dataclass(frozen=True, kw_only=True)
class NewKey:
    """A key to be made. Without limits it may trigger every task, in every queue."""

    name: str
    scopes: frozenset[Scope]
    created_by: str
    tasks: frozenset[str] | None = None
    queues: frozenset[str] | None = None
    lives_sec: float | None = None  # None: until it is revoked


@dataclass(frozen=True, kw_only=True)
class Key:
    """A key as it is kept."""

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
class Live:
    """A key that is valid now, as whoever verifies keys needs it."""

    id: str
    name: str
    digest: bytes = field(repr=False)
    scopes: frozenset[Scope]  # the implied ones too
    tasks: frozenset[str] | None
    queues: frozenset[str] | None
    seconds_left: float | None  # by the database's clock


@dataclass(frozen=True)
class Ring:
    """All keys that are valid, and whether there ever was one: a service whose last key has run out stays closed."""

    keys: tuple[Live, ...]
    configured: bool


class Keys:
    """The keys in one schema of one database."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._ask = source.ask

    def create(self, new: NewKey, *, allow_lockout: bool = True) -> tuple[Key, str]:
        """Make a key. The text beside it is the key itself, shown this once and kept nowhere.

        Raises InvalidKey, and NoOperatorKey unless a lockout is allowed.
        """
        _check(new)
        if not allow_lockout and self._would_lock_out(new):
            raise NoOperatorKey("no valid API key has the scope operate or admin")
        key_id = secrets.token_hex(6)
        token = f"dlk_{key_id}_{secrets.token_hex(24)}"
        rows = self._ask(
            "create_key",
            {
                "key_id": key_id,
                "name": checked_text("name", new.name),
                "digest": digest_of(token),
                "scopes": array(sorted(new.scopes)),
                "tasks": None if new.tasks is None else array(sorted(new.tasks)),
                "queues": None if new.queues is None else array(sorted(new.queues)),
                "created_by": new.created_by,
                "lives_sec": new.lives_sec,
            },
        )
        return _key(rows[0]), token

    def _would_lock_out(self, new: NewKey) -> bool:
        """Return whether with this key there are keys, and none that may operate: every caller would then need a key,
        and no key could cancel or change a job."""
        if Scope.OPERATE in frozenset[Scope]().union(*(scope.implied for scope in new.scopes)):
            return False
        return not any(Scope.OPERATE in key.scopes for key in self.ring().keys)

    def all(self) -> list[Key]:
        """Every key there ever was, the newest first."""
        return [_key(row) for row in self._ask("keys")]

    def revoke(self, which: str) -> list[Key]:
        """End the key with this id, or the valid ones with this name; returns what was ended. Raises KeyNotFound."""
        revoked = [_key(row) for row in self._ask("revoke_key", {"which": which})]
        if not revoked:
            raise KeyNotFound(which)
        return revoked

    def ring(self) -> Ring:
        """All valid keys at once: a look for each key that is shown would let anybody keep the database busy."""
        rows = self._ask("live_keys")
        return Ring(tuple(_live(row) for row in rows if row[1] is not None), bool(rows[0][0]))

    def touch(self, key_ids: Iterable[str]) -> None:
        """Say that these were used just now."""
        self._ask("touch_keys", {"key_ids": array(sorted(key_ids))})

    def signing_secret(self) -> bytes:
        """What the sessions of all processes of this database are signed with; drawn by the first who asks."""
        rows = self._ask("signing_secret", {"drawn": secrets.token_bytes(_SIGNING_BYTES)})
        return bytes(rows[0][0])


def digest_of(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _check(new: NewKey) -> None:
    if not new.name.strip() or len(new.name) > LONGEST_NAME or not new.name.isprintable():
        raise InvalidKey(f"a key's name is a printable text of 1 to {LONGEST_NAME} characters")
    if not new.scopes:
        raise InvalidKey(f"a key needs a scope: {', '.join(Scope)}")
    limited = new.tasks is not None or new.queues is not None
    if limited and not new.scopes <= _BOTH:
        raise InvalidKey(
            "tasks and queues limit what a key may trigger; operate and admin may trigger everything, "
            "so give such a key read and trigger alone"
        )
    if limited and Scope.TRIGGER not in new.scopes:
        raise InvalidKey("tasks and queues limit what a key may trigger; this one may trigger nothing")
    if new.lives_sec is not None and new.lives_sec <= 0:
        raise InvalidKey("a key has to live for some time; leave its end out, or put it into the future")


def _key(row: tuple[Any, ...]) -> Key:
    (key_id, name, scopes, tasks, queues, created_at, created_by, expires_at, last_used_at, revoked_at, state) = row
    return Key(
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


def _live(row: tuple[Any, ...]) -> Live:
    _, key_id, name, digest, scopes, tasks, queues, left = row
    implied = frozenset[Scope]().union(*(Scope(scope).implied for scope in scopes))
    return Live(
        id=key_id,
        name=name,
        digest=bytes(digest),
        scopes=implied,
        tasks=None if tasks is None else frozenset(tasks),
        queues=None if queues is None else frozenset(queues),
        seconds_left=left,
    )
