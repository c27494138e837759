"""Network namespaces on a bridge, each with a link that can be cut: silence, without a reset."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_CLONE_NEWNET = 0x40000000
_SUBNET = "10.77"
DATABASE, HUB = "db", "hub"


def missing_tools() -> str | None:
    """Return why there can be no namespaces here, or None."""
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    if shutil.which("ip") is None:
        return "there is no `ip` (iproute2)"
    name = f"dlp{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", name], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        return f"network namespaces are not permitted: {done.stderr.strip()}"
    _run("netns", "del", name)
    return None


def require_tools() -> None:
    """Skip the test where namespaces cannot be made; as root in CI it fails."""
    reason = missing_tools()
    if reason is None:
        return
    if os.environ.get("CI") == "true" and os.geteuid() == 0:
        pytest.fail(reason)
    pytest.skip(reason)


class Network:
    """A hub with a bridge, and namespaces that hang on it by a veth pair each. A context manager."""

    def __init__(self) -> None:
        self._prefix = f"dl{os.getpid() % 100_000}"
        self._numbers: dict[str, int] = {}  # of the namespaces, by name

    def __enter__(self) -> Network:
        _run("netns", "add", self._namespace(HUB))
        self._in(HUB, "link", "set", "lo", "up")
        self._in(HUB, "link", "add", "bridge", "type", "bridge")
        self._in(HUB, "addr", "add", f"{_SUBNET}.255.1/16", "dev", "bridge")
        self._in(HUB, "link", "set", "bridge", "up")
        self.add(DATABASE)
        return self

    def __exit__(self, *_: object) -> None:
        for name in [*self._numbers, HUB]:
            subprocess.run(["ip", "netns", "del", self._namespace(name)], check=False, capture_output=True)

    def add(self, name: str) -> None:
        """Make a namespace with an address of its own."""
        number = self._numbers[name] = len(self._numbers) + 1
        namespace, port = self._namespace(name), f"p{number}"
        _run("netns", "add", namespace)
        self._in(HUB, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        self._in(HUB, "link", "set", port, "master", "bridge", "up")
        self._in(name, "link", "set", "lo", "up")
        self._in(name, "addr", "add", f"{self.address(name)}/16", "dev", "eth0")
        self._in(name, "link", "set", "eth0", "up")

    def has(self, name: str) -> bool:
        return name in self._numbers

    def address(self, name: str) -> str:
        if name == HUB:
            return f"{_SUBNET}.255.1"
        number = self._numbers[name]
        return f"{_SUBNET}.{number // 250}.{number % 250 + 1}"

    def cut(self, name: str) -> None:
        """Nothing comes through any more, in either direction, and neither end is informed."""
        self._in(HUB, "link", "set", f"p{self._numbers[name]}", "down")

    def heal(self, name: str) -> None:
        self._in(HUB, "link", "set", f"p{self._numbers[name]}", "up")

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Sockets that this thread opens, and processes that it starts, are in the namespace."""
        own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            _enter(f"/run/netns/{self._namespace(name)}")
            try:
                yield
            finally:
                _set_namespace(own)
        finally:
            os.close(own)

    def enter(self, name: str) -> None:
        """Move this thread there for good."""
        _enter(f"/run/netns/{self._namespace(name)}")

    def _namespace(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def _in(self, name: str, *words: str) -> None:
        _run("-n", self._namespace(name), *words)


def _enter(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _set_namespace(descriptor)
    finally:
        os.close(descriptor)


def _set_namespace(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def _run(*words: str) -> None:
    done = subprocess.run(["ip", *words], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
