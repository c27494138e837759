"""The contract of executors, against each of them: the fake, child processes, and real engines where they run."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dataloader.pipelines.executors.kubernetes import KubernetesExecutor
from dataloader.pipelines.executors.process import ProcessExecutor
from dataloader.pipelines.offload import (
    EngineRefused,
    EngineUnavailable,
    Executor,
    FailureKind,
    OffloadSpec,
    RemoteState,
    RemoteStatus,
    ResultTooLarge,
    ResultUnreadable,
)
from tests.support.fake_engine import FakeEngine, FakeExecutor
from tests.support.fake_kubernetes import FakeKubernetes
from tests.support.waiting import eventually
from tests.workers.offloads import functions
from tests.workers.offloads.offload_fixture import program, start_count
from tests.workers.offloads.real_engines import DASK, RAY, dask_executor, ray_executor


@dataclass
class Subject:
    """An executor, and how its work is asked for."""

    executor: Executor
    folder: Path
    python: str | None = None  # None: it runs functions
    stopped: RemoteState = RemoteState.STOPPED  # what it answers of what was stopped

    def spec(self, mode: str, **more: Any) -> OffloadSpec:
        if self.python is None:
            return OffloadSpec(call=getattr(functions, mode), args=(str(self.folder),), **more)
        return OffloadSpec(entrypoint=program(mode, self.folder, self.python), **more)

    def submit(self, name: str, mode: str, **more: Any) -> None:
        self.executor.submit(name, self.spec(mode, **more))

    def wait_for(self, name: str, *states: RemoteState) -> RemoteStatus:
        found: list[RemoteStatus] = []

        def has_state() -> bool:
            found.append(self.executor.status(name))
            return found[-1].state in states

        eventually(has_state, 60, lambda: f"{states}; it is {found[-1]}", interval_sec=0.02)
        return found[-1]

    @property
    def gate(self) -> Path:
        return self.folder / "gate"

    @property
    def beats(self) -> int:
        path = self.folder / "beats"
        return path.stat().st_size if path.exists() else 0


RAY_ENGINE, DASK_ENGINE = pytest.param("ray", marks=RAY), pytest.param("dask", marks=DASK)
PROGRAMS: list[Any] = ["fake", "process", "kubernetes", RAY_ENGINE]
FUNCTIONS: list[Any] = ["process-function", DASK_ENGINE]
ENGINES: list[Any] = [*PROGRAMS, *FUNCTIONS]


@pytest.fixture(params=ENGINES)
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    yield from make_subject(request.param, request, tmp_path)


@pytest.fixture(params=PROGRAMS)
def program_subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    yield from make_subject(request.param, request, tmp_path)


@pytest.fixture
def function_subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    yield from make_subject(request.param, request, tmp_path)


def make_subject(kind: str, request: pytest.FixtureRequest, folder: Path) -> Iterator[Subject]:
    if kind == "fake":
        engine: FakeEngine = request.getfixturevalue("engine")
        yield Subject(FakeExecutor({"address": engine.address}), folder, sys.executable)
    elif kind.startswith("process"):
        executor = ProcessExecutor({})
        yield Subject(executor, folder, None if kind == "process-function" else sys.executable)
        for name in list(executor._children):
            executor.stop(name)
            executor.delete(name)
    elif kind == "kubernetes":
        cluster = FakeKubernetes(folder).up()
        settings = {"address": cluster.address, "namespace": "loads", "image": "acme:1", "token": cluster.token}
        yield Subject(KubernetesExecutor(settings), folder, sys.executable, stopped=RemoteState.UNKNOWN)
        cluster.close()
    elif kind == "ray":
        yield Subject(ray_executor(request.getfixturevalue("ray")), folder, "python3")
    else:
        yield Subject(dask_executor(request.getfixturevalue("dask")), folder)


def name_of(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses: real engines keep names."""
    return f"dl-{request.node.name.partition('[')[0].replace('_', '-')[-40:]}-{time.time_ns():x}"


def test_unknown_name_is_unknown(subject: Subject):
    assert subject.executor.status("dl-never-seen").state is RemoteState.UNKNOWN
    subject.executor.stop("dl-never-seen")
    assert subject.executor.logs("dl-never-seen", "")[0] == []


def test_work_succeeds_and_returns_its_result(subject: Subject, request: pytest.FixtureRequest):
    name = name_of(request)

    subject.submit(name, "quick")

    subject.wait_for(name, RemoteState.SUCCEEDED)
    assert subject.executor.result(name) == {"rows": 3}
    assert subject.executor.result(name) == {"rows": 3}, "a second reader gets it too"


def test_second_submission_of_a_name_attaches(subject: Subject, request: pytest.FixtureRequest):
    name = name_of(request)
    subject.submit(name, "gate")
    eventually(lambda: start_count(subject.folder) == 1)

    subject.submit(name, "gate")
    subject.gate.touch()

    subject.wait_for(name, RemoteState.SUCCEEDED)
    subject.submit(name, "gate")
    assert subject.executor.status(name).state is RemoteState.SUCCEEDED
    assert start_count(subject.folder) == 1


def test_running_work_is_running(subject: Subject, request: pytest.FixtureRequest):
    name = name_of(request)

    subject.submit(name, "gate")

    assert subject.executor.status(name).state in (RemoteState.PENDING, RemoteState.RUNNING)
    subject.wait_for(name, RemoteState.RUNNING)
    subject.gate.touch()
    subject.wait_for(name, RemoteState.SUCCEEDED)


def test_failure_of_the_code_is_an_error(subject: Subject, request: pytest.FixtureRequest):
    name = name_of(request)

    subject.submit(name, "fails")

    status = subject.wait_for(name, RemoteState.FAILED)
    assert status.kind is FailureKind.ERROR
    if subject.python is None:
        assert isinstance(status.error, KeyError)
        assert "functions.py" in status.detail


def test_stop_ends_running_code(subject: Subject, request: pytest.FixtureRequest):
    name = name_of(request)
    subject.submit(name, "gate")
    eventually(lambda: subject.beats > 2)

    subject.executor.stop(name)

    subject.wait_for(name, subject.stopped)
    beats = subject.beats
    time.sleep(0.2)
    assert subject.beats == beats, "not a beat after it"


def test_stop_of_ended_work_leaves_it_as_it_is(subject: Subject, request: pytest.FixtureRequest):
    name = name_of(request)
    subject.submit(name, "quick")
    subject.wait_for(name, RemoteState.SUCCEEDED)

    subject.executor.stop(name)

    assert subject.executor.status(name).state is RemoteState.SUCCEEDED


def test_too_large_result_is_refused(subject: Subject, request: pytest.FixtureRequest):
    name = name_of(request)
    subject.submit(name, "big")

    status = subject.wait_for(name, RemoteState.SUCCEEDED, RemoteState.FAILED)

    if status.error is not None:
        assert isinstance(status.error, ResultTooLarge)
    else:
        with pytest.raises(ResultTooLarge, match="storage"):
            subject.executor.result(name)


@pytest.mark.parametrize("mode", ["handle", "handle_of_worker"])
@pytest.mark.parametrize("function_subject", FUNCTIONS, indirect=True)
def test_result_that_cannot_be_sent_fails_for_good(
    function_subject: Subject, mode: str, request: pytest.FixtureRequest
):
    name = name_of(request)
    function_subject.submit(name, mode)

    status = function_subject.wait_for(name, RemoteState.SUCCEEDED, RemoteState.FAILED)

    if status.error is not None:
        assert isinstance(status.error, ResultUnreadable)
    else:
        with pytest.raises(ResultUnreadable, match="the result of the function cannot be"):
            function_subject.executor.result(name)


def test_code_knows_which_job_it_works_for(subject: Subject, request: pytest.FixtureRequest):
    name = name_of(request)
    variables = {"DL_JOB_ID": "j", "DL_RUN_ID": "r", "DL_OFFLOAD": name, "DL_FENCE_TOKEN": "f", "OWN": "mine"}

    subject.submit(name, "variables", env=variables)

    subject.wait_for(name, RemoteState.SUCCEEDED)
    answer = subject.executor.result(name)
    if subject.python is None:
        assert answer == {"job_id": "j", "run_id": "r", "offload": name, "fence_token": "f"}
    else:
        assert answer == variables


def test_deleted_name_is_unknown(subject: Subject, request: pytest.FixtureRequest):
    name = name_of(request)
    subject.submit(name, "quick")
    subject.wait_for(name, RemoteState.SUCCEEDED)

    subject.executor.delete(name)  # type: ignore[attr-defined]  # optional in the protocol

    assert subject.executor.status(name).state is RemoteState.UNKNOWN


# ── programs ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_log_is_read_in_pieces(program_subject: Subject, request: pytest.FixtureRequest):
    subject, name = program_subject, name_of(request)
    subject.submit(name, "lines")
    subject.wait_for(name, RemoteState.SUCCEEDED)
    pieces, position = [], ""

    for _ in range(20):
        piece, position = subject.executor.logs(name, position)
        pieces.append(piece)

    own = [line for piece in pieces for line in piece if line.startswith("line ")]
    assert own == [f"line {n}" for n in range(2_500)]
    assert max(map(len, pieces)) <= 1_000


def test_log_of_running_work_has_whole_lines(program_subject: Subject, request: pytest.FixtureRequest):
    subject, name = program_subject, name_of(request)
    subject.submit(name, "gate")
    lines: list[str] = []
    position = ""

    def has_begun() -> bool:
        nonlocal position
        piece, position = subject.executor.logs(name, position)
        lines.extend(piece)
        return "begun" in lines

    eventually(has_begun, interval_sec=0.05)
    assert subject.executor.logs(name, position) == ([], position)
    subject.gate.touch()
    subject.wait_for(name, RemoteState.SUCCEEDED)
    assert "begun" not in subject.executor.logs(name, position)[0]


def test_dead_engine_is_unavailable(tmp_path: Path):
    engine = FakeEngine(tmp_path).up()
    engine.down()

    with pytest.raises(EngineUnavailable):
        FakeExecutor({"address": engine.address}).status("dl-x")


# ── child processes ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def children() -> Iterator[ProcessExecutor]:
    executor = ProcessExecutor({})
    yield executor
    for name in list(executor._children):
        executor.stop(name)
        executor.delete(name)


def test_child_beyond_its_memory_is_oom(children: ProcessExecutor, tmp_path: Path):
    subject = Subject(children, tmp_path)

    subject.submit("dl-m", "memory", resources={"memory_mb": 200})

    assert subject.wait_for("dl-m", RemoteState.FAILED).kind is FailureKind.OOM


def test_program_gets_no_settings_of_the_worker(children: ProcessExecutor, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DL_DB_DSN", "postgresql://queue")
    monkeypatch.setenv("PGPASSWORD", "geheim")
    seen = "import os; print('::result ' + os.environ.get('DL_DB_DSN', '2') + os.environ.get('PGPASSWORD', '2'))"
    children.submit("dl-x-1", OffloadSpec(entrypoint=f'{sys.executable} -c "{seen}"', env={"PGPASSWORD": "1"}))

    eventually(lambda: children.status("dl-x-1").state is RemoteState.SUCCEEDED)
    assert children.result("dl-x-1") == 21


def test_killed_child_is_a_lost_worker(children: ProcessExecutor, tmp_path: Path):
    subject = Subject(children, tmp_path)

    subject.submit("dl-k", "dies")

    status = subject.wait_for("dl-k", RemoteState.FAILED)
    assert (status.kind, status.detail) == (FailureKind.WORKER_LOST, "the process was killed by SIGKILL")


def test_child_refuses_what_it_does_not_have(children: ProcessExecutor):
    with pytest.raises(EngineRefused, match="memory_mb and cpu_sec"):
        children.submit("dl-r", OffloadSpec(entrypoint="true", resources={"gpu": 1}))
    with pytest.raises(EngineRefused, match="cannot be pickled"):
        children.submit("dl-r", OffloadSpec(call=lambda: 1))
    with pytest.raises(EngineRefused, match="are allowed"):
        children.submit("dl-r", OffloadSpec(call=len, args=(bytes(16_000_001),)))
