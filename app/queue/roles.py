"""The roles of the queue's database, as SQL for whoever owns it to read and to run."""

from __future__ import annotations

from importlib.resources import files

NAMES = ("service", "reader", "enqueuer")


def roles_text(schema: str = "public", *, prefix: str = "dataloader") -> str:
    """Three roles, `<prefix>_service`, `_reader` and `_enqueuer`, and what each may do in this schema."""
    text = files(__package__).joinpath("roles.sql").read_text(encoding="utf-8")
    text = text.replace("{schema}", _name(schema)).replace("{schema_text}", _text(_name(schema)))
    for name in NAMES:
        role = f"{prefix}_{name}"
        text = text.replace(f"{{{name}}}", _name(role)).replace(f"{{{name}_text}}", _text(role))
    return text


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
