"""Rights on the tables, and whether they are what schema.sql makes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files

from app.doctor.findings import Finding, error, info, ok, warning
from app.queue.examination import Thing
from app.queue.repair import (
    Repairs,
    change_statement,
    drop_statement,
    enable_statement,
    plan_repairs,
    quoted,
    within_schema,
)
from app.queue.schema import SCHEMA_VERSION, Stand
from app.wording import counted

CATALOGUE = "catalogue.json"
_MANY = 12
_ALL = ("SELECT", "INSERT", "UPDATE", "DELETE")
# What the queue cannot do without; of the other tables each right that is missing costs one feature.
CORE: Mapping[str, tuple[str, ...]] = {
    "dl_jobs": ("SELECT", "INSERT", "UPDATE"),
    "dl_job_events": ("SELECT", "INSERT"),
    "dl_job_logs": ("SELECT", "INSERT"),
    "dl_workers": _ALL,
    "dl_queues": ("SELECT",),
    "dl_webhooks": ("SELECT",),
    "dl_schema": ("SELECT",),
}
_READ_ONLY = ("dl_schema",)


def expected() -> dict[str, str]:
    """What schema.sql makes, by kind and name."""
    text = (files(__package__) / CATALOGUE).read_text(encoding="utf-8")
    made: dict[str, str] = json.loads(text)
    return made


def wanted_rights(catalogue: Mapping[str, str]) -> list[tuple[str, str]]:
    tables = [name.removeprefix("table ") for name in catalogue if name.startswith("table ")]
    return [
        (table, right) for table in tables for right in (("SELECT",) if table in _READ_ONLY else CORE.get(table, _ALL))
    ]


def judge_rights(missing: Mapping[str, str], user: str, schema: str) -> Iterator[Finding]:
    for what, rights in missing.items():
        kind, _, name = what.rpartition(" ")
        grant = f"GRANT {rights} ON {kind.upper() + ' ' if kind else ''}{name} TO {quoted(user)}"
        grant = within_schema(grant, schema)
        say = error if kind or name in CORE else warning
        yield say("rights", f"{user} lacks {rights} on {what}", grant, missing=rights, on=what)
    if not missing:
        yield ok("rights", f"{user} may do what the service does")


def judge_schema(
    found: Mapping[str, Thing], made: Mapping[str, str], stand: Callable[[], Stand | None], schema: str
) -> Iterator[Finding]:
    if not any(name.startswith("table ") for name in found):
        yield error("schema", "there are no tables", "dataloader migrate")
        return
    version = stand() if "table dl_schema" in found else None
    if version is not None and version.newer:
        yield _newer(version)
        return
    drift = [*_missing(found, made), *_changed(found, made, schema)]
    yield from drift[:_MANY]
    if len(drift) > _MANY:
        yield error(
            "schema",
            f"and {counted(len(drift) - _MANY, 'more difference')}",
            "dataloader migrate, and then dataloader doctor for what is left",
            more=len(drift) - _MANY,
        )
    faults = list(_faults(found, schema))
    yield from faults
    yield from _others(found, made, schema)
    if not drift and not faults:
        yield ok("schema", f"{len(made)} columns, indexes, triggers and functions are what schema.sql makes")


def _newer(stand: Stand) -> Finding:
    """What another version has made on purpose is no drift."""
    told = f"the tables are of version {stand.version}, newer than this dataloader's {SCHEMA_VERSION}"
    if not stand.serves:
        return error(
            "schema", f"{told}, and do not serve it", "pip install --upgrade dataloader", version=stand.version
        )
    said = f"{told}; they serve it as well, and are not compared with its schema.sql"
    return info("schema", said, "ask the doctor of the newer version", version=stand.version)


def find_repairs(found: Mapping[str, Thing], made: Mapping[str, str]) -> Repairs | None:
    """What `dataloader migrate` has to put back; None: nothing."""
    missing = {name: made[name] for name in _missing_names(found, made)}
    replaced = {
        name: form for name, form in made.items() if _is_replaced(name) and name in found and found[name].form != form
    }
    return plan_repairs(missing, replaced) if missing or replaced else None


def _is_replaced(name: str) -> bool:
    """Whether schema.sql, applied again, replaces it."""
    return name.partition(" ")[0] in ("function", "trigger", "table")


def _missing_names(found: Mapping[str, Thing], made: Mapping[str, str]) -> Iterator[str]:
    lost = {name.removeprefix("table ") for name in made if name.startswith("table ") and name not in found}
    for name in made:
        kind, _, rest = name.partition(" ")
        if name not in found and (kind == "table" or rest.partition(".")[0] not in lost):
            yield name


def _missing(found: Mapping[str, Thing], made: Mapping[str, str]) -> Iterator[Finding]:
    for name in _missing_names(found, made):
        yield error("schema", f"the {name} is missing", "dataloader migrate", name=name)


def _changed(found: Mapping[str, Thing], made: Mapping[str, str], schema: str) -> Iterator[Finding]:
    for name, form in made.items():
        there = found.get(name)
        if there is None or there.form == form:
            continue
        told = f"the {name} is not the one of schema.sql"
        if not name.startswith("function "):
            told += f": found {there.form!r}, not {form!r}"
        remedy = _restoring(name, there.form, form, schema)
        yield error("schema", told, remedy, name=name, found=there.form, expected=form)


def _restoring(name: str, found: str, form: str, schema: str) -> str:
    if _is_replaced(name):
        return "dataloader migrate"
    statement = change_statement(name, found, form)
    if statement is None:
        return "no statement takes a value from a type: it does no harm while no row has it"
    return within_schema(statement, schema)


def _faults(found: Mapping[str, Thing], schema: str) -> Iterator[Finding]:
    for name, thing in found.items():
        if thing.fault is not None:
            remedy = within_schema(enable_statement(name), schema)
            yield error("schema", f"the {name} {thing.fault}", remedy, name=name)


def _others(found: Mapping[str, Thing], made: Mapping[str, str], schema: str) -> Iterator[Finding]:
    """Each index and trigger that somebody else has added is paid for by each job."""
    for name in found:
        if name not in made and name.partition(" ")[0] in ("index", "trigger"):
            remedy = within_schema(drop_statement(name), schema)
            yield info("schema", f"the {name} is not ours, and each job pays for it", remedy, name=name)
