"""Messages of the PostgreSQL protocol, and what the requests of an attempt are for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

RESPONSE_ENDS = b"ZGHW"  # ReadyForQuery, or the server waits for a COPY of the client
_COUNTED = b"Qc"  # Query, CopyDone; and the startup packet. A Terminate comes at any time while others are under way
_STARTUP = 196_608  # version 3.0


class Side(StrEnum):
    """Where in an exchange of a request and its response the network stops."""

    REQUEST_HELD = "before the request"
    REQUEST_SENT = "after the request"  # the server executes it
    RESPONSE_HELD = "before the response"  # it has been executed
    RESPONSE_PART = "within the response"
    RESPONSE_SENT = "after the response"


@dataclass(frozen=True)
class Exchange:
    """A request of a worker, over whichever connection."""

    number: int  # of the worker's, from 0
    role: str  # of the server
    database: str
    text: str  # of the query, or the kind of the message


def take_message(buffer: bytearray, *, is_starting: bool = False) -> bytes:
    """Take the first message, if it is complete. Startup packets have no type."""
    has_type = not (is_starting and buffer[:1] == b"\0")
    start = 1 if has_type else 0
    if len(buffer) < start + 4:
        return b""
    length = start + int.from_bytes(buffer[start : start + 4], "big")
    if len(buffer) < length:
        return b""
    message = bytes(buffer[:length])
    del buffer[:length]
    return message


def startup_options(message: bytes) -> dict[str, str]:
    """Of a startup packet; others, as a request to cancel, have none."""
    if int.from_bytes(message[4:8], "big") != _STARTUP:
        return {}
    words = message[8:].split(b"\0")
    return {words[n].decode(): words[n + 1].decode() for n in range(0, len(words) - 1, 2)}


def request_text(message: bytes, *, is_starting: bool) -> str | None:
    """What the request is; None: it is no exchange of its own, as a password or the data of a COPY."""
    if is_starting:
        return "connect" if message[:1] == b"\0" else None
    if message[0] not in _COUNTED:
        return None
    if message[:1] == b"Q":
        return " ".join(message[5:-1].decode(errors="replace").split())
    return "end of COPY"


_STEPS = tuple(
    # role of the server, pattern of the text, name of the step
    (role, re.compile(pattern), name)
    for role, pattern, name in (
        ("", r"connect$", "connect"),
        ("queue", r"BEGIN|COMMIT|SELECT 1 FROM \S*dl_jobs|.*dl_draw_fence", "draw the fence"),
        ("queue", r"PREPARE|EXECUTE", "settle"),
        ("queue", r"", "settings"),
        ("target", r".*to_regclass", "find the table"),
        ("target", r"SET TRANSACTION|SET LOCAL", "claim: settings"),
        ("target", r"INSERT INTO \S*dl_effects", "claim: make the row"),
        ("target", r"SELECT fence", "claim: lock the row"),
        ("target", r"UPDATE \S*dl_effects SET fence", "claim: raise the fence"),
        ("target", r"SELECT txid_current\(\) FROM \S*dl_effects", "compare the fence"),
        ("target", r"UPDATE \S*dl_effects SET position", "write the position"),
        ("target", r"COMMIT|ROLLBACK|BEGIN", ""),  # as it is
        ("target", r"SET ", "settings"),
        ("target", r"", "rows"),
    )
)


def step_name(exchange: Exchange) -> str:
    """What the request is for, for tables."""
    name = next(name for role, pattern, name in _STEPS if role in ("", exchange.role) and pattern.match(exchange.text))
    return f"{exchange.role}: {name or exchange.text}"
