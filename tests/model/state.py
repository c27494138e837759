"""A state: rows, what each process knows of its runs, what servers hold; and what is true in every state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.model.rows import FINAL, NO_PROCESS, Event, Move, Row, fits, is_met
from tests.model.rules import ALL, Rules

PARTS = 2  # of a load into a target
SLICES = 2  # of a backfill


class Run(NamedTuple):
    """What a process knows of an attempt of its own. Any run may be a stubborn one, which ignores every stop."""

    job: int
    id: int
    # acting; unconfirmed: the answer of its claim was lost; refused: to be released; ended: and that answer was lost
    phase: str = "acting"
    trusted: bool = True  # by the process's clock its last heartbeat, or the claim, was sent less than ttl - margin ago
    row_over: bool = False  # by the same clock the lease that it wrote into the row is over, less a margin
    locked: bool = True  # a session of the process holds the key's lock for it
    stop: bool = False  # it was asked to stop: a cancel, a lost lease, a lost key
    outcome: str = ""  # that was settled
    fence: int = 0  # in the target; 0: the row there is not claimed
    at: int = 0  # parts of its load that are done
    writing: bool = False  # a transaction in the target is open

    def __str__(self) -> str:
        return f"run {self.id} of job {self.job}"

    @property
    def may_act(self) -> bool:
        """Whether an obedient run passes a safe point."""
        return self.phase == "acting" and self.trusted and not self.stop


class Process(NamedTuple):
    is_up: bool = True  # else frozen, or cut off from the database
    runs: tuple[Run, ...] = ()
    cursor: int = -1  # of a backfill, as it was read

    def without_locks(self) -> Process:
        return self._replace(runs=tuple(run._replace(locked=False) for run in self.runs))


class Open(NamedTuple):
    """A transaction that has read and holds its locks, and has not written."""

    process: int
    job: int
    outcome: str = ""  # of the end of a job; empty: a claim
    is_busy: bool = False  # the key
    used: int = 0  # of the limit
    statuses: tuple[str, ...] = ()  # of all jobs


class Target(NamedTuple):
    """What a target database has of the job: its row of dl_effects, and the parts."""

    fence: int = 0
    run: int = 0
    holder: int = 0  # the run whose transaction has locked the row
    position: int = 0
    done: bool = False
    written: tuple[int, ...] = (0,) * PARTS  # how often each part is there
    writer: int = 0  # the last run that committed


class State(NamedTuple):
    rows: tuple[Row, ...]
    processes: tuple[Process, ...]
    seen: tuple[int, ...]  # looks of the reaper at the expired lease of each job; 2: the first was a heartbeat ago
    open: tuple[Open, ...] = ()
    copy: tuple[Row, ...] = ()  # what a standby has, or the disk without sync_commit
    drawn: tuple[int, int] = (0, 0)  # the last fence that the queue gave out, and that of the copy
    allowed: int | None = None  # by the limit; 0: paused
    starts: tuple[int, int] = (0, 0)  # within the period of the rate: as recorded, and in truth
    met: tuple[bool | None, ...] = ()  # for each edge
    target: Target = Target()
    statements: tuple[tuple[int, int], ...] = ()  # that servers execute: of a job, for a run
    progress: tuple[tuple[int, int, int], ...] = ()  # of each job: the run that saved the newest, that, the row's own
    follow_ups: int = 0
    known: tuple[str, ...] = ()  # the status of each job that was acknowledged
    backfill: tuple[int, int] = (0, 0)  # the slices up to its cursor, and how many were asked for

    def put(self, name: str, index: int, value: Any) -> State:
        """Replace one element of a field."""
        old = getattr(self, name)
        return self._replace(**{name: (*old[:index], value, *old[index + 1 :])})  # type: ignore[arg-type]  # by name

    def row(self, job: int, **changes: Any) -> State:
        return self.put("rows", job, self.rows[job]._replace(**changes))

    def process(self, number: int, **changes: Any) -> State:
        return self.put("processes", number, self.processes[number]._replace(**changes))

    def run(self, number: int, run: Run, **changes: Any) -> State:
        runs = self.processes[number].runs
        return self.process(number, runs=tuple([r._replace(**changes) if r is run else r for r in runs]))

    def without_run(self, number: int, run: Run) -> State:
        return self.process(number, runs=tuple([r for r in self.processes[number].runs if r is not run]))

    def with_target(self, **changes: Any) -> State:
        return self._replace(target=self.target._replace(**changes))

    def jobs(self, *statuses: str) -> Iterator[tuple[int, Row]]:
        return ((job, row) for job, row in enumerate(self.rows) if row.status in statuses)

    def running(self) -> Iterator[tuple[int, Row]]:
        return self.jobs("running")

    def waiting(self, wait: str) -> Iterator[int]:
        """The queued jobs in this wait state."""
        return (job for job, row in self.jobs("queued") if row.wait == wait)

    def numbered(self) -> Iterator[tuple[int, Process]]:
        return enumerate(self.processes)

    def up(self) -> Iterator[tuple[int, Process]]:
        """The processes that reach the database."""
        return ((number, process) for number, process in enumerate(self.processes) if process.is_up)

    def runs(self, *phases: str, up: bool = False) -> Iterator[tuple[int, Run]]:
        """The runs in these phases; `up`: of processes that reach the database."""
        processes = self.up() if up else self.numbered()
        return ((number, run) for number, process in processes for run in process.runs if run.phase in phases)

    def acting(self) -> Iterator[tuple[int, Run]]:
        """The runs that execute, and reach the database."""
        return self.runs("acting", up=True)

    def claimed(self) -> Iterator[tuple[int, Run]]:
        return self.runs("acting", "unconfirmed")

    def owns(self, run: Run) -> bool:
        return self.rows[run.job].status == "running" and self.rows[run.job].run == run.id

    def closed(self, each: Open) -> State:
        return self._replace(open=tuple(other for other in self.open if other is not each))


class Step(NamedTuple):
    label: str
    state: State
    events: tuple[tuple[int, Event], ...] = ()
    problem: str = ""  # a promise that the step itself breaks
    is_fair: bool = True  # it happens some time: an end is to be reached by such steps alone

    def move(self, job: int, move: Move) -> Step:
        """The row and the event to which a move leads."""
        return self._replace(state=self.state.put("rows", job, move[0]), events=(*self.events, (job, move[1])))

    def unanswered(self, state: State) -> Step:
        """The same, and its answer is lost."""
        return self._replace(label=f"{self.label}, and the answer is lost", state=state, is_fair=False)


class Job(NamedTuple):
    key: int = 0
    max_attempts: int = 2
    is_limited: bool = False
    first: Row = Row()


@dataclass(frozen=True)
class Configuration:
    """What is explored: how many processes and jobs, with which actions."""

    name: str
    jobs: tuple[Job, ...]
    processes: int = 2
    groups: frozenset[str] = frozenset()
    rules: Rules = ALL
    old: frozenset[int] = frozenset()  # processes of an older version: they write rows, and read rows only
    edges: tuple[tuple[int, int, str], ...] = ()  # child, parent, as what the parent is to end
    allowed: int | None = None
    rate: int | None = None
    held: int | None = None  # a job whose row another session has locked for good
    left_out: frozenset[str] = frozenset()  # invariants that do not hold with these actions; docs/protocol.md says why

    def initial(self) -> State:
        rows, count = tuple(job.first for job in self.jobs), len(self.jobs)
        first = State(rows, (Process(),) * self.processes, (0,) * count, allowed=self.allowed)
        return first._replace(met=(None,) * len(self.edges), progress=((0, 0, 0),) * count, known=("",) * count)

    def runs_of_key(self, state: State, key: int) -> Iterator[tuple[int, Run]]:
        """What processes execute under a key, whether they may or not."""
        return ((number, run) for number, run in state.runs("acting") if self.jobs[run.job].key == key)

    def is_running(self, state: State, key: int) -> bool:
        return any(self.jobs[job].key == key for job, _ in state.running())

    def used(self, state: State) -> int:
        """The weight of the running jobs of the limit."""
        return sum(self.jobs[job].is_limited for job, _ in state.running())

    def is_end(self, state: State) -> bool:
        """Every job has ended, and no process executes anything."""
        is_busy = any(process.runs for process in state.processes)
        is_busy |= "backfill" in self.groups and state.backfill[0] < SLICES
        return not is_busy and all(row.status in FINAL or job == self.held for job, row in enumerate(state.rows))

    def broken(self, state: State) -> str:
        """The first invariant that does not hold; empty: all hold."""
        checks = ((name, check) for name, check in INVARIANTS.items() if name not in self.left_out)
        problems = (f"{name.replace('_', ' ')}: {problem}" for name, check in checks for problem in check(self, state))
        return next(problems, "")


# ── invariants: each yields what is broken ──────────────────────────────────────────────────────────────────────────

Invariant = Callable[[Configuration, State], Iterable[str]]
INVARIANTS: dict[str, Invariant] = {}


def invariant(function: Invariant) -> Invariant:
    INVARIANTS[function.__name__] = function
    return function


def _twice(keys: Collection[int], what: str) -> Iterable[str]:
    return [f"{len(keys)} {what} of {len(set(keys))} keys"] if len(keys) != len(set(keys)) else ()


@invariant
def one_running_row_of_a_key(config: Configuration, state: State) -> Iterable[str]:
    """No two rows of a lock key are running."""
    return _twice([config.jobs[job].key for job, _ in state.running()], "rows are running,")


@invariant
def only_the_owner_may_act(config: Configuration, state: State) -> Iterable[str]:
    """A run that trusts its lease and was not asked to stop owns its job."""
    runs = (run for _, run in state.runs("acting") if run.may_act)
    return (f"{run} may act, and does not own it" for run in runs if not state.owns(run))


@invariant
def one_run_of_a_key_may_act(config: Configuration, state: State) -> Iterable[str]:
    """No two runs of a lock key, and none of one job, may act at the same time."""
    return _twice([config.jobs[run.job].key for _, run in state.runs("acting") if run.may_act], "runs may act,")


@invariant
def the_key_lock_excludes(config: Configuration, state: State) -> Iterable[str]:
    """No two runs of a key execute whose sessions both hold the key's lock, even if one has lost its lease."""
    return _twice([config.jobs[run.job].key for _, run in state.runs("acting") if run.locked], "runs hold the locks")


@invariant
def attempts_are_counted(config: Configuration, state: State) -> Iterable[str]:
    """`attempt` is the number of attempts that began and were not given back, and never exceeds max_attempts."""
    for row, job in zip(state.rows, config.jobs, strict=True):
        if row.attempt != row.tries or not 0 <= row.tries <= job.max_attempts:
            yield f"attempt {row.attempt} after {row.tries} attempts of {job.max_attempts}"


@invariant
def rows_are_consistent(config: Configuration, state: State) -> Iterable[str]:
    """No queued job has its cancel requested; running jobs alone have an owner and a lease; queued ones alone wait."""
    for job, row in enumerate(state.rows):
        has_owner = row.owner != NO_PROCESS or row.silent or row.lapsed
        if (row.status == "queued" and row.cancel) or (row.status != "running" and has_owner):
            yield f"job {job} is {row.status}, with a cancel request, an owner or a lease"
        if row.status in ("running", *FINAL) and row.wait != "scheduled":
            yield f"job {job} is {row.status} and has the wait state {row.wait}"


@invariant
def a_live_run_has_a_live_row(config: Configuration, state: State) -> Iterable[str]:
    """Of a run that may act the row alone (lease_expires_at) says that it lives."""
    owners = (run for _, run in state.runs("acting") if run.may_act and state.owns(run))
    return (f"the lease in the row of job {run.job} is over" for run in owners if state.rows[run.job].lapsed)


@invariant
def limits_hold(config: Configuration, state: State) -> Iterable[str]:
    """No more jobs run within a limit, and no more start within a period of a rate, than it allows."""
    if not fits(config.used(state), 0, config.allowed) or not fits(state.starts[1], 0, config.rate):
        yield f"{config.used(state)} run, {state.starts[1]} started in a period"


@invariant
def parents_end_first(config: Configuration, state: State) -> Iterable[str]:
    """No job of a graph starts before its parents have ended as it asks."""
    for child, parent, wants in config.edges:
        if state.rows[child].tries and not is_met(wants, state.rows[parent].status):
            yield f"job {child} started, and its parent {parent} is {state.rows[parent].status}"


@invariant
def nothing_of_a_dead_attempt_executes(config: Configuration, state: State) -> Iterable[str]:
    """No server executes a statement of an attempt when a later run of its key has begun."""
    for job, run_id in state.statements:
        if any((run.job, run.id) != (job, run_id) for _, run in config.runs_of_key(state, config.jobs[job].key)):
            yield f"a statement of run {run_id} of job {job} executes next to another run of its key"


@invariant
def acknowledged_is_kept(config: Configuration, state: State) -> Iterable[str]:
    """A job that was accepted exists, and an end that was acknowledged stays."""
    for job, (known, row) in enumerate(zip(state.known, state.rows, strict=True)):
        if (known and row.status == "absent") or (known in FINAL and row.status != known):
            yield f"job {job} was acknowledged as {known}, and is {row.status}"


@invariant
def parts_are_written_once(config: Configuration, state: State) -> Iterable[str]:
    """A part of a load is in the target once; all parts are there when the load has succeeded."""
    least = int("target" in config.groups and state.rows[0].status == "succeeded")
    if any(not least <= count <= 1 for count in state.target.written):
        yield f"the parts are there so many times: {state.target.written}"


@invariant
def slices_are_asked_for_once(config: Configuration, state: State) -> Iterable[str]:
    """A backfill asks for each of its slices once."""
    return [f"{state.backfill[1]} slices of {state.backfill[0]}"] if len(set(state.backfill)) > 1 else ()


@invariant
def follow_ups_exist_once(config: Configuration, state: State) -> Iterable[str]:
    """However many attempts enqueue a follow-up, it exists once."""
    return [f"{state.follow_ups} follow-ups"] if state.follow_ups > 1 else ()
