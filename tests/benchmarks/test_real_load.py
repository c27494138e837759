"""Loads at random times: when jobs arrive, which rate is kept up with, and the table of a measurement."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import real_load
from benchmarks.real_load import Load, RealLoad, Times, arrival_times, find_saturation, keeps_up, print_loads

LOAD = Load(jobs_per_sec=2_000, group=20, seconds=20)


def measured(load: Load) -> RealLoad:
    counts = dict.fromkeys(("done_per_sec", "listen_us", "vacuum_us", "statistics_us", "events", "late_ms"), 0.0)
    costs = {"enqueue_us": 40.0, "claim_us": 30.0, "settle_us": 20.0, "worker_us": 50.0, "flush_us": 10.0}
    shares = {"claims": 0.05, "settlements": 0.1, "flushes": 0.02, "others": 0.03}
    times = Times([(0.0, load.jobs_per_sec / 1e5), (1.0, 1.0 + load.jobs_per_sec / 1e5)])
    return RealLoad(times=times, **counts, **costs, **shares)


def test_saturation_is_the_highest_rate_that_is_kept_up_with():
    found = find_saturation(LOAD, lambda load: min(load.jobs_per_sec, 5_000))

    assert found == pytest.approx(5_000, rel=0.04)


def test_rate_is_kept_up_with_when_as_many_jobs_end_as_were_due():
    assert keeps_up(LOAD, 2_200)
    assert not keeps_up(LOAD, 1_500)


def test_arrivals_are_the_same_for_a_seed_and_have_the_rate():
    arrivals = list(arrival_times(LOAD))

    assert arrivals == list(arrival_times(LOAD))
    assert arrivals != list(arrival_times(replace(LOAD, seed=2)))
    assert len(arrivals) * LOAD.group == pytest.approx(2_000 * 20, rel=0.1)


def test_times_are_those_of_jobs_due_within_the_measured_time():
    times = Times([(0.0, 0.010), (1.0, 1.050), (2.0, 2.100)])

    assert times.due_in(1, 2).entries == [(1.0, 1.050)]
    assert times.due_in(1, 2).quantile_ms(99) == pytest.approx(50)
    assert Times([]).quantile_ms(99) == float("inf")


def test_table_has_a_row_for_each_share_with_all_runs(monkeypatch, capsys):
    monkeypatch.setattr(real_load, "run_load", lambda dsn, load: measured(load))

    print_loads("", LOAD, saturation=1_000.0, shares=(0.5, 0.9), runs=3)

    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[:4] for row in rows] == [["0.5", "500", "5.00", "5 / 5 / 5"], ["0.9", "900", "9.00", "9 / 9 / 9"]]
    assert rows[0][4:8] == ["40.0", "30.0", "20.0", "90.0"]
    assert rows[0][9:] == ["20.0", "10.0", "0.50", "0.00", "3%"]
