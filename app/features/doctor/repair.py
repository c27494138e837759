"""SQL that restores single objects of the schema to those of schema.sql.

`migrate` restores missing objects, and functions and triggers that differ. An operator changes a column, constraint or
index that differs: the doctor prints the statement.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from dataloader.app.db.schema_statements import Repair, quote_identifier, schema_statements

_COLUMN = re.compile(r"(?P<type>.+?)(?P<required> not null)?(?: default (?P<default>.+))?", re.DOTALL)


def plan_repairs(missing: Mapping[str, str], replaced: Mapping[str, str], text: str) -> list[Repair]:
    """Repairs of the objects in the order in which they can be applied; `replaced` ones are there and differ.

    `text` is schema.sql. Objects are named by kind and name, with the definition that they should have.
    """
    made = schema_statements(text)
    names = {name.partition("(")[0]: name for name in (*missing, *replaced)}
    lost_tables = {name.removeprefix("table ") for name in missing if name.startswith("table ")}
    types = [
        Repair(s.object_name, s.text) for s in made if s.object_name in names and s.object_name.startswith("type ")
    ]
    columns = [
        Repair(name, f"ALTER TABLE {_split_name(name)[1]} ADD COLUMN {_split_name(name)[2]} {form}")
        for name, form in missing.items()
        if name.startswith("column ")
    ]
    objects = [
        Repair(names.get(s.object_name, s.object_name), s.text)
        for s in made
        if s.table in lost_tables
        or (s.object_name in names and s.object_name.partition(" ")[0] in ("function", "index", "trigger"))
    ]
    constraints = [(name, form) for name, form in missing.items() if name.startswith("constraint ")]
    constraints.sort(key=lambda item: item[1].startswith("FOREIGN KEY"))  # after the keys that they refer to
    # PUBLIC may execute a function that was created again: those with the owner's rights must not stay so.
    rights = [Repair("rights to functions", s.text) for s in made if s.text.startswith("REVOKE")]
    return [
        *types,
        *columns,
        *objects,
        *(
            Repair(name, f"ALTER TABLE {_split_name(name)[1]} ADD CONSTRAINT {_split_name(name)[2]} {form}")
            for name, form in constraints
        ),
        *(rights if any(name.startswith("function ") for name in missing) else ()),
    ]


def change_statement(name: str, actual: str, expected: str) -> str | None:
    """The SQL that changes a column, constraint, index or type to that of schema.sql; None: no statement can."""
    kind, table, member = _split_name(name)
    if kind == "column":
        changes = ", ".join(f"ALTER COLUMN {member} {change}" for change in _column_changes(member, actual, expected))
        return f"ALTER TABLE {table} {changes}"
    if kind == "constraint":
        return f"ALTER TABLE {table} DROP CONSTRAINT {member}; ALTER TABLE {table} ADD CONSTRAINT {member} {expected}"
    if kind == "index":
        return f"DROP INDEX {table}; {expected}"
    if kind == "type" and expected.startswith("("):
        # CASCADE drops the function that returns it; `migrate` restores that.
        return f"DROP TYPE {table} CASCADE; CREATE TYPE {table} AS {expected}"
    if kind == "type" and set(actual.split()) < set(expected.split()):
        absent = [label for label in expected.split() if label not in actual.split()]
        return "; ".join(f"ALTER TYPE {table} ADD VALUE '{label}'" for label in absent)
    return None


def enable_statement(name: str) -> str:
    """For an index that is not valid, or a trigger that is not enabled."""
    kind, table, member = _split_name(name)
    return f"REINDEX INDEX CONCURRENTLY {table}" if kind == "index" else f"ALTER TABLE {table} ENABLE TRIGGER {member}"


def drop_statement(name: str) -> str:
    """For an index or a trigger that schema.sql does not have."""
    kind, table, member = _split_name(name)
    return f"DROP INDEX {table}" if kind == "index" else f"DROP TRIGGER {member} ON {table}"


def with_search_path(statements: str, schema: str) -> str:
    """The statements for a session with any search_path."""
    return statements if schema == "public" else f"SET search_path TO {quote_identifier(schema)}; {statements}"


def _split_name(name: str) -> tuple[str, str, str]:
    kind, _, rest = name.partition(" ")
    table, _, member = rest.partition(".")
    return kind, table, member


def _column_changes(member: str, actual: str, expected: str) -> Iterator[str]:
    current, wanted = _COLUMN.fullmatch(actual), _COLUMN.fullmatch(expected)
    assert current is not None  # noqa: S101 - the pattern matches any text
    assert wanted is not None  # noqa: S101 - likewise
    is_retyped = current["type"] != wanted["type"]
    if current["default"] and (is_retyped or not wanted["default"]):
        yield "DROP DEFAULT"  # else the server would have to convert it as well
    if is_retyped:
        yield f"TYPE {wanted['type']} USING {member}::{wanted['type']}"
    if wanted["default"] and (is_retyped or current["default"] != wanted["default"]):
        yield f"SET DEFAULT {wanted['default']}"
    if bool(current["required"]) != bool(wanted["required"]):
        yield "SET NOT NULL" if wanted["required"] else "DROP NOT NULL"
