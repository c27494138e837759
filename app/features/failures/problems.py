"""The part of the overview: tasks of which many runs fail."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from urllib.parse import urlencode

from dataloader.app.acts.service_problems import MAX_OF_A_KIND, Impact, Problem, ProblemAct
from dataloader.app.acts.shared_reads import SharedReads
from dataloader.app.state.statistics import read_last_hour
from dataloader.app.wording import format_count

_MAX_FAILURE_RATE = 0.2


def failure_problems(reads: SharedReads) -> Iterator[Problem]:
    by_task = reads.get(read_last_hour)
    failing = [(task, counts) for task, counts in by_task.items() if (counts.failure_rate or 0.0) >= _MAX_FAILURE_RATE]
    for task, counts in islice(sorted(failing, key=lambda pair: -(pair[1].failure_rate or 0.0)), MAX_OF_A_KIND):
        failed, runs = counts.failed + counts.lost, counts.finished - counts.canceled
        share = f" {failed} of {format_count(runs, 'time')}" if runs > 1 else ""
        yield Problem(
            kind="failing",
            subject=("task", task),
            impact=Impact.FAILING,
            state="alert",
            after=f" failed{share} in the last hour",
            acts=(ProblemAct("Failures", "/failures?" + urlencode({"task": task})),),
            covers=frozenset({"failure_rate"}),
        )


def count_of_last_hour(reads: SharedReads) -> int:
    return sum(counts.failed + counts.lost for counts in reads.get(read_last_hour).values())
