"""The statements of schema.sql, and the objects that they create."""

from __future__ import annotations

import re
from dataclasses import dataclass

_CREATED = re.compile(
    r"CREATE (?:OR REPLACE )?(?:UNIQUE |UNLOGGED |CONSTRAINT )?"
    r"(?P<kind>TABLE|INDEX|TRIGGER|FUNCTION|TYPE|SEQUENCE) (?P<name>\w+)"
)
_TABLE = re.compile(r"(?:\bON|\bPARTITION OF|INSERT INTO|OWNED BY) (?P<table>dl_\w+)")


@dataclass(frozen=True)
class SchemaStatement:
    """A statement of schema.sql."""

    text: str
    object_name: str  # kind and name of what it creates, without a function's arguments; "" if none
    table: str  # the table that it creates or belongs to; "" if none

    @property
    def is_replaceable(self) -> bool:
        """Whether it may be applied to tables that are there already."""
        return self.text.startswith(("CREATE OR REPLACE ", "REVOKE ", "GRANT ", "SELECT dl_create_partitions"))


@dataclass(frozen=True)
class Repair:
    """A statement that restores one object of the schema."""

    object_name: str  # kind and name, as in the catalogue
    statement: str


def split_statements(text: str) -> list[str]:
    """The statements of an SQL file: each ends with a semicolon at the end of a line, outside a function's body."""
    statements, lines, in_body = [], [], False
    for line in text.splitlines():
        code = re.sub(r"(^|\s)--.*", "", line)
        in_body ^= code.count("$$") % 2 == 1
        if code.strip() or in_body:
            lines.append(line)
        if code.rstrip().endswith(";") and not in_body:
            statements.append("\n".join(lines))
            lines = []
    return statements


def schema_statements(text: str) -> list[SchemaStatement]:
    """The statements of schema.sql that create its objects, without the transaction and the check around them."""
    return [
        _schema_statement(statement)
        for statement in split_statements(text)
        if not statement.startswith(("BEGIN", "COMMIT", "DO ", "SELECT set_config"))
    ]


def _schema_statement(text: str) -> SchemaStatement:
    created, related = _CREATED.match(text), _TABLE.search(text)
    kind, name = (created["kind"].lower(), created["name"]) if created else ("", "")
    table = related["table"] if related and kind != "function" else name if kind == "table" else ""
    return SchemaStatement(text, f"{kind} {table}.{name}" if kind == "trigger" else f"{kind} {name}".strip(), table)


def quote_identifier(name: str) -> str:
    """An SQL identifier, quoted only where it must be."""
    return name if re.fullmatch(r"[a-z_][a-z0-9_]*", name) else '"' + name.replace('"', '""') + '"'
