"""API keys over HTTP, for administrators."""

from __future__ import annotations

from dataloader.app.acts.web import add_routes
from dataloader.app.features.keys.acts import KeyList, KeyStatus, create_key, revoke_key, rotate_key
from dataloader.app.http.auth.api_keys import ApiKeys, Scope
from dataloader.app.http.problems import DATABASE_PROBLEMS
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.site import Site


def create_keys_blueprint(site: Site) -> ApiBlueprint:
    blueprint = ApiBlueprint("keys", "/api/v1", problems=DATABASE_PROBLEMS)
    keys = ApiKeys(site.executor)

    @blueprint.get("/keys", response=KeyList, scope=Scope.ADMIN)
    def list_keys() -> KeyList:
        """List API keys without their secrets, newest first, also revoked and expired ones."""
        return KeyList([KeyStatus.from_key(key) for key in keys.all()])

    add_routes(blueprint, (create_key, rotate_key, revoke_key), site.runner)
    return blueprint
