"""Runs programs as Kubernetes Jobs, through the HTTP API of the cluster. Needs no client package.

The state is polled, never watched: a watch that hangs looks like work that runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pipelines.executors import check_settings
from pipelines.executors.http import BAD_REQUEST, CONFLICT, NOT_FOUND, OK, SERVER_ERROR, Answer, HttpApi, LogPieces
from pipelines.offload import (
    EngineRefused,
    EngineUnavailable,
    FailureKind,
    OffloadFailed,
    OffloadSpec,
    RemoteState,
    RemoteStatus,
    result_of_text,
)

_KEYS = ("address", "namespace", "image", "token", "token_file", "ca_file", "service_account", "pod")
_CONTAINER = "main"
_GRACE_SEC = 60  # beyond the time limit that the job's worker keeps
_TTL_SEC = 86_400  # after the end
_MAX_LOG_BYTES = 30_000_000


class KubernetesExecutor:
    """The name is that of the Job: a second one is a conflict, which means that it is there."""

    runs: ClassVar[frozenset[Literal["program", "function"]]] = frozenset({"program"})
    survives: ClassVar[bool] = True

    def __init__(self, settings: Mapping[str, Any]) -> None:
        check_settings("kubernetes", settings, required="address", known=_KEYS)
        self._settings = dict(settings)
        self._namespace = str(settings.get("namespace", "default"))
        self._logs = LogPieces()
        self.address = str(settings["address"]).rstrip("/")

    def _send(self, method: str, path: str, *, body: Any = None, query: Mapping[str, Any] | None = None) -> Answer:
        token = self._settings.get("token")
        if "token_file" in self._settings:  # read each time: a pod's token is replaced while it is in use
            try:
                token = Path(self._settings["token_file"]).read_text(encoding="utf-8").strip()
            except OSError as error:
                raise EngineUnavailable(f"the token cannot be read: {error}") from error
        api = HttpApi(self.address, token=token, verify=self._settings.get("ca_file", True))
        return api.send(method, path, body=body, query=query)

    def _job_path(self, name: str = "") -> str:
        return f"/apis/batch/v1/namespaces/{self._namespace}/jobs" + (f"/{name}" if name else "")

    def submit(self, name: str, spec: OffloadSpec) -> None:
        answer = self._send("POST", self._job_path(), body=self.manifest(name, spec))
        if answer.code >= SERVER_ERROR:
            raise EngineUnavailable(_describe(answer))
        if answer.code >= BAD_REQUEST and answer.code != CONFLICT:
            answer.json()  # raises EngineUnavailable for the answer of a proxy
            raise EngineRefused(_describe(answer))

    def manifest(self, name: str, spec: OffloadSpec) -> dict[str, Any]:
        """One pod, that neither Kubernetes nor its kubelet starts a second time."""
        resources = dict(spec.resources)
        image = resources.pop("image", self._settings.get("image"))
        if not image:
            raise EngineRefused('a Kubernetes Job needs an image: in the settings, or as resources={"image": …}')
        amounts = {key: str(value) for key, value in resources.items()}
        labels = {"app.kubernetes.io/managed-by": "dataloader"}
        labels |= {f"dataloader/{key.replace('_', '-')}": _label(value) for key, value in spec.labels.items()}
        container = {
            "name": _CONTAINER,
            "image": image,
            "command": ["/bin/sh", "-c", spec.entrypoint],
            "env": [{"name": key, "value": str(value)} for key, value in spec.env.items()],
            "resources": {"requests": amounts, "limits": amounts},
        }
        pod = {**self._settings.get("pod", {}), "restartPolicy": "Never", "containers": [container]}
        if "service_account" in self._settings:
            pod["serviceAccountName"] = self._settings["service_account"]
        job: dict[str, Any] = {
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            "ttlSecondsAfterFinished": _TTL_SEC,
            "podFailurePolicy": {  # shows an eviction as another end than a failure of the program
                "rules": [{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
            },
            "template": {"metadata": {"labels": labels}, "spec": pod},
        }
        if spec.time_limit_sec is not None:
            job["activeDeadlineSeconds"] = int(spec.time_limit_sec) + _GRACE_SEC
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "namespace": self._namespace, "labels": labels},
            "spec": job,
        }

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
            self._logs.record_state(name, RemoteState.SUCCEEDED)
            return RemoteStatus(RemoteState.SUCCEEDED)
        if "Failed" in conditions:
            self._logs.record_state(name, RemoteState.FAILED)
            return self._failure(name, conditions["Failed"])
        return RemoteStatus(RemoteState.RUNNING if status.get("ready") else RemoteState.PENDING)

    def _failure(self, name: str, condition: Mapping[str, Any]) -> RemoteStatus:
        detail = f"{condition.get('reason', '')}: {condition.get('message', '')}"
        if condition.get("reason") == "PodFailurePolicy":
            return RemoteStatus(RemoteState.FAILED, FailureKind.WORKER_LOST, detail)
        for pod in self._pods(name):
            state = pod.get("status") or {}
            if state.get("reason") in ("Evicted", "NodeLost", "Shutdown", "NodeShutdown"):
                return RemoteStatus(RemoteState.FAILED, FailureKind.WORKER_LOST, f"{state['reason']}: {detail}")
            for container in state.get("containerStatuses") or []:
                ended = (container.get("state") or {}).get("terminated") or {}
                if ended.get("reason") == "OOMKilled":
                    return RemoteStatus(RemoteState.FAILED, FailureKind.OOM, f"OOMKilled: {detail}")
                if ended:
                    detail = f"exit code {ended.get('exitCode')}: {detail}"
        return RemoteStatus(RemoteState.FAILED, FailureKind.ERROR, detail)

    def _pods(self, name: str) -> list[dict[str, Any]]:
        path, query = f"/api/v1/namespaces/{self._namespace}/pods", {"labelSelector": f"job-name={name}"}
        answer = self._send("GET", path, query=query)
        if answer.code != OK:
            raise EngineUnavailable(_describe(answer))
        pods: list[dict[str, Any]] = answer.json().get("items") or []
        return pods

    def stop(self, name: str) -> None:
        """In the foreground: the Job is there until its pods have ended."""
        if not self.status(name).state.is_over:
            self._delete(name, "Foreground")

    def _delete(self, name: str, propagation: str) -> None:
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        answer = self._send("DELETE", self._job_path(name), body=options)
        if answer.code >= BAD_REQUEST and answer.code != NOT_FOUND:
            raise EngineUnavailable(_describe(answer))

    def result(self, name: str) -> Any:
        text = self._read(name)
        if text is None:
            raise OffloadFailed(f"the pod of {name} is gone, and with it its result")
        return result_of_text(text)

    def logs(self, name: str, after: str) -> tuple[list[str], str]:
        if not self._logs.is_due(name):
            return [], after
        is_over = self.status(name).state.is_over  # before the log is read: it is whole then
        return self._logs.cut(name, self._read(name) or "", after, is_over=is_over)

    def _read(self, name: str) -> str | None:
        """The whole log; None if there is none."""
        pods = self._pods(name)
        if not pods:
            return None
        pod = pods[0]["metadata"]["name"]
        answer = self._send(
            "GET",
            f"/api/v1/namespaces/{self._namespace}/pods/{pod}/log",
            query={"container": _CONTAINER, "limitBytes": _MAX_LOG_BYTES},
        )
        if answer.code in (NOT_FOUND, BAD_REQUEST):  # its container has not started, or is gone
            answer.json()  # raises EngineUnavailable for the answer of a proxy
            return None
        if answer.code != OK:
            raise EngineUnavailable(_describe(answer))
        return answer.text

    def delete(self, name: str) -> None:
        """Of a Job that has ended; Kubernetes deletes it by itself after a day."""
        self._delete(name, "Background")


def _label(value: str) -> str:
    """At most 63 characters that a label may have."""
    text = re.sub(r"[^A-Za-z0-9_.-]", "-", value)
    return text[:63].strip("-_.")


def _describe(answer: Answer) -> str:
    return f"Kubernetes answered {answer.code}: {answer.text[:500]}"
