"""The page of API keys: what each may do, when it was last used; and the forms that create and revoke one."""

from __future__ import annotations

from flask import Response, request
from pydantic import ConfigDict, Field

from dataloader.app.errors import InvalidApiKey, NoOperatorKey
from dataloader.app.http.auth.api_keys import ApiKey, ApiKeys, NewApiKey, Scope
from dataloader.app.http.auth.guard import current_actor
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.site import Site
from dataloader.app.ui.base import FormModel, FormText, InvalidForm, PageRenderer
from dataloader.app.ui.forms import parse_duration

_SCOPE = "scope-"  # what the names of the check boxes begin with, before the scope
_SCOPE_MEANINGS = {
    Scope.READ: "read jobs, args, logs and statistics",
    Scope.TRIGGER: "trigger jobs and read their status",
    Scope.OPERATE: "cancel, retry, edit, read the audit; includes read and trigger",
    Scope.ADMIN: "everything, also keys, webhooks and settings",
}


class KeyForm(FormModel):
    """A new key: a field `scope-NAME` for each scope."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: FormText = Field(description="The team or program that will use it.")
    tasks: FormText = Field("", description="The tasks that it may trigger, separated by commas; empty: all.")
    queues: FormText = Field("", description="The queues that it may use, separated by commas; empty: all.")
    expires: FormText = Field("", description="How long it is valid, such as 90d; empty: until it is revoked.")


class RevokeForm(FormModel):
    """The key to revoke."""

    key_id: FormText = Field(min_length=1, description="The id of the key.")


def create_keys_page(site: Site) -> ApiBlueprint:
    source, options = site.executor, site.options
    pages = PageRenderer("keys_page", options)
    keys = ApiKeys(source)

    @pages.page("/keys", scope=Scope.ADMIN, standby=False)
    def show_keys() -> Response:
        """Show all API keys, also revoked and expired ones."""
        known = sorted(keys.all(), key=lambda key: key.state != "valid")
        return pages.render(
            "keys.html",
            keys=known,
            valid=sum(key.state == "valid" for key in known),
            scopes=_SCOPE_MEANINGS,
            own_id=current_actor().key_id,
            auth_disabled=options.auth_disabled,
            can_change=keys.can_change(),
        )

    @pages.action("/keys", form=KeyForm, page_url="/keys", page=show_keys, scope=Scope.ADMIN)
    def submit_key(form: KeyForm) -> Response:
        """Create a key, and show it once."""
        try:
            created, token = keys.create(_parse_key(form), allow_lockout=False)
        except NoOperatorKey as error:
            raise InvalidForm(
                f"{error}, and this one would have none. As soon as there is a key, every caller needs one. Create one "
                "with operate or admin first."
            ) from None
        except InvalidApiKey as error:
            raise InvalidForm(str(error)) from None
        return _show_token(created, token)

    @pages.action("/keys/revoke", form=RevokeForm, page_url="/keys", page=show_keys, scope=Scope.ADMIN)
    def submit_key_revocation(form: RevokeForm) -> None:
        """Revoke a key; its sessions end with it."""
        try:
            keys.revoke(form.key_id, allow_lockout=False)
        except NoOperatorKey as error:
            raise InvalidForm(f"{error}. Create another one first, or use `dataloader keys revoke`.") from None

    def _show_token(key: ApiKey, token: str) -> Response:
        return pages.render(
            "secret.html",
            what="API key",
            name=f"{key.name}, {', '.join(key.scopes)}",
            secret=token,
            use="Callers send it as Authorization: Bearer KEY. From now on every caller needs a key.",
            next_url="/keys",
        )

    return pages.blueprint


def _parse_key(form: KeyForm) -> NewApiKey:
    return NewApiKey(
        name=form.name.strip(),
        scopes=frozenset(scope for scope in Scope if f"{_SCOPE}{scope}" in request.form),
        created_by=current_actor().name,
        tasks=_parse_names(form.tasks),
        queues=_parse_names(form.queues),
        ttl_sec=parse_duration("expires", form.expires),
    )


def _parse_names(raw: str) -> frozenset[str] | None:
    return frozenset(filter(None, (name.strip() for name in raw.split(",")))) or None
