"""The model's arithmetic, where the result is known without it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import simulate as command
from benchmarks.queue_model import (
    Constants,
    Disturbance,
    JobBuffer,
    Load,
    StatementCost,
    Times,
    arrival_times,
    find_saturation,
    simulate,
)
from benchmarks.scenarios import BEGIN_SEC, Scenario, print_answers
from benchmarks.statement_costs import fit

FREE = StatementCost(0, 0)
ANY_RATE = 1.0  # where saturation is looked for
CONSTANTS = Constants(
    measured_at="2026-11-24", cores=2, saturation=1_000, enqueue=StatementCost(400, 50), claim=StatementCost(300, 40),
    settle=StatementCost(200, 30), listen_us=0, python=StatementCost(0, 20), generator=FREE,
    flush=StatementCost(1_000, 0), vacuum_us=10, statistics_us=0, events=3, others=0,
)  # fmt: skip


def test_cost_of_a_statement_is_fitted_to_two_sizes():
    cost = StatementCost.from_two_sizes((1, 500.0), (101, 5_500.0))

    assert (cost.fixed_us, cost.per_job_us) == (450.0, 50.0)
    assert cost.total_sec(10) == pytest.approx(0.00095)


def test_constants_are_read_as_they_were_saved(tmp_path):
    CONSTANTS.save(tmp_path / "constants.json")

    assert Constants.load(tmp_path / "constants.json") == CONSTANTS


def test_job_on_an_idle_server_takes_the_sum_of_its_steps():
    result = simulate(CONSTANTS, Load(jobs_per_sec=1, group=1, cores=4, seconds=100))

    steps_us = 450 + 340 + 20 + 230 / 2  # and two flushes before its end: half of a settlement's rows come after it
    assert result.times.quantile_ms(50) == pytest.approx(steps_us / 1e3 + 2, rel=0.001)
    assert not result.is_saturated


def saturation_of_model(constants: Constants, load: Load) -> float:
    return find_saturation(load, lambda one: simulate(constants, one).done_per_sec)


def test_saturation_is_the_highest_rate_that_is_kept_up_with():
    load = Load(jobs_per_sec=ANY_RATE, group=1, cores=2, seconds=20)

    found = find_saturation(load, lambda one: min(one.jobs_per_sec, 5_000))

    assert found == pytest.approx(5_000, rel=0.04)


def test_cores_are_busy_by_the_cost_of_the_jobs():
    """The law of utilization: rate times cost, over the cores."""
    fixed_free = replace(CONSTANTS, claim=StatementCost(0, 40), settle=StatementCost(0, 30))
    result = simulate(fixed_free, Load(jobs_per_sec=4_000, group=100, cores=2, seconds=60))

    cost_us = 50 + 400 / 100 + 40 + 30 + 10
    assert result.core_share == pytest.approx(4_000 * cost_us / 1e6 / 2, rel=0.06)
    assert result.done_per_sec == pytest.approx(4_000, rel=0.06)


@pytest.mark.parametrize("cores", [1, 2])
def test_saturated_server_does_what_its_cores_can(cores):
    """A load whose cost is per job alone."""
    constants = replace(
        CONSTANTS, enqueue=StatementCost(0, 50), claim=StatementCost(0, 40), settle=StatementCost(0, 30), flush=FREE
    )
    load = Load(jobs_per_sec=ANY_RATE, group=100, cores=cores, workers=4, seconds=6, has_vacuum=False)

    assert saturation_of_model(constants, load) == pytest.approx(cores * 1e6 / (50 + 40 + 30), rel=0.1)


@pytest.mark.parametrize(
    "changes",
    [
        {"python": StatementCost(0, 120)},
        {"generator": StatementCost(0, 120)},
    ],
)
def test_each_user_of_the_same_cores_takes_its_part(changes):
    constants = replace(
        CONSTANTS, enqueue=StatementCost(0, 50), claim=StatementCost(0, 40), settle=StatementCost(0, 30), flush=FREE,
        vacuum_us=0, python=FREE,
    )  # fmt: skip
    load = Load(jobs_per_sec=3_000, group=100, cores=1, workers=4, seconds=20, shares_cores=True)

    alone, shared = (simulate(one, load).core_share for one in (constants, replace(constants, **changes)))

    assert shared == pytest.approx(2 * alone, rel=0.05)


def test_threads_of_a_worker_compute_one_at_a_time():
    """Two processes do twice as much as one, whatever the cores of the server."""
    constants = replace(
        CONSTANTS, enqueue=FREE, claim=FREE, settle=FREE, flush=FREE, vacuum_us=0, python=StatementCost(0, 100)
    )
    load = Load(jobs_per_sec=100_000, group=100, cores=4, seconds=5)

    assert simulate(constants, load).done_per_sec == pytest.approx(10_000, rel=0.03)
    assert simulate(constants, replace(load, workers=2)).done_per_sec == pytest.approx(20_000, rel=0.03)


def test_group_waits_for_a_free_connection():
    """Enqueueing takes 10 ms of a connection: one of them can do 100 groups a second, not 150."""
    constants = replace(CONSTANTS, generator=StatementCost(9_000, 0), enqueue=FREE)
    load = Load(jobs_per_sec=150, group=1, cores=2, seconds=20)

    assert simulate(constants, replace(load, generators=1)).done_per_sec == pytest.approx(100, rel=0.03)
    assert not simulate(constants, replace(load, generators=2)).is_saturated


def test_each_worker_listens_to_each_notification():
    """Ten notifications a second of 1 ms, for three processes: 3 % of a core."""
    load = Load(jobs_per_sec=10, group=1, cores=2, workers=3, seconds=100)
    free, listening = (simulate(replace(CONSTANTS, listen_us=us), load).core_share for us in (0, 1_000))

    assert listening - free == pytest.approx(0.03 / 2, rel=0.1)


def test_commits_that_notify_are_flushed_one_after_the_other():
    """Each waits for a flush of 20 ms in progress, of a claim or a settlement, and for its own: 25 a second."""
    slow_disk = replace(CONSTANTS, flush=StatementCost(20_000, 0))
    result = simulate(slow_disk, Load(jobs_per_sec=500, group=1, cores=8, generators=200, seconds=20))

    assert result.done_per_sec == pytest.approx(25, rel=0.1)


def test_settlement_waits_until_no_claim_is_in_progress():
    """The keys are unlocked by the session that claims: while a claim of 50 ms is in progress, nothing is settled."""
    slow = replace(CONSTANTS, claim=StatementCost(50_000, 0))
    slow = replace(slow, python=StatementCost(3_000, 0))  # the thread that ended the last job claims before that
    result = simulate(slow, Load(jobs_per_sec=300, group=10, cores=8, seconds=20))

    assert result.settlements == pytest.approx(result.claims, rel=0.1)
    assert result.times.quantile_ms(50) > 2 * 50


def test_full_prefetch_is_claimed_again_at_its_half():
    """More than can be done: 8 threads and 320 jobs ahead, of which half are left when the next claim begins."""
    slow = replace(CONSTANTS, python=StatementCost(0, 200))
    result = simulate(slow, Load(jobs_per_sec=10_000, group=100, cores=4, seconds=10))

    assert 1 / result.claims == pytest.approx(168, rel=0.05)


def test_notification_is_read_when_all_jobs_have_started():
    """Groups take 0.4 s and 2.4 a second come: a claim gets those that came while the jobs before them started."""
    slow = replace(CONSTANTS, claim=FREE, flush=FREE, python=StatementCost(0, 4_000))
    result = simulate(slow, Load(jobs_per_sec=240, group=100, cores=8, seconds=40))

    assert result.claims * 100 < 0.67  # 0.73 if it were read at once


def test_one_flush_is_for_all_commits_that_wait():
    """A flush of 5 ms for each enqueue, claim and settlement would allow 67 jobs a second."""
    slow_disk = replace(CONSTANTS, flush=StatementCost(5_000, 0))
    result = simulate(slow_disk, Load(jobs_per_sec=90, group=1, cores=8, workers=8, generators=200, seconds=20))

    assert not result.is_saturated
    assert result.claims == pytest.approx(1, rel=0.1)
    assert result.done_per_sec == pytest.approx(90, rel=0.1)


def test_same_seed_gives_the_same_result():
    load = Load(jobs_per_sec=3_000, group=20, cores=2, seconds=5)

    assert simulate(CONSTANTS, load) == simulate(CONSTANTS, load)
    assert simulate(CONSTANTS, load) != simulate(CONSTANTS, replace(load, seed=2))


def test_times_of_groups_are_weighted_by_their_jobs():
    times = Times([(0.0, 0.010, 98), (1.0, 1.050, 1), (2.0, 2.100, 1)])

    assert times.mean_ms == pytest.approx((98 * 10 + 50 + 100) / 100)
    assert times.quantile_ms(98) == pytest.approx(10)
    assert times.quantile_ms(99) == pytest.approx(50)
    assert times.quantile_ms(100) == pytest.approx(100)
    assert Times([]).quantile_ms(99) == float("inf")
    assert times.due_in(1, 2).entries == [(1.0, 1.050, 1)]


def test_buffer_splits_groups_and_keeps_their_order():
    buffer = JobBuffer()
    buffer.put([(1.0, 3), (2.0, 2)])

    assert buffer.take(4) == ([(1.0, 3), (2.0, 1)], 4)
    assert buffer.take(4) == ([(2.0, 1)], 1)
    assert buffer.take(4) == ([], 0)


def test_costs_are_fitted_to_loads_of_two_sizes():
    """Groups of 20, of which 30 are claimed together, and of 80 with claims of 200."""

    def real(group: int, claim: int, settlement: int) -> Any:
        return SimpleNamespace(
            enqueue_us=400 / group + 20, claims=1 / claim, claim_us=700 / claim + 30, settlements=1 / settlement,
            settle_us=450 / settlement + 25, worker_us=300 * (1 / claim + 1 / settlement) + 22, listen_us=19 / group,
            generator_us=40 / group + 2, vacuum_us=0.5, statistics_us=5, events=3, flushes=2 / claim,
            flush_us=260 / claim + 3, others=group / 1_000,
        )  # fmt: skip

    constants = fit(real(20, 30, 40), real(80, 200, 400), 9_000)

    for cost, fixed_us, per_job_us in (
        (constants.enqueue, 400, 20),
        (constants.claim, 700, 30),
        (constants.settle, 450, 25),
        (constants.python, 300, 22),
        (constants.generator, 40, 2),
        (constants.flush, 130, 3),
    ):
        assert [cost.fixed_us, cost.per_job_us] == pytest.approx([fixed_us, per_job_us])
    assert (constants.listen_us, constants.vacuum_us, constants.statistics_us) == (19, 0.5, 5)
    assert constants.others == 0.08


def test_outage_of_the_log_delays_the_jobs_due_in_it():
    """Half of it, and a second in which a thousand groups are flushed one after the other."""
    outage = Disturbance(begin_sec=20, end_sec=30, flush_sec=10)
    times = simulate(CONSTANTS, Load(jobs_per_sec=100, group=1, cores=2, seconds=60, disturbance=outage)).times

    assert times.due_in(12, 19).quantile_ms(99) < 20
    assert times.due_in(20, 30).quantile_ms(50) == pytest.approx(6_000, rel=0.1)
    assert times.due_in(35, 60).quantile_ms(99) < 20


def test_vacuum_that_is_behind_takes_a_core():
    late = Disturbance(begin_sec=20, end_sec=30, vacuum_jobs=1_000_000)
    load = Load(jobs_per_sec=100, group=1, cores=1, seconds=40)
    calm, disturbed = simulate(CONSTANTS, load), simulate(CONSTANTS, replace(load, disturbance=late))

    assert disturbed.core_share - calm.core_share == pytest.approx(10 / 40, rel=0.05)
    assert disturbed.times.due_in(20, 29).mean_ms > calm.times.due_in(20, 29).mean_ms + 4


def test_statistics_rest_nine_times_as_long_as_a_batch():
    """3,000 events a second of 10 µs are 3 % of a core; of 30,000 some wait, since a tenth is too little."""
    constants = replace(CONSTANTS, statistics_us=10)
    load = Load(jobs_per_sec=1_000, group=100, cores=1, seconds=60, has_vacuum=False)
    few, many = (
        simulate(constants, one).core_share - simulate(CONSTANTS, one).core_share
        for one in (load, replace(load, jobs_per_sec=10_000, cores=4, workers=8))
    )

    assert few == pytest.approx(0.03, rel=0.1)
    assert 0.1 / 4 <= many < 0.3 / 4


def test_peak_has_more_arrivals_until_its_end():
    peak = Disturbance(begin_sec=10, end_sec=20, rate_factor=5)
    times = list(arrival_times(Load(jobs_per_sec=100, group=1, cores=1, seconds=30, disturbance=peak)))

    assert sum(10 <= at < 20 for at in times) == pytest.approx(5_000, rel=0.06)
    assert sum(at >= 20 for at in times) == pytest.approx(1_000, rel=0.15)


def test_check_needs_p99_within_the_limit_at_both_loads(monkeypatch, capsys):
    def real(times: Times) -> Any:
        return SimpleNamespace(
            times=times, claims=0.1, settlements=0.1, flush_us=0.0, flushes=0.1, late_ms=0.1, others=0.4
        )

    def run_load(_dsn: str, load: Load) -> Any:
        model = simulate(CONSTANTS, load).times
        shift = 1.0 if load.jobs_per_sec == 500 else factor
        return real(Times([(due, due + (ended - due) * shift, n) for due, ended, n in model.entries]))

    monkeypatch.setattr(command, "run_load", run_load)
    load = Load(jobs_per_sec=1_000, group=10, cores=2, seconds=5)
    factor = 1.2
    assert command.check("dsn", CONSTANTS, load, 3)

    factor = 1.6
    assert not command.check("dsn", CONSTANTS, load, 3)
    shown = capsys.readouterr().out
    assert "-38%" in shown
    assert "Other programs used the machine" in shown


def test_answers_are_a_table_and_a_chart(tmp_path, capsys, monkeypatch):
    short = [
        Scenario("a <peak>", Disturbance(begin_sec=BEGIN_SEC, end_sec=BEGIN_SEC + 5, rate_factor=5), 80),
        Scenario("an outage", Disturbance(begin_sec=BEGIN_SEC, end_sec=BEGIN_SEC + 5, flush_sec=5), 80),
    ]
    monkeypatch.setattr("benchmarks.scenarios.scenarios", lambda constants, rate: short)

    print_answers(CONSTANTS, tmp_path / "chart.svg")

    shown = capsys.readouterr().out
    (outage,) = [line.split() for line in shown.splitlines() if line.startswith("| an outage")]
    longest_sec = float(outage[7])  # | an outage | p99 s | longest s |
    assert 4.9 < longest_sec < 5.5
    assert ElementTree.parse(tmp_path / "chart.svg").getroot().tag.endswith("svg")  # noqa: S314 - our own


def test_table_needs_measured_constants(tmp_path, capsys):
    path = tmp_path / "constants.json"
    with pytest.raises(SystemExit):
        command.main(["--constants", str(path)])
    CONSTANTS.save(path)

    command.main(["--constants", str(path), "--seconds", "1"])

    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == 6
    assert all("p99" in row or "saturated at" in row for row in rows)
