"""The orders in which an upgrade may happen. Each is a list of acts at moments of the campaign."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.rehearsal.rehearsal import Rehearsal

Act = Callable[["Rehearsal"], None]


@dataclass(frozen=True)
class Order:
    text: str
    acts: Sequence[tuple[float, Act]]  # when, as a share of the campaign's time
    ends_with: Sequence[str]  # the releases whose processes are live at the end


def _migrate(release: str) -> Act:
    return lambda rehearsal: rehearsal.migrate(release)


def _replace(release: str, *numbers: int) -> Act:
    return lambda rehearsal: rehearsal.replace(release, numbers)


def _refuse(release: str) -> Act:
    return lambda rehearsal: rehearsal.expect_refused(release)


_ALL = (0, 1, 2, 3)  # of the campaign: three workers, and gunicorn with workers of its own
_ONE_BY_ONE = [0.3, 0.4, 0.5, 0.6]
ORDERS: Mapping[str, Order] = {
    "migrate-first": Order(
        "migrate, then replace one process after the other",
        [(0.15, _migrate("next")), *((at, _replace("next", n)) for n, at in enumerate(_ONE_BY_ONE))],
        ["next"],
    ),
    "workers-first": Order(
        "the tables change: new processes refuse to start; they do not: replace all, and migrate afterwards",
        [
            (0.1, _refuse("next")),
            (0.2, _replace("same_tables", 0, 1)),
            (0.4, _replace("same_tables", 2, 3)),
            (0.7, _migrate("same_tables")),
        ],
        ["same_tables"],
    ),
    "mixed": Order(
        "migrate, and let both releases work until the end",
        [(0.05, _migrate("next")), (0.1, _replace("next", 1, 3))],
        ["this", "next"],
    ),
    "rolled-back": Order(
        "migrate, replace all, and go back to the release before on the new tables",
        [
            (0.1, _migrate("next")),
            (0.2, _replace("next", *_ALL)),
            (0.55, _migrate("this")),  # as a deployment of it would: it changes nothing
            (0.6, _replace("this", *_ALL)),
        ],
        ["this"],
    ),
}
