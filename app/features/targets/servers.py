"""The targets of the settings, asked in bounded time: a page must not wait for a database that does not answer.

Each question is asked by a short-lived thread. The asker waits as long as it wants to; an answer that comes later is
for the next one, and the same question is not asked twice within seconds. Connections are blocking: psycopg2 looks up
the address of an asynchronous one without releasing the GIL.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import psycopg2

from dataloader.app import log
from dataloader.app.db.connection import connect_any_host
from dataloader.app.errors import ConfigError
from dataloader.app.queue.attempt_sessions import start_thread
from dataloader.pipelines.portable import clock
from dataloader.pipelines.retry import Fail
from dataloader.pipelines.targets import DEFAULT

Question = Callable[[Any], Any]  # of a connection

CONNECT_TIMEOUT_SEC = 2  # libpq knows no shorter one
STATEMENT_TIMEOUT_SEC = 2
_MARGIN_SEC = 0.5
FULL_WAIT_SEC = CONNECT_TIMEOUT_SEC + STATEMENT_TIMEOUT_SEC + _MARGIN_SEC
_MAX_AGE_SEC = 3.0  # of an answer
_MAX_OUTAGE_AGE_SEC = 15.0  # of a failure to connect
_FORGOTTEN_AFTER_SEC = 60.0
_MAX_QUESTIONS_AT_ONCE = 4  # that a target is asked by this process
_APPLICATION_NAME = "dataloader-targets"
_UNKNOWN = "the settings of this process have no such target"


@dataclass(frozen=True)
class Answer:
    """What a target answered, or why it did not."""

    value: Any = None
    problem: str | None = None
    is_reached: bool = True


class Inquiry:
    """A question to one target, asked by a thread of its own."""

    def __init__(self, dsn: str, question: Question) -> None:
        self.dsn, self.started_at = dsn, clock()
        self.done = threading.Event()
        self.answer = Answer(None, "it has not answered yet", is_reached=False)  # until it is done
        self.finished_at = self.started_at
        self._question = question
        self._connection: Any = None

    @classmethod
    def failed(cls, problem: str) -> Inquiry:
        inquiry = cls("", lambda connection: None)
        inquiry.finish(Answer(None, problem, is_reached=False))
        return inquiry

    def start(self) -> None:
        if not start_thread(threading.Thread(target=self._run, name="ask-target", daemon=True)):
            self.finish(Answer(None, "this process has no resources for another thread", is_reached=False))

    def finish(self, answer: Answer) -> None:
        self.answer, self.finished_at = answer, clock()
        self.done.set()

    def abort(self) -> None:
        """End a wait for a server that has accepted the connection and is silent since."""
        connection = self._connection
        if connection is not None and not self.done.is_set():
            with suppress(psycopg2.Error, OSError), socket.socket(fileno=socket.dup(connection.fileno())) as duplicate:
                duplicate.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        answer = Answer(None, "this process could not ask it", is_reached=False)
        try:
            with closing(connect_any_host(self.dsn, _connect)) as self._connection:
                try:
                    answer = Answer(self._question(self._connection))
                except (psycopg2.Error, Fail) as error:
                    answer = Answer(None, describe_failure(error), is_reached=not self._connection.closed)
        except (psycopg2.Error, ConfigError) as error:
            answer = Answer(None, describe_failure(error), is_reached=False)
        finally:
            self.finish(answer)


class TargetServers:
    """The targets of the settings by name. Threads may share it."""

    def __init__(self, dsns: Mapping[str, str], *, queue_dsn: str | None = None) -> None:
        """`queue_dsn` is that of the workers, None if the settings have none."""
        self._dsns, self._queue_dsn = dict(dsns), queue_dsn
        self._lock = threading.Lock()
        self._inquiries: dict[tuple[str, Hashable], Inquiry] = {}  # by target and subject; under the lock

    @property
    def names(self) -> list[str]:
        return sorted(self._dsns)

    def dsn_of(self, target: str) -> str | None:
        """The DSN that a task gets for this name, None if the settings have none: the queue's own database is used."""
        entry = self.entry_of(target)
        return None if entry is None else self._dsns[entry]

    def entry_of(self, target: str) -> str | None:
        """The entry of the settings that counts for this name: its own, else `default`."""
        return next((name for name in (target, DEFAULT) if name in self._dsns), None)

    def is_queue_database(self, target: str) -> bool:
        """Whether transactions in it have the job's row as their fence."""
        return self.dsn_of(target) in (None, self._queue_dsn)

    def ask(
        self, questions: Mapping[tuple[str, Hashable], Question], *, wait_sec: float = FULL_WAIT_SEC
    ) -> dict[tuple[str, Hashable], Answer]:
        """Ask targets at once. The keys are of a target and the subject of its question: an answer of the last seconds
        to the same one counts."""
        deadline = clock() + wait_sec
        asked = {key: self._open(key, question) for key, question in questions.items()}
        for inquiry in asked.values():
            inquiry.done.wait(max(0.0, deadline - clock()))
            if not inquiry.done.is_set() and clock() - inquiry.started_at > FULL_WAIT_SEC - _MARGIN_SEC:
                inquiry.abort()
        return {key: inquiry.answer for key, inquiry in asked.items()}

    def start(self, target: str, question: Question) -> Inquiry:
        """Ask a target without waiting. Its answer is for this asker alone."""
        dsn = self.dsn_of(target)
        if dsn is None:
            return Inquiry.failed(_UNKNOWN)
        inquiry = Inquiry(dsn, question)
        inquiry.start()
        return inquiry

    def _open(self, key: tuple[str, Hashable], question: Question) -> Inquiry:
        dsn = self.dsn_of(key[0])
        if dsn is None:
            return Inquiry.failed(_UNKNOWN)
        with self._lock:
            self._forget_old()
            known = self._inquiries.get(key)
            if known is not None and (not known.done.is_set() or _is_fresh(known)):
                return known
            of_server = [inquiry for inquiry in self._inquiries.values() if inquiry.dsn == dsn]
            outage = _last_outage(of_server)
            if outage is not None:
                return outage
            if sum(not inquiry.done.is_set() for inquiry in of_server) >= _MAX_QUESTIONS_AT_ONCE:
                return Inquiry.failed("earlier questions of this process to it are not answered yet")
            inquiry = self._inquiries[key] = Inquiry(dsn, question)
        inquiry.start()
        return inquiry

    def _forget_old(self) -> None:
        now = clock()
        for key, inquiry in list(self._inquiries.items()):
            if inquiry.done.is_set() and now - inquiry.finished_at > _FORGOTTEN_AFTER_SEC:
                del self._inquiries[key]


def _is_fresh(inquiry: Inquiry) -> bool:
    max_age_sec = _MAX_AGE_SEC if inquiry.answer.is_reached else _MAX_OUTAGE_AGE_SEC
    return clock() - inquiry.finished_at < max_age_sec


def _last_outage(inquiries: Iterable[Inquiry]) -> Inquiry | None:
    """The last answer of a target, if that was that it cannot be reached, and is still taken to be so."""
    ended = [inquiry for inquiry in inquiries if inquiry.done.is_set()]
    last = max(ended, key=lambda inquiry: inquiry.finished_at, default=None)
    return last if last is not None and not last.answer.is_reached and _is_fresh(last) else None


def _connect(host_dsn: str) -> Any:
    return psycopg2.connect(
        host_dsn,
        application_name=_APPLICATION_NAME,
        client_encoding="UTF8",
        connect_timeout=CONNECT_TIMEOUT_SEC,
        keepalives_idle=10,
        keepalives_interval=5,
        keepalives_count=3,
        tcp_user_timeout=int(FULL_WAIT_SEC * 1000),
    )


def describe_failure(error: Exception) -> str:
    """Why a target did not answer, without the address and the secrets that libpq's message has."""
    primary = getattr(getattr(error, "diag", None), "message_primary", None)
    first = (primary or str(error)).strip().partition("\n")[0]
    if first.startswith("could not translate host name"):
        return "the name of its host cannot be resolved"
    reason = first.rpartition(" failed: ")[2]
    for severity in ("FATAL:", "ERROR:"):
        reason = reason.removeprefix(severity).strip()
    return log.redact_text(reason) or type(error).__name__
