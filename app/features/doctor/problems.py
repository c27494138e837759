"""The part of the overview: the errors that the checks of the queue find."""

from __future__ import annotations

from collections.abc import Iterator

from dataloader.app.acts.service_problems import Problem
from dataloader.app.acts.shared_reads import SharedReads
from dataloader.app.db.statements import Executor
from dataloader.app.features.doctor.facts import DatabaseFacts
from dataloader.app.features.doctor.findings import Finding, Severity
from dataloader.app.features.doctor.queue import check_queue
from dataloader.app.ui.formatter import Formatter

_MAX_READY_READ = 20  # jobs of a queue whose tasks are looked at


def read_errors(executor: Executor) -> list[Finding]:
    """The errors of the queue, without those of locks."""
    facts = DatabaseFacts(executor).queue(max_ready=_MAX_READY_READ)
    return [finding for finding in check_queue(facts) if finding.severity is Severity.ERROR]


def doctor_problems(reads: SharedReads) -> Iterator[Problem]:
    """One for each error; of one subject, if the error is about one alone."""
    for error in reads.get(read_errors):
        is_of_one = len(error.subjects) == 1
        yield Problem(
            kind=error.check.replace("_", " "),
            subject=error.subjects[0] if is_of_one else ("doctor", error.check),
            state="alert",
            before=f"{error.message[:1].upper()}{Formatter.shorten(error.message[1:])}",
            repeats=frozenset((subject, error.check) for subject in error.subjects),
            others=(error.remedy,),
        )
