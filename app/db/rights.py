"""The rights of the service's role on the tables, and those beyond the owner's that single features want.

Nothing but those features needs the latter. `dataloader migrate --roles`, the doctor and docs/security.md list them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from dataloader.app.db.schema import schema_text
from dataloader.app.db.schema_statements import quote_identifier

# Above each table of the schema: what the API and the workers do with it, and whether readers may not see it.
_TABLE_RIGHTS = re.compile(
    r"^-- rights of the service: ([^;\n]+)(; none of readers)?\nCREATE (?:UNLOGGED )?TABLE (\w+)", re.MULTILINE
)


@cache
def service_rights() -> Mapping[str, str]:
    """Return what the service does with each table. It verifies API keys, and cannot make one."""
    return {table: rights for rights, _, table in _TABLE_RIGHTS.findall(schema_text())}


def service_rights_sql() -> str:
    """Return the grants to the roles of `migrate --roles`; with {schema}, {service} and {reader}."""
    lines = list[str]()
    for rights, none_of_readers, table in _TABLE_RIGHTS.findall(schema_text()):
        name = f"{{schema}}.{quote_identifier(table)}"
        lines += [f"REVOKE ALL ON {name} FROM {{service}};", f"GRANT {rights} ON {name} TO {{service}};"]
        if not none_of_readers:
            lines.append(f"GRANT SELECT ON {name} TO {{reader}};")
    return "\n".join(lines)


@dataclass(frozen=True)
class FeatureRight:
    """A right that one feature wants."""

    check: str  # the doctor's name of it; "" where only `migrate` or people use it
    feature: str
    statement: str  # grants it; with {user} and {database}
    granted_by: str
    loss: str  # without it

    def grant(self, user: str, database: str) -> str:
        return self.statement.format(user=quote_identifier(user), database=quote_identifier(database))


FEATURE_RIGHTS = (
    FeatureRight(
        "sees_others",
        "see what sessions of other roles do",
        "GRANT pg_read_all_stats TO {user}",
        "a superuser",
        "the doctor, the metrics of the oldest transaction and `dataloader where` see sessions of the same role only",
    ),
    FeatureRight(
        "ends_others",
        "end statements that a dead attempt left in a session of another role",
        "GRANT pg_signal_backend TO {user}",
        "a superuser",
        "such a statement runs until the server ends it; the job's event and error name the session",
    ),
    FeatureRight(
        "temporary_tables",
        "load and upsert rows into the queue's own database with the toolkit",
        "GRANT TEMPORARY ON DATABASE {database} TO {user}",
        "the database's owner",
        "these loads fail; name another database in DL_TARGETS",
    ),
    FeatureRight(
        "",
        "create schemas: that of PG_SCHEMA_QUEUE by `dataloader migrate`, and those of pipelines",
        "GRANT CREATE ON DATABASE {database} TO {user}",
        "the database's owner",
        "an administrator creates them: CREATE SCHEMA etl AUTHORIZATION the_owner",
    ),
    FeatureRight(
        "",
        "create the roles of `dataloader migrate --roles`",
        "ALTER ROLE {user} CREATEROLE",
        "a superuser",
        "an administrator creates the three roles with NOLOGIN; then the owner runs the SQL",
    ),
)


def rights_table() -> str:
    """Return the rights as a table for people."""
    rows = [
        f"| {right.feature} | `{right.grant('the_account', 'the_database')}` | {right.granted_by} | {right.loss} |"
        for right in FEATURE_RIGHTS
    ]
    return "\n".join(["| to | grant | by | without it |", "|---|---|---|---|", *rows])


def rights_comment(user: str) -> str:
    """Return the rights as comments of an SQL script for this role."""
    lines = []
    for right in FEATURE_RIGHTS:
        statement = right.statement.format(user=user, database="the_database")
        lines += [f"--   To {right.feature}:", f"--       {statement};  -- by {right.granted_by}",
                  f"--     Without it: {right.loss}."]  # fmt: skip
    return "\n".join(lines)
