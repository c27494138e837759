"""What an administrator changes of API keys. The commands change them in the database itself, where a lockout can be
allowed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from dataloader.app.acts.act import Call, act
from dataloader.app.errors import InvalidApiKey, NoOperatorKey
from dataloader.app.http.auth.api_keys import ApiKey, ApiKeys, NewApiKey, Scope
from dataloader.app.http.problems import ProblemCode, RequestRejected
from dataloader.app.http.schemas import BodyModel

MAX_OVERLAP_SEC = 90 * 86_400


class NewKey(BodyModel):
    """A key to create."""

    name: str = Field("", description="The team or program that will use it.", examples=["billing"])
    scopes: list[Annotated[Scope, Field(strict=False)]] = Field(
        [], description="What it may do.", examples=[["trigger"]]
    )
    tasks: list[str] = Field([], description="The tasks that it may trigger; empty: all.")
    queues: list[str] = Field([], description="The queues that it may use; empty: all.")
    ttl_sec: float | None = Field(None, description="How long it is valid; null: until it is revoked.")


class KeyRotation(BodyModel):
    """How to replace a key."""

    overlap_sec: Annotated[float, Field(ge=0, le=MAX_OVERLAP_SEC)] = Field(
        86_400.0,
        description="How long the key before it stays valid; 0: it is revoked at once.",
        examples=[3600.0],
    )


@dataclass(frozen=True, kw_only=True)
class KeyStatus:
    """An API key, without its secret. `state`: valid, expired or revoked."""

    key_id: str
    name: str
    scopes: list[Scope]
    tasks: list[str] | None
    queues: list[str] | None
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None
    state: str

    @classmethod
    def from_key(cls, key: ApiKey) -> KeyStatus:
        fields: dict[str, Any] = {
            name: list(value) if isinstance(value, tuple) else value for name, value in vars(key).items()
        }
        return cls(key_id=fields.pop("id"), **fields)


@dataclass(frozen=True)
class KeyList:
    keys: list[KeyStatus]


@dataclass(frozen=True)
class CreatedKey:
    """A key with its token, which is shown once."""

    key: KeyStatus
    token: str


@dataclass(frozen=True)
class RotatedKey:
    """The new key with its token, which is shown once, and when the key before it ends."""

    key: KeyStatus
    token: str
    old_key_id: str
    old_expires_at: datetime


@act("key.created", "POST", "/keys", scope=Scope.ADMIN)
def create_key(call: Call, body: NewKey) -> CreatedKey:
    """Create a key, and show it once. As soon as there is a key, every caller needs one."""
    _require_right(call)
    request = NewApiKey(
        name=body.name,
        scopes=frozenset(body.scopes),
        created_by=call.actor,
        tasks=frozenset(body.tasks) or None,
        queues=frozenset(body.queues) or None,
        ttl_sec=body.ttl_sec,
    )
    try:
        key, token = ApiKeys(call.executor).create(request, allow_lockout=False)
    except NoOperatorKey as error:
        raise RequestRejected(
            ProblemCode.INVALID_REQUEST,
            f"{error}, and this one would have none. As soon as there is a key, every caller needs one. Create one "
            "with operate or admin first.",
        ) from None
    except InvalidApiKey as error:
        raise RequestRejected(ProblemCode.INVALID_REQUEST, str(error)) from None
    call.audit(key_id=key.id)
    return CreatedKey(KeyStatus.from_key(key), token)


@act("key.rotated", "POST", "/keys/<key_id>/rotate", scope=Scope.ADMIN, problems=(ProblemCode.KEY_NOT_FOUND,))
def rotate_key(call: Call, key_id: str, body: KeyRotation) -> RotatedKey:
    """Replace a key by one with the same name, scopes and limits, and show it once.

    The key before it stays valid for `overlap_sec`, so that its callers can change to the new one. A key that expires
    is replaced by one that lives as long.
    """
    _require_right(call)
    try:
        key, token, old_expires_at = ApiKeys(call.executor).rotate(
            key_id, created_by=call.actor, overlap_sec=body.overlap_sec
        )
    except InvalidApiKey as error:
        raise RequestRejected(ProblemCode.INVALID_REQUEST, str(error)) from None
    call.audit(new_key_id=key.id)
    return RotatedKey(KeyStatus.from_key(key), token, key_id, old_expires_at)


@act("key.revoked", "DELETE", "/keys/<key_id>", scope=Scope.ADMIN, problems=(ProblemCode.KEY_NOT_FOUND,))
def revoke_key(call: Call, key_id: str) -> KeyList:
    """Revoke a key; its sessions end with it. Instead of the id, the name of valid keys will do."""
    _require_right(call)
    try:
        revoked = ApiKeys(call.executor).revoke(key_id, allow_lockout=False)
    except NoOperatorKey as error:
        text = f"{error}. Create another one first, or use `dataloader keys revoke`."
        raise RequestRejected(ProblemCode.INVALID_REQUEST, text) from None
    return KeyList([KeyStatus.from_key(key) for key in revoked])


def _require_right(call: Call) -> None:
    """Raises RequestRejected."""
    if not ApiKeys(call.executor).can_change():
        text = "the database account of the service may not change keys; use `dataloader keys` with one that may"
        raise RequestRejected(ProblemCode.INVALID_REQUEST, text)
