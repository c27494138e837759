"""Runs programs as Kubernetes Jobs, through the HTTP API of the cluster. Needs no client package.

The state is polled, never watched: a watch that hangs looks like work that runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, ClassVar, Literal

from dataloader.pipelines.executors import check_settings
from dataloader.pipelines.executors.http import (
    BAD_REQUEST,
    CONFLICT,
    FORBIDDEN,
    LOG_TIMEOUT_SEC,
    NOT_FOUND,
    OK,
    SERVER_ERROR,
    Answer,
    HttpApi,
)
from dataloader.pipelines.executors.kubernetes_log import Position, find_result, read_lines
from dataloader.pipelines.executors.kubernetes_manifest import CONTAINER, check_templates, make_manifest
from dataloader.pipelines.offload import (
    EngineFull,
    EngineRefused,
    EngineUnavailable,
    FailureKind,
    OffloadFailed,
    OffloadSpec,
    RemoteState,
    RemoteStatus,
)

_KEYS = (
    "address", "namespace", "image", "token", "token_file", "ca_file", "service_account", "pod", "container",
    "start_timeout",
)  # fmt: skip
_START_TIMEOUT_SEC = 1_800.0
_TAIL_LINES, _MAX_TAIL_BYTES = 10, 100_000
_MAX_DETAIL_LENGTH = 500
_STARTING = ("ContainerCreating", "PodInitializing")
_LOST_REASONS = ("Evicted", "NodeLost", "Shutdown", "NodeShutdown")


class KubernetesExecutor:
    """The name is that of the Job: a second one is a conflict, which means that it is there."""

    runs: ClassVar[frozenset[Literal["program", "function"]]] = frozenset({"program"})
    survives: ClassVar[bool] = True

    def __init__(self, settings: Mapping[str, Any]) -> None:
        check_settings("kubernetes", settings, required="address", known=_KEYS)
        check_templates(settings)
        self._settings = dict(settings)
        self._namespace = str(settings.get("namespace", "default"))
        self._start_timeout_sec = float(settings.get("start_timeout", _START_TIMEOUT_SEC))
        self.address = str(settings["address"]).rstrip("/")

    def _api(self) -> _Api:
        token, is_file = self._settings.get("token"), "token_file" in self._settings
        if is_file:  # read each time: a pod's token is replaced while it is in use
            try:
                token = Path(self._settings["token_file"]).read_text(encoding="utf-8").strip()
            except OSError as error:
                raise EngineUnavailable(f"the token cannot be read: {error}") from error
        return _Api(self.address, token=token, verify=self._settings.get("ca_file", True), token_is_file=is_file)

    def _send(self, method: str, path: str, *, body: Any = None, query: Mapping[str, Any] | None = None) -> Answer:
        return self._api().send(method, path, body=body, query=query)

    def _job_path(self, name: str = "") -> str:
        return f"/apis/batch/v1/namespaces/{self._namespace}/jobs" + (f"/{name}" if name else "")

    # ── submit and status ───────────────────────────────────────────────────────────────────────────────────────

    def submit(self, name: str, spec: OffloadSpec) -> None:
        manifest = make_manifest(name, spec, self._settings, self._namespace)
        answer = self._send("POST", self._job_path(), body=manifest)
        if answer.code >= SERVER_ERROR:
            raise EngineUnavailable(_describe(answer))
        if answer.code >= BAD_REQUEST and answer.code != CONFLICT:
            answer.json()  # raises EngineUnavailable for the answer of a proxy
            raise EngineRefused(_describe(answer))

    def status(self, name: str) -> RemoteStatus:
        answer = self._send("GET", self._job_path(name))
        if answer.code == NOT_FOUND and answer.json().get("reason") == "NotFound":
            return RemoteStatus(RemoteState.UNKNOWN)
        if answer.code != OK:
            raise EngineUnavailable(_describe(answer))
        job = answer.json()
        status = job.get("status") or {}
        conditions = {c["type"]: c for c in status.get("conditions") or [] if c.get("status") == "True"}
        if "deletionTimestamp" in job.get("metadata", {}):
            return RemoteStatus(RemoteState.RUNNING, detail="it is being deleted")
        if "Complete" in conditions:
            return RemoteStatus(RemoteState.SUCCEEDED)
        if "Failed" in conditions:
            return self._failure(name, conditions["Failed"])
        if "Suspended" in conditions:
            return RemoteStatus(RemoteState.PENDING, detail="the Job is suspended")
        return RemoteStatus(RemoteState.RUNNING) if status.get("ready") else self._pending(name, answer)

    def _failure(self, name: str, condition: Mapping[str, Any]) -> RemoteStatus:
        detail = f"{condition.get('reason', '')}: {condition.get('message', '')}"
        if condition.get("reason") == "PodFailurePolicy":
            return RemoteStatus(RemoteState.FAILED, FailureKind.WORKER_LOST, detail)
        for pod in self._pods(name):
            state = pod.get("status") or {}
            if state.get("reason") in _LOST_REASONS:
                return RemoteStatus(RemoteState.FAILED, FailureKind.WORKER_LOST, f"{state['reason']}: {detail}")
            for container in state.get("containerStatuses") or []:
                ended = (container.get("state") or {}).get("terminated") or {}
                if ended.get("reason") == "OOMKilled":
                    return RemoteStatus(RemoteState.FAILED, FailureKind.OOM, f"OOMKilled: {detail}")
                if ended:
                    detail = f"exit code {ended.get('exitCode')}: {detail}"
        return RemoteStatus(RemoteState.FAILED, FailureKind.ERROR, detail)

    def _pending(self, name: str, answer: Answer) -> RemoteStatus:
        """Why the pod has not started; since when by the clocks of the cluster alone."""
        pods = self._pods(name)
        if any((pod.get("status") or {}).get("phase") == "Running" for pod in pods):
            return RemoteStatus(RemoteState.RUNNING)
        detail = (_waiting_reason(pods) or self._warning(name, pods))[:_MAX_DETAIL_LENGTH]
        if _age_sec(answer) < self._start_timeout_sec:
            return RemoteStatus(RemoteState.PENDING, detail=detail)
        bound = f"within {self._start_timeout_sec:g} s (start_timeout): {detail or 'no reason is known'}"
        return RemoteStatus(RemoteState.PENDING, detail=bound, is_stuck=True)

    def _warning(self, name: str, pods: list[dict[str, Any]]) -> str:
        """The last warning about the pod, or about the Job if it has none."""
        subject = pods[0]["metadata"]["name"] if pods else name
        query = {"fieldSelector": f"involvedObject.name={subject},type=Warning"}
        path = f"/api/v1/namespaces/{self._namespace}/events"
        answer = self._api().send("GET", path, query=query, is_checked=False)
        if answer.code == FORBIDDEN:
            return "" if pods else 'it has no pod; the account may not "list" the "events" that have the reason'
        if answer.code != OK:
            return ""
        events: list[dict[str, Any]] = answer.json().get("items") or []
        last = max(events, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime")), default=None)
        return "" if last is None else f"{last.get('reason', '')}: {last.get('message', '')}"

    def _pods(self, name: str) -> list[dict[str, Any]]:
        path, query = f"/api/v1/namespaces/{self._namespace}/pods", {"labelSelector": f"job-name={name}"}
        answer = self._send("GET", path, query=query)
        if answer.code != OK:
            raise EngineUnavailable(_describe(answer))
        pods: list[dict[str, Any]] = answer.json().get("items") or []
        return pods

    # ── stop ────────────────────────────────────────────────────────────────────────────────────────────────────

    def stop(self, name: str) -> None:
        """In the foreground: the Job is there until its pods have ended."""
        if not self.status(name).state.is_over:
            self._delete(name, "Foreground")

    def delete(self, name: str) -> None:
        """Of a Job that has ended; Kubernetes deletes it by itself after a day."""
        self._delete(name, "Background")

    def _delete(self, name: str, propagation: str) -> None:
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        answer = self._send("DELETE", self._job_path(name), body=options)
        if answer.code >= BAD_REQUEST and answer.code != NOT_FOUND:
            raise EngineUnavailable(_describe(answer))

    # ── the log ─────────────────────────────────────────────────────────────────────────────────────────────────

    def result(self, name: str) -> Any:
        path = self._log_path(name)
        if path is not None:
            with self._api().stream("GET", path, query=_log_query(), timeout_sec=LOG_TIMEOUT_SEC) as response:
                if response.code == OK:
                    return find_result(response.pieces)
                answer = response.read()
            _check_missing(answer)
        raise OffloadFailed(f"the pod of {name} is gone, and with it its result")

    def logs(self, name: str, after: str) -> tuple[list[str], str]:
        is_over = self.status(name).state.is_over  # before the log is read: it is whole then
        path, position = self._log_path(name), Position.parse(after)
        if path is None:
            return [], after
        query = _log_query(timestamps="true", sinceTime=position.since)
        with self._api().stream("GET", path, query=query, timeout_sec=LOG_TIMEOUT_SEC) as response:
            if response.code == OK:
                lines, position = read_lines(response.pieces, position, is_over=is_over)
                return lines, str(position)
            answer = response.read()
        _check_missing(answer)
        return [], after

    def last_lines(self, name: str) -> list[str]:
        path = self._log_path(name)
        if path is None:
            return []
        answer = self._send("GET", path, query=_log_query(tailLines=_TAIL_LINES, limitBytes=_MAX_TAIL_BYTES))
        return answer.text.splitlines()[-_TAIL_LINES:] if answer.code == OK else []

    def _log_path(self, name: str) -> str | None:
        """None: it has no pod."""
        pods = self._pods(name)
        if not pods:
            return None
        return f"/api/v1/namespaces/{self._namespace}/pods/{pods[0]['metadata']['name']}/log"


class _Api(HttpApi):
    """Kubernetes answers 403 for a right that the account lacks, a quota that is used up, and a manifest that a policy
    of the cluster forbids."""

    def check(self, answer: Answer) -> None:
        if answer.code != FORBIDDEN:
            super().check(answer)
            return
        message = _describe(answer)
        if "exceeded quota" in message:
            raise EngineFull(message)
        if "cannot" in message and "resource" in message:
            raise EngineUnavailable(f"the account lacks a right: {message}")
        raise EngineRefused(message)


def _log_query(**more: Any) -> dict[str, Any]:
    return {"container": CONTAINER, **more}


def _check_missing(answer: Answer) -> None:
    """Raise EngineUnavailable, unless the container has not started or is gone."""
    if answer.code not in (NOT_FOUND, BAD_REQUEST):
        raise EngineUnavailable(_describe(answer))
    answer.json()  # raises EngineUnavailable for the answer of a proxy


def _waiting_reason(pods: list[dict[str, Any]]) -> str:
    for pod in pods:
        status = pod.get("status") or {}
        for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
            waiting = (container.get("state") or {}).get("waiting") or {}
            if waiting and waiting.get("reason") not in _STARTING:
                return f"{waiting.get('reason')}: {waiting.get('message', '')}"
        for condition in status.get("conditions") or []:
            if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
                return f"{condition.get('reason')}: {condition.get('message', '')}"
    return ""


def _age_sec(answer: Answer) -> float:
    """Of the Job in an answer, when it was sent."""
    try:
        created_at = datetime.fromisoformat(answer.json()["metadata"]["creationTimestamp"])
        return (parsedate_to_datetime(answer.date) - created_at).total_seconds()
    except (KeyError, TypeError, ValueError):
        return 0.0


def _describe(answer: Answer) -> str:
    """The message of a Status, else the beginning of the answer."""
    try:
        message = str(answer.json().get("message") or answer.json().get("reason") or "")
    except EngineUnavailable:
        message = ""
    return f"Kubernetes answered {answer.code}: {(message or answer.text)[:_MAX_DETAIL_LENGTH]}"
