"""The model's arithmetic, where the result is known without it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import simulate as command
from benchmarks.queue_model import Constants, Load, StatementCost, simulate

FREE = StatementCost(0, 0)
CONSTANTS = Constants(
    measured_at="2026-11-24", cores=2, enqueue=StatementCost(400, 50), claim=StatementCost(300, 40),
    settle=StatementCost(200, 30), flush_sec=0.001, vacuum_us=10, python_us=20,
)  # fmt: skip


def test_cost_of_a_statement_is_fitted_to_two_sizes():
    cost = StatementCost.from_two_sizes((1, 500.0), (101, 5_500.0))

    assert (cost.fixed_us, cost.per_job_us) == (450.0, 50.0)
    assert cost.cpu_sec(10) == pytest.approx(0.00095)


def test_constants_are_read_as_they_were_saved(tmp_path):
    CONSTANTS.save(tmp_path / "constants.json")

    assert Constants.load(tmp_path / "constants.json") == CONSTANTS


def test_job_on_an_idle_server_takes_the_sum_of_its_steps():
    result = simulate(CONSTANTS, Load(jobs_per_sec=1, group=1, cores=4, seconds=100))

    steps_us = 450 + 340 + 20 + 230  # and two flushes before its end
    assert result.p50_ms == pytest.approx(steps_us / 1e3 + 2, rel=0.001)
    assert not result.is_saturated


def test_cores_are_busy_by_the_cost_of_the_jobs():
    """The law of utilization: rate times cost, over the cores."""
    fixed_free = replace(CONSTANTS, claim=StatementCost(0, 40), settle=StatementCost(0, 30))
    result = simulate(fixed_free, Load(jobs_per_sec=4_000, group=100, cores=2, seconds=60))

    cost_us = 50 + 400 / 100 + 40 + 30 + 10
    assert result.core_share == pytest.approx(4_000 * cost_us / 1e6 / 2, rel=0.06)
    assert result.done_per_sec == pytest.approx(4_000, rel=0.06)


@pytest.mark.parametrize("cores", [1, 2])
def test_saturated_server_does_what_its_cores_can(cores):
    """Enqueueing keeps up, so that it takes its part first; eight claimers share the rest."""
    constants = replace(CONSTANTS, enqueue=FREE, vacuum_us=0, python_us=0, flush_sec=0)
    result = simulate(constants, Load(jobs_per_sec=40_000, group=100, cores=cores, workers=8, seconds=10))

    cost_us = 40 + 30 + (300 + 200) / 400
    assert result.is_saturated
    assert result.done_per_sec == pytest.approx(cores * 1e6 / cost_us, rel=0.03)


def test_vacuum_and_workers_on_the_same_cores_take_their_part():
    load = Load(jobs_per_sec=30_000, group=100, cores=1, workers=4, seconds=10)
    constants = replace(CONSTANTS, enqueue=FREE, flush_sec=0, vacuum_us=0, python_us=0)

    alone = simulate(constants, load).done_per_sec
    with_vacuum = simulate(replace(constants, vacuum_us=71), load).done_per_sec
    shared = simulate(replace(constants, python_us=71), replace(load, shares_cores=True)).done_per_sec

    assert with_vacuum == pytest.approx(alone / 2, rel=0.1)
    assert shared == pytest.approx(alone / 2, rel=0.1)


def test_one_flush_is_for_all_commits_that_wait():
    """A flush of 20 ms would allow 50 commits a second one by one; 500 groups a second are enqueued."""
    slow_disk = replace(CONSTANTS, flush_sec=0.02)
    result = simulate(slow_disk, Load(jobs_per_sec=500, group=1, cores=8, seconds=20))

    assert not result.is_saturated
    assert result.done_per_sec == pytest.approx(500, rel=0.1)
    assert 2 * 20 < result.p50_ms < 6 * 20


def test_same_seed_gives_the_same_result():
    load = Load(jobs_per_sec=3_000, group=20, cores=2, seconds=5)

    assert simulate(CONSTANTS, load) == simulate(CONSTANTS, load)
    assert simulate(CONSTANTS, load) != simulate(CONSTANTS, replace(load, seed=2))


def test_table_needs_measured_constants(tmp_path, capsys):
    path = tmp_path / "constants.json"
    with pytest.raises(SystemExit):
        command.main(["--constants", str(path)])
    CONSTANTS.save(path)

    command.main(["--constants", str(path), "--seconds", "1"])

    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == 6
    assert all("p99" in row or "saturated at" in row for row in rows)
