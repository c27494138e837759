"""Leases and progress as a reader of the tables sees them."""

from __future__ import annotations

from uuid import uuid4

import pytest

from tests.chaos.history import ProgressRow


@pytest.mark.parametrize(
    ("words", "rules"),
    [(["acted"], {"trusted after reap"}), (["trusted"], {"trusted after reap"}), (["wrote", "ended"], set())],
)
def test_run_that_trusts_its_lease_after_a_reap_is_found(tale, words, rules):
    job = tale.job()
    run = tale.claim(job)
    tale.reap(job, run)
    for word in words:
        tale.report(job, run, word, after=0.4)
    tale.succeed(job, tale.claim(job, 2), 2)

    assert tale.violated_rules() == rules


@pytest.mark.parametrize(
    ("expired_sec", "acts_at", "is_renewed", "rules"),
    [
        (1.0, 0.5, False, {"live run looks dead"}),
        (1.0, 0.2, False, set()),  # within the slack between clocks
        (0.4, 0.35, False, set()),  # shorter than a heartbeat
        (1.0, None, False, set()),
        (1.0, 0.5, True, set()),
    ],
)
def test_live_run_with_an_expired_row_is_found(tale, expired_sec, acts_at, is_renewed, rules):
    job = tale.job()
    run = tale.claim(job)
    lease_end, began = tale.moment, tale.now
    tale.look(job, run, 0.0, lease_expires_at=lease_end, is_expired=True)
    if acts_at is not None:
        tale.report(job, run, "acted", after=acts_at)
    tale.look(job, run, began + expired_sec - tale.now, lease_expires_at=tale.moment if is_renewed else lease_end,
              is_expired=True)  # fmt: skip
    tale.succeed(job, run)

    assert tale.violated_rules() == rules


@pytest.mark.parametrize(
    ("first", "second", "is_found"),
    [
        ({"position": 1.0}, {"position": 2.0}, False),
        ({"position": 2.0}, {"position": 1.0}, True),
        ({"position": 2.0}, {"position": 1.0, "status": "queued"}, True),
        ({"position": 2.0}, {"position": None}, True),
        ({"position": 2.0}, {"position": 1.0, "server": "restarted"}, False),
        ({"position": 2.0}, {"position": None, "progress_run": None, "is_reset": True}, False),
        ({}, {"progress_run": "of another"}, True),
        ({"progress_run": "of a former"}, {}, False),
        ({"progress_run": "of a former"}, {"progress_run": "of a former"}, False),
        ({"progress_run": "of a former"}, {"progress_run": "of a former", "position": 2.0}, True),
        ({}, {"progress_run": "of a former"}, True),
        ({"progress_run": None, "position": None}, {}, False),
    ],
)
def test_progress_that_goes_back_is_found(tale, first, second, is_found):
    job = tale.job()
    run = tale.claim(job)
    tale.look(job, run, **first)
    tale.look(job, run, **second)
    tale.succeed(job, run)

    assert tale.violated_rules() == ({"progress went back"} if is_found else set())


@pytest.mark.parametrize(
    ("after", "is_other", "is_found"), [(0.5, False, False), (1.5, False, True), (0.0, True, True)]
)
def test_progress_of_a_lost_run_is_found(tale, after, is_other, is_found):
    job = tale.job()
    run = tale.claim(job)
    tale.reap(job, run)
    tale.now += after
    tale.progress.append(ProgressRow(job, run, tale.moment, str(uuid4() if is_other else run)))
    tale.succeed(job, tale.claim(job, 2), 2)

    assert tale.violated_rules() == ({"progress of a lost run"} if is_found else set())
