"""SQL that brings single objects of the schema back to what schema.sql makes.

schema.sql, applied again, makes what is missing of tables, indexes, triggers, functions and types, and replaces
functions and triggers. It changes no column, constraint or index that is there under its name: those have statements
here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_COLUMN = re.compile(r"(?P<type>.+?)(?P<required> not null)?(?: default (?P<default>.+))?", re.DOTALL)


@dataclass(frozen=True)
class Repairs:
    """What `migrate` does beside applying schema.sql."""

    names: tuple[str, ...]  # kind and name of each object, as the catalogue has them
    before: tuple[tuple[str, str], ...] = ()  # object and statement: what schema.sql relies on
    after: tuple[tuple[str, str], ...] = ()  # likewise: what relies on schema.sql


def plan_repairs(missing: Mapping[str, str], replaced: Mapping[str, str]) -> Repairs:
    """For objects by kind and name, with the form that they should have; `replaced` ones differ from it."""
    before = [(name, _add_column(name, form)) for name, form in missing.items() if name.startswith("column ")]
    constraints = [(name, form) for name, form in missing.items() if name.startswith("constraint ")]
    constraints.sort(
        key=lambda constraint: constraint[1].startswith("FOREIGN KEY")
    )  # after the keys that they refer to
    after = [(name, _add_constraint(name, form)) for name, form in constraints]
    return Repairs((*missing, *replaced), tuple(before), tuple(after))


def change_statement(name: str, found: str, form: str) -> str | None:
    """What turns a column, constraint, index or type that differs into that of schema.sql; None: no statement does."""
    kind, table, member = _parts(name)
    if kind == "column":
        return _change_column(table, member, found, form)
    if kind == "constraint":
        return f"ALTER TABLE {table} DROP CONSTRAINT {member}; ALTER TABLE {table} ADD CONSTRAINT {member} {form}"
    if kind == "index":
        return f"DROP INDEX {table}; {form}"
    if kind == "type" and set(found.split()) < set(form.split()):
        absent = [label for label in form.split() if label not in found.split()]
        return "; ".join(f"ALTER TYPE {table} ADD VALUE '{label}'" for label in absent)
    return None


def enable_statement(name: str) -> str:
    """For an index that is not valid, or a trigger that is not enabled."""
    kind, table, member = _parts(name)
    return f"REINDEX INDEX CONCURRENTLY {table}" if kind == "index" else f"ALTER TABLE {table} ENABLE TRIGGER {member}"


def drop_statement(name: str) -> str:
    """For an index or a trigger that is not ours."""
    kind, table, member = _parts(name)
    return f"DROP INDEX {table}" if kind == "index" else f"DROP TRIGGER {member} ON {table}"


def within_schema(statements: str, schema: str) -> str:
    """Statements that name their objects without a schema, for a session of any search_path."""
    return statements if schema == "public" else f"SET search_path TO {quoted(schema)}; {statements}"


def quoted(name: str) -> str:
    """An identifier as SQL has it, in quotation marks only where it needs them."""
    return name if re.fullmatch(r"[a-z_][a-z0-9_]*", name) else '"' + name.replace('"', '""') + '"'


def _parts(name: str) -> tuple[str, str, str]:
    kind, _, rest = name.partition(" ")
    table, _, member = rest.partition(".")
    return kind, table, member


def _add_column(name: str, form: str) -> str:
    _, table, member = _parts(name)
    return f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {member} {form}"


def _add_constraint(name: str, form: str) -> str:
    _, table, member = _parts(name)
    return (
        f"DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_constraint WHERE conname = '{member}'"
        f" AND conrelid = to_regclass('{table}')) THEN"
        f" ALTER TABLE {table} ADD CONSTRAINT {member} {form}; END IF; END $$"
    )


def _change_column(table: str, member: str, found: str, form: str) -> str:
    there, wanted = _COLUMN.fullmatch(found), _COLUMN.fullmatch(form)
    assert there is not None  # noqa: S101 - the pattern fits any text
    assert wanted is not None  # noqa: S101 - likewise
    changes = ", ".join(f"ALTER COLUMN {member} {change}" for change in _column_changes(member, there, wanted))
    return f"ALTER TABLE {table} {changes}"


def _column_changes(member: str, there: re.Match[str], wanted: re.Match[str]) -> Iterator[str]:
    retyped = there["type"] != wanted["type"]
    if there["default"] and (retyped or not wanted["default"]):
        yield "DROP DEFAULT"  # else the server would have to convert it as well
    if retyped:
        yield f"TYPE {wanted['type']} USING {member}::{wanted['type']}"
    if wanted["default"] and (retyped or there["default"] != wanted["default"]):
        yield f"SET DEFAULT {wanted['default']}"
    if bool(there["required"]) != bool(wanted["required"]):
        yield "SET NOT NULL" if wanted["required"] else "DROP NOT NULL"
