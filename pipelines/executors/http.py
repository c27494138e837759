"""Requests of executors to an engine's HTTP API: no answer is EngineUnavailable, and a log is read in pieces."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import requests

from pipelines.offload import MAX_LOG_LINES, EngineUnavailable, OffloadFailed, RemoteState

_CONNECT_TIMEOUT_SEC, _READ_TIMEOUT_SEC = 5.0, 10.0
_MAX_ANSWER_BYTES = 32_000_000
_LOG_BYTES_PER_SEC = 100_000  # of a log that is sent whole each time; a longer one is asked for more seldom
_MAX_LOG_PAUSE_SEC = 300.0
OK, BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND, CONFLICT = 200, 400, 401, 403, 404, 409
TOO_MANY, SERVER_ERROR = 429, 500


class Answer:
    """A status code and what was sent with it."""

    def __init__(self, code: int, content: bytes) -> None:
        self.code, self.content = code, content

    @property
    def text(self) -> str:
        return self.content.decode("utf-8", "replace")

    def json(self) -> dict[str, Any]:
        try:
            value = json.loads(self.content)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise EngineUnavailable(f"the answer is no JSON object: {self.text[:200]!r}")
        return value


class HttpApi:
    """Sends requests to one address. Used by any thread: each request has a session of its own."""

    def __init__(self, address: str, *, token: str | None = None, verify: bool | str = True) -> None:
        self.address = address.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._verify = verify
        self._has_token = token is not None

    def send(self, method: str, path: str, *, body: Any = None, query: Mapping[str, Any] | None = None) -> Answer:
        """Raises EngineUnavailable, also where the token is refused: that is not the work's fault."""
        try:
            with requests.request(
                method,
                f"{self.address}{path}",
                json=body,
                params=query,
                headers=self._headers,
                timeout=(_CONNECT_TIMEOUT_SEC, _READ_TIMEOUT_SEC),
                verify=self._verify,
                allow_redirects=False,  # a token goes to the address of the settings alone
                stream=True,
            ) as response:
                content = b""
                for chunk in response.iter_content(65_536):
                    content += chunk
                    if len(content) > _MAX_ANSWER_BYTES:
                        raise OffloadFailed(f"the engine's answer has more than {_MAX_ANSWER_BYTES:,} bytes: {path}")
        except requests.RequestException as error:
            raise EngineUnavailable(f"{type(error).__name__}: {self.address}") from error
        if response.status_code in (UNAUTHORIZED, FORBIDDEN):
            what = "does not accept" if self._has_token else "asks for"
            setting = 'the setting "token" of this engine in DL_EXECUTORS'
            answer = f"it answered {response.status_code}: {content[:200]!r}"
            raise EngineUnavailable(f"{self.address} {what} {setting}; {answer}")
        if response.status_code == TOO_MANY:
            raise EngineUnavailable(f"{self.address} answered {response.status_code}: {content[:200]!r}")
        return Answer(response.status_code, content)


class LogPieces:
    """Cuts logs that an engine sends whole into pieces, by their position in characters."""

    def __init__(self) -> None:
        self._next_at: dict[str, float] = {}  # by name; dict operations are atomic

    def is_due(self, name: str) -> bool:
        return time.monotonic() >= self._next_at.get(name, 0.0)

    def record_state(self, name: str, state: RemoteState) -> None:
        if state.is_over:
            self._next_at.pop(name, None)

    def cut(self, name: str, text: str, after: str, *, is_over: bool) -> tuple[list[str], str]:
        """The next lines; the begun last one only if no more comes."""
        begin = int(after or 0)
        rest = text[begin:]
        if not is_over:
            self._next_at[name] = time.monotonic() + min(_MAX_LOG_PAUSE_SEC, len(text) / _LOG_BYTES_PER_SEC)
            rest = rest[: rest.rfind("\n") + 1]
        lines = rest.splitlines(keepends=True)[:MAX_LOG_LINES]
        return [line.rstrip("\r\n") for line in lines], str(begin + sum(map(len, lines)))
