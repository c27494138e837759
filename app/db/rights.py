"""The rights of the service's role on the tables, and those beyond the owner's that single features want.

Nothing but those features needs the latter. `dataloader migrate --roles`, the doctor and docs/security.md list them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dataloader.app.db.schema_statements import quote_identifier

# What the API and the workers do with each table. They verify API keys, and cannot make one.
SERVICE_RIGHTS: Mapping[str, str] = {
    "dl_jobs": "SELECT, INSERT, UPDATE, DELETE",
    "dl_job_events": "SELECT, INSERT",
    "dl_job_logs": "SELECT, INSERT, DELETE",
    "dl_progress": "SELECT, INSERT",
    "dl_heartbeats": "SELECT, INSERT, DELETE",
    "dl_workers": "SELECT, INSERT, UPDATE, DELETE",
    "dl_schema": "SELECT",
    "dl_queues": "SELECT, INSERT, UPDATE",
    "dl_limits": "SELECT, INSERT, UPDATE, DELETE",
    "dl_limit_looks": "SELECT, INSERT, DELETE",
    "dl_limit_starts": "SELECT, INSERT, UPDATE, DELETE",
    "dl_graphs": "SELECT, INSERT, UPDATE, DELETE",
    "dl_edges": "SELECT, INSERT, UPDATE, DELETE",
    "dl_graph_work": "SELECT, INSERT, UPDATE, DELETE",
    "dl_breakers": "SELECT, INSERT, UPDATE, DELETE",
    "dl_failure_handlers": "SELECT, INSERT, UPDATE, DELETE",
    "dl_schedules": "SELECT, INSERT, UPDATE, DELETE",
    "dl_firings": "SELECT, INSERT, UPDATE, DELETE",
    "dl_dataset_updates": "SELECT, INSERT, UPDATE, DELETE",
    "dl_backfills": "SELECT, INSERT, UPDATE, DELETE",
    "dl_slices": "SELECT, INSERT, UPDATE, DELETE",
    "dl_checks": "SELECT, INSERT, DELETE",
    "dl_dataset_events": "SELECT, INSERT, DELETE",
    "dl_offloads": "SELECT, INSERT, UPDATE, DELETE",
    "dl_job_targets": "SELECT, INSERT, UPDATE, DELETE",
    "dl_task_targets": "SELECT, INSERT, UPDATE, DELETE",
    "dl_fence_history": "SELECT, INSERT, UPDATE",
    "dl_where": "SELECT, INSERT, UPDATE, DELETE",
    "dl_accounts": "SELECT, INSERT, UPDATE, DELETE",
    "dl_account_days": "SELECT, INSERT, UPDATE, DELETE",
    "dl_lineage_state": "SELECT, UPDATE",
    "dl_fair_weights": "SELECT, INSERT, UPDATE, DELETE",
    "dl_bulk": "SELECT, INSERT, UPDATE, DELETE",
    "dl_statistics": "SELECT, INSERT, UPDATE, DELETE",
    "dl_queue_depths": "SELECT, INSERT, UPDATE, DELETE",
    "dl_recent_runs": "SELECT, INSERT, UPDATE, DELETE",
    "dl_statistics_state": "SELECT, UPDATE",
    "dl_webhooks": "SELECT, INSERT, UPDATE, DELETE",
    "dl_deliveries": "SELECT, INSERT, UPDATE, DELETE",
    "dl_delivery_attempts": "SELECT, INSERT",
    "dl_alert_rules": "SELECT, INSERT, UPDATE, DELETE",
    "dl_alerts": "SELECT, INSERT, UPDATE, DELETE",
    "dl_stalled_progress": "SELECT, INSERT, UPDATE, DELETE",
    "dl_notify_state": "SELECT, INSERT, UPDATE, DELETE",
    "dl_api_keys": "SELECT, UPDATE (last_used_at)",
    "dl_signing_secrets": "SELECT, INSERT",
    "dl_audit": "SELECT, INSERT",
}
_NOT_FOR_READERS = ("dl_api_keys", "dl_signing_secrets", "dl_webhooks")


def service_rights_sql() -> str:
    """Return the grants to the roles of `migrate --roles`; with {schema}, {service} and {reader}."""
    lines = list[str]()
    for table, rights in SERVICE_RIGHTS.items():
        name = f"{{schema}}.{quote_identifier(table)}"
        lines += [f"REVOKE ALL ON {name} FROM {{service}};", f"GRANT {rights} ON {name} TO {{service}};"]
        if table not in _NOT_FOR_READERS:
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
