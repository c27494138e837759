"""Problems of the service: what a feature finds wrong with its subjects, and the overview shows.

`problems` of a Feature names a function of SharedReads that yields them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import Literal

from dataloader.app.acts.findings import Finding, Severity, Subject
from dataloader.app.ui.formatter import Formatter

MAX_OF_A_KIND = 20  # problems that a feature yields of one kind

State = Literal["alert", "warning"]


class Impact(IntEnum):
    """What a problem means for jobs. Among problems of the same state the first of these is shown first."""

    NO_PROCESS = 0  # the processes that run them are gone, or not well
    NOT_STARTED = 1  # a task is stopped
    WAITING = 2  # a queue does not move, or slowly
    NOT_MADE = 3
    FAILING = 4
    DELAYED = 5  # one runs, but not as it should
    OTHER = 6


@dataclass(frozen=True)
class ProblemAct:
    """What helps: a link, or with `fields` a form."""

    label: str
    path: str
    fields: dict[str, str] | None = None
    is_danger: bool = False


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is wrong with one subject. The sentence is `before`, the subject as a link, `after`; `others` are further
    facts about the same subject. A problem without acts gets the link to the page of its subject.

    `covers`: the kinds of alert rules and checks of doctor that say the same of the subject. `repeats`: what the
    problem says, as subjects and kinds; it is left out if other problems cover all of that. `alerts`: the kind and text
    of each alert that the problem consists of; to another problem of the subject it adds what that does not cover.

    The overview sets `link`, the page of the subject.
    """

    kind: str
    subject: Subject
    state: State = "warning"
    impact: Impact = Impact.OTHER
    before: str = ""
    after: str = ""
    task: str | None = None  # of a job
    since: datetime | None = None
    acts: tuple[ProblemAct, ...] = ()
    covers: frozenset[str] = frozenset()
    repeats: frozenset[tuple[Subject, str]] = frozenset()
    others: tuple[str, ...] = ()
    alerts: tuple[tuple[str, str], ...] = ()
    link: str | None = None
    is_handled: bool = False  # a person takes care of it


def problems_of(findings: Iterable[Finding]) -> Iterator[Problem]:
    """One for each error of doctor; of one subject, if the error is about one alone."""
    for error in findings:
        if error.severity is not Severity.ERROR:
            continue
        is_of_one = len(error.subjects) == 1
        yield Problem(
            kind=error.check.replace("_", " "),
            subject=error.subjects[0] if is_of_one else ("doctor", error.check),
            state="alert",
            before=f"{error.message[:1].upper()}{Formatter.shorten(error.message[1:])}",
            repeats=frozenset((subject, error.check) for subject in error.subjects),
            others=(error.remedy,),
        )
