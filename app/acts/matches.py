"""What the search of the page header finds. `search` of a Feature names a function of a Site and a text that yields it.

For the command palette the text is empty: it is part of all names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dataloader.app.http.links import quote_name

MAX_NAMES = 500  # of a kind that a feature reads


@dataclass(frozen=True)
class Match:
    """Something that a search found."""

    kind: str
    title: str
    path: str
    is_exact: bool = True
    detail: str = ""


def match_names(kind: str, folder: str, names: Iterable[str], text: str) -> Iterator[Match]:
    """Those that are the text, or contain it. Their pages are at `folder` and the name."""
    for name in names:
        if text.lower() in name.lower():
            yield Match(kind, name, folder + quote_name(name), name == text)
