"""A standby's part of replication: no more of it than hot_standby_feedback."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg2
from psycopg2.extensions import parse_dsn

_PROTOCOL = 196608
_TIMEOUT_SEC = 10.0


@contextmanager
def send_feedback(dsn: str, *, slot: str | None = None) -> Iterator[None]:
    """Report a query of the standby that needs all rows from now on; it ends with the block."""
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_wal_flush_lsn(), pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
        ((position, next_id),) = cursor.fetchall()
    server = parse_dsn(dsn)
    with closing(socket.socket(socket.AF_UNIX)) as stream:
        stream.settimeout(_TIMEOUT_SEC)
        stream.connect(f"{server['host']}/.s.PGSQL.{server['port']}")
        values = {"user": server["user"], "replication": "true", "application_name": "standby-1"}
        startup = "".join(f"{name}\0{value}\0" for name, value in values.items()) + "\0"
        stream.sendall(struct.pack("!ii", len(startup) + 8, _PROTOCOL) + startup.encode())
        _receive(stream, b"Z")
        start = f"START_REPLICATION {f'SLOT {slot} ' if slot else ''}PHYSICAL {position}\0"
        stream.sendall(b"Q" + struct.pack("!i", len(start) + 4) + start.encode())
        _receive(stream, b"W")
        feedback = b"h" + struct.pack("!qIIII", 0, next_id % 2**32, next_id >> 32, 0, 0)
        stream.sendall(b"d" + struct.pack("!i", len(feedback) + 4) + feedback)
        yield


def _receive(stream: socket.socket, kind: bytes) -> None:
    """Read messages up to one of this kind."""
    received = b""
    while received != kind:
        header = _read(stream, 5)
        received, length = header[:1], struct.unpack("!i", header[1:])[0]
        body = _read(stream, length - 4)
        assert received != b"E", body


def _read(stream: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = stream.recv(count - len(data))
        assert chunk, "the server has closed the connection"
        data += chunk
    return data
