"""The part of a Kubernetes cluster that Jobs need: an API server that refuses what the real one does, by its schemas,
the rules of `kubernetes_rules`, the Roles of deploy/ and a quota; and a node that runs the command and keeps its log.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import kubernetes_validate
from flask import Flask, Response, jsonify, make_response, request
from werkzeug.serving import BaseWSGIServer, make_server

from tests.support.kubernetes_rules import invalid_fields, restricted_violations, rights_of
from tests.support.processes import ROOT

VERSION = "1.34"
NAMESPACE = "loads"
ACCOUNT = "system:serviceaccount:dataloader:dataloader-worker"
ROLES = [ROOT / "deploy/kubernetes" / name for name in ("offload.yaml", "deletion-cost.yaml")]
_CODES = {
    "Unauthorized": 401,
    "Forbidden": 403,
    "NotFound": 404,
    "AlreadyExists": 409,
    "Invalid": 422,
    "BadRequest": 400,
}


def failure(reason: str, message: str) -> Response:
    """A Status, as every refusal is."""
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message}
    return make_response(jsonify({**body, "code": _CODES[reason]}), _CODES[reason])


@dataclass
class Container:
    """A process, and its log: the time of each line, as a node keeps it."""

    process: subprocess.Popen[bytes]
    lines: list[tuple[str, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            now = datetime.now(UTC)
            self.lines.append((now.strftime("%Y-%m-%dT%H:%M:%S.%f") + "000Z", line))
        self.process.stdout.close()

    def code(self) -> int | None:
        """None: it runs, or its log is not whole yet."""
        code = self.process.poll()
        if code is not None:
            self._reader.join(10)
        return code

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join(10)

    def log(self, options: dict[str, str]) -> bytes:
        """`sinceTime` counts whole seconds; `limitBytes` may end in the middle of a line."""
        lines = list(self.lines)
        if "sinceTime" in options:
            since = datetime.fromisoformat(options["sinceTime"]).strftime("%Y-%m-%dT%H:%M:%S")
            lines = [(at, line) for at, line in lines if at[:19] >= since]
        if "tailLines" in options:
            lines = lines[-int(options["tailLines"]) :]
        with_times = options.get("timestamps") == "true"
        content = b"".join(at.encode() + b" " + line if with_times else line for at, line in lines)
        return content[: int(options["limitBytes"])] if "limitBytes" in options else content


@dataclass
class Job:
    manifest: dict[str, Any]
    created_at: str
    container: Container | None  # None: its pod has not started
    waiting: dict[str, str] | None = None  # why its container has not started
    unschedulable: str = ""
    forbidden: str = ""  # why no pod was made
    ended_as: dict[str, Any] | None = None  # another end of its pod than its process has
    is_deleting: bool = False

    @property
    def code(self) -> int | None:
        return None if self.container is None else self.container.code()

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    def to_json(self) -> dict[str, Any]:
        code = self.code
        status: dict[str, Any] = {}
        if code is None and not self.forbidden:
            status = {"active": 1, "ready": 0 if self.container is None else 1}
        elif code is not None:
            failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "it has failed"}
            failed |= (self.ended_as or {}).get("condition", {})
            status["conditions"] = [failed if code else {"type": "Complete", "status": "True"}]
        deleting = {"deletionTimestamp": "2030-01-01T00:00:00Z"} if self.is_deleting else {}
        metadata = {**self.manifest["metadata"], "creationTimestamp": self.created_at, **deleting}
        return {**self.manifest, "metadata": metadata, "status": status}

    def kill(self) -> None:
        """All processes of its container."""
        if self.container is not None:
            self.container.kill()

    def pods(self) -> list[dict[str, Any]]:
        if self.forbidden:
            return []
        code = self.code
        status: dict[str, Any] = {"phase": "Pending" if self.container is None else "Running"}
        if self.unschedulable:
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            status["conditions"] = [{**condition, "message": self.unschedulable}]
        else:
            state: dict[str, Any] = {"running": {}}
            if code is not None:
                status["phase"] = "Failed" if code else "Succeeded"
                state = {"terminated": {"exitCode": code, **(self.ended_as or {}).get("terminated", {})}}
            elif self.container is None:
                state = {"waiting": self.waiting or {"reason": "ContainerCreating"}}
            status["containerStatuses"] = [{"name": "main", "state": state}]
        return [{"metadata": {"name": f"{self.name}-abcde"}, "status": status}]


@dataclass
class FakeKubernetes:
    folder: Path
    token: str = "a-token-of-the-cluster"
    jobs: dict[str, Job] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)  # by the schemas and rules
    rights: set[tuple[str, str]] = field(default_factory=lambda: rights_of(ROLES))
    quota: int | None = None  # of Jobs
    is_restricted: bool = True  # the namespace, by Pod Security
    missing_images: dict[str, str] = field(default_factory=dict)  # and what the node says of each
    unschedulable: str = ""  # what the scheduler says of each pod
    pod_annotations: dict[str, dict[str, str]] = field(default_factory=dict)
    patches: int = 0
    forbids_patches: bool = False
    port: int = 0
    _server: BaseWSGIServer | None = None

    def up(self) -> FakeKubernetes:
        self._server = make_server("127.0.0.1", self.port, self._app(), threaded=True)
        self.port = self._server.port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def down(self) -> None:
        """Its Jobs run on, and are known when it is up again."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def close(self) -> None:
        self.down()
        for job in self.jobs.values():
            job.kill()

    def _app(self) -> Flask:
        app = Flask("kubernetes")
        jobs, core = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs", f"/api/v1/namespaces/{NAMESPACE}"

        @app.before_request
        def check_token() -> Response | None:
            is_known = request.headers.get("Authorization") == f"Bearer {self.token}"
            return None if is_known else failure("Unauthorized", "Unauthorized")

        @app.post(jobs)
        def create() -> Response:
            return self._forbidden("create", "jobs", "batch") or self._create(request.get_json())

        @app.get(f"{jobs}/<name>")
        def read(name: str) -> Response:
            if (refusal := self._forbidden("get", "jobs", "batch")) is not None:
                return refusal
            self._collect(name)
            found = self.jobs.get(name)
            return _not_found("jobs.batch", name) if found is None else jsonify(found.to_json())

        @app.delete(f"{jobs}/<name>")
        def delete(name: str) -> Response:
            if (refusal := self._forbidden("delete", "jobs", "batch")) is not None:
                return refusal
            found = self.jobs.get(name)
            if found is None:
                return _not_found("jobs.batch", name)
            found.is_deleting = True
            found.kill()
            if request.get_json()["propagationPolicy"] == "Background":
                self.jobs.pop(name)
            return jsonify(found.to_json())

        @app.get(f"{core}/pods")
        def pods() -> Response:
            if (refusal := self._forbidden("list", "pods")) is not None:
                return refusal
            name = request.args["labelSelector"].removeprefix("job-name=")
            return jsonify(items=self.jobs[name].pods() if name in self.jobs else [])

        @app.get(f"{core}/events")
        def events() -> Response:
            if (refusal := self._forbidden("list", "events")) is not None:
                return refusal
            name = request.args["fieldSelector"].partition("involvedObject.name=")[2].partition(",")[0]
            return jsonify(items=self._events(name))

        @app.patch(f"{core}/pods/<pod>")
        def patch(pod: str) -> Response:
            if self.forbids_patches:
                return failure("Forbidden", f'pods "{pod}" is forbidden')
            if (refusal := self._forbidden("patch", "pods")) is not None:
                return refusal
            if request.content_type != "application/merge-patch+json":
                return make_response(jsonify(reason="UnsupportedMediaType"), 415)
            self.patches += 1
            self.pod_annotations.setdefault(pod, {}).update(request.get_json()["metadata"]["annotations"])
            return jsonify(metadata={"name": pod})

        @app.get(f"{core}/pods/<pod>/log")
        def log(pod: str) -> Response:
            return self._forbidden("get", "pods/log") or self._log(pod)

        return app

    def _forbidden(self, verb: str, resource: str, group: str = "") -> Response | None:
        if (verb, resource) in self.rights:
            return None
        what = f'cannot {verb} resource "{resource}" in API group "{group}" in the namespace "{NAMESPACE}"'
        return failure("Forbidden", f'{resource}.{group} is forbidden: User "{ACCOUNT}" {what}')

    def _log(self, pod: str) -> Response:
        job = self.jobs.get(pod.removesuffix("-abcde"))
        if job is None or not job.pods():
            return _not_found("pods", pod)
        if request.args.get("container") != "main":
            return failure("BadRequest", f"container {request.args.get('container')} is not valid for pod {pod}")
        if job.container is None:
            reason = (job.waiting or {}).get("reason", "ContainerCreating")
            return failure("BadRequest", f'container "main" in pod "{pod}" is waiting to start: {reason}')
        job.container.code()
        return make_response(job.container.log(request.args.to_dict()))

    def _events(self, name: str) -> list[dict[str, Any]]:
        job = self.jobs.get(name)
        if job is None or not job.forbidden:
            return []
        return [
            {"reason": "FailedCreate", "message": f"Error creating: {job.forbidden}", "lastTimestamp": job.created_at}
        ]

    def _create(self, manifest: dict[str, Any]) -> Response:
        name = manifest["metadata"]["name"]
        try:
            kubernetes_validate.validate(manifest, VERSION, strict=True)
            problems = list(invalid_fields(manifest))
        except kubernetes_validate.ValidationError as error:
            problems = [str(error)]
        if problems:
            self.refused += problems
            return failure("Invalid", f'Job.batch "{name}" is invalid: {"; ".join(problems)}')
        if name in self.jobs:
            return failure("AlreadyExists", f'jobs.batch "{name}" already exists')
        if self.quota is not None and len(self.jobs) >= self.quota:
            used = f"used: count/jobs.batch={len(self.jobs)}, limited: count/jobs.batch={self.quota}"
            message = f'jobs.batch "{name}" is forbidden: exceeded quota: loads, requested: count/jobs.batch=1, {used}'
            return failure("Forbidden", message)
        self.jobs[name] = self._start(manifest)
        return make_response(jsonify(self.jobs[name].to_json()), 201)

    def _start(self, manifest: dict[str, Any]) -> Job:
        pod = manifest["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        job = Job(manifest, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), None, unschedulable=self.unschedulable)
        violations = restricted_violations(pod) if self.is_restricted else []
        if violations:
            job.forbidden = f'pods "{job.name}-abcde" is forbidden: violates PodSecurity "restricted:latest": '
            job.forbidden += ", ".join(violations)
        elif container["image"] in self.missing_images:
            job.waiting = {"reason": "ImagePullBackOff", "message": self.missing_images[container["image"]]}
        elif not self.unschedulable:
            variables = {variable["name"]: variable.get("value", "") for variable in container["env"]}
            job.container = Container(
                subprocess.Popen(
                    container["command"], start_new_session=True, env={**os.environ, **variables},
                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                )
            )  # fmt: skip
        return job

    def _collect(self, name: str) -> None:
        """What was deleted in the foreground is gone when its pod is."""
        found = self.jobs.get(name)
        if found is not None and found.is_deleting:
            self.jobs.pop(name)


def _not_found(resource: str, name: str) -> Response:
    return failure("NotFound", f'{resource} "{name}" not found')
