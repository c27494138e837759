"""A mutant: one change of the protocol, in the processes under test alone. tests/chaos/mutants.py has the list."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_SCHEMA = Path(__file__).parents[2] / "schema.sql"
_NAME = re.compile(r"^(-- name: [^\n]*\n)", re.MULTILINE)


@dataclass(frozen=True)
class StatementEdit:
    """A change of one statement's text. `times`: how often the pattern must be found, at least."""

    statement: str
    pattern: str
    replacement: str
    min_matches: int = 1

    def applied(self, text: str) -> str:
        changed, found = re.subn(self.pattern, self.replacement, text)
        if found < self.min_matches:
            raise LookupError(
                f"{self.statement} has {found} of {self.min_matches} places like {self.pattern!r}: mend the mutant"
            )
        return changed


@dataclass(frozen=True)
class FunctionEdit:
    """A change of a function of schema.sql."""

    function: str
    pattern: str
    replacement: str
    more: Sequence[tuple[str, str]] = ()  # further patterns and replacements

    def statement(self) -> str:
        """The CREATE FUNCTION of the changed function; of a hook, that of the feature."""
        *_, text = re.findall(
            rf"^CREATE OR REPLACE FUNCTION {self.function}\(.*?^(?:END )?\$\$;$",
            _SCHEMA.read_text(encoding="utf-8"),
            re.MULTILINE | re.DOTALL,
        )
        for pattern, replacement in ((self.pattern, self.replacement), *self.more):
            text = StatementEdit(self.function, pattern, replacement).applied(text)
        return str(text)


@dataclass(frozen=True)
class Mutant:
    name: str
    description: str  # what is missing, in words
    scene: str
    edits: Sequence[StatementEdit] = ()
    patch: Callable[[], None] = lambda: None
    schema_changes: Sequence[str] = ()  # what is done to the tables, once they are there
    functions: Sequence[FunctionEdit] = ()
    server: Mapping[str, str] = field(default_factory=dict)  # settings of the server
    expects: Sequence[str] = ()  # the rules of which at least one must speak; none: the others do what this one did

    def apply(self) -> None:
        """In this process, for good."""
        patch_statements(self.edits)
        self.patch()


def patch_statements(edits: Sequence[StatementEdit]) -> None:
    from dataloader.app.db import statements as room

    read = room.parse_statements
    room.parse_statements = lambda text, schema: read(edit_statements(text, edits), schema)
    room.statements.cache_clear()


def edit_statements(text: str, edits: Sequence[StatementEdit]) -> str:
    """A file of statements with those changed that are in it; what is composed of them changes with them."""
    pieces = _NAME.split(text)
    for edit in edits:
        for n, piece in enumerate(pieces):
            if piece == f"-- name: {edit.statement}\n":
                pieces[n + 1] = edit.applied(pieces[n + 1])
    return "".join(pieces)


def replace_attribute(owner: Any, name: str, value: Any) -> Any:
    """Replace what `owner` itself has under the name, and return it: of a subclass its base would go on as before."""
    if name not in vars(owner):
        raise LookupError(f"{owner.__name__} has no {name}: mend the mutant")
    replaced = getattr(owner, name)
    setattr(owner, name, value)
    return replaced
