"""The annotation by which Kubernetes chooses the pod to remove: how much work would be lost with this one."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

from dataloader.app import log
from dataloader.pipelines.executors.cluster_tls import cluster_tls_context

_log = log.get(__name__)
ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # mounted where the pod may use the API
_API_ADDRESS = "https://kubernetes.default.svc"
_INTERVAL_SEC = 60.0
_REQUEST_TIMEOUT_SEC = 5.0
_END_TIMEOUT_SEC = 0.2  # a request in progress is not waited for
_MAX_COST = 2**31 - 1


@dataclass(frozen=True)
class Pod:
    """The pod of this process, and where the API of its cluster is."""

    namespace: str
    name: str
    folder: Path  # with the token and the certificate of the cluster
    address: str = _API_ADDRESS

    @classmethod
    def find(cls, folder: Path = _SERVICE_ACCOUNT, address: str = _API_ADDRESS) -> Pod | None:
        """Return None outside Kubernetes, and where the pod has no token."""
        try:
            namespace = (folder / "namespace").read_text(encoding="utf-8").strip()
            has_token = os.path.exists(folder / "token")
        except OSError:
            return None
        return cls(namespace, socket.gethostname(), folder, address) if has_token and namespace else None

    def write_cost(self, cost: int) -> None:
        """Raises OSError, HTTPException or, of a token that is none, ValueError; HTTPError if the API refuses it."""
        token = (self.folder / "token").read_text(encoding="utf-8").strip()  # it is replaced while it is in use
        request = Request(  # noqa: S310 - the API of the cluster
            f"{self.address}/api/v1/namespaces/{self.namespace}/pods/{self.name}",
            data=json.dumps({"metadata": {"annotations": {ANNOTATION: str(cost)}}}).encode(),
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"},
            method="PATCH",
        )
        handlers: list[ProxyHandler | HTTPSHandler] = [ProxyHandler({})]
        if self.address.startswith("https:"):
            handlers.append(HTTPSHandler(context=cluster_tls_context(self.folder / "ca.crt")))
        with build_opener(*handlers).open(request, timeout=_REQUEST_TIMEOUT_SEC) as response:
            response.read()


class DeletionCost:
    """Writes the seconds that would be lost, when they have changed. A failure is logged once until one succeeds."""

    def __init__(self, pod: Pod, would_lose_sec: Callable[[], float]) -> None:
        self._pod, self._would_lose_sec = pod, would_lose_sec
        self._written: int | None = None
        self._is_failing = False

    def update(self) -> None:
        cost = min(_MAX_COST, int(self._would_lose_sec()))
        if cost == self._written:
            return
        try:
            self._pod.write_cost(cost)
        except HTTPError as error:
            error.close()
            self._warn(f"{error.code} {error.reason}")
        except (OSError, HTTPException, ValueError) as error:
            self._warn(str(error))
        else:
            self._written, self._is_failing = cost, False

    def _warn(self, reason: str) -> None:
        self._written = None
        if not self._is_failing:
            _log.warning("pod.deletion_cost_failed", pod=self._pod.name, namespace=self._pod.namespace, error=reason)
        self._is_failing = True


@contextmanager
def reporting_deletion_cost(pod: Pod | None, would_lose_sec: Callable[[], float]) -> Iterator[None]:
    """While the block lasts, keep the annotation of the pod, if there is one."""
    if pod is None:
        yield
        return
    cost, is_over = DeletionCost(pod, would_lose_sec), threading.Event()

    def report() -> None:
        while not is_over.wait(_INTERVAL_SEC):
            cost.update()

    thread = threading.Thread(target=report, name="pod-deletion-cost", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(_END_TIMEOUT_SEC)
