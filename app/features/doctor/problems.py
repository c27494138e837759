"""The part of the overview: the errors that the checks of the queue find."""

from __future__ import annotations

from collections.abc import Iterator

from dataloader.app.acts.findings import Finding
from dataloader.app.acts.service_problems import Problem, problems_of
from dataloader.app.acts.shared_reads import SharedReads
from dataloader.app.db.statements import Executor
from dataloader.app.features.doctor.facts import DatabaseFacts
from dataloader.app.features.doctor.queue import check_queue

_MAX_READY_READ = 20  # jobs of a queue whose tasks are looked at


def read_findings(executor: Executor) -> list[Finding]:
    """Those of the queue, without those of locks."""
    return list(check_queue(DatabaseFacts(executor).queue(max_ready=_MAX_READY_READ)))


def doctor_problems(reads: SharedReads) -> Iterator[Problem]:
    return problems_of(reads.get(read_findings))
