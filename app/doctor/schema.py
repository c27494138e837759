"""Rights on the tables, and whether they are what schema.sql makes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files

from app.doctor.findings import Finding, error, info, ok, warning
from app.queue.examination import Thing
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


def judge_rights(missing: Mapping[str, str], user: str) -> Iterator[Finding]:
    for what, rights in missing.items():
        kind, _, name = what.rpartition(" ")
        grant = f"GRANT {rights} ON {kind.upper() + ' ' if kind else ''}{name} TO {user}"
        say = error if kind or name in CORE else warning
        yield say("rights", f"{user} lacks {rights} on {what}", grant, missing=rights, on=what)
    if not missing:
        yield ok("rights", f"{user} may do what the service does")


def judge_schema(
    found: Mapping[str, Thing], made: Mapping[str, str], stand: Callable[[], Stand | None]
) -> Iterator[Finding]:
    if not any(name.startswith("table ") for name in found):
        yield error("schema", "there are no tables", "dataloader migrate")
        return
    version = stand() if "table dl_schema" in found else None
    if version is not None and version.newer:
        yield _newer(version)
        return
    drift = [*_missing(found, made), *_changed(found, made)]
    yield from drift[:_MANY]
    if len(drift) > _MANY:
        yield error(
            "schema",
            f"and {counted(len(drift) - _MANY, 'more difference')}",
            "dataloader migrate",
            more=len(drift) - _MANY,
        )
    faults = list(_faults(found))
    yield from faults
    yield from _others(found, made)
    if not drift and not faults:
        yield ok("schema", f"{len(made)} columns, indexes, triggers and functions are what schema.sql makes")


def _newer(stand: Stand) -> Finding:
    """What another version has made on purpose is no drift."""
    told = f"the tables are of version {stand.version}, newer than this dataloader's {SCHEMA_VERSION}"
    if not stand.serves:
        return error("schema", f"{told}, and do not serve it", "upgrade dataloader", version=stand.version)
    said = f"{told}; they serve it as well, and are not compared with its schema.sql"
    return info("schema", said, "ask the doctor of the newer version", version=stand.version)


def _missing(found: Mapping[str, Thing], made: Mapping[str, str]) -> Iterator[Finding]:
    lost = {name.removeprefix("table ") for name in made if name.startswith("table ") and name not in found}
    for name in made:
        kind, _, rest = name.partition(" ")
        if name in found or (kind != "table" and rest.partition(".")[0] in lost):
            continue
        yield error("schema", f"the {name} is missing", "dataloader migrate", name=name)


def _changed(found: Mapping[str, Thing], made: Mapping[str, str]) -> Iterator[Finding]:
    for name, form in made.items():
        there = found.get(name)
        if there is None or there.form == form:
            continue
        kind = name.partition(" ")[0]
        remedy = (
            "dataloader migrate"
            if kind in ("function", "trigger")
            else "put it back by hand: migrate adds, and changes no type"
        )
        told = f"the {name} is not the one of schema.sql"
        if kind != "function":
            told += f": found {there.form!r}, not {form!r}"
        yield error("schema", told, remedy, name=name, found=there.form, expected=form)


def _faults(found: Mapping[str, Thing]) -> Iterator[Finding]:
    for name, thing in found.items():
        if thing.fault is None:
            continue
        kind, _, rest = name.partition(" ")
        remedy = {
            "index": f"REINDEX INDEX CONCURRENTLY {rest}, or DROP INDEX {rest} if it is not ours",
            "trigger": " ".join(["ALTER TABLE", rest.partition(".")[0], "ENABLE TRIGGER", rest.partition(".")[2]]),
        }[kind]
        yield error("schema", f"the {name} {thing.fault}", remedy, name=name)


def _others(found: Mapping[str, Thing], made: Mapping[str, str]) -> Iterator[Finding]:
    """Each index and trigger that somebody else has added is paid for by each job."""
    for name in found:
        if name not in made and name.partition(" ")[0] in ("index", "trigger"):
            yield info(
                "schema", f"the {name} is not ours", "drop it, if nobody needs it: each job pays for it", name=name
            )
