"""A worker that runs one attempt over a network of its own, and may be killed, frozen or cut off at any message."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psycopg2

from dataloader.app.db.connection import Session
from dataloader.app.errors import DataloaderError
from dataloader.app.queue.attempt_sessions import ConnectionSettings
from dataloader.app.queue.job import ClaimedJob, Released, Settlement, Status
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import Pipelines, Task
from dataloader.pipelines.portable import clock
from dataloader.workers.attempt import Attempt, AttemptSettings
from dataloader.workers.isolation.fork_server import NO_FORK_SERVER, ForkServer
from dataloader.workers.isolation.run import run_isolated
from dataloader.workers.outcome import LeaseLost, Outcome
from tests.target_proof.loads import HOME, SHAPES
from tests.target_proof.wire import Line

TASK = "proof"


def task_of(shape: str) -> Task:
    """The load in a thread of the worker."""
    pipelines = Pipelines()
    pipelines.register(TASK, target=HOME)(SHAPES[shape])
    task = pipelines.get(TASK)
    assert task is not None
    return task


@dataclass(frozen=True)
class Databases:
    """Of one load."""

    queue: str
    targets: Mapping[str, str]  # by the names HOME and OTHER

    def over(self, line: Line) -> Databases:
        targets = {name: line.dsn("target", dsn) for name, dsn in self.targets.items()}
        return Databases(line.dsn("queue", self.queue), targets)


class Worker:
    """Its attempt, in a thread. The thread of a worker that was killed ends by itself, and reaches nothing any more."""

    def __init__(
        self,
        line: Line,
        databases: Databases,
        job: ClaimedJob,
        task: Task,
        *,
        settles_directly: JobQueue | None = None,
        packages: Sequence[str] = (),
        fork_server: ForkServer = NO_FORK_SERVER,
    ) -> None:
        self.line, self.job, self._task = line, job, task
        self._settles_directly = settles_directly  # past the line, whose network it has all the same
        self._databases = own = databases.over(line)
        settings = ConnectionSettings(dsn=own.queue, schema="public", targets=own.targets, connect_timeout_sec=5)
        self._attempt = Attempt(
            job,
            claimed_at=clock(),
            settings=AttemptSettings(
                connection_settings=settings,
                run_isolated=run_isolated,
                packages=tuple(packages),
                fork_server=fork_server,
            ),
        )
        self.outcome: Outcome | None = None
        self.error: BaseException | None = None  # of the worker itself, in its settlement
        self.is_settled = self.has_ended = False  # what it had to write is written
        self._thread = threading.Thread(target=self._run, name=f"worker-{job.run_text[:8]}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_sec: float) -> bool:
        """Return whether it has ended."""
        self._thread.join(timeout_sec)
        return not self._thread.is_alive()

    @property
    def has_lost_its_job(self) -> bool:
        return isinstance(self.outcome, LeaseLost)

    @property
    def has_succeeded(self) -> bool:
        return isinstance(self.outcome, Settlement) and self.outcome.status is Status.SUCCEEDED

    def _run(self) -> None:
        try:
            self.outcome = self._attempt.run(self._task)
            for _ in range(3):  # as the settler, which tries again while it trusts its lease
                if self._settle(self.outcome):
                    self.is_settled = True
                    return
        except BaseException as error:
            self.error = error
        finally:
            self.has_ended = True
            self.line.changed.set()

    def _settle(self, outcome: Outcome) -> bool:
        if not isinstance(outcome, Settlement | Released):
            return True
        self.line.running.wait()
        if self.line.is_dead or "queue" in self.line.refused:
            return False
        if self._settles_directly is not None:
            self._write(self._settles_directly, outcome)
            return True
        session = Session(self._databases.queue, application_name="proof-settler", connect_timeout_sec=5)
        try:
            self._write(JobQueue(session), outcome)
        except (psycopg2.Error, DataloaderError) as error:
            self.error = error
            return False
        finally:
            session.close()
        self.error = None
        return True

    def _write(self, queue: JobQueue, outcome: Settlement | Released) -> None:
        if isinstance(outcome, Released):
            queue.release([(self.job, outcome)])
        else:
            queue.settle([(self.job, outcome)])
