"""The part of a Kubernetes API server that Jobs need: it checks manifests against the schemas, and runs the command."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kubernetes_validate
from flask import Flask, Response, jsonify, request
from werkzeug.serving import BaseWSGIServer, make_server

VERSION = "1.34"


@dataclass
class Job:
    manifest: dict[str, Any]
    process: subprocess.Popen[bytes]
    log: Path
    ended_as: dict[str, Any] | None = None  # another end of its pod than its process has
    is_deleting: bool = False

    def to_json(self) -> dict[str, Any]:
        code = self.process.poll()
        status: dict[str, Any] = {"active": 1, "ready": 1} if code is None else {}
        if code is not None:
            failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "it has failed"}
            failed |= (self.ended_as or {}).get("condition", {})
            status["conditions"] = [failed if code else {"type": "Complete", "status": "True"}]
        deleting = {"deletionTimestamp": "2030-01-01T00:00:00Z"} if self.is_deleting else {}
        metadata = {**self.manifest["metadata"], **deleting}
        return {**self.manifest, "metadata": metadata, "status": status}

    def kill(self) -> None:
        """All processes of its container."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def pod(self) -> dict[str, Any]:
        terminated = {"exitCode": self.process.poll(), **(self.ended_as or {}).get("terminated", {})}
        state = {"terminated": terminated} if self.process.poll() is not None else {"running": {}}
        return {
            "metadata": {"name": f"{self.manifest['metadata']['name']}-abcde"},
            "status": {"containerStatuses": [{"name": "main", "state": state}]},
        }


@dataclass
class FakeKubernetes:
    folder: Path
    token: str = "a-token-of-the-cluster"
    jobs: dict[str, Job] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)  # by the schemas
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
            job.process.wait()

    def _app(self) -> Flask:
        app = Flask("kubernetes")
        jobs = "/apis/batch/v1/namespaces/loads/jobs"

        @app.before_request
        def check_token() -> tuple[str, int] | None:
            return None if request.headers.get("Authorization") == f"Bearer {self.token}" else ("Unauthorized", 401)

        @app.post(jobs)
        def create() -> tuple[Response, int]:
            return self._create(request.get_json())

        @app.get(f"{jobs}/<name>")
        def read(name: str) -> tuple[Response, int]:
            self._collect(name)
            found = self.jobs.get(name)
            return (jsonify(reason="NotFound"), 404) if found is None else (jsonify(found.to_json()), 200)

        @app.delete(f"{jobs}/<name>")
        def delete(name: str) -> tuple[Response, int]:
            found = self.jobs.get(name)
            if found is None:
                return jsonify(reason="NotFound"), 404
            found.is_deleting = True
            found.kill()
            if request.get_json()["propagationPolicy"] == "Background":
                self.jobs.pop(name)
            return jsonify(found.to_json()), 200

        @app.get("/api/v1/namespaces/loads/pods")
        def pods() -> Response:
            name = request.args["labelSelector"].removeprefix("job-name=")
            return jsonify(items=[self.jobs[name].pod()] if name in self.jobs else [])

        @app.patch("/api/v1/namespaces/loads/pods/<pod>")
        def patch(pod: str) -> tuple[Response, int]:
            if self.forbids_patches:
                return jsonify(reason="Forbidden"), 403
            if request.content_type != "application/merge-patch+json":
                return jsonify(reason="UnsupportedMediaType"), 415
            self.patches += 1
            self.pod_annotations.setdefault(pod, {}).update(request.get_json()["metadata"]["annotations"])
            return jsonify(metadata={"name": pod}), 200

        @app.get("/api/v1/namespaces/loads/pods/<pod>/log")
        def log(pod: str) -> str:
            assert request.args["container"] == "main"
            return self.jobs[pod.removesuffix("-abcde")].log.read_text()

        return app

    def _create(self, manifest: dict[str, Any]) -> tuple[Response, int]:
        try:
            kubernetes_validate.validate(manifest, VERSION, strict=True)
        except kubernetes_validate.ValidationError as error:
            self.refused.append(str(error))
            return jsonify(reason="Invalid", message=str(error)), 422
        name = manifest["metadata"]["name"]
        if name in self.jobs:
            return jsonify(reason="AlreadyExists"), 409
        (container,) = manifest["spec"]["template"]["spec"]["containers"]
        path = self.folder / f"{name}.log"
        with path.open("wb") as output:
            process = subprocess.Popen(
                container["command"], start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env={**os.environ, **{variable["name"]: variable["value"] for variable in container["env"]}},
            )  # fmt: skip
        self.jobs[name] = Job(manifest, process, path)
        return jsonify(manifest), 201

    def _collect(self, name: str) -> None:
        """What was deleted in the foreground is gone when its pod is."""
        found = self.jobs.get(name)
        if found is not None and found.is_deleting and found.process.poll() is not None:
            self.jobs.pop(name)
