"""Each benchmark runs, at a size that measures nothing, and prints a table whose ratios are numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from benchmarks import __main__ as listing
from benchmarks import cluster, depth, events, flow, heartbeat, http, isolation, load, memory, schedules
from benchmarks.horizon import __main__ as horizon
from tests.cluster.network import require_tools

pytestmark = pytest.mark.superuser("benchmarks make databases of their own")

Run = Callable[[Sequence[str]], None]


@pytest.fixture
def run(monkeypatch, server_dsn, capsys):
    """Runs a benchmark against the suite's own server; returns its table without the headings."""
    monkeypatch.setenv("DL_BENCH_DSN", server_dsn)

    def running(main: Run, *arguments: str) -> list[list[str]]:
        main(arguments)
        output = capsys.readouterr().out
        assert "PostgreSQL " in output
        lines = [line for line in output.splitlines() if line.startswith("|")]
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]

    return running


def ratio(cell: str) -> float:
    return float(cell.removesuffix(" ×").replace(",", ""))


def test_list_describes_every_benchmark_with_its_duration(capsys):
    listing.main()

    output = capsys.readouterr().out
    files = {path.stem for path in Path(listing.__file__).parent.glob("*.py") if "\ndef main(" in path.read_text()}
    assert {"depth", "heartbeat", "http", "load"} < files
    for name in (*(files - {"__main__"}), "peers"):
        assert re.search(rf"^{name} +\S.+\n +takes \S+", output, re.MULTILINE), name


def test_depth(run):
    small = ["--rows", "120", "150", "--around", "1200", "--scale", "0.0005"]
    rows = run(depth.main, *small, "--rounds", "1", "--singles", "2", "--hundreds", "1")

    assert len(rows) == 8
    assert rows[0][2] == "1.00 ×"
    assert all(ratio(row[n]) > 0 for row in rows for n in (2, 5))
    assert all(0 < float(row[6]) <= 200 for row in rows), "the pages of a job depend on no load of the machine"


def test_isolation(run):
    rows = run(isolation.main, "--rounds", "1", "--jobs", "3", "--children", "0", "2")

    starts, drains, (idle, two) = rows[:5], rows[7:12], rows[14:]
    assert all(ratio(starts[n][column]) > 0 for n in (2, 4) for column in (3, 6))
    assert all(ratio(row[2]) > 0 for row in drains)
    assert float(idle[1]) > 1
    assert ratio(two[-1]) > 0


@pytest.mark.parametrize(("part", "count"), [("drain", 2), ("claim", 4), ("sharing", 3), ("turns", 8), ("children", 4)])
def test_flow(run, monkeypatch, part, count):
    monkeypatch.setattr(flow, "SHARING_TIMEOUT_SEC", 60.0)  # fails with a message before the test's own time ends
    small = ["--rows", "50", "--jobs", "100", "--shared", "100", "--rounds", "1", "--singles", "2", "--chain", "5"]
    rows = run(flow.main, "--parts", part, *small)

    assert len(rows) == count
    assert rows[0][3] == "1.00 ×"
    assert all(ratio(row[3]) > 0 for row in rows)


def test_schedules(run):
    rows = run(
        schedules.main,
        "--schedules",
        "60",
        "--every",
        "6",
        "--seconds",
        "1",
        "--race",
        "2",
        "--slices",
        "700",
        "--claims",
        "2",
    )

    assert [row[0].partition(",")[0] for row in rows[-10:-7]] == [
        "race: 16 processes", "700 plain jobs", "700 slices",
    ]  # fmt: skip
    assert all(ratio(row[3]) > 0 for row in (*rows[:-10], *rows[-9:]))


@pytest.mark.root
def test_cluster(run):
    require_tools()
    rows = run(cluster.main, "--parts", "listen", "--processes", "1", "--seconds", "0.2")

    assert [row[0] for row in rows] == ["1"]
    assert ratio(rows[0][2]) > 0


def test_events(run):
    rows = run(events.main, "--jobs", "500", "--rounds", "1")

    assert [row[0] for row in rows] == ["without pauses", "with pauses"]


def test_heartbeat(run):
    rows = run(heartbeat.main, "--jobs", "2", "--heartbeats", "20", "--rounds", "1")

    assert len(rows) == 4
    assert all(int(row[column].replace(",", "")) > 0 for row in rows for column in (5, 6))


@pytest.mark.full
def test_horizon(run):
    small = ["--seconds", "11", "--jobs", "4", "--rate", "8", "--all"]
    rows = run(horizon.main, *small, "--lanes", "nothing", "write", "snapshot")

    statements = {row[0] for row in rows}
    assert {"claim: claim", "settle: settle", "enqueue: enqueue", "status read: get_job"} <= statements
    summary = {row[0]: row[1:] for row in rows[-40:] if len(row) == 4}
    assert summary["leases lost"] == summary["deadlocks"] == ["0", "0", "0"]
    assert summary["seconds"] == ["11", "11", "11"]


def test_memory(run):
    rows = run(memory.main, "--threads", "1", "2", "--jobs", "20", "--portion", "10", "--rest", "0.1")

    assert [row[0] for row in rows] == ["1", "2"]
    assert all(float(row[1]) > float(row[2]) > 1 for row in rows)


def test_load(run):
    rows = run(load.main, "--rows", "200", "--rounds", "1")

    assert [row[0] for row in rows[:3]] == ["copy", "execute_values(5000)", "copy_rows"]
    assert all(ratio(row[n]) > 0 for row in rows for n in (3, 5))


def test_http(run):
    rows = run(http.main, "--processes", "1", "--rounds", "1", "--seconds", "0.2", "--client", "own")

    assert [row[0].partition(", ")[2] for row in rows] == [
        "Flask, no-op",
        "Flask, one INSERT",
        "POST trigger",
        "GET status",
        "GET /health",
    ]
    assert all(ratio(row[2]) > 0 for row in rows)
