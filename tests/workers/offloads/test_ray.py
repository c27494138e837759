"""What needs no Ray to be shown of its executor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dataloader.pipelines.executors.http import Answer, AnswerTooLarge, HttpApi
from dataloader.pipelines.executors.ray import RayExecutor, stoppable
from dataloader.pipelines.offload import EngineUnavailable, OffloadFailed, OffloadSpec, RemoteState, ResultUnreadable
from tests.support.waiting import eventually
from tests.workers.offloads.offload_fixture import program

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """As Ray starts it."""
    shells: list[subprocess.Popen[str]] = []

    def start_shell(entrypoint: str, **env: str) -> subprocess.Popen[str]:
        shells.append(_shell(entrypoint, env))
        return shells[-1]

    yield start_shell
    for shell in shells:
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)


def _shell(entrypoint: str, env: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["/bin/sh", "-c", stoppable(entrypoint)], start_new_session=True, env={**os.environ, **env},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_stop_of_the_shell_alone_ends_its_program(start: Start, tmp_path: Path):
    """Ray sends no signal to a process that the shell has started since it looked for them."""
    shell = start(f"cd / && {program('gate', tmp_path)}", RAY_JOB_STOP_WAIT_TIME_S="1")
    eventually((tmp_path / "beats").exists)

    shell.terminate()

    output, _ = shell.communicate(timeout=20)  # ends when no process has the pipe any more
    assert output == "begun\n"


@pytest.mark.parametrize(
    ("entrypoint", "ended"),
    [("exit 3", (3, "")), ("A='b c'; echo \"$A\" # d", (0, "b c\n"))],
)
def test_command_line_ends_as_it_would_by_itself(start: Start, entrypoint: str, ended: tuple[int, str]):
    shell = start(entrypoint)

    output, _ = shell.communicate(timeout=20)

    assert (shell.returncode, output) == ended


# ── its answers ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Head(HttpApi):
    """Answers to every request with the same."""

    def __init__(self, answer: Answer | Exception) -> None:
        super().__init__("http://head")
        self.answer = answer

    def send(self, method: str, path: str, **options: Any) -> Answer:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def executor(answer: int | Answer | Exception, content: bytes = b"") -> RayExecutor:
    made = RayExecutor({"address": "http://head"})
    made._api = Head(Answer(answer, content) if isinstance(answer, int) else answer)
    return made


@pytest.mark.parametrize(
    "content",
    [b"null", b"[1]", b"<html>", b'{"status": "\xff"}', b"[" * 100_000],
    ids=["null", "list", "page", "bytes", "deep"],
)
def test_answer_that_is_not_of_ray_is_no_answer(content: bytes):
    with pytest.raises(EngineUnavailable):
        executor(200, content).status("dl-x-1")


def test_unknown_name_is_in_the_answer_of_ray():
    assert executor(404, b"Job dl-x-1 does not exist").status("dl-x-1").state is RemoteState.UNKNOWN
    for code, content in ((404, b"default backend - 404"), (302, b"")):
        proxy = executor(code, content)
        with pytest.raises(EngineUnavailable):
            proxy.status("dl-x-1")
        with pytest.raises(EngineUnavailable):
            proxy.submit("dl-x-1", OffloadSpec(entrypoint="true"))


@pytest.mark.parametrize(
    ("code", "content", "words"),
    [
        (200, b'{"logs": ""}', "not have the log"),
        (404, b"Job dl-x-1 does not exist", "not have the log"),
    ],
)
def test_result_that_ray_does_not_have_is_an_error(code: int, content: bytes, words: str):
    with pytest.raises(OffloadFailed, match=words):
        executor(code, content).result("dl-x-1")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (AnswerTooLarge("more than 32,000,000 bytes"), "its log has more than 32,000,000 bytes"),
        (Answer(500, b"Traceback\nUnicodeDecodeError: 'utf-8' codec"), "not UTF-8"),
    ],
)
def test_result_that_ray_cannot_send_is_permanent(answer: Any, words: str):
    with pytest.raises(ResultUnreadable, match=rf"dl-x-1 succeeded, and its result is lost: .*{words}") as refused:
        executor(answer).result("dl-x-1")

    assert refused.value.permanent


def test_failure_of_ray_begins_with_its_reason():
    shell = stoppable("python 'load it.py'")
    message = (
        "Job entrypoint command failed with exit code 3, last available logs (truncated to 20,000 chars):\n"
        f"INFO job_supervisor.py -- Running entrypoint for job dl-x-1: {shell}\n" + "x" * 20_000
    )
    status = executor(200, json.dumps({"status": "FAILED", "message": message}).encode()).status("dl-x-1")

    assert (status.state, status.detail) == (RemoteState.FAILED, "Job entrypoint command failed with exit code 3")


def test_log_of_ray_shows_the_command_line_of_the_job():
    line = f"INFO -- Running entrypoint for job dl-x-1: {stoppable('python load.py')}"
    engine = executor(200, json.dumps({"status": "RUNNING", "logs": f"{line}\nbegun\n"}).encode())

    assert engine.logs("dl-x-1", "")[0] == ["INFO -- Running entrypoint for job dl-x-1: python load.py", "begun"]
    assert engine.last_lines("dl-x-1")[1] == "begun"


def test_result_may_have_any_character():
    text = json.dumps({"logs": 'INFO\n50%\r::result {"name": "a\u2028b"}\n'})

    assert executor(200, text.encode()).result("dl-x-1") == {"name": "a\u2028b"}
