"""The table and the export's fields, declared once. The SQL of the table and the reading of records follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class FieldKind(StrEnum):
    """What a field holds in JSON, and the type of its column."""

    TEXT = "text"
    INTEGER = "bigint"
    NUMBER = "numeric"
    BOOLEAN = "boolean"
    DAY = "date"  # 2024-01-31
    TIMESTAMP = "timestamptz"  # ISO 8601 or Unix; without a zone it is Moscow's time


@dataclass(frozen=True)
class Column:
    name: str
    kind: FieldKind
    key: bool = False
    field: str = ""  # the field's name in the export, where it is another than the column's

    @property
    def source(self) -> str:
        return self.field or self.name


SCHEMA = "opu"
TABLE = "opu.brief_digital_certificate_opu"

# The export's real fields are not public: these stand for them, with the right numbers of columns and of key columns.
COLUMNS: Sequence[Column] = (
    Column("opu_id", FieldKind.INTEGER, key=True),
    Column("region_code", FieldKind.TEXT, key=True),
    Column("field_code", FieldKind.TEXT, key=True),
    Column("object_code", FieldKind.TEXT, key=True),
    Column("section_code", FieldKind.TEXT, key=True),
    Column("indicator_code", FieldKind.TEXT, key=True),
    Column("period_start", FieldKind.DAY, key=True),
    Column("revision", FieldKind.INTEGER, key=True),
    Column("period_end", FieldKind.DAY),
    Column("certificate_number", FieldKind.TEXT),
    Column("opu_name", FieldKind.TEXT),
    Column("field_name", FieldKind.TEXT),
    Column("object_name", FieldKind.TEXT),
    Column("indicator_name", FieldKind.TEXT),
    Column("unit", FieldKind.TEXT),
    Column("plan_value", FieldKind.NUMBER),
    Column("fact_value", FieldKind.NUMBER),
    Column("forecast_value", FieldKind.NUMBER),
    Column("is_final", FieldKind.BOOLEAN),
    Column("status", FieldKind.TEXT),
    Column("author", FieldKind.TEXT),
    Column("note", FieldKind.TEXT),
    Column("changed_at", FieldKind.TIMESTAMP),
)


def create_statements(table: str = TABLE, columns: Sequence[Column] = COLUMNS) -> str:
    """The schema and the table. Names are ours, not a caller's: they need no quoting."""
    lines = [f"{column.name} {column.kind.value}{' NOT NULL' if column.key else ''}" for column in columns]
    lines.append(f"PRIMARY KEY ({', '.join(column.name for column in columns if column.key)})")
    body = ",\n    ".join(lines)
    return f"CREATE SCHEMA IF NOT EXISTS {SCHEMA};\nCREATE TABLE IF NOT EXISTS {table} (\n    {body}\n);\n"
