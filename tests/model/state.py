"""A state: rows, what each process knows of its runs, what servers hold; and what is true in every state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.model.rows import FINAL, Event, Row, is_met
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

    @property
    def may_act(self) -> bool:
        """Whether an obedient run passes a safe point."""
        return self.phase == "acting" and self.trusted and not self.stop


class Process(NamedTuple):
    is_up: bool = True  # else frozen, or cut off from the database
    runs: tuple[Run, ...] = ()
    cursor: int = -1  # of a backfill, as it was read


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

    def run(self, number: int, run: Run, **changes: Any) -> State:
        runs = tuple(r._replace(**changes) if r is run else r for r in self.processes[number].runs)
        return self.put("processes", number, self.processes[number]._replace(runs=runs))

    def without_run(self, number: int, run: Run) -> State:
        runs = tuple(r for r in self.processes[number].runs if r is not run)
        return self.put("processes", number, self.processes[number]._replace(runs=runs))

    def all_runs(self, *phases: str, up: bool = False) -> Iterator[tuple[int, Run]]:
        """The runs in these phases; `up`: of processes that reach the database."""
        for number, process in enumerate(self.processes):
            if process.is_up or not up:
                yield from ((number, run) for run in process.runs if run.phase in phases)

    def owns(self, run: Run) -> bool:
        return self.rows[run.job].status == "running" and self.rows[run.job].run == run.id


class Step(NamedTuple):
    label: str
    state: State
    events: tuple[tuple[int, Event], ...] = ()
    problem: str = ""  # a promise that the step itself breaks
    is_fair: bool = True  # it happens some time: an end is to be reached by such steps alone


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
        progress = ((0, 0, 0),) * count if "progress" in self.groups else ()
        return first._replace(met=(None,) * len(self.edges), progress=progress, known=("",) * count)

    def runs_of_key(self, state: State, key: int) -> Iterator[tuple[int, Run]]:
        """What processes execute under a key, whether they may or not."""
        return ((number, run) for number, run in state.all_runs("acting") if self.jobs[run.job].key == key)

    def is_running(self, state: State, key: int) -> bool:
        return any(row.status == "running" and job.key == key for row, job in zip(state.rows, self.jobs, strict=True))

    def used(self, state: State) -> int:
        """The weight of the running jobs of the limit."""
        return sum(row.status == "running" and job.is_limited for row, job in zip(state.rows, self.jobs, strict=True))

    def is_end(self, state: State) -> bool:
        """Every job has ended, and no process executes anything."""
        is_busy = any(process.runs for process in state.processes)
        is_busy |= "backfill" in self.groups and state.backfill[0] < SLICES
        return not is_busy and all(row.status in FINAL or job == self.held for job, row in enumerate(state.rows))

    def broken(self, state: State) -> str:
        """The first invariant that does not hold; empty: all hold."""
        for name, check in INVARIANTS.items():
            if name not in self.left_out and (problem := check(self, state)):
                return f"{name.replace('_', ' ')}: {problem}"
        return ""


# ── invariants ──────────────────────────────────────────────────────────────────────────────────────────────────────

Invariant = Callable[[Configuration, State], str]
INVARIANTS: dict[str, Invariant] = {}


def invariant(function: Invariant) -> Invariant:
    INVARIANTS[function.__name__] = function
    return function


@invariant
def one_running_row_of_a_key(config: Configuration, state: State) -> str:
    """No two rows of a lock key are running."""
    keys = [job.key for row, job in zip(state.rows, config.jobs, strict=True) if row.status == "running"]
    return f"{len(keys)} rows are running, of {len(set(keys))} keys" if len(keys) != len(set(keys)) else ""


@invariant
def only_the_owner_may_act(config: Configuration, state: State) -> str:
    """A run that trusts its lease and was not asked to stop owns its job."""
    problems = (run for _, run in state.all_runs("acting") if run.may_act and not state.owns(run))
    return next((f"run {run.id} of job {run.job} may act, and does not own it" for run in problems), "")


@invariant
def one_run_of_a_key_may_act(config: Configuration, state: State) -> str:
    """No two runs of a lock key, and none of one job, may act at the same time."""
    keys = [config.jobs[run.job].key for _, run in state.all_runs("acting") if run.may_act]
    return f"{len(keys)} runs may act, of {len(set(keys))} keys" if len(keys) != len(set(keys)) else ""


@invariant
def the_key_lock_excludes(config: Configuration, state: State) -> str:
    """No two runs of a key execute whose sessions both hold the key's lock, even if one has lost its lease."""
    keys = [config.jobs[run.job].key for _, run in state.all_runs("acting") if run.locked]
    return f"{len(keys)} runs hold the locks of {len(set(keys))} keys" if len(keys) != len(set(keys)) else ""


@invariant
def attempts_are_counted(config: Configuration, state: State) -> str:
    """`attempt` is the number of attempts that began and were not given back, and never exceeds max_attempts."""
    for row, job in zip(state.rows, config.jobs, strict=True):
        if row.attempt != row.tries or not 0 <= row.tries <= job.max_attempts:
            return f"attempt {row.attempt} after {row.tries} attempts of {job.max_attempts}"
    return ""


@invariant
def rows_are_consistent(config: Configuration, state: State) -> str:
    """No queued job has its cancel requested; running jobs alone have an owner and a lease; queued ones alone wait."""
    for job, row in enumerate(state.rows):
        is_idle = row.owner == -1 and not row.silent and not row.lapsed
        if (row.status == "queued" and row.cancel) or (row.status != "running" and not is_idle):
            return f"job {job} is {row.status}, with a cancel request, an owner or a lease"
        if row.status in ("running", *FINAL) and row.wait != "scheduled":
            return f"job {job} is {row.status} and has the wait state {row.wait}"
    return ""


@invariant
def a_live_run_has_a_live_row(config: Configuration, state: State) -> str:
    """Of a run that may act the row alone (lease_expires_at) says that it lives."""
    problems = (run for _, run in state.all_runs("acting") if run.may_act and state.rows[run.job].lapsed)
    return next((f"the lease in the row of job {run.job} is over" for run in problems if state.owns(run)), "")


@invariant
def limits_hold(config: Configuration, state: State) -> str:
    """No more jobs run within a limit, and no more start within a period of a rate, than it allows."""
    is_over = config.allowed is not None and config.used(state) > config.allowed
    is_fast = config.rate is not None and state.starts[1] > config.rate
    return f"{config.used(state)} run, {state.starts[1]} started in a period" if is_over or is_fast else ""


@invariant
def parents_end_first(config: Configuration, state: State) -> str:
    """No job of a graph starts before its parents have ended as it asks."""
    for child, parent, wants in config.edges:
        if state.rows[child].tries and not is_met(wants, state.rows[parent].status):
            return f"job {child} started, and its parent {parent} is {state.rows[parent].status}"
    return ""


@invariant
def nothing_of_a_dead_attempt_executes(config: Configuration, state: State) -> str:
    """No server executes a statement of an attempt when a later run of its key has begun."""
    for job, run_id in state.statements:
        if any((run.job, run.id) != (job, run_id) for _, run in config.runs_of_key(state, config.jobs[job].key)):
            return f"a statement of run {run_id} of job {job} executes next to another run of its key"
    return ""


@invariant
def acknowledged_is_kept(config: Configuration, state: State) -> str:
    """A job that was accepted exists, and an end that was acknowledged stays."""
    for job, (known, row) in enumerate(zip(state.known, state.rows, strict=True)):
        if (known and row.status == "absent") or (known in FINAL and row.status != known):
            return f"job {job} was acknowledged as {known}, and is {row.status}"
    return ""


@invariant
def parts_are_written_once(config: Configuration, state: State) -> str:
    """A part of a load is in the target once; all parts are there when the load has succeeded."""
    is_missing = "target" in config.groups and state.rows[0].status == "succeeded" and 0 in state.target.written
    is_twice = max(state.target.written) > 1
    return f"the parts are there so many times: {state.target.written}" if is_twice or is_missing else ""


@invariant
def slices_are_asked_for_once(config: Configuration, state: State) -> str:
    """A backfill asks for each of its slices once."""
    return f"{state.backfill[1]} slices of {state.backfill[0]}" if len(set(state.backfill)) > 1 else ""


@invariant
def follow_ups_exist_once(config: Configuration, state: State) -> str:
    """However many attempts enqueue a follow-up, it exists once."""
    return f"{state.follow_ups} follow-ups" if state.follow_ups > 1 else ""
