"""The page of API keys: what each may do, when it was last used; and the forms that create and revoke one."""

from __future__ import annotations

from flask import Response

from dataloader.app.acts.web import ActForms, Choice
from dataloader.app.features.keys.acts import CreatedKey, RotatedKey, create_key, revoke_key, rotate_key
from dataloader.app.http.auth.api_keys import ApiKeys, Scope
from dataloader.app.http.auth.guard import current_actor
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.site import Site
from dataloader.app.ui.base import PageRenderer

_SCOPE_MEANINGS = {
    Scope.READ: "read jobs, args, logs and statistics",
    Scope.TRIGGER: "trigger jobs and read their status",
    Scope.OPERATE: "cancel, retry, edit, read the audit; includes read and trigger",
    Scope.ADMIN: "everything, also keys, webhooks and settings",
}


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

    def show_token(created: CreatedKey) -> Response:
        return pages.render(
            "secret.html",
            what="API key",
            name=f"{created.key.name}, {', '.join(created.key.scopes)}",
            secret=created.token,
            use="Callers send it as Authorization: Bearer KEY. From now on every caller needs a key.",
            next_url="/keys",
        )

    def show_rotated(rotated: RotatedKey) -> Response:
        end = pages.formatter.time(rotated.old_expires_at)
        return pages.render(
            "secret.html",
            what="API key",
            name=f"{rotated.key.name}, {', '.join(rotated.key.scopes)}",
            secret=rotated.token,
            use=f"Callers send it as Authorization: Bearer KEY. The key before it, {rotated.old_key_id}, ends {end}.",
            next_url="/keys",
        )

    forms = ActForms(pages=pages, runner=site.runner, page=show_keys, page_url="/keys")
    forms.add("/keys", "submit_key", Choice(act=create_key, boxes=("scopes",), respond=show_token))
    forms.add("/keys/rotate", "submit_key_rotation", Choice(act=rotate_key, respond=show_rotated))
    forms.add("/keys/revoke", "submit_key_revocation", Choice(act=revoke_key))
    return pages.blueprint
