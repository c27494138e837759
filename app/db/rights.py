"""Rights beyond those of the schema's owner, by the feature that wants them.

Installing and running needs none of them. `dataloader migrate --roles`, the doctor and docs/security.md list them.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.db.repair import quote_identifier


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
        "the doctor and the metrics of the oldest transaction see the sessions of the same role only",
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
