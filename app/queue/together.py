"""Jobs that are asked for at the same time go into the queue together: one message and one commit for all of them.

Who comes first goes at once, alone. Those that come while he is on his way gather; when he is back, the first of them
takes them all. So nobody waits for company, and the busier it is the less a job costs.

None is another's hostage. What the database would not take at once (a key that is taken, or that a transaction holds; a
value it refuses) is asked for again alone, by the thread it belongs to, and has its own answer. A message that is away
for long is overtaken by the next. And who asked for which job is written down for each.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

import psycopg2
from psycopg2 import errorcodes

from app.errors import DatabaseUnavailable, DataloaderError, InvalidJob
from app.queue.audit import acting_for_each, whose
from app.queue.ids import draw_jobs
from app.queue.job import Enqueued, NewJob, Status
from app.queue.jobqueue import JobQueue, request_of

_LONG = 0.1  # seconds that a message is away, after which the next one goes all the same
_MOST = 100  # jobs a message
# The server, or the way to it, is away for everybody: the connection broke, it ends, it takes no writes.
_OUTAGE = ("08", "57", errorcodes.READ_ONLY_SQL_TRANSACTION)


@dataclass(eq=False, slots=True)
class _Asking:
    request: dict[str, Any]
    act: str | None
    called: SimpleQueue[None] = field(default_factory=SimpleQueue)
    sent: bool = False  # under the lock, as all that follow
    back: bool = False
    answer: Enqueued | None = None
    failure: DatabaseUnavailable | None = None


class Together:
    """Used by the threads of one process that share a pool."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._lock = threading.Lock()
        self._waiting: deque[_Asking] = deque()  # under the lock
        self._leader: _Asking | None = None  # likewise: whose message was sent last, while it is away

    def enqueue(self, new: NewJob) -> Enqueued:
        """As JobQueue.enqueue."""
        request = request_of(new)
        if new.live_key is not None:  # the answer is the job that has it
            return self._queue.put(request)
        mine = _Asking(request, whose())
        with self._lock:
            self._waiting.append(mine)
            batch = self._taken(mine) if self._leader is None else []
        while not batch:
            with suppress(Empty):  # then those before are away for long
                mine.called.get(timeout=_LONG)
            with self._lock:
                if mine.back:
                    break
                if not mine.sent:
                    batch = self._taken(mine)
        if batch:
            self._send(mine, batch)
        if mine.failure is not None:
            raise type(mine.failure)(str(mine.failure)) from mine.failure
        return mine.answer or self._queue.put(request)

    def enqueue_all(self, asked: Sequence[tuple[NewJob, str | None]]) -> list[Enqueued | DatabaseUnavailable | None]:
        """Those of one caller, each with for whom it is asked (as `whose` has it), in one message. None: whether it can
        be had is found out alone, by `enqueue`."""
        asking = [_asking(new, act) for new, act in asked]
        batch = [one for one in asking if one is not None]
        if batch:
            self._send_together(batch)  # whatever becomes of it stands with each of them
        return [None if one is None else one.failure or one.answer for one in asking]

    def _taken(self, leader: _Asking) -> list[_Asking]:
        """What the leader sends: with the lock."""
        self._leader = leader
        self._waiting.remove(leader)
        batch = [leader, *(self._waiting.popleft() for _ in range(min(_MOST - 1, len(self._waiting))))]
        for one in batch:
            one.sent = True
        return batch

    def _send(self, leader: _Asking, batch: list[_Asking]) -> None:
        try:
            if batch == [leader]:
                leader.answer = self._queue.put(leader.request)
            else:
                self._send_together(batch)
        finally:
            with self._lock:
                for one in batch:
                    one.back = True
                if self._leader is leader:
                    self._leader = None
                    if self._waiting:
                        self._waiting[0].called.put(None)
            for one in batch[1:]:
                one.called.put(None)

    def _send_together(self, batch: list[_Asking]) -> None:
        ids = draw_jobs(len(batch))
        try:
            with acting_for_each({job_id: one.act for job_id, one in zip(ids, batch, strict=True)}):
                made = self._queue.put_together([*zip(ids, (one.request for one in batch), strict=True)])
        except DatabaseUnavailable as error:
            if (getattr(error.__cause__, "pgcode", None) or _OUTAGE[0]).startswith(_OUTAGE):
                _fail(batch, error)  # else somebody was in the way of one of them
        except (DataloaderError, psycopg2.Error):
            pass  # it is one of them: each will find out
        except BaseException:  # the thread ends: nobody knows whether it came to pass, and nobody asks twice
            _fail(batch, DatabaseUnavailable("the answer was lost"))
            raise
        else:
            for job_id, one in zip(ids, batch, strict=True):
                if job_id in made:
                    one.answer = Enqueued(job_id, Status.QUEUED, created=True)


def _asking(new: NewJob, act: str | None) -> _Asking | None:
    if new.live_key is not None:  # the answer is the job that has it
        return None
    try:
        return _Asking(request_of(new), act)
    except InvalidJob:
        return None


def _fail(batch: list[_Asking], error: DatabaseUnavailable) -> None:
    for one in batch:
        one.failure = error
