"""The judge is judged: a fabricated history for each rule, and a lawful one that none of them speaks against."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest

from tests.chaos.checker import RULES, check
from tests.chaos.client_log import ClientResponse
from tests.chaos.etl import PARTS
from tests.chaos.history import TargetRow
from tests.chaos.history_builder import NOON


def test_a_lawful_history_breaks_no_rule(tale):
    first, second = tale.job(), tale.job()
    run = tale.claim(first)
    tale.report(first, run, "acted")
    tale.succeed(first, run)
    lost = tale.claim(second)
    tale.reap(second, lost)
    heir = tale.claim(second, 2)
    tale.report(second, heir, "acted", 2)
    tale.succeed(second, heir, 2)
    tale.cancel(first, "succeeded")

    assert tale.violated_rules(sessions_unbroken=True) == set()


def test_released_snoozed_retried_and_lost_job_is_lawful(tale):
    job = tale.job("chaos.failing", most=1)
    run = tale.claim(job)
    tale.event(job, "requeue", "queued", 0, run, reason="shutdown")
    run = tale.claim(job)
    tale.event(job, "requeue", "queued", 0, run, reason="error")  # a try that was given back
    run = tale.claim(job)
    tale.event(job, "failed", "failed", 1, run, error=f"failed on purpose in run {run}")
    tale.row(job, error=f"failed on purpose in run {run}")
    tale.event(job, "requeue", "queued", 0, reason="retry")
    run = tale.claim(job)
    tale.reap(job, run, status="lost")
    tale.row(job, error="the worker vanished")

    assert tale.violated_rules() == set()


def test_an_accepted_job_that_is_not_there(tale):
    tale.responses.append(ClientResponse("accepted", 1.0, str(uuid4()), "chaos.short", "once"))

    assert tale.violated_rules() == {"job missing after acceptance"}


def test_one_request_that_was_answered_with_two_jobs(tale):
    for _ in range(2):
        job = tale.job()
        tale.succeed(job, tale.claim(job))
    tale.responses = [replace(output, key="once") for output in tale.responses]

    assert tale.violated_rules() == {"two jobs for one key"}


@pytest.mark.parametrize("claimed", [True, False])
def test_a_job_that_has_not_ended(tale, claimed):
    job = tale.job()
    if claimed:
        tale.claim(job)

    assert tale.violated_rules() == {"job not finished"}


@pytest.mark.parametrize("answer", ["canceled", "running"])
def test_run_claimed_after_the_answer_to_the_cancel_is_found(tale, answer):
    job = tale.job()
    tale.cancel(job, answer)
    tale.succeed(job, tale.claim(job))

    assert tale.violated_rules() == {"run started after cancel"}


@pytest.mark.parametrize(
    ("answer", "after", "rules"),
    [
        pytest.param("running", 0.1, set(), id="gets a stop request"),
        pytest.param("running", 3.1, {"run continued after cancel"}, id="too late"),
        pytest.param("canceled", 0.1, {"run started after cancel"}, id="there was no run to stop"),
    ],
)
def test_run_claimed_before_the_answer_to_the_cancel_may_begin_within_its_lease(tale, answer, after, rules):
    job, run = tale.job(lease_ttl_sec=2), uuid4()
    tale.event(job, "picked", "running", 1, run)
    tale.cancel(job, answer)
    tale.report(job, run, "began", after=after)
    tale.succeed(job, run)

    assert tale.violated_rules() == rules


def test_attempt_running_past_its_canceled_lease_is_found(tale):
    job = tale.job(lease_ttl_sec=2)
    run = tale.claim(job)
    tale.cancel(job)
    tale.report(job, run, "acted", after=1.9)
    assert "run continued after cancel" not in tale.violated_rules()

    tale.report(job, run, "acted", after=1.5)
    tale.succeed(job, run)

    assert tale.violated_rules() == {"run continued after cancel"}


def test_cancel_of_a_retried_job_promises_nothing(tale):
    job = tale.job()
    tale.cancel(job)
    tale.responses.append(ClientResponse("retried", tale.now, str(job)))
    tale.succeed(job, tale.claim(job))

    assert tale.violated_rules() == set()


def test_a_run_that_acts_when_another_of_its_key_has_begun(tale):
    first, second = tale.job(), tale.job()
    run = tale.claim(first)
    tale.reap(first, run)
    other = tale.claim(second)
    tale.report(first, run, "acted")
    tale.succeed(second, other)
    heir = tale.claim(first, 2)
    tale.succeed(first, heir, 2)

    assert tale.violated_rules() == {"overlapping runs", "trusted after reap"}


def test_overlap_is_found_across_a_third_attempt(tale):
    jobs = [tale.job() for _ in range(3)]
    run = tale.claim(jobs[0])
    tale.succeed(jobs[0], run)
    between = tale.claim(jobs[1])
    tale.succeed(jobs[1], between)
    last = tale.claim(jobs[2])
    tale.report(jobs[0], run, "acted")
    tale.succeed(jobs[2], last)

    overlaps = [v for v in check(tale.history()) if v.rule == "overlapping runs"]
    assert {violation.job_id for violation in overlaps} == {str(jobs[1]), str(jobs[2])}


def test_stubborn_attempt_counts_only_with_unbroken_sessions(tale):
    job = tale.job("chaos.zombie")
    run = tale.claim(job)
    tale.reap(job, run)
    heir = tale.claim(job, 2)
    tale.report(job, run, "wrote")
    tale.succeed(job, heir, 2)

    assert tale.violated_rules() == set()
    assert tale.violated_rules(sessions_unbroken=True) == {"overlapping runs"}


def test_run_without_claim(tale):
    job = tale.job()
    run = tale.claim(job)
    tale.succeed(job, run)
    tale.report(job, uuid4(), "began")

    assert tale.violated_rules() == {"run without claim"}


def test_a_run_that_began_twice(tale):
    job = tale.job()
    run = tale.claim(job)
    tale.report(job, run, "began")
    tale.succeed(job, run)

    assert tale.violated_rules() == {"run without claim"}


def test_a_run_that_began_as_another_attempt(tale):
    job = tale.job()
    run = uuid4()
    tale.event(job, "picked", "running", 1, run)
    tale.report(job, run, "began", attempt=2)
    tale.succeed(job, run)

    assert tale.violated_rules() == {"run without claim"}


def test_more_attempts_than_max_attempts_is_found(tale):
    job = tale.job(most=1)
    tale.reap(job, tale.claim(job))
    run = tale.claim(job, 2)
    tale.succeed(job, run, 2)

    assert tale.violated_rules() == {"wrong attempt count"}


def test_attempt_number_contradicting_events_is_found(tale):
    job = tale.job()
    tale.succeed(job, tale.claim(job))
    tale.row(job, attempt=2)

    assert "wrong attempt count" in tale.violated_rules()


def test_an_event_that_no_transition_allows(tale):
    job = tale.job()
    run = tale.claim(job)
    tale.succeed(job, run)
    tale.event(job, "picked", "running", 2, uuid4())
    tale.event(job, "done", "succeeded", 2, run)
    tale.row(job, result={"run": str(run)})

    assert "invalid event sequence" in tale.violated_rules()


def test_a_result_that_was_recorded_after_the_lease_was_lost(tale):
    job = tale.job()
    run = tale.claim(job)
    tale.reap(job, run)
    tale.succeed(job, run)

    assert "invalid event sequence" in tale.violated_rules()


def test_row_status_differing_from_last_event_is_found(tale):
    job = tale.job()
    run = tale.claim(job)
    tale.succeed(job, run)
    tale.row(job, status="failed")

    assert tale.violated_rules() == {"invalid event sequence"}


def test_overlapping_attempts_of_a_key_in_events_are_found(tale):
    first, second = tale.job(), tale.job()
    run, other = tale.claim(first), tale.claim(second)
    tale.succeed(first, run)
    tale.succeed(second, other)

    assert tale.violated_rules() == {"overlapping runs in events"}


def test_reaping_at_the_first_check_is_found(tale):
    job = tale.job()
    tale.reap(job, tale.claim(job), after=0.4)
    tale.succeed(job, tale.claim(job, 2), 2)

    assert tale.violated_rules() == {"reaped too early"}


@pytest.mark.parametrize("where", ["result", "progress"])
def test_result_of_an_attempt_that_lost_the_job_is_found(tale, where):
    job = tale.job()
    lost = tale.claim(job)
    tale.reap(job, lost)
    heir = tale.claim(job, 2)
    tale.succeed(job, heir, 2, **{where: {"run": str(lost)}})

    assert tale.violated_rules() == {"result of another run"}


def test_the_error_of_a_run_that_had_lost_the_job(tale):
    job = tale.job()
    lost = tale.claim(job)
    tale.reap(job, lost)
    heir = tale.claim(job, 2)
    tale.event(job, "failed", "failed", 2, heir)
    tale.row(job, error=f"RuntimeError: failed on purpose in run {lost}")

    assert tale.violated_rules() == {"result of another run"}


def test_a_part_that_was_written_twice(tale):
    job = tale.job("chaos.load")
    run = tale.claim(job)
    tale.target += [TargetRow(job, part, run) for part in (*range(PARTS), 0)]
    tale.succeed(job, run)

    assert tale.violated_rules() == {"part written twice"}


def test_a_load_that_is_not_all_there(tale):
    job = tale.job("chaos.load")
    run = tale.claim(job)
    tale.target += [TargetRow(job, part, run) for part in range(PARTS - 1)]
    tale.succeed(job, run)

    assert tale.violated_rules() == {"incomplete load"}


@pytest.mark.parametrize("asked", [[0, 1, 1], [0]])
def test_follow_ups_that_are_there_twice_or_not_at_all(tale, asked):
    parent = tale.job("chaos.parent", key="p")
    tale.succeed(parent, tale.claim(parent))
    for which in asked:
        child = tale.job(parent_id=parent, args={"follow_up": which})
        tale.succeed(child, tale.claim(child))

    assert tale.violated_rules() == {"wrong follow ups"}


@pytest.mark.parametrize(
    "lie",
    [{"finished_at": None}, {"lease_expires_at": NOON}, {"error": "of its first try"}, {"wait_state": "blocked"}],
    ids=lambda lie: next(iter(lie)),
)
def test_contradictory_row_is_found(tale, lie):
    job = tale.job()
    tale.succeed(job, tale.claim(job))
    tale.row(job, **lie)

    assert tale.violated_rules() == {"inconsistent row"}


def test_a_canceled_job_that_went_back_to_the_queue(tale):
    job = tale.job()
    tale.row(job, cancel_requested=True)

    assert tale.violated_rules() == {"job not finished", "inconsistent row"}


def test_every_rule_has_a_docstring():
    assert all(rule.__doc__ for rule in RULES)


def test_effects_before_the_successor_began_are_lawful(tale):
    job = tale.job("chaos.sql")
    dead = tale.claim(job)
    tale.write_effect(dead)
    tale.reap(job, dead)
    heir = tale.claim(job, 2)
    tale.write_effect(heir)
    tale.succeed(job, heir, 2)

    assert tale.violated_rules() == set()


@pytest.mark.parametrize("same_job", [True, False])
def test_effects_after_a_successor_began_are_found(tale, same_job):
    job, next_of_key = tale.job("chaos.sql"), tale.job("chaos.sql")
    dead = tale.claim(job)
    if same_job:
        tale.reap(job, dead)
        heir = tale.claim(job, 2)
    else:
        tale.reap(job, dead, status="lost")
        heir = tale.claim(next_of_key)
    tale.write_effect(dead)

    assert heir != dead
    assert "effects after successor start" in tale.violated_rules()


def test_effects_on_a_target_named_as_unreached_are_exempt(tale):
    job = tale.job("chaos.sql")
    dead = tale.claim(job)
    tale.event(job, "requeue", "queued", 1, dead, reason="lease_expired", sessions_left=["witness"])
    heir = tale.claim(job, 2)
    tale.write_effect(dead)
    tale.succeed(job, heir, 2)

    assert tale.violated_rules() == set()


def test_effects_after_a_frozen_predecessor_began_are_lawful(tale):
    job = tale.job("chaos.sql")
    frozen = uuid4()
    tale.event(job, "picked", "running", 1, frozen)
    tale.reap(job, frozen)
    heir = tale.claim(job, 2)
    tale.report(job, frozen, "began")
    tale.write_effect(heir)
    tale.succeed(job, heir, 2)

    assert tale.violated_rules() == set()


@pytest.mark.parametrize("lives_on", [False, True])
def test_run_that_lives_on_after_its_proved_death_is_found(tale, lives_on):
    job = tale.job()
    run = tale.claim(job)
    tale.event(job, "requeue", "queued", 1, run, reason="process_died")
    if lives_on:
        tale.report(job, run, "wrote", after=0.5)
    heir = tale.claim(job, 2)
    tale.succeed(job, heir, 2)

    assert ("active after proof of death" in tale.violated_rules()) == lives_on
