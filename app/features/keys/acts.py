"""What an administrator changes of API keys. These acts have no route: a page has their forms, and commands make keys
in the database itself, where a lockout can be allowed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from dataloader.app.acts.act import Call, act
from dataloader.app.errors import InvalidApiKey, NoOperatorKey
from dataloader.app.http.auth.api_keys import ApiKey, ApiKeys, NewApiKey, Scope
from dataloader.app.http.problems import ProblemCode, RequestRejected
from dataloader.app.http.schemas import BodyModel


class NewKey(BodyModel):
    """A key to create."""

    name: str = Field("", description="The team or program that will use it.")
    scopes: list[Annotated[Scope, Field(strict=False)]] = Field([], description="What it may do.")
    tasks: list[str] = Field([], description="The tasks that it may trigger; empty: all.")
    queues: list[str] = Field([], description="The queues that it may use; empty: all.")
    ttl_sec: float | None = Field(None, description="How long it is valid; null: until it is revoked.")


class KeyRevocation(BodyModel):
    """The key to revoke."""

    key_id: Annotated[str, Field(min_length=1)] = Field(description="The id of the key.")


@dataclass(frozen=True)
class CreatedKey:
    """A key with its token, which is shown once."""

    key: ApiKey
    token: str


@act("key.created", scope=Scope.ADMIN)
def create_key(call: Call, body: NewKey) -> CreatedKey:
    """Create a key, and show it once."""
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
    return CreatedKey(key, token)


@act("key.revoked", scope=Scope.ADMIN)
def revoke_key(call: Call, body: KeyRevocation) -> list[ApiKey]:
    """Revoke a key; its sessions end with it."""
    try:
        return ApiKeys(call.executor).revoke(body.key_id, allow_lockout=False)
    except NoOperatorKey as error:
        text = f"{error}. Create another one first, or use `dataloader keys revoke`."
        raise RequestRejected(ProblemCode.INVALID_REQUEST, text) from None
