"""When the memory of a worker process is high, by the kernel's files, and what it claims then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dataloader.app.features.registry import FEATURES
from dataloader.app.features.why.explain import JobExplainer
from dataloader.app.queue.job import Status
from dataloader.workers.memory import MemoryMonitor, MemoryReader, MemoryReading
from dataloader.workers.metrics import state_metrics
from dataloader.workers.pool import WorkerPool
from tests.support import eventually
from tests.support.worker_pool_fixture import WorkerPoolFixture

MEMINFO = "MemTotal: 1000 kB\nMemFree: 50 kB\nMemAvailable:    400 kB\n"
PRESSURE = "some avg10={} avg60=0.00 avg300=0.00 total=0\nfull avg10=99.00 avg60=0.00 avg300=0.00 total=0\n"


def write_files(folder: Path, files: dict[str, object]) -> MemoryReader:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(content), encoding="ascii")
    return MemoryReader(folder / "proc", folder / "cgroup")


def test_version_2_reads_cgroup_with_its_pressure(tmp_path):
    reader = write_files(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a/b\n",
            "proc/meminfo": MEMINFO,
            "proc/pressure/memory": PRESSURE.format("50.00"),
            "proc/pressure/cpu": PRESSURE.format("7.50"),
            "cgroup/a/b/memory.max": "1000\n",
            "cgroup/a/b/memory.current": "900\n",
            "cgroup/a/b/memory.stat": "anon 5\ninactive_file 200\n",
            "cgroup/a/b/memory.pressure": PRESSURE.format("3.25"),
        },
    )

    assert reader.read() == MemoryReading(70.0, 1000, 3.25, 7.5)


def test_limit_of_outer_cgroup_applies(tmp_path):
    reader = write_files(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/container",
            "proc/meminfo": MEMINFO,
            "cgroup/pod/memory.max": "2000",
            "cgroup/pod/memory.current": "1000",
            "cgroup/pod/container/memory.max": "max",
            "cgroup/pod/container/memory.current": "900",
        },
    )
    assert reader.read() == MemoryReading(50.0, 2000)

    write_files(tmp_path, {"cgroup/pod/container/memory.max": "1000"})
    assert reader.read() == MemoryReading(90.0, 1000), "the level with the least room"


@pytest.mark.parametrize("path", ["/docker/c", "/unseen/path", "/../elsewhere"])
def test_version_1_is_read(tmp_path, path: str):
    folder = "cgroup/memory/docker/c" if path == "/docker/c" else "cgroup/memory"
    reader = write_files(
        tmp_path,
        {
            "proc/self/cgroup": f"9:name=systemd:/x\n4:cpu,memory:{path}\n0::/\n",
            "proc/meminfo": MEMINFO,
            "proc/pressure/memory": PRESSURE.format("4.00"),
            f"{folder}/memory.limit_in_bytes": "1000",
            f"{folder}/memory.usage_in_bytes": "800",
            f"{folder}/memory.stat": "inactive_file 1\ntotal_inactive_file 100",
        },
    )

    assert reader.read() == MemoryReading(70.0, 1000, 4.0)


@pytest.mark.parametrize("limit", ["9223372036854771712", "max", "0", "-1", "much"])
def test_machine_counts_without_a_limit(tmp_path, limit: str):
    reader = write_files(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/\n0::/",
            "proc/meminfo": MEMINFO,
            "cgroup/memory.max": limit,
            "cgroup/memory.current": "999",
            "cgroup/memory/memory.limit_in_bytes": limit,
            "cgroup/memory/memory.usage_in_bytes": "999",
        },
    )

    assert reader.read() == MemoryReading(60.0, 1_024_000)


def test_missing_or_unknown_content_reports_nothing(tmp_path):
    assert write_files(tmp_path, {}).read() == MemoryReading()
    garbage: dict[str, object] = {
        "proc/self/cgroup": "nothing\n:::\n0::/a",
        "proc/meminfo": "MemTotal: all kB\nMemAvailable\n\n",
        "proc/pressure/memory": "some avg10=high\n",
        "proc/pressure/cpu": "some\n=\n",
        "cgroup/a/memory.max": "1e3",
        "cgroup/a/memory.current": "",
        "cgroup/a/memory.pressure": "some avg60=1",
    }
    reader = write_files(tmp_path, garbage)
    assert reader.read() == MemoryReading()

    (tmp_path / "proc/meminfo").write_bytes(b"\xff\x00")
    assert reader.read() == MemoryReading()


class Readings:
    """A monitor whose reading a test sets."""

    def __init__(self, max_used_percent: float = 85) -> None:
        self.reading, self.count, self.changes = MemoryReading(), 0, list[bool]()
        self.monitor = MemoryMonitor(max_used_percent, on_change=self.changes.append, read=self.read)
        self._now = 100.0

    def read(self) -> MemoryReading:
        self.count += 1
        return self.reading

    def is_high(self, used: float | None = None, pressure: float | None = None) -> bool:
        self.reading, self._now = MemoryReading(used, None, pressure), self._now + 1
        self.monitor.check(self._now)
        assert self.monitor.state is not None
        return self.monitor.state.high


def test_high_memory_ends_ten_points_lower():
    readings = Readings()

    assert [readings.is_high(used) for used in (80, 85, 85.1, 80, 75.1, 75, 80)] == [0, 0, 1, 1, 1, 0, 0]
    assert readings.changes == [True, False]


def test_pressure_alone_is_high_and_both_must_fall():
    readings = Readings()

    assert [readings.is_high(None, pressure) for pressure in (20, 21, 11, 10)] == [0, 1, 1, 0]
    assert readings.is_high(90, 30)
    assert readings.is_high(60, 15)
    assert readings.is_high(76, 0)
    assert not readings.is_high(60, 0)
    assert not readings.is_high(None, None)


def test_low_threshold_can_be_left():
    readings = Readings(4)

    assert [readings.is_high(used) for used in (5, 3, 2)] == [1, 1, 0]


def test_files_are_read_once_a_second():
    readings = Readings()
    for now in (10.0, 10.5, 10.9, 11.0):
        readings.monitor.check(now)

    assert readings.count == 2


def test_zero_switches_off():
    readings = Readings(0)
    readings.monitor.check(10.0)

    assert (readings.count, readings.monitor.state) == (0, None)


def test_change_is_logged_as_warning_then_info(caplog):
    readings = Readings()
    with caplog.at_level("INFO"):
        for used in (90, 91, 50):
            readings.is_high(used)

    records = [(r.levelname, r.getMessage()) for r in caplog.records if "memory_changed" in r.getMessage()]
    assert [level for level, _ in records] == ["WARNING", "INFO"]


# ── a real pool ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def set_memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[WorkerPool, float], None]:
    """Return a function that changes what a pool reads, and waits until it has read it."""
    reading = [MemoryReading(0.0)]
    monkeypatch.setattr(MemoryReader, "read", lambda reader: reading[0])

    def set_used(pool: WorkerPool, used: float) -> None:
        reading[0] = MemoryReading(used, 1000, 0.0, 0.0)
        eventually(lambda: (pool.state().memory or {}).get("used_percent") == used, message="the memory is read")

    return set_used


def codes(worker_pools: WorkerPoolFixture, job_id) -> list[str]:
    return [
        reason.code for reason in JobExplainer(worker_pools.queue_fixture.session, FEATURES).explain(job_id).reasons
    ]


def test_pool_with_high_memory_runs_one_job_until_it_falls(worker_pools, set_memory):
    pool = worker_pools.listening_pool({"q": 3, "other": 1}, memory_high_percent=85.0)
    set_memory(pool, 95.0)
    first = worker_pools.add_job("held", args={"n": 1})
    worker_pools.gate.wait_for_inside(1)
    second, third = worker_pools.add_job("held", args={"n": 2}), worker_pools.add_job("held", queue="other")

    eventually(lambda: codes(worker_pools, second) == ["memory_high"], message=lambda: str(codes(worker_pools, second)))
    eventually(lambda: codes(worker_pools, third) == ["memory_high"], message=lambda: str(codes(worker_pools, third)))
    assert pool.state().memory["high"]
    assert {m.name: m.samples[0].value for m in state_metrics(pool.state())}["dataloader_memory_high"] == 1
    assert pool.state().busy == 1
    assert worker_pools.queue_fixture.status(second) is worker_pools.queue_fixture.status(third) is Status.QUEUED

    set_memory(pool, 80.0)
    assert pool.state().memory["high"], "less than ten points below"
    set_memory(pool, 50.0)

    eventually(lambda: pool.state().busy == 3, message="both start without a notification")
    worker_pools.gate.open()
    worker_pools.wait_for_all([first, second, third])


def test_high_memory_runs_jobs_of_all_queues_one_by_one(worker_pools, set_memory):
    running: list[int] = []
    counts: list[int] = []

    @worker_pools.pipelines.register("counted")
    def run(args: dict[str, int]) -> None:
        running.append(args["n"])
        counts.append(len(running))
        worker_pools.queue_fixture.sql("SELECT pg_sleep(0.02)")
        running.remove(args["n"])

    pool = worker_pools.listening_pool({"a": 2, "b": 2}, memory_high_percent=85.0)
    set_memory(pool, 99.0)
    job_ids = [worker_pools.add_job("counted", queue=queue, args={"n": n}) for n, queue in enumerate("abab" * 3)]

    worker_pools.wait_for_all(job_ids)
    assert counts == [1] * len(job_ids)
