"""The roles of the queue's database, as SQL that the owner of the tables reads and runs."""

from __future__ import annotations

from importlib.resources import files

from dataloader.app.db.rights import rights_comment, service_rights_sql

ROLE_NAMES = ("service", "reader", "enqueuer")


def roles_sql(schema: str = "public", *, prefix: str = "dataloader") -> str:
    """Three roles, `<prefix>_service`, `_reader` and `_enqueuer`, and what each may do in this schema."""
    text = files(__package__).joinpath("roles.sql").read_text(encoding="utf-8")
    text = text.replace("{feature_rights}", rights_comment("{service}"))
    text = text.replace("{service_rights}", service_rights_sql())
    text = text.replace("{schema}", _quote(schema)).replace("{schema_text}", _quote(_quote(schema), "'"))
    for name in ROLE_NAMES:
        role = f"{prefix}_{name}"
        text = text.replace(f"{{{name}}}", _quote(role)).replace(f"{{{name}_text}}", _quote(role, "'"))
    return text


def _quote(text: str, mark: str = '"') -> str:
    return mark + text.replace(mark, 2 * mark) + mark
