"""The statements of this room's .sql files, by name, in the two forms a connection can send them.

A pooled connection sends a statement's text. A session prepares each part once and sends `EXECUTE`s: the server then
neither parses nor plans, which is 1.6 times as fast for the statements that a job meets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)(?: = (\w+(?: \+ \w+)*))?$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*$|\s+-- .*$", re.MULTILINE)
_PARAMETER = re.compile(r"%\((\w+)\)s")
_OURS = re.compile(r"(?<!['\w.])(dl_[a-z_]+)\b(?!')")


@dataclass(frozen=True)
class Part:
    name: str  # as it is prepared; the same in whatever statement it stands
    text: str  # with %(name)s parameters
    parameters: tuple[str, ...]  # each once, in the order of $1, $2 …

    def prepare(self, name: str | None = None) -> str:
        numbers = {parameter: f"${n}" for n, parameter in enumerate(self.parameters, 1)}
        return f"PREPARE {name or self.name} AS " + _PARAMETER.sub(lambda m: numbers[m[1]], self.text)

    def execute(self, name: str | None = None) -> str:
        return f"EXECUTE {name or self.name}" + self._given(f"%({parameter})s" for parameter in self.parameters)

    @property
    def plan(self) -> str:
        """Has the server make its plan and look up what it needs for it, and run nothing."""
        return f"EXPLAIN (COSTS OFF) EXECUTE {self.name}" + self._given("NULL" for _ in self.parameters)

    def _given(self, values: Iterable[str]) -> str:
        return f"({', '.join(values)})" if self.parameters else ""


@dataclass(frozen=True)
class Statement:
    name: str
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        return ";\n".join(part.text for part in self.parts)

    @property
    def hasty(self) -> bool:
        """It sets its own time limits, and they must hold from its first word on: preparing it may wait for a lock."""
        return "'lock_timeout'" in self.parts[0].text

    @property
    def execute(self) -> str:
        return "; ".join(part.execute() for part in self.parts)


@cache
def statements(schema: str) -> Mapping[str, Statement]:
    """All statements, their tables qualified with the schema that holds the queue: no search path is relied on."""
    found: dict[str, Statement] = {}
    for file in sorted(files(__package__).iterdir(), key=lambda file: file.name):
        if file.name.endswith(".sql"):
            here = read(file.read_text(encoding="utf-8"), schema)
            if twice := found.keys() & here.keys():
                raise ValueError(f"{file.name} names again what another file has: {', '.join(sorted(twice))}")
            found.update(here)
    return found


def qualified(schema: str, name: str) -> str:
    return '"' + schema.replace('"', '""') + f'".{name}'


def read(text: str, schema: str) -> Mapping[str, Statement]:
    """A name alone is followed by its parts; a name that equals a sum has those of others, in one message."""
    pieces = _NAME.split(text)[1:]
    found: dict[str, Statement] = {}
    for name, summands, body in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
        if summands is not None:
            found[name] = Statement(name, tuple(part for one in summands.split(" + ") for part in found[one].parts))
            continue
        sql = _OURS.sub(lambda m: qualified(schema, m[1]), _COMMENT.sub("", body))
        parts = [part.strip() for part in sql.split(";") if part.strip()]
        found[name] = Statement(
            name,
            tuple(
                Part(f"dl_{name}_{n}", part, tuple(dict.fromkeys(_PARAMETER.findall(part))))
                for n, part in enumerate(parts)
            ),
        )
    return found
