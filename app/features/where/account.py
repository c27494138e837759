"""The account of an attempt: for what its time went, by place and statement.

Each moment that the sampler has looked at is one entry's time. Names and lines only: statements without constants, and
everything is redacted as logs are.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dataloader.app.features.where.server_looks import SessionLook
from dataloader.app.wording import format_duration

MAX_ACCOUNT_BYTES = 4000
_MAX_ENTRIES = 10  # that are kept at the end
_MAX_CAUSES = 500  # while it runs
_MAX_TEXT_LENGTH = 160
_MIN_TEXT_LENGTH = 30
_SHORT_SEC = 0.02  # a statement that is younger is one of many: looks are a second apart
_OTHER_PLACES = "other places"
_T = TypeVar("_T")
_LINE = re.compile(r":\d+$")

# kind → what it is called where times are shown by kind
KINDS = {
    "python": "computes",
    "native": "native code that holds the interpreter",
    "interpreter": "waits for the interpreter lock",
    "queued": "waits for a CPU",
    "sql": "SQL",
    "sql_lock": "SQL that waits for a lock",
    "sql_short": "many short statements",
    "sql_client": "SQL that waits for its client",
    "network": "network",
    "dns": "name resolution",
    "sleep": "sleep",
    "file": "files",
    "memory": "waits for memory from disk",
    "threads": "waits for its own threads",
    "child": "waits for a program",
    "input": "waits for input",
    "program": "a program computes",
    "start": "starts its process",
    "stopped": "stopped",
    "other": "other waits",
}
# Kinds of moments in which the thread may wait for the answer to a statement.
_MAY_WAIT_FOR_SQL = frozenset({"network", "threads", "child", "other", "interpreter"})


@dataclass(frozen=True)
class Cause:
    """What an attempt did at a moment, and where. `detail` is what it waited for, `holder` who held that up."""

    kind: str
    place: str | None = None
    detail: str | None = None
    statement: str | None = None
    holder: str | None = None

    @property
    def key(self) -> tuple[str, str | None, str | None]:
        """By which it is the same in another run, in which lines may have moved."""
        place = None if self.place is None else _LINE.sub("", self.place)
        return self.kind, place, self.statement

    @property
    def text(self) -> str:
        """Such as `waits for a lock on sales held by psql (user ann)`."""
        if self.kind.startswith("sql"):
            return self._sql_text
        name, detail = KINDS.get(self.kind, self.kind), self.detail
        if self.kind == "child" and detail:
            return f"waits for the program {detail}{self._at}"
        if self.kind == "input" and detail:
            return f"{detail} waits for input{self._at}"
        if self.kind == "sleep" and detail:
            return f"sleep{self._at} after {detail}"
        return f"{name}{self._at}{f' ({detail})' if detail else ''}"

    @property
    def _sql_text(self) -> str:
        if self.kind == "sql_lock":
            on, holder = (
                (f" on {self.detail}" if self.detail else ""),
                (f" held by {self.holder}" if self.holder else ""),
            )
            return f"waits for a lock{on}{holder}"
        statement = f"`{self.statement}`" if self.statement else "a statement"
        if self.kind == "sql_short":
            return f"many short statements such as {statement}"
        if self.kind == "sql_client":
            return f"{statement}, which waits for its client"
        return f"{statement}{f' ({self.detail})' if self.detail else ''}"

    @property
    def _at(self) -> str:
        return f" in {self.place}" if self.place else ""


def find_cause(moment: Mapping[str, Any], sessions: Sequence[SessionLook]) -> Cause:
    """Join what the program does with what its sessions do."""
    kind, place, handles = moment["kind"], moment["place"], moment["handles"]
    may_wait = kind in _MAY_WAIT_FOR_SQL or moment["driver"]
    visible = [session for session in sessions if session.state is not None]
    if may_wait and (blocked := [session for session in visible if session.is_blocked]):
        lock = blocked[0].blocked
        on, holder = (None, None) if lock is None else (lock.lock_on, lock.holder)
        return Cause("sql_lock", place, on, blocked[0].statement, holder)
    active = [session for session in visible if session.state == "active"]
    if active:
        session = max(active, key=lambda look: look.statement_sec)
        is_short = session.statement_sec < _SHORT_SEC
        if may_wait and session.wait_event_type == "Client" and not is_short:
            return Cause("sql_client", place, session.wait, session.statement)
        if may_wait or (is_short and kind == "python"):
            return Cause(
                "sql_short" if is_short else "sql", place, None if is_short else session.wait, session.statement
            )
    if may_wait or kind == "python":
        recent = [session for session in visible if session.state != "active" and session.state_sec < _SHORT_SEC]
        if recent:
            return Cause("sql_short", place, None, recent[0].statement)
    detail = moment["detail"]
    if kind in ("sleep", "file") and handles:
        detail = handles if detail is None else f"{detail}, {handles}"
    elif kind in ("python", "native", "memory") and moment["calls"] and detail is None:
        detail = moment["calls"]
    return Cause(kind, place, detail)


@dataclass
class Account:
    """The account of one attempt, as it grows. The sampler's thread uses it."""

    seconds: dict[Cause, float] = field(default_factory=lambda: defaultdict(float))
    looks: int = 0
    problems: dict[str, str] = field(default_factory=dict)  # of servers: why their part is not complete

    def add(self, cause: Cause, sec: float) -> None:
        if len(self.seconds) >= _MAX_CAUSES and cause not in self.seconds:
            cause = Cause(cause.kind, _OTHER_PLACES)
        self.seconds[cause] += sec

    def add_moment(self, moment: Mapping[str, Any], sessions: Sequence[SessionLook]) -> Cause:
        """Add the time since the last moment; return what it went for."""
        cause = find_cause(moment, sessions)
        sec = moment["sec"]
        if cause.kind in ("python", "native"):
            for kind in ("interpreter", "queued"):
                if (waited := moment[f"{kind}_sec"]) > 0:
                    self.add(Cause(kind, cause.place), waited)
                    sec -= waited
        self.add(cause, sec)
        self.looks += 1
        return cause

    @property
    def watched_sec(self) -> float:
        return sum(self.seconds.values())

    def encode(self, redact: Callable[[str], str], pending: tuple[Cause, float] | None = None) -> str:
        """As JSON that is short enough. `pending`: what it has done since the last moment."""
        seconds = defaultdict(float, self.seconds)
        if pending is not None:
            seconds[pending[0]] += pending[1]
        by_kind = defaultdict[str, float](float)
        for cause, sec in seconds.items():
            by_kind[cause.kind] += sec
        entries = [_encode_entry(cause, sec, redact) for cause, sec in heaviest(_merge(seconds))[:_MAX_ENTRIES]]
        account = {
            "watched_sec": round(sum(seconds.values()), 2),
            "looks": self.looks,
            "kinds": {kind: round(sec, 2) for kind, sec in heaviest(by_kind)},
            "entries": entries,
            "problems": {server: redact(problem) for server, problem in self.problems.items()},
        }
        max_length = _MAX_TEXT_LENGTH
        while len(text := json.dumps(account, ensure_ascii=False).encode()) > MAX_ACCOUNT_BYTES:
            max_length -= 10
            if max_length < _MIN_TEXT_LENGTH:
                entries.pop()
                max_length = _MIN_TEXT_LENGTH
            for entry in entries:
                for name in ("statement", "place", "detail", "holder"):
                    entry[name] = _cut(entry[name], max_length)
            if not entries:
                account["problems"] = {}
        return text.decode()


def heaviest(seconds: Mapping[_T, float]) -> list[tuple[_T, float]]:
    return sorted(seconds.items(), key=lambda entry: -entry[1])


def _merge(seconds: Mapping[Cause, float]) -> dict[Cause, float]:
    """Causes that differ in what they waited for alone are one, of the detail that took longest."""
    groups: dict[tuple[str, str | None, str | None], list[tuple[Cause, float]]] = defaultdict(list)
    for cause, sec in heaviest(seconds):
        groups[cause.kind, cause.place, cause.statement].append((cause, sec))
    return {group[0][0]: sum(sec for _, sec in group) for group in groups.values()}


def _encode_entry(cause: Cause, sec: float, redact: Callable[[str], str]) -> dict[str, Any]:
    texts = {
        name: _cut(value and redact(value), _MAX_TEXT_LENGTH) for name, value in vars(cause).items() if name != "kind"
    }
    return {"kind": cause.kind, "sec": round(sec, 2), **texts}


def _cut(text: str | None, max_length: int) -> str | None:
    return text if text is None or len(text) <= max_length else text[: max_length - 1] + "…"


def decode_entries(entries: Iterable[Mapping[str, Any]]) -> list[tuple[Cause, float]]:
    """The entries of a stored account, heaviest first."""
    return [
        (Cause(entry["kind"], entry["place"], entry["detail"], entry["statement"], entry["holder"]), entry["sec"])
        for entry in entries
    ]


def describe_share(cause: Cause, sec: float, total_sec: float) -> str:
    share = f"{100 * sec / total_sec:.0f} %" if total_sec > 0 else ""
    return f"{share} {format_duration(sec)} {cause.text}".strip()
