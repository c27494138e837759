"""A cluster whose CA has no key usage, as those of managed services: Python 3.13 and newer refuse it by default."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import urllib3.connection
from urllib3.util.ssl_ import create_urllib3_context

from dataloader.app.runtime.pod_deletion_cost import Pod
from dataloader.pipelines.executors.http import HttpApi
from dataloader.pipelines.offload import EngineUnavailable
from tests.support.cluster_ca import https_server, make_certificates

strict = ssl.create_default_context


@pytest.fixture(autouse=True)
def checks_of_newer_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older ones lack the flag in the context that they make by default."""

    def create(*args: Any, _create: Callable[..., ssl.SSLContext] = strict, **options: Any) -> ssl.SSLContext:
        context = _create(*args, **options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", create)


def test_cluster_ca_without_key_usage_is_trusted(tmp_path: Path):
    ca_file = make_certificates(tmp_path)
    (tmp_path / "token").write_text("token")

    with https_server(tmp_path) as address:
        with pytest.raises(URLError, match="key usage"):
            urlopen(address, context=ssl.create_default_context(cafile=str(ca_file)))  # noqa: S310 - ours
        Pod("loads", "pod", tmp_path, address).write_cost(1)


def test_executor_trusts_a_cluster_ca_without_key_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def create(*args: Any, **options: Any) -> ssl.SSLContext:
        context = create_urllib3_context(*args, **options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(urllib3.connection, "create_urllib3_context", create)
    ca_file = make_certificates(tmp_path)

    with https_server(tmp_path) as address:
        assert HttpApi(address, verify=str(ca_file)).send("GET", "/", is_checked=False).code > 0
        with pytest.raises(EngineUnavailable):
            HttpApi(address).send("GET", "/", is_checked=False)


def test_another_ca_is_refused(tmp_path: Path):
    (tmp_path / "own").mkdir()
    make_certificates(tmp_path)
    make_certificates(tmp_path / "own")
    (tmp_path / "own/token").write_text("token")

    with https_server(tmp_path) as address, pytest.raises(URLError, match="CERTIFICATE_VERIFY_FAILED"):
        Pod("loads", "pod", tmp_path / "own", address).write_cost(1)
