"""The roles of the queue's database, as SQL for whoever owns it to read and to run."""

from __future__ import annotations

from importlib.resources import files

ROLE_NAMES = ("service", "reader", "enqueuer")


def roles_sql(schema: str = "public", *, prefix: str = "dataloader") -> str:
    """Three roles, `<prefix>_service`, `_reader` and `_enqueuer`, and what each may do in this schema."""
    text = files(__package__).joinpath("roles.sql").read_text(encoding="utf-8")
    text = text.replace("{schema}", _quote_identifier(schema)).replace(
        "{schema_text}", _quote_literal(_quote_identifier(schema))
    )
    for name in ROLE_NAMES:
        role = f"{prefix}_{name}"
        text = text.replace(f"{{{name}}}", _quote_identifier(role)).replace(f"{{{name}_text}}", _quote_literal(role))
    return text


def _quote_identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _quote_literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
