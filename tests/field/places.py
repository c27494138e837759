"""The list of places in which the first hour runs, and what may be missing there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.field.deployment import Deployment

if TYPE_CHECKING:
    from tests.field.ground import Ground

# What a place may miss under CI=true without failing there. Keep it short: every line is something that no one tries.
ALLOWED_SKIPS: dict[str, str] = {}


class Unavailable(Exception):
    """The real thing that a place needs is not here; the message says what, and how to get it."""


@dataclass(frozen=True)
class Place:
    name: str
    title: str
    in_ci: bool
    open: Callable[[Ground], AbstractContextManager[Deployment]]


PLACES: dict[str, Place] = {}


def place(name: str, title: str, *, in_ci: bool = False) -> Callable[[Callable[[Ground], Iterator[Deployment]]], None]:
    """Add a place: a generator that prepares it, yields the deployment, and clears it away."""

    def add(function: Callable[[Ground], Iterator[Deployment]]) -> None:
        assert name not in PLACES, name
        PLACES[name] = Place(name, title, in_ci, contextmanager(function))

    return add


def selected_places(selection: str) -> list[Place]:
    """Return the places of `PLACES=…`: names, `ci` for those of each push, all without a name."""
    names = selection.replace(",", " ").split()
    unknown = sorted(set(names) - set(PLACES) - {"ci"})
    if unknown:
        raise ValueError(f"PLACES: unknown {', '.join(unknown)}; expected some of: ci, {', '.join(PLACES)}")
    return [one for one in PLACES.values() if not names or one.name in names or ("ci" in names and one.in_ci)]


def is_ci() -> bool:
    return os.environ.get("CI") == "true"


def needs_root(what: str) -> None:
    if os.getuid() != 0:
        raise Unavailable(f"needs root, to {what}")


def needs_program(path: str | None, package: str) -> Path:
    if path is None:
        raise Unavailable(f"needs {package}: apt-get install {package}")
    return Path(path)
