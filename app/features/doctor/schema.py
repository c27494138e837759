"""Checks the rights on the tables, and compares the schema with schema.sql."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files

from dataloader._distribution import NAME
from dataloader.app.acts.findings import Finding, error, info, ok, warning
from dataloader.app.db.rights import service_rights
from dataloader.app.db.schema import SCHEMA_VERSION, SchemaVersion, schema_text
from dataloader.app.db.schema_statements import Repair, quote_identifier
from dataloader.app.features.doctor.facts import SchemaObject
from dataloader.app.features.doctor.repair import (
    change_statement,
    drop_statement,
    enable_statement,
    plan_repairs,
    with_search_path,
)
from dataloader.app.wording import format_count

EXPECTED_SCHEMA_FILE = "catalogue.json"
_MAX_DIFFERENCES_SHOWN = 12
# Without a right to these, no job runs; a missing right to another table disables one feature.
CORE_TABLES = frozenset(
    {"dl_jobs", "dl_job_events", "dl_job_logs", "dl_workers", "dl_queues", "dl_webhooks", "dl_schema"}
)


def expected_schema() -> dict[str, str]:
    """The definitions of the objects that schema.sql creates, by kind and name."""
    text = (files(__package__) / EXPECTED_SCHEMA_FILE).read_text(encoding="utf-8")
    definitions: dict[str, str] = json.loads(text)
    return definitions


def required_rights() -> list[tuple[str, str]]:
    return [(table, right) for table, rights in service_rights().items() for right in rights.split(", ")]


def check_rights(missing: Mapping[str, str], user: str, schema: str) -> Iterator[Finding]:
    for item, rights in missing.items():
        kind, _, name = item.rpartition(" ")
        grant = f"GRANT {rights} ON {kind.upper() + ' ' if kind else ''}{name} TO {quote_identifier(user)}"
        grant = with_search_path(grant, schema)
        report = error if kind or name in CORE_TABLES else warning
        yield report("rights", f"{user} lacks {rights} on {item}", grant, missing=rights, on=item)
    if not missing:
        yield ok("rights", f"{user} has the rights that the service needs")


def check_schema(
    actual: Mapping[str, SchemaObject],
    expected: Mapping[str, str],
    read_version: Callable[[], SchemaVersion | None],
    schema: str,
) -> Iterator[Finding]:
    if not any(name.startswith("table ") for name in actual):
        yield error("schema", "there are no tables", "dataloader migrate")
        return
    version = read_version() if "table dl_schema" in actual else None
    if version is not None and version.is_newer:
        yield _newer_version_finding(version)
        return
    drift = [*_check_missing(actual, expected), *_check_changed(actual, expected, schema)]
    yield from drift[:_MAX_DIFFERENCES_SHOWN]
    if len(drift) > _MAX_DIFFERENCES_SHOWN:
        yield error(
            "schema",
            f"and {format_count(len(drift) - _MAX_DIFFERENCES_SHOWN, 'more difference')}",
            "dataloader migrate, and then dataloader doctor for what is left",
            more=len(drift) - _MAX_DIFFERENCES_SHOWN,
        )
    problems = list(_check_states(actual, schema))
    yield from problems
    yield from _check_foreign_objects(actual, expected, schema)
    if not drift and not problems:
        yield ok("schema", f"{len(expected)} columns, indexes, triggers, functions and types are those of schema.sql")


def _newer_version_finding(recorded: SchemaVersion) -> Finding:
    """The changes of a newer version are not drift."""
    message = f"the tables are of version {recorded.version}, newer than this dataloader's {SCHEMA_VERSION}"
    if not recorded.is_compatible:
        message = f"{message}, and not compatible with it"
        return error("schema", message, f"pip install --upgrade {NAME}", version=recorded.version)
    message = f"{message}; they are compatible with it, and are not compared with its schema.sql"
    return info("schema", message, "run the doctor of the newer version", version=recorded.version)


def find_repairs(actual: Mapping[str, SchemaObject], expected: Mapping[str, str]) -> list[Repair]:
    """The repairs that `dataloader migrate` applies."""
    missing = {name: expected[name] for name in _missing_names(actual, expected)}
    replaced = {
        name: definition
        for name, definition in expected.items()
        if _is_replaced(name) and name in actual and actual[name].definition != definition
    }
    repairs = plan_repairs(missing, replaced, schema_text()) if missing or replaced else []
    broken = (name for name in expected if name.startswith("index ") and name in actual and actual[name].problem)
    return [*repairs, *(Repair(name, enable_statement(name)) for name in broken)]


def _is_replaced(name: str) -> bool:
    """Whether `migrate` replaces it by that of schema.sql."""
    return name.partition(" ")[0] in ("function", "trigger")


def _missing_names(actual: Mapping[str, SchemaObject], expected: Mapping[str, str]) -> Iterator[str]:
    lost = {name.removeprefix("table ") for name in expected if name.startswith("table ") and name not in actual}
    for name in expected:
        kind, _, rest = name.partition(" ")
        if name not in actual and (kind == "table" or rest.partition(".")[0] not in lost):
            yield name


def _check_missing(actual: Mapping[str, SchemaObject], expected: Mapping[str, str]) -> Iterator[Finding]:
    for name in _missing_names(actual, expected):
        yield error("schema", f"the {name} is missing", "dataloader migrate", name=name)


def _check_changed(actual: Mapping[str, SchemaObject], expected: Mapping[str, str], schema: str) -> Iterator[Finding]:
    for name, definition in expected.items():
        found = actual[name].definition if name in actual else definition
        if found != definition:
            message = f"the {name} is not the one of schema.sql"
            message += "" if name.startswith("function ") else f": found {found!r}, not {definition!r}"
            remedy = _repair_remedy(name, found, definition, schema)
            yield error("schema", message, remedy, name=name, found=found, expected=definition)


def _repair_remedy(name: str, actual: str, expected: str, schema: str) -> str:
    if _is_replaced(name):
        return "dataloader migrate"
    statement = change_statement(name, actual, expected)
    if statement is None:
        return "no statement removes a value from a type: it does no harm while no row has it"
    return with_search_path(statement, schema)


def _check_states(actual: Mapping[str, SchemaObject], schema: str) -> Iterator[Finding]:
    for name, item in actual.items():
        if item.problem is not None:
            remedy = with_search_path(enable_statement(name), schema)
            yield error("schema", f"the {name} {item.problem}", remedy, name=name)


def _check_foreign_objects(
    actual: Mapping[str, SchemaObject], expected: Mapping[str, str], schema: str
) -> Iterator[Finding]:
    """Every job pays for each index and trigger that schema.sql does not have."""
    for name in actual:
        if name not in expected and name.partition(" ")[0] in ("index", "trigger"):
            remedy = with_search_path(drop_statement(name), schema)
            yield info("schema", f"the {name} is not of schema.sql, and every job pays for it", remedy, name=name)
