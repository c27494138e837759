"""The sockets of a source: none leads to a private address, and a watch ends them at the deadline."""

import socket
import time

import pytest

from dataloader.pipelines.toolkit.connections import ConnectionWatchdog, OpenSockets
from dataloader.pipelines.toolkit.errors import (
    SourceRefused,
    SourceTooSlow,
)


class Peer(socket.socket):
    """A socket that leads to an address of a test's choice."""

    def __init__(self, host: str) -> None:
        super().__init__()
        self.host = host

    def getpeername(self):
        return (self.host, 443)


@pytest.mark.parametrize("host", ["10.1.2.3", "fe80::1%eth0", "::ffff:10.0.0.1", "fec0::1", "3fff::1", "192.0.0.8"])
def test_socket_to_a_private_address_is_refused(host):
    with Peer(host) as peer, pytest.raises(SourceRefused, match="private"):
        OpenSockets().add_public(peer)


@pytest.mark.parametrize("host", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"])
def test_socket_to_a_public_address_is_taken(host):
    with Peer(host) as peer:
        OpenSockets().add_public(peer)


class Unhurried:
    def check(self) -> None:
        """Nothing asks it to stop."""

    def sleep(self, seconds: float) -> None:
        """Nor does it wait."""


@pytest.mark.parametrize(("left", "fake_context"), [(-0.001, SourceTooSlow), (60.0, OSError)])
def test_failure_after_the_deadline_is_too_slow(left, fake_context):
    """Though the watch has not looked yet: the socket's own time-out is cut to the same moment."""
    watch = ConnectionWatchdog(OpenSockets(), Unhurried(), time.monotonic() + left)

    assert type(watch.cause_of(OSError("timed out"))) is fake_context
