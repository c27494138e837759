"""The head of a plain request, read in one way or not at all.

What is read here would be read the same by gunicorn's parser, which is given everything else: whatever is rare, or has
a say in how the request is framed, answered or believed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

_FIELD = re.compile(r"([A-Za-z0-9-]{1,64}): ([!-~](?:[ -~]{0,2000}[!-~])?)")
_LENGTH = re.compile(r"[0-9]{1,15}")
_HOST = re.compile(r"[A-Za-z0-9.:\[\]_-]{1,255}")
_MOST_FIELDS = 50
_NOT_HERE = frozenset({
    "TRANSFER_ENCODING", "TRAILER", "TE", "EXPECT", "UPGRADE", "HTTP2_SETTINGS", "KEEP_ALIVE", "PROXY_CONNECTION",
    "CONTENT_ENCODING", "COOKIE", "SCRIPT_NAME", "PATH_INFO", "PROXY", "X_FORWARDED_SSL", "X_FORWARDED_PROTOCOL",
})  # fmt: skip
_OF_THE_BODY = frozenset({"CONTENT_TYPE", "CONTENT_LENGTH"})


def environ_of(head: bytes, path: str, client: str) -> dict[str, str] | None:
    """What WSGI calls the environment, as far as it is of use to who answers without Flask; `head` without its first
    line and its end. None: it is not plain."""
    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": path, "REMOTE_ADDR": client, "SERVER_PROTOCOL": "HTTP/1.1"}
    lines = head.decode("latin-1").split("\r\n")
    if len(lines) > _MOST_FIELDS:
        return None
    for line in lines:
        field = _FIELD.fullmatch(line)
        key = field and _key_of(field[1])
        if not field or not key or key in environ:
            return None
        environ[key] = field[2]
    return environ if _is_plain(environ) else None


def _is_plain(environ: Mapping[str, str]) -> bool:
    return (
        _HOST.fullmatch(environ.get("HTTP_HOST", "")) is not None
        and _LENGTH.fullmatch(environ.get("CONTENT_LENGTH", "")) is not None
        and environ.get("HTTP_CONNECTION", "keep-alive").lower() == "keep-alive"
    )


@lru_cache(maxsize=256)
def _key_of(name: str) -> str | None:
    told = name.upper().replace("-", "_")
    if told in _NOT_HERE:
        return None
    return told if told in _OF_THE_BODY else f"HTTP_{told}"
