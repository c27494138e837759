"""Lines reach the table soon, no pipeline waits for them, and dropped lines are counted."""
# ruff: noqa: T201 - jobs print

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import uuid4

import pytest

from dataloader.app.errors import DatabaseUnavailable, InvalidJob, SchemaMissing
from dataloader.app.queue.job import Status
from dataloader.workers.logs import writer
from dataloader.workers.logs.writer import POSITION_STREAM, JobLogLimits, JobLogWriter, sanitize_line
from tests.support import eventually
from tests.support.claimed_jobs import Source


@dataclass
class Table:
    """Takes the queue's place, and fails on request."""

    lines: list = field(default_factory=list)
    batches: list = field(default_factory=list)
    failing: list = field(default_factory=list)
    positions: list = field(default_factory=list)

    def write_logs(self, lines, positions=()):
        if self.failing:
            raise self.failing.pop(0)
        self.positions += positions
        self.batches.append(len(lines))
        self.lines += lines

    @property
    def texts(self):
        return [line.line for line in self.lines]


@dataclass
class Time:
    now: float = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def time(monkeypatch):
    moved = Time()
    monkeypatch.setattr(writer, "clock", moved)
    return moved


@pytest.fixture
def table():
    return Table()


@pytest.fixture
def make(table, time):
    def made(connected=True, echo=None, **limits):
        return JobLogWriter(
            table, JobLogLimits(**limits), is_connected=lambda: connected, on_crash=pytest.fail, echo=echo
        )

    return made


JOB = uuid4()


@contextmanager
def within(logs: JobLogWriter, attempt: int) -> Iterator[None]:
    with logs.capture.output_of(Source(JOB, attempt)):
        yield
    logs.finish(JOB, attempt)


def say(logs, *lines, attempt=1):
    for line in lines:
        logs.write(JOB, attempt, "INFO", "stdout", line)


def test_lines_are_written_once_a_second(make, table, time):
    logs = make()
    say(logs, "one", "two\nthree")

    assert logs.run_once() == 1.0
    say(logs, "four")
    time.now += 0.25
    assert logs.run_once() == 0.75
    assert table.texts == ["one", "two", "three"]

    time.now += 0.75
    logs.run_once()
    assert table.texts[3:] == ["four"]
    assert table.lines[3].age_sec == pytest.approx(1.0)


def test_position_is_written_with_the_lines_before_it(make, table):
    logs = make()
    say(logs, "one")
    for position in ("1", "2030-01-01 00:00", "a\0b", "é"):
        logs.write(JOB, 1, "INFO", POSITION_STREAM, f"dl-x-1 run {position}")
    table.failing = [DatabaseUnavailable("away")]

    with pytest.raises(DatabaseUnavailable):
        logs.run_once()
    assert table.positions == []
    logs.flush()

    assert table.texts == ["one"]
    assert table.positions == [("dl-x-1", "run", "2030-01-01 00:00")]


def test_flood_of_positions_uses_bounded_memory(make, table, monkeypatch):
    """They come from the process of the job."""
    monkeypatch.setattr(writer, "_MAX_PENDING_LINES", 10)
    logs = make()
    logs.write(JOB, 1, "INFO", POSITION_STREAM, "dl-x-1 run " + "1" * 1_000_000)
    for n in range(1000):
        logs.write(JOB, 1, "INFO", POSITION_STREAM, f"dl-x-{n} run {n}")
    logs.flush()

    assert len(table.positions) == 10
    assert sum(len("".join(position)) for position in table.positions) < 1000


def test_lines_wait_for_the_database_and_pipelines_do_not(make, table, time):
    logs = make()
    table.failing = [DatabaseUnavailable("away")]
    say(logs, "one", "two")

    with pytest.raises(DatabaseUnavailable):
        logs.run_once()
    time.now += 1
    logs.run_once()

    assert table.texts == ["one", "two"]
    assert make(connected=False).run_once() == 1.0


def test_lines_beyond_capacity_are_dropped_and_counted(make, table, time, monkeypatch):
    monkeypatch.setattr(writer, "_MAX_PENDING_LINES", 3)
    logs = make()
    say(logs, *"abcdefg")
    logs.flush()
    say(logs, "h")
    logs.flush()

    assert table.texts == [*"abc", "… 4 lines left out …", "h"]
    assert (table.lines[3].stream, table.lines[3].dropped) == ("note", 4)


def test_attempt_ending_at_capacity_counts_dropped_lines(make, table, monkeypatch):
    monkeypatch.setattr(writer, "_MAX_PENDING_BYTES", 10)
    logs = make()
    with within(logs, 1):
        say(logs, "x" * 10, *"abc")
    logs.flush()

    assert table.texts == ["x" * 10, "… 3 lines left out …"]


def test_full_log_keeps_its_beginning_and_end(make, table):
    logs = make(max_bytes=1000)
    with within(logs, 1):
        say(logs, *(f"line {n:04}" for n in range(1500)))
    logs.flush()

    assert table.texts[0] == "line 0000"
    cut = table.texts.index("… this log has reached 1,000 characters; of what follows only the end is kept …")
    assert cut == 100
    assert table.texts[cut + 1] == "… 1,350 lines left out …"
    assert table.texts[cut + 2 :] == [f"line {n:04}" for n in range(1450, 1500)]


def test_flood_is_throttled_until_it_pauses(make, table, time):
    logs = make(lines_per_sec=10)
    say(logs, *(f"{n}" for n in range(130)))
    time.now += 0.5
    say(logs, "too soon")
    time.now += 0.6
    say(logs, "quiet again")
    logs.flush()

    assert table.texts == [*(f"{n}" for n in range(100)), "… 31 lines left out …", "quiet again"]


def test_each_attempt_has_its_own_quota(make, table):
    logs = make(max_bytes=10)
    with within(logs, 1):
        say(logs, "123456789", "too much")
    with within(logs, 2):
        say(logs, "again", attempt=2)
    logs.flush()

    assert [(line.attempt, line.line) for line in table.lines][-2:] == [(1, "too much"), (2, "again")]


def test_old_quotas_are_dropped(make, table, monkeypatch):
    monkeypatch.setattr(writer, "_MAX_QUOTAS", 2)
    logs = make(max_bytes=5)
    for attempt in range(5):
        say(logs, "x", "too much", attempt=attempt)
    for attempt in range(5):
        logs.finish(JOB, attempt)
    assert not logs.has_attempts
    logs.flush()

    assert [line.attempt for line in table.lines if line.line == "too much"] == [3, 4]


def test_write_never_raises(make, table):
    def broken(*logged):
        raise RuntimeError("the terminal is gone")

    logs = make(echo=broken)
    say(logs, "lost")
    logs.write(JOB, 1, "LOUD", "stdout", None)
    assert table.texts == []

    output = []
    logs = make(echo=lambda *logged: output.append(logged))
    logs.write(JOB, 1, "LOUD", "stderr", "kept")
    logs.flush()
    assert output == [(JOB, 1, "LOUD", "stderr", "kept")]
    assert table.lines[0].level == "INFO"


def test_missing_tables_are_logged_once(make, table, time, logged):
    logs = make()
    say(logs, "one")
    table.failing = [SchemaMissing("no such table"), SchemaMissing("no such table")]
    logs.run_once()
    assert logs.flush() is False
    time.now += 1
    logs.run_once()

    assert logged("job_logs.failed") == [{"error": "no such table"}]
    assert table.texts == ["one"]


def test_database_in_another_encoding_gets_escaped_lines(make, table):
    logs = make()
    say(logs, "Привет")
    table.failing = [InvalidJob("character has no equivalent in encoding LATIN1")]
    logs.flush()

    assert table.texts == ["\\u041f\\u0440\\u0438\\u0432\\u0435\\u0442"]


def test_many_lines_are_written_in_batches(make, table, monkeypatch):
    monkeypatch.setattr(writer, "_BATCH", 2)
    logs = make()
    say(logs, *"abcde")

    assert logs.flush() is True
    assert table.batches == [2, 2, 1]


@pytest.mark.parametrize(
    ("result", "kept"),
    [
        ("plain\twith a tab", "plain\twith a tab"),
        ("\x1b[1;31mred\x1b[0m \x1b]0;title\x07text", "red text"),
        ("nul \x00, half \ud800, bell \x07, turn \u202e", "nul \\x00, half \\ud800, bell \\x07, turn \\u202e"),
        ("postgresql://me:hunter22@host/db", "postgresql://me:***@host/db"),
        ("pass\x1b[0mword=hunter22", "password=***"),
    ],
)
def test_control_characters_are_escaped(result, kept):
    assert sanitize_line(result) == kept


def test_line_is_truncated_at_8_kb(make, table):
    logs = make()
    say(logs, "я" * 100_000)
    logs.flush()

    assert len(table.texts[0].encode()) <= 8192
    assert table.texts[0].endswith("… the rest of this line left out …")


# ── with real workers ───────────────────────────────────────────────────────────────────────────────────────────────


def lines_of(worker_pools, job_id):
    return [line.line for line in worker_pools.queue_fixture.queue.logs(job_id).lines]


def test_each_attempt_has_its_lines_in_the_table(worker_pools):
    @worker_pools.pipelines.register("talks")
    def talks(args, ctx):
        print(f"try {ctx.attempt}")
        ctx.log.info("loaded", rows=5)
        if ctx.attempt == 1:
            raise ValueError("once more")

    worker_pools.pool()
    job_id = worker_pools.add_job("talks")
    worker_pools.wait_for_status(job_id, Status.SUCCEEDED)

    eventually(lambda: len(lines_of(worker_pools, job_id)) == 4)
    assert lines_of(worker_pools, job_id) == ["try 1", "loaded rows=5", "try 2", "loaded rows=5"]


def test_stopping_pool_writes_the_last_lines(worker_pools):
    @worker_pools.pipelines.register("talks")
    def talks(args, ctx):
        worker_pools.gate.wait_inside("talks")
        print("the last word")

    pool = worker_pools.pool()
    job_id = worker_pools.add_job("talks")
    worker_pools.gate.wait_for_inside()
    worker_pools.gate.open()
    assert pool.stop(grace=20)

    assert lines_of(worker_pools, job_id) == ["the last word"]


def test_flush_waits_for_the_batch_of_the_thread(make, table):
    logs = make()
    is_writing, may_end = threading.Event(), threading.Event()
    write = table.write_logs

    def write_slowly(lines, positions=()):
        is_writing.set()
        assert may_end.wait(10)
        write(lines, positions)

    table.write_logs = write_slowly
    say(logs, "one")
    threads = [threading.Thread(target=logs.run_once)]
    threads[0].start()
    assert is_writing.wait(10)
    threads.append(threading.Thread(target=logs.flush))
    threads[1].start()

    assert not table.lines
    assert threads[1].is_alive()
    may_end.set()
    for thread in threads:
        thread.join(10)
    assert table.texts == ["one"]


def test_positions_of_an_attempt_are_written_at_its_end(make, table):
    logs = make()
    say(logs, "one")

    logs.keep_positions(JOB, 1)
    assert table.texts == []
    logs.write(JOB, 2, "INFO", POSITION_STREAM, "dl-x-1 run 1")
    logs.keep_positions(JOB, 1)
    assert table.texts == []
    logs.keep_positions(JOB, 2)

    assert table.texts == ["one"]
    assert table.positions == [("dl-x-1", "run", "1")]


def test_positions_that_cannot_be_written_fail_no_job(make, table):
    def refuse(lines, positions=()):
        raise RuntimeError("the index is broken")

    write, table.write_logs = table.write_logs, refuse
    logs = make()
    logs.write(JOB, 1, "INFO", POSITION_STREAM, "dl-x-1 run 1")

    logs.keep_positions(JOB, 1)

    table.write_logs = write
    assert logs.flush()
    assert table.positions == [("dl-x-1", "run", "1")]
