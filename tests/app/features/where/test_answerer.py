"""What a worker process makes of what a child sends and of what the kernel says: hostile, too long, or gone."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.features.where import answerer
from dataloader.app.features.where.answerer import WhereAnswerer
from dataloader.app.features.where.process_tree import read_process, read_processes, read_stat, select_tree
from dataloader.app.features.where.rows import MAX_ANSWER_BYTES
from dataloader.app.features.where.sampler import Sampler
from dataloader.app.features.where.sampler_options import SamplerOptions
from dataloader.workers.running_attempts import RunningAttempts
from dataloader.workers.running_child import RunningChild
from tests.support import eventually
from tests.support.claimed_jobs import attempt_with

UNKNOWN = "\N{REPLACEMENT CHARACTER}"
FRAME = {"file": "f.py", "line": 3, "function": "load", "kind": "task", "repeated": 1}
THREAD = {"name": "main", "is_task": True, "frames": [FRAME], "frame_count": 1}


class Rows:
    """Keeps the answers, or cannot."""

    def __init__(self, error: Exception | None = None) -> None:
        self.answers: dict[str, Any] = {}
        self._error = error

    def answer(self, answers: dict[str, str]) -> None:
        if self._error is not None:
            raise self._error
        self.answers |= {run: json.loads(answer) for run, answer in answers.items()}


def no_sampler(attempts: RunningAttempts) -> Sampler:
    return Sampler(None, attempts, SamplerOptions(interval_sec=0))  # type: ignore[arg-type]  # it writes nothing


def answer_of(child_threads: Any, rows: Rows | None = None) -> Any:
    """What is written of an attempt whose child sends this."""
    attempt, attempts, kept = attempt_with(None), RunningAttempts(), rows or Rows()
    attempt.in_thread = False
    child = attempt.child = RunningChild(os.getpid(), lambda: None, has_channel=True)
    attempts.add([attempt])
    crashes: list[str] = []
    where = WhereAnswerer(kept, attempts, no_sampler(attempts), on_crash=crashes.append)  # type: ignore[arg-type]
    where.wake(attempt.job.run_text)

    def reply() -> None:
        number = eventually(child.next_request, message="the stacks are requested")
        assert number is not None
        child.receive_stacks(number, child_threads)

    replying = threading.Thread(target=reply)
    replying.start()
    where.run_once()
    replying.join()
    assert crashes == []
    return kept.answers.get(attempt.job.run_text)


def test_valid_answer_of_a_child_is_written():
    answer = answer_of([THREAD])

    assert answer["threads"] == [THREAD]
    assert (answer["isolation"], answer["problem"]) == ("process", None)


@pytest.mark.parametrize(
    "sent",
    [
        [], [None], ["x"], [{}], [[THREAD]], [THREAD | {"frames": "x"}], [THREAD | {"is_task": 1}],
        [THREAD | {"frame_count": "many"}],
    ],
)  # fmt: skip
def test_answer_that_is_none_is_a_problem(sent: Any):
    answer = answer_of(sent)

    assert (answer["threads"], answer["problem"]) == ([], "its process could not describe its threads")


@pytest.mark.parametrize(
    ("frame", "shown"),
    [
        (FRAME | {"line": "x"}, FRAME | {"line": None}),
        (FRAME | {"line": -1}, FRAME | {"line": None}),
        (FRAME | {"kind": "ours", "repeated": -5}, FRAME),
        (FRAME | {"repeated": 10**12}, FRAME | {"repeated": 10**6}),
        (FRAME | {"function": "x" * 999, "locals": {"password": "hidden"}}, FRAME | {"function": "x" * 200}),
        (FRAME | {"function": "a\x00\ud800b"}, FRAME | {"function": f"a{UNKNOWN}{UNKNOWN}b"}),
    ],
)  # fmt: skip
def test_odd_frame_is_made_plain(frame: dict[str, Any], shown: dict[str, Any]):
    assert answer_of([THREAD | {"frames": [frame, None, {}, 3]}])["threads"][0]["frames"] == [shown]


def test_answer_that_is_too_long_loses_other_threads_first():
    name = "界" * 200
    frames = [FRAME | {"function": name, "file": name} for _ in range(60)]
    threads = [THREAD | {"name": f"t{n}", "frames": frames} for n in range(20)]

    answer = answer_of(threads)

    assert answer["threads"][0]["name"] == "t0"
    assert 1 <= len(answer["threads"]) < 20
    assert len(json.dumps(answer, ensure_ascii=False).encode()) < MAX_ANSWER_BYTES * 1.1
    assert len(answer["threads"][0]["frames"]) > 20


def test_outage_and_fault_crash_no_thread(monkeypatch: pytest.MonkeyPatch):
    assert answer_of([THREAD], Rows(DatabaseUnavailable("gone"))) is None

    def fail(_: Any) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(answerer, "_isolation_of", fail)
    assert answer_of([THREAD]) is None


def test_run_of_another_process_is_ignored():
    rows, attempts = Rows(), RunningAttempts()
    where = WhereAnswerer(rows, attempts, no_sampler(attempts), on_crash=print)  # type: ignore[arg-type]

    where.wake("00000000-0000-0000-0000-000000000000")
    where.wake()

    assert where.run_once() > 600
    assert rows.answers == {}


def test_late_answer_of_a_child_counts_for_no_earlier_request():
    child = RunningChild(1, lambda: None, has_channel=True)
    first = child.request_stacks()
    assert (child.next_request(), child.next_request()) == (first, None)
    second = child.request_stacks()

    child.receive_stacks(second, ["not sent yet"])
    child.receive_stacks(first, ["first"])

    assert child.await_stacks(first, 0.0) == ["first"]
    assert child.await_stacks(second, 0.0) is None
    assert child.next_request() == second
    child.receive_stacks(second, ["second"])
    assert child.await_stacks(second, 0.0) == ["second"]


# ── processes ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_tree_has_children_and_orphans_of_the_session():
    script = "sleep 600 & (setsid true; sh -c 'sleep 601 & exit 0'); exec sleep 602"
    with subprocess.Popen(["sh", "-c", script], start_new_session=True) as root:
        try:

            def found() -> list[str]:
                tree = select_tree(read_processes(), root.pid)
                return [stat.name for stat, _ in tree if stat.state == "sleeping"]

            eventually(lambda: found() == ["sleep", "sleep"], message="both are there")
            assert all(depth == 0 for _, depth in select_tree(read_processes(), root.pid))
        finally:
            os.killpg(root.pid, 9)


def test_program_with_an_odd_name_is_read(tmp_path: Path):
    odd = tmp_path / ") R 1 (\n\xff"
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([str(odd), "600"]) as process:
        try:
            stat = eventually(lambda: read_process(process.pid))
            assert stat is not None
            assert (stat.name, stat.parent_pid) == (odd.name, os.getpid())
        finally:
            process.kill()


@pytest.mark.parametrize("content", [b"", b"1 (x", b"1 (x) S", b"1 (x) S " + b"a " * 30])
def test_stat_that_cannot_be_read_is_none(tmp_path: Path, content: bytes):
    path = tmp_path / "stat"
    path.write_bytes(content)

    assert read_stat(str(path)) is None
    assert read_stat(str(tmp_path / "gone")) is None
