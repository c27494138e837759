"""Runs programs as Ray jobs, through the HTTP API of the cluster's head. Needs no package of Ray here."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, ClassVar, Literal
from urllib.parse import quote

from dataloader.pipelines.executors import check_settings
from dataloader.pipelines.executors.http import (
    LOG_TIMEOUT_SEC,
    MAX_LOG_BYTES,
    NOT_FOUND,
    OK,
    SERVER_ERROR,
    Answer,
    AnswerTooLarge,
    HttpApi,
    LogPieces,
)
from dataloader.pipelines.offload import (
    EngineRefused,
    EngineUnavailable,
    FailureKind,
    OffloadFailed,
    OffloadSpec,
    RemoteState,
    RemoteStatus,
    ResultUnreadable,
    result_of_text,
)

_STATES = {
    "PENDING": RemoteState.PENDING,
    "RUNNING": RemoteState.RUNNING,
    "SUCCEEDED": RemoteState.SUCCEEDED,
    "FAILED": RemoteState.FAILED,
    "STOPPED": RemoteState.STOPPED,
}
_RESOURCES = {"cpu": "entrypoint_num_cpus", "gpu": "entrypoint_num_gpus", "memory": "entrypoint_memory"}
_LOST_TYPES = ("JOB_SUPERVISOR_ACTOR_DIED", "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE")
_MAX_DETAIL_LENGTH = 500
_TAIL_LINES = 10
_LOG_IN_MESSAGE = ", last available logs"  # before the end of the log, which is shown by itself
_KILL = "sleep $((${RAY_JOB_STOP_WAIT_TIME_S:-3} - 1)); kill -KILL 0"
_TRAP = f'trap "" TERM INT; c=$!; [ "$c" ] || exit 143; ({_KILL}) & wait $c; kill -KILL 0'
_WRAPPER, _WRAPPER_END = f"trap '{_TRAP}' TERM INT; eval ", " & wait $!"


class UnreadableLog(OffloadFailed):
    """Ray has a log that it cannot send."""


class RayExecutor:
    """A submission id is the name: Ray refuses a second one, which means that it is there."""

    runs: ClassVar[frozenset[Literal["program", "function"]]] = frozenset({"program"})
    survives: ClassVar[bool] = True

    def __init__(self, settings: Mapping[str, Any]) -> None:
        check_settings("ray", settings, required="address", known=("address", "token", "runtime_env", "ca_file"))
        self._api = HttpApi(settings["address"], token=settings.get("token"), verify=settings.get("ca_file", True))
        self._runtime_env = dict(settings.get("runtime_env", {}))
        self._logs = LogPieces()
        self.address = self._api.address

    def submit(self, name: str, spec: OffloadSpec) -> None:
        resources = {_RESOURCES[key]: value for key, value in spec.resources.items() if key in _RESOURCES}
        custom = {key: value for key, value in spec.resources.items() if key not in _RESOURCES}
        variables = {**self._runtime_env.get("env_vars", {}), **spec.env}
        body = {
            "entrypoint": stoppable(str(spec.entrypoint)),
            "submission_id": name,
            "runtime_env": {**self._runtime_env, "env_vars": variables},
            "metadata": dict(spec.labels),
            **resources,
            **({"entrypoint_resources": custom} if custom else {}),
        }
        answer = self._api.send("POST", "/api/jobs/", body=body)
        if answer.code == OK:
            return
        if self.status(name).state is RemoteState.UNKNOWN:  # else it exists already, or was made all the same
            message = f"Ray answered {answer.code}: {_reason(answer)}"
            raise EngineUnavailable(message) if answer.code >= SERVER_ERROR else EngineRefused(message)

    def status(self, name: str) -> RemoteStatus:
        answer = self._api.send("GET", _path(name))
        if _is_unknown(answer, name):
            return RemoteStatus(RemoteState.UNKNOWN)
        if answer.code != OK:
            raise EngineUnavailable(f"Ray answered {answer.code}: {answer.text[:200]}")
        details = answer.json()
        state = _STATES.get(str(details.get("status")), RemoteState.RUNNING)
        self._logs.record_state(name, state)
        message = str(details.get("message") or "")
        kind = _failure_kind(str(details.get("error_type") or ""), message)
        return RemoteStatus(state, kind, _unwrap(message.partition(_LOG_IN_MESSAGE)[0])[:_MAX_DETAIL_LENGTH])

    def stop(self, name: str) -> None:
        answer = self._api.send("POST", f"{_path(name)}/stop")
        if answer.code >= SERVER_ERROR and not self.status(name).state.is_over:
            raise EngineUnavailable(f"Ray answered {answer.code}: {answer.text[:200]}")

    def result(self, name: str) -> Any:
        try:
            text = self._read(name)
        except AnswerTooLarge:
            raise ResultUnreadable(
                f"the Ray job {name} succeeded, and its result is lost: its log has more than {MAX_LOG_BYTES:,} bytes, "
                "and Ray sends a log only as a whole. Print less, or write the log to a file"
            ) from None
        except UnreadableLog:
            raise ResultUnreadable(
                f"the Ray job {name} succeeded, and its result is lost: Ray cannot send a log that is not UTF-8"
            ) from None
        if not text:  # Ray writes lines of its own into each log
            raise OffloadFailed(f"Ray does not have the log of {name} any more, and so not its result")
        return result_of_text(text)

    def logs(self, name: str, after: str) -> tuple[list[str], str]:
        if not self._logs.is_due(name):
            return [], after
        is_over = self.status(name).state.is_over  # before the log is read: it is whole then
        lines, position = self._logs.read(name, after, lambda: self._read(name), is_over=is_over)
        return [_unwrap(line) for line in lines], position

    def last_lines(self, name: str) -> list[str]:
        try:
            return [_unwrap(line) for line in self._read(name).splitlines()[-_TAIL_LINES:]]
        except OffloadFailed:
            return []

    def _read(self, name: str) -> str:
        path = f"{_path(name)}/logs"
        answer = self._api.send("GET", path, max_bytes=MAX_LOG_BYTES, timeout_sec=LOG_TIMEOUT_SEC)
        if _is_unknown(answer, name):
            return ""
        if answer.code >= SERVER_ERROR and "UnicodeDecodeError" in answer.text:
            raise UnreadableLog("Ray cannot send a log that is not UTF-8")
        if answer.code != OK:
            raise EngineUnavailable(f"Ray answered {answer.code}: {answer.text[:200]}")
        return str(answer.json().get("logs") or "")

    def delete(self, name: str) -> None:
        """Of a job that has ended."""
        answer = self._api.send("DELETE", _path(name))
        if answer.code >= SERVER_ERROR and self.status(name).state is not RemoteState.UNKNOWN:
            raise EngineUnavailable(f"Ray answered {answer.code}: {answer.text[:200]}")


def stoppable(entrypoint: str) -> str:
    """Return a command line whose processes have all ended when Ray answers STOPPED.

    Ray sends SIGTERM to the shell and the child processes that it finds; a child that starts at that moment would
    continue. The shell waits for it, and kills its process group before Ray kills the shell.
    """
    return f"{_WRAPPER}{shlex.quote(entrypoint)}{_WRAPPER_END}"


def _unwrap(line: str) -> str:
    """A line in which Ray shows a command line, without what `stoppable` has added."""
    before, wrapper, after = line.partition(_WRAPPER)
    if not wrapper:
        return line
    quoted, _, rest = after.partition(_WRAPPER_END)
    try:
        return f"{before}{' '.join(shlex.split(quoted))}{rest}"
    except ValueError:  # it continues on the next line
        return f"{before}{quoted}{rest}"


def _reason(answer: Answer) -> str:
    """Of a refusal: the last lines of Ray's traceback say what is wrong."""
    return answer.text.strip()[-_MAX_DETAIL_LENGTH:]


def _is_unknown(answer: Answer, name: str) -> bool:
    """Whether Ray answers that it has no such job. A proxy before it may answer 404 too, without the name."""
    return answer.code == NOT_FOUND and name in answer.text


def _path(name: str) -> str:
    return f"/api/jobs/{quote(name, safe='')}"


def _failure_kind(error_type: str, message: str) -> FailureKind:
    if error_type in _LOST_TYPES or "node it was running on" in message:
        return FailureKind.WORKER_LOST
    is_oom = "OutOfMemory" in message or "out of memory" in message.lower()
    return FailureKind.OOM if is_oom else FailureKind.ERROR
