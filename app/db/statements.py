"""The statements of the .sql files under app/, by name.

A statement is sent as text, which the server parses and plans each time. Those that every job meets, and those of idle
processes, are prepared once a connection and executed by name: half the server's time or less, and one generic plan
whatever the length of an array.

The actor of a thread's changes is a setting of each of its transactions, which the triggers that write dl_audit read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from dataloader.app.db.job_field_lists import fill_lists
from dataloader.pipelines.json_values import sanitize_text

_APP = Path(__file__).parents[1]
_FOLDERS = ("db", "queue", "state", "acts", "http/auth", "features/*")
_DEFINITION = re.compile(r"^-- define: (\w+)\n(.*?)(?=^-- (?:define|name): |\Z)", re.MULTILINE | re.DOTALL)
_INCLUDE = re.compile(r"^ *-- include: (\w+)(;?)$", re.MULTILINE)
_PREPARED = "\n-- prepared\n"  # below the name
_NAME_LINE = re.compile(r"^-- name: (\w+)(?: = (\w+(?: \+ \w+)*))?$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*$|\s+-- .*$", re.MULTILINE)
_PARAMETER = re.compile(r"%\((\w+)\)s")
_OUR_NAME = re.compile(r"(?<!['\w.])(dl_[a-z_]+)\b(?!')")


class Executor(Protocol):
    """What executes statements by name: a Pool, a Session, a CallersPool or a BorrowedConnection."""

    schema: str

    def execute(self, name: str, parameters: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]: ...


@runtime_checkable
class Transactional(Protocol):
    """An executor that can execute several statements as one transaction: a Pool or a CallersPool."""

    def transaction(self) -> AbstractContextManager[Executor]: ...


def open_transaction(executor: Executor) -> AbstractContextManager[Executor]:
    """Return an executor of one transaction, which commits at the end of the block; an error rolls it back."""
    if not isinstance(executor, Transactional):
        raise TypeError(f"{type(executor).__name__} executes each statement as a transaction of its own")
    return executor.transaction()


@dataclass(frozen=True)
class StatementPart:
    text: str  # with %(name)s parameters

    @cached_property
    def name(self) -> str:
        """The name it is prepared under, made of its text: a session behind a pooler may have one of another schema."""
        return f"dl_{sha256(self.text.encode()).hexdigest()[:16]}"

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The parameters' names, each once, in the order of $1, $2 …"""
        return tuple(dict.fromkeys(_PARAMETER.findall(self.text)))

    @cached_property
    def prepare(self) -> str:
        numbers = {parameter: f"${n}" for n, parameter in enumerate(self.parameters, 1)}
        return f"PREPARE {self.name} AS " + _PARAMETER.sub(lambda match: numbers[match[1]], self.text)

    @cached_property
    def execute(self) -> str:
        arguments = ", ".join(f"%({parameter})s" for parameter in self.parameters)
        return f"EXECUTE {self.name}" + (f"({arguments})" if arguments else "")


@dataclass(frozen=True)
class Statement:
    name: str
    parts: tuple[StatementPart, ...]
    summands: tuple[str, ...] = ()  # the statements that it is composed of, which may be in other files
    # Whether a session prepares it: planning would be most of what it costs. Such are the statements of every job, and
    # those that processes repeat while nothing happens.
    is_prepared: bool = False

    @cached_property
    def text(self) -> str:
        return ";\n".join(part.text for part in self.parts)

    @cached_property
    def execute(self) -> str:
        return "; ".join(part.execute for part in self.parts)


@cache
def statements(schema: str) -> Mapping[str, Statement]:
    """Return all statements, their tables qualified with the queue's schema: none relies on the search path."""
    by_name: dict[str, Statement] = {}
    files = (path for folder in _FOLDERS for path in _APP.glob(f"{folder}/*.sql") if path.name != "schema.sql")
    for path in sorted(files):
        of_file = parse_statements(path.read_text(encoding="utf-8"), schema)
        if duplicates := by_name.keys() & of_file.keys():
            raise ValueError(f"{path.name} repeats statement names of another file: {', '.join(sorted(duplicates))}")
        by_name.update(of_file)
    by_name = {name: _compose(statement, by_name) for name, statement in by_name.items()}
    return by_name


@cache
def combine(schema: str, names: tuple[str, ...]) -> Statement:
    """Return one statement whose row has the single values of these."""
    columns = ", ".join(f"({statements(schema)[name].text})" for name in names)
    return Statement(" ".join(names), (StatementPart(f"SELECT {columns}"),), is_prepared=True)


def qualify(schema: str, name: str) -> str:
    return '"' + schema.replace('"', '""') + f'".{name}'


def parse_statements(text: str, schema: str) -> Mapping[str, Statement]:
    """Parse a file: `-- name: a` is followed by `-- prepared` where it is, and by its parts; `-- name: a = b + c` names
    what it is composed of. What follows `-- define: d` replaces the lines `-- include: d` of the file's statements."""
    pieces = _NAME_LINE.split(fill_lists(_include_definitions(text)))[1:]
    by_name: dict[str, Statement] = {}
    for name, summands, body in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
        sql = _OUR_NAME.sub(lambda match: qualify(schema, match[1]), _COMMENT.sub("", body))
        parts = tuple(StatementPart(part.strip()) for part in sql.split(";") if part.strip())
        composed_of = tuple(summands.split(" + ")) if summands else ()
        by_name[name] = Statement(name, parts, composed_of, is_prepared=body.startswith(_PREPARED))
    return by_name


def _include_definitions(text: str) -> str:
    definitions = {name: definition.rstrip() for name, definition in _DEFINITION.findall(text)}
    return _INCLUDE.sub(lambda match: definitions[match[1]] + match[2], _DEFINITION.sub("", text))


def _compose(statement: Statement, by_name: Mapping[str, Statement]) -> Statement:
    parts = tuple(part for summand in statement.summands for part in by_name[summand].parts)
    return replace(statement, parts=parts, summands=()) if parts else statement


_encode_json = json.JSONEncoder(ensure_ascii=False).encode
_MAX_VALUE_LENGTH = 500
_CONTEXT: ContextVar[str | None] = ContextVar("audit context", default=None)  # a new thread has none


@dataclass(frozen=True, kw_only=True)
class AuditContext:
    action: str
    actor: str  # the name of the API key; of a command, the account
    via: str  # key | session | loopback | none | command
    key_id: str | None = None
    address: str | None = None
    request_id: str | None = None

    def to_dict(self) -> dict[str, str | None]:
        return {name: value and sanitize_text(value, _MAX_VALUE_LENGTH) for name, value in vars(self).items()}


@contextmanager
def acting_as(context: AuditContext) -> Iterator[None]:
    """Attribute the changes of this thread to the actor."""
    token = _CONTEXT.set(_encode_json(context.to_dict()))
    try:
        yield
    finally:
        _CONTEXT.reset(token)


def with_audit_setting(text: str, parameters: Mapping[str, Any] | None) -> tuple[str, Mapping[str, Any] | None]:
    """Put the setting in front of a message with parameters; those without change no rows."""
    context = _CONTEXT.get()
    if context is None or parameters is None:
        return text, parameters
    return f"SET LOCAL dl.audit_context = %(audit_context)s;\n{text}", {**parameters, "audit_context": context}
