"""The problems of tasks of which many runs fail."""

from __future__ import annotations

from dataloader.app.features.failures.feature import FEATURE
from dataloader.app.state.statistics import PeriodStatistics, read_last_hour
from tests.support.problem_reads import read_problems


def test_tasks_that_fail_often_are_problems_the_worst_first():
    last_hour = {
        "well": PeriodStatistics(succeeded=9, failed=1, failure_rate=0.1),
        "idle": PeriodStatistics(),
        "fifth": PeriodStatistics(succeeded=8, failed=1, lost=1, canceled=5, failure_rate=0.2),
        "once": PeriodStatistics(failed=1, failure_rate=1.0),
    }

    found = read_problems({read_last_hour: last_hour}, [FEATURE])

    assert [(problem.subject, problem.after, problem.state) for problem in found] == [
        (("task", "once"), " failed in the last hour", "alert"),
        (("task", "fifth"), " failed 2 of 10 times in the last hour", "alert"),
    ]
    assert [act.path for problem in found for act in problem.acts] == ["/failures?task=once", "/failures?task=fifth"]
