"""Messages between a worker process and its fork server: JSON with descriptors, over a stream socket."""

from __future__ import annotations

import json
import os
import select
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

_HEADER = struct.Struct("!I")  # the length of the JSON
_MAX_DESCRIPTORS = 16


class ChannelClosed(Exception):
    """The process on the other side is gone, or does not reply in time."""


class ForkChannel:
    """One end. Used by one thread at a time."""

    def __init__(self, channel: socket.socket, timeout_sec: float | None = None) -> None:
        self._socket = channel
        channel.settimeout(timeout_sec)

    def send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Raises ChannelClosed."""
        body = json.dumps(message).encode()
        try:
            # The header is short enough to be sent whole.
            socket.send_fds(self._socket, [_HEADER.pack(len(body))], list(descriptors))
            self._socket.sendall(body)
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def has_message(self, timeout_sec: float) -> bool:
        """Wait for a message or the end of the other process; return False on timeout."""
        waiter = select.poll()
        waiter.register(self._socket, select.POLLIN)
        return bool(waiter.poll(timeout_sec * 1000))

    def receive(self) -> tuple[dict[str, Any], list[int]]:
        """Return the next message and its descriptors, which the caller closes. Raises ChannelClosed."""
        descriptors: list[int] = []
        try:
            header, descriptors, _, _ = socket.recv_fds(self._socket, _HEADER.size, _MAX_DESCRIPTORS)
            header += self._receive_exactly(_HEADER.size - len(header))
            message: dict[str, Any] = json.loads(self._receive_exactly(*_HEADER.unpack(header)))
        except (OSError, ValueError, ChannelClosed) as error:
            close_all(descriptors)
            raise ChannelClosed(str(error)) from error
        return message, descriptors

    def _receive_exactly(self, size: int) -> bytes:
        chunks = bytearray()
        while len(chunks) < size:
            chunk = self._socket.recv(size - len(chunks))
            if not chunk:
                raise ChannelClosed("the other process has closed its end")
            chunks += chunk
        return bytes(chunks)

    def close(self) -> None:
        self._socket.close()


def close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)
