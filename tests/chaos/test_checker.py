"""The judge is judged: a fabricated history for each rule, and a lawful one that none of them speaks against."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from tests.chaos.checker import RULES, check
from tests.chaos.client_log import ClientResponse
from tests.chaos.etl import PARTS
from tests.chaos.history import BackfillRow, Execution, OffloadRow, Pause, TargetRow
from tests.chaos.history_builder import NOON, HistoryBuilder


@pytest.fixture
def tale() -> HistoryBuilder:
    return HistoryBuilder()


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

    assert tale.violated_rules() == {"overlapping runs"}


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


# ── limits ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def limited_runs(tale, count: int, *, weight: int = 1, name: str = "warehouse", after: float = 1.0):
    """So many jobs of a limit, all running."""
    jobs = [tale.job(key=f"{name} {n} {tale.now}", limits={name: weight}) for n in range(count)]
    return [(job, tale.claim(job, after=after)) for job in jobs]


def end_all(tale, runs) -> None:
    for job, run in runs:
        tale.succeed(job, run)


@pytest.mark.parametrize(
    ("running", "weight", "rules"), [(2, 1, set()), (3, 1, {"limit exceeded"}), (2, 2, {"limit exceeded"})]
)
def test_weight_above_the_limit_is_found(tale, running, weight, rules):
    tale.set_limit("warehouse", concurrency=2)
    end_all(tale, limited_runs(tale, running, weight=weight))

    assert tale.violated_rules() == rules


def test_each_end_of_a_run_frees_its_place(tale):
    tale.set_limit("warehouse", concurrency=1)
    job = tale.job(limits={"warehouse": 1}, task="chaos.failing")
    run = tale.claim(job)
    tale.event(job, "requeue", "queued", 1, run, reason="error", error="x")
    tale.reap(job, tale.claim(job, 2), 2)
    tale.event(job, "done", "succeeded", 3, run := tale.claim(job, 3))
    tale.row(job, result={"run": str(run)})
    end_all(tale, limited_runs(tale, 1))

    assert tale.violated_rules() == set()


@pytest.mark.parametrize(("pending", "rules"), [(0, {"limit exceeded"}), (10, set())])
def test_only_starts_after_a_lowered_limit_count(tale, pending, rules):
    tale.set_limit("warehouse", concurrency=3)
    runs = limited_runs(tale, 2)
    tale.set_limit("warehouse", concurrency=1, pending=pending)  # with 10, nothing is confirmed before the next start
    assert tale.violated_rules() == {"job not finished"}

    end_all(tale, [*runs, *limited_runs(tale, 1)])

    assert tale.violated_rules() == rules


@pytest.mark.parametrize("pending", [0, 10])
def test_starts_under_a_raised_limit_are_allowed(tale, pending):
    tale.set_limit("warehouse", concurrency=1)
    runs = limited_runs(tale, 1)
    tale.set_limit("warehouse", concurrency=2, pending=pending)
    end_all(tale, [*runs, *limited_runs(tale, 1)])

    assert tale.violated_rules() == set()


@pytest.mark.parametrize(("name", "rules"), [("tenant:b", {"limit exceeded"}), ("tenant:big", set()), ("other", set())])
def test_a_default_applies_to_names_without_a_setting(tale, name, rules):
    tale.set_limit("tenant:*", concurrency=1)
    tale.set_limit("tenant:big", concurrency=2)
    end_all(tale, [*limited_runs(tale, 2, name=name), *limited_runs(tale, 1, name="tenant:a")])

    assert tale.violated_rules() == rules


@pytest.mark.parametrize("name", ["queue:chaos", "task:chaos.short"])
def test_limits_of_a_queue_and_a_task_count_all_its_jobs(tale, name):
    tale.set_limit(name, concurrency=1)
    runs = [(job, tale.claim(job)) for job in (tale.job(key="a"), tale.job(key="b"))]
    end_all(tale, runs)

    assert tale.violated_rules() == {"limit exceeded"}


@pytest.mark.parametrize(
    ("count", "after", "rules"),
    [
        pytest.param(7, 0.15, {"rate exceeded"}, id="seven in 0.9 s"),
        pytest.param(6, 0.01, set(), id="the first one was decided before the period"),
        pytest.param(20, 0.2, set(), id="evenly"),
    ],
)
def test_starts_above_the_rate_are_found(tale, count, after, rules):
    tale.set_limit("partner", rate=5, per_sec=1.0)
    jobs = [tale.job(key=f"p{n}", limits={"partner": 1}) for n in range(count)]
    runs = []
    for job in jobs:
        run = uuid4()
        tale.event(job, "picked", "running", 1, run, after=after)
        runs.append((job, run))
    for job, run in runs:
        tale.report(job, run, "began")
    end_all(tale, runs)

    assert tale.violated_rules() == rules


def test_a_job_that_still_waits_for_a_limit_is_found(tale):
    tale.set_limit("warehouse", concurrency=1)
    job = tale.job(limits={"warehouse": 1})
    tale.event(job, "limited", "queued", 0, waits_on="warehouse")
    tale.row(job, wait_state="limited", waits_on="warehouse")
    assert tale.violated_rules() == {"job left limited", "job not finished"}

    tale.event(job, "released", "queued", 0, limit="warehouse")
    tale.row(job, wait_state="scheduled", waits_on=None)
    tale.succeed(job, tale.claim(job))

    assert tale.violated_rules() == set()


def test_a_schedule_whose_times_are_all_accounted_for_is_lawful(tale):
    schedule = tale.schedule(last_at=NOON + timedelta(seconds=60), stopped_at=NOON + timedelta(seconds=62))
    tale.fire(schedule, 10)
    tale.fire(schedule, 20, "late_skipped", until=40)
    job = tale.fire(schedule, 50)
    tale.fire(schedule, 60, "exists", job=job)

    assert tale.violated_rules() == set()


@pytest.mark.parametrize(
    ("rows", "rules"),
    [
        pytest.param([(10, None), (30, None)], {"time not fired"}, id="one is left out"),
        pytest.param([(10, 20), (20, None), (30, None)], {"time not fired"}, id="one is in two rows"),
    ],
)
def test_times_without_a_row_or_with_two_are_found(tale, rows, rules):
    schedule = tale.schedule()
    for sec, until in rows:
        tale.fire(schedule, sec, "made" if until is None else "late_skipped", until=until)

    assert tale.violated_rules() == rules


def test_a_schedule_that_stands_still_is_found(tale):
    tale.schedule(last_at=NOON, stopped_at=NOON + timedelta(seconds=60))
    assert tale.violated_rules() == {"schedule left behind"}

    tale.schedules[:] = [replace(tale.schedules[0], stopped_at=None, pending_updates=1)]
    assert tale.violated_rules() == {"schedule left behind"}


@pytest.mark.parametrize("case", ["no job", "before its time", "unnamed job", "two jobs"])
def test_firings_and_jobs_that_do_not_match_are_found(tale, case):
    schedule = tale.schedule(last_at=NOON + timedelta(seconds=10))
    job = tale.fire(schedule, 10)
    rules = {"job without firing"}
    if case == "no job":
        tale.firings[0] = replace(tale.firings[0], job_id=uuid4())
        rules |= {"firing without job"}
    elif case == "before its time":
        tale.firings[0] = replace(tale.firings[0], made_at=NOON)
        rules = {"firing without job"}
    elif case == "unnamed job":
        other = tale.job(key="other", schedule_id=schedule.schedule_id, logical_at=NOON)
        tale.succeed(other, tale.claim(other))
    else:
        other = tale.job(key="other", schedule_id=schedule.schedule_id, logical_at=tale.rows[job].logical_at)
        tale.succeed(other, tale.claim(other))
        tale.firings.append(replace(tale.firings[0], job_id=other, fire_at=NOON))

    assert tale.violated_rules() == rules


@pytest.mark.parametrize(
    ("since", "until", "rules"),
    [
        pytest.param(5, 15, {"made while paused"}, id="within"),
        pytest.param(11, 15, set(), id="before"),
        pytest.param(5, 9, set(), id="after"),
    ],
)
def test_a_time_that_was_fired_during_a_pause_is_found(tale, since, until, rules):
    schedule = tale.schedule(last_at=NOON + timedelta(seconds=10))
    tale.fire(schedule, 10)
    pause = Pause("s", NOON + timedelta(seconds=since), NOON + timedelta(seconds=until))

    assert tale.violated_rules(pauses=[pause]) == rules


def test_a_job_of_a_canceled_backfill_is_found(tale):
    backfill_id = uuid4()
    tale.load_slice("a", backfill_id=backfill_id)
    canceled_at = tale.moment
    backfill = BackfillRow(backfill_id=backfill_id, task="t", state="canceled", total=2, made=1, skipped=0)
    pause = Pause(str(backfill_id), canceled_at, datetime.max.replace(tzinfo=UTC))
    assert tale.violated_rules(pauses=[pause], backfills=[backfill]) == set()

    tale.load_slice("b", backfill_id=backfill_id)
    assert tale.violated_rules(pauses=[pause], backfills=[backfill]) == {"made while paused"}


@pytest.mark.parametrize(("overlap", "rules"), [("skip", {"overlapping scheduled jobs"}), ("allow", set())])
def test_two_live_jobs_of_a_schedule_that_skips_are_found(tale, overlap, rules):
    schedule = tale.schedule(overlap=overlap, last_at=NOON + timedelta(seconds=20))
    jobs = [
        tale.job(key=f"k{sec}", schedule_id=schedule.schedule_id, logical_at=NOON + timedelta(seconds=sec))
        for sec in (10, 20)
    ]
    for sec, job in zip((10, 20), jobs, strict=True):
        tale.fire(schedule, sec, job=job)
    for job in jobs:
        tale.succeed(job, tale.claim(job))

    assert tale.violated_rules() == rules


def test_two_live_jobs_of_a_slice_are_found(tale):
    tale.load_slice("a")
    tale.load_slice("a", run=False)
    tale.slices.clear()
    assert "two live jobs of a slice" not in tale.violated_rules()

    tale.load_slice("a", run=False)
    assert "two live jobs of a slice" in tale.violated_rules()


@pytest.mark.parametrize("lie", [{"state": "failed"}, {"runs": 2}, {"job_id": uuid4()}])
def test_a_slice_that_is_not_as_its_job_is_found(tale, lie):
    tale.load_slice("a")
    tale.slices["a"] = replace(tale.slices["a"], **lie)

    assert tale.violated_rules() == {"slice state differs"}


@pytest.mark.parametrize(
    ("backfill", "rules"),
    [
        pytest.param({}, set(), id="all is there"),
        pytest.param({"state": "open"}, {"incomplete backfill"}, id="open"),
        pytest.param({"state": "canceled", "made": 0}, set(), id="canceled"),
        pytest.param({"made": 2}, {"incomplete backfill"}, id="counted twice"),
        pytest.param({"keys": ("a", "b")}, {"incomplete backfill"}, id="a slice without a job"),
    ],
)
def test_a_backfill_that_is_not_complete_is_found(tale, backfill, rules):
    tale.load_slice("a")
    values = {"state": "done", "total": 1, "made": 1, "skipped": 0, "keys": ("a",)} | backfill
    row = BackfillRow(backfill_id=uuid4(), task="t", **values)

    assert tale.violated_rules(backfills=[row]) == rules


def test_an_update_after_the_last_job_began_is_found(tale):
    schedule = tale.schedule(interval_sec=None, datasets=("sales",))
    producer = tale.job(key="producer")
    run = tale.claim(producer)
    job = tale.fire(schedule, 10)
    assert tale.rows[job].status == "succeeded"
    tale.succeed(producer, run)
    producers = [(producer, "sales")]
    assert tale.violated_rules(producers=producers) == {"update not answered"}
    assert tale.violated_rules(producers=[(producer, "costs")]) == set()

    tale.fire(schedule, 20)
    assert tale.violated_rules(producers=producers) == set()


# ── work on an engine ───────────────────────────────────────────────────────────────────────────────────────────────


class OffloadTale:
    """A job that took the result of its work on the engine, and what the tables and the engine have of it."""

    def __init__(self, tale: HistoryBuilder) -> None:
        self.tale, self.job = tale, tale.job("chaos.offload")
        self.run = tale.claim(self.job)
        self.name = f"dl-{self.job}-1"
        tale.succeed(self.job, self.run, result={"run": str(self.run), "offload": self.name})
        self.rows = [self.row(1, "succeeded")]
        self.executions = [self.execution(self.name, "succeeded")]

    def row(self, number: int, outcome: str | None) -> OffloadRow:
        name = self.name if number == 1 else f"{self.name}.{number}"
        return OffloadRow(name=name, job_id=self.job, run_id=self.run, number=number, outcome=outcome)

    @staticmethod
    def execution(name: str, state: str, **more: Any) -> Execution:
        return Execution(**{"name": name, "starts": 1, "had_intent": True, "state": state, **more})

    def violated_rules(self) -> set[str]:
        return self.tale.violated_rules(offloads=self.rows, executions=self.executions)


@pytest.fixture
def offload(tale) -> OffloadTale:
    return OffloadTale(tale)


def test_offload_whose_first_work_failed_is_lawful(offload):
    offload.rows = [offload.row(1, "failed"), offload.row(2, "succeeded")]
    offload.executions = [
        offload.execution(offload.name, "failed"),
        offload.execution(f"{offload.name}.2", "succeeded"),
    ]
    offload.tale.row(offload.job, result={"run": str(offload.run), "offload": f"{offload.name}.2"})

    assert offload.violated_rules() == set()


@pytest.mark.parametrize("change", [{"had_intent": False}, {"name": f"dl-{uuid4()}-1"}])
def test_offload_that_was_started_without_its_intent(offload, change):
    offload.executions.append(offload.execution(**{"name": offload.name, "state": "succeeded", **change}))

    assert offload.violated_rules() == {"offload without intent"}


def test_offload_that_was_executed_again(offload):
    offload.executions = [offload.execution(offload.name, "succeeded", starts=2)]
    assert offload.violated_rules() == {"offload executed again"}

    offload.executions = [
        offload.execution(offload.name, "stopped"),
        offload.execution(f"{offload.name}.2", "succeeded"),
    ]
    offload.rows = [offload.row(1, "stopped"), offload.row(2, "succeeded")]
    offload.tale.row(offload.job, result={"run": str(offload.run), "offload": f"{offload.name}.2"})
    assert offload.violated_rules() == {"offload executed again"}


def test_offload_result_that_is_not_that_of_the_work(offload):
    offload.executions = [offload.execution(offload.name, "failed")]
    assert offload.violated_rules() == {"wrong offload result"}

    offload.tale.row(offload.job, result={"run": str(offload.run)})
    assert offload.violated_rules() == {"wrong offload result"}

    offload.rows, offload.executions = [], []
    assert offload.violated_rules() == {"wrong offload result"}


@pytest.mark.parametrize("is_open", [True, False])
def test_offload_that_is_left(offload, is_open):
    if is_open:
        offload.rows.append(offload.row(2, None))
    else:
        offload.executions = [offload.execution(offload.name, "running")]

    assert "offload left running" in offload.violated_rules()
