"""The actions of the queue: statements, and what processes and their surroundings do in between.

An action yields each step that it allows in a state. A statement with its locks is one step; where the locks are in
question (`two_step`), a claim and the end of a job read in one step and write in another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

from tests.model import rows
from tests.model.rows import Event, Refused, move_wait
from tests.model.state import PARTS, Configuration, Open, Process, Run, State, Step

Steps = Iterator[Step]
Events = tuple[tuple[int, Event], ...]
Function = Callable[[Configuration, State], Steps]
PROCESS, OWNER, REAPER, DUTY = "worker process", "process of the run", "any worker process", "maintenance leader"
CALLER, OTHERS, FAULT, TIME = "caller or operator", "another program", "fault", "time"


@dataclass(frozen=True)
class Action:
    name: str
    group: str  # a configuration names the groups whose actions it has
    by: str
    function: Function

    @property
    def text(self) -> str:
        return " ".join((self.function.__doc__ or "").split())


ACTIONS: dict[str, Action] = {}


def action(group: str, by: str) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        ACTIONS[function.__name__] = Action(function.__name__, group, by, function)
        return function

    return register


# ── what statements have in common ──────────────────────────────────────────────────────────────────────────────────


def is_open(config: Configuration, state: State, job: int) -> bool:
    """Whether an open transaction holds the row, or the transaction lock of its key: all that end or block it wait."""
    is_row = config.rules.row_lock and any(each.job == job for each in state.open)
    return is_row or (config.rules.key_lock and any(config.jobs[e.job].key == config.jobs[job].key for e in state.open))


def is_locked(config: Configuration, state: State, key: int, process: int = -1) -> bool:
    """Whether the session of another process holds the key lock."""
    held = (run.locked and number != process for number, run in config.runs_of_key(state, key))
    return config.rules.session_lock and any(held)


def has_room(config: Configuration, state: State) -> bool:
    """Whether one more job may start within the limit and the rate."""
    is_slow = config.rate is None or state.starts[0] < config.rate
    return rows.fits(config.used(state), 1, state.allowed) and is_slow


def after_end(
    config: Configuration, state: State, job: int, events: Events = (), read: tuple[str, ...] = ()
) -> Iterator[tuple[State, Events]]:
    """What a statement that ends a run or a wait does in the same transaction: the children of a graph are decided, a
    job that waits for the limit is woken, and one that waits for the key becomes ready; which of several is left open.
    """
    if config.edges and state.rows[job].status in rows.FINAL:
        state, events = decide_children(config, state, job, events, read or tuple(row.status for row in state.rows))
    waiting = [j for j, row in enumerate(state.rows) if row.status == "queued" and row.wait in ("limited", "blocked")]
    woken = [j for j in waiting if state.rows[j].wait == "limited"]
    blocked = [j for j in waiting if state.rows[j].wait == "blocked" and config.jobs[j].key == config.jobs[job].key]
    if not config.rules.limit_wake or not has_room(config, state):
        woken = []
    if not config.rules.unblocks or state.rows[job].wait == "blocked" or config.is_running(state, config.jobs[job].key):
        blocked = []
    none: list[int | None] = [None]
    for wake, unblock in product(woken or none, blocked or none):
        new, more = state, events
        if wake is not None:
            row, event = move_wait(new.rows[wake], "wake")
            new, more = new.put("rows", wake, row), (*more, (wake, event))
        if unblock is not None:
            new = new.put("rows", unblock, move_wait(new.rows[unblock], "unblock")[0])
        yield new, more


def decide_children(
    config: Configuration, state: State, job: int, events: Events, read: tuple[str, ...]
) -> tuple[State, Events]:
    """`read`: the statuses of all jobs, as the transaction that ends this one has read them."""
    rules, ended, met = config.rules, [job], list(state.met)
    while ended:
        parent = ended.pop()
        status = state.rows[parent].status
        if not rules.records_end and status != "succeeded":
            continue
        for n, (_, of, wants) in enumerate(config.edges):
            met[n] = (rows.is_met(wants, status) or not rules.asks_outcome) if of == parent else met[n]
        for child in {child for child, of, _ in config.edges if of == parent}:
            seen = [met[n] for n, (c, of, _) in enumerate(config.edges)
                    if c == child and (of in (parent, job) or read[of] in rows.FINAL)]  # fmt: skip
            is_whole = len(seen) == sum(c == child for c, _, _ in config.edges)
            outcome = rows.verdict(seen if is_whole else [*seen, None], any_is_enough=not rules.needs_all)
            row = state.rows[child]
            if (row.status, row.wait) != ("queued", "waiting") or outcome == "waiting":
                continue
            new, event = move_wait(row, "decide") if outcome == "ready" else rows.end_queued(row, kind="skipped")
            state, events = state.put("rows", child, new), (*events, (child, event))
            ended += [child] * (outcome == "canceled" and rules.skips_on)
    return state._replace(met=tuple(met)), events


# ── claims ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def ready_jobs(config: Configuration, state: State) -> Iterator[int]:
    rules = config.rules
    if config.held is not None and state.rows[config.held].wait == "ready" and not rules.skip_locked:
        return  # the claim waits for the row
    for job, row in enumerate(state.rows):
        has_lock = rules.row_lock and any(each.job == job for each in state.open)
        if row.status == "queued" and row.wait == "ready" and job != config.held and not has_lock:
            yield job


def write_claim(
    config: Configuration, state: State, process: int, job: int, is_busy: bool, used: int, is_lost: bool = False
) -> Steps:
    """The job is claimed, becomes blocked or limited, or the statement fails. `is_lost`: the answer of a claim is lost,
    and the process closes the session that held its key locks."""
    rules, spec, row = config.rules, config.jobs[job], state.rows[job]
    if (is_busy and rules.key_look) or is_locked(config, state, spec.key, process):
        if not is_lost:
            yield Step(
                f"P{process} finds the key of job {job} busy", state.put("rows", job, move_wait(row, "block")[0])
            )
        return
    if spec.is_limited:
        allowed = state.allowed if rules.asks_pause or state.allowed else config.allowed
        if not rows.fits(used, 1, allowed) or (config.rate is not None and state.starts[0] >= config.rate):
            row, event = move_wait(row, "limit")
            yield Step(f"P{process} finds the limit of job {job} full", state.put("rows", job, row), ((job, event),))
            return
        state = (
            state._replace(starts=(state.starts[0] + rules.records_rate, state.starts[1] + 1)) if config.rate else state
        )
    others = [r for j, r in enumerate(state.rows) if j != job and config.jobs[j].key == spec.key]
    if rules.key_index and any(r.status == "running" for r in others):
        yield Step(f"the unique index refuses to let job {job} run", state)
        return
    problem = "a job starts while it is paused" if spec.is_limited and state.allowed == 0 else ""
    owner, known = process if process not in config.old else rows.NO_PROCESS, state.processes[process].runs
    row, event = rows.claim(row, fresh_run(state, job), owner, spec.max_attempts, rules)
    # Session locks are re-entrant: an attempt whose key another one of the process holds is refused.
    is_held = any(number == process for number, _ in config.runs_of_key(state, spec.key))
    is_refused = is_held and rules.one_holder
    run = Run(job, row.run, "refused" if is_refused else "acting", locked=not is_refused)
    if is_lost:
        known = tuple(other._replace(locked=False) for other in known)
        run = Run(job, row.run, "unconfirmed", locked=False)
    new = state.put("rows", job, row).put("processes", process, Process(True, (*known, run)))
    label = f"P{process} claims job {job} as run {row.run}" + (", and the answer is lost" if is_lost else "")
    yield Step(label, new, ((job, event),), problem, not is_lost)


def fresh_run(state: State, job: int) -> int:
    known = [
        state.rows[job].run,
        state.target.run,
        state.target.writer,
        *(run for j, run in state.statements if j == job),
    ]
    known += [run.id for process in state.processes for run in process.runs if run.job == job]
    return int(max([*known, *(row.run for row in state.copy[job : job + 1])])) + 1


@action("core", PROCESS)
def claims(config: Configuration, state: State) -> Steps:
    """A process claims a ready job with a fresh run_id; a job whose key is busy becomes blocked, one whose limit is
    full limited. The answer may be lost."""
    if "two_step" not in config.groups:
        for number, job in product(range(config.processes), ready_jobs(config, state)):
            has_open_claim = any(run.phase in ("unconfirmed", "refused") for run in state.processes[number].runs)
            if state.processes[number].is_up and not has_open_claim:
                seen = (config.is_running(state, config.jobs[job].key), config.used(state))
                yield from write_claim(config, state, number, job, *seen)
                if "lost_answers" in config.groups:
                    yield from write_claim(config, state, number, job, *seen, is_lost=True)


@action("two_step", PROCESS)
def claim_reads(config: Configuration, state: State) -> Steps:
    """The first part of a claim locks rows and tries keys; then it sees whether a key runs, and counts a limit."""
    is_limit_locked = (
        config.rules.limit_lock
        and config.rules.limit_count
        and any(config.jobs[each.job].is_limited for each in state.open)
    )
    for number, job in product(range(config.processes), ready_jobs(config, state)):
        key, is_limited = config.jobs[job].key, config.jobs[job].is_limited
        if (
            any(each.process == number for each in state.open)
            or is_open(config, state, job)
            or (is_limited and is_limit_locked)
        ):
            continue
        seen = Open(number, job, is_busy=config.is_running(state, key), used=config.used(state))
        yield Step(f"P{number} begins to claim job {job}", state._replace(open=(*state.open, seen)))


@action("two_step", PROCESS)
def claim_writes(config: Configuration, state: State) -> Steps:
    """The second part of a claim writes what the first has seen."""
    for each in state.open:
        if not each.outcome:
            closed = state._replace(open=tuple(other for other in state.open if other is not each))
            used = config.used(state) if config.rules.limit_lock and config.rules.limit_count else each.used
            yield from write_claim(config, closed, each.process, each.job, each.is_busy, used)


@action("lost_answers", PROCESS)
def recovers_claim(config: Configuration, state: State) -> Steps:
    """A process reads what a claim whose answer was lost has claimed; it locks the key, or refuses the attempt."""
    for number, run in state.all_runs("unconfirmed", up=True):
        key, label = config.jobs[run.job].key, f"P{number} recovers its claim of job {run.job}"
        is_own = any(n == number for n, _ in config.runs_of_key(state, key))
        if not state.owns(run):
            yield Step(f"{label}: it is lost", state.without_run(number, run))
        elif is_own or is_locked(config, state, key, number):
            yield Step(f"{label}: the key is locked", state.run(number, run, phase="refused", trusted=True))
        else:
            yield Step(label, state.run(number, run, phase="acting", locked=True))


# ── ends of runs ────────────────────────────────────────────────────────────────────────────────────────────────────


def outcomes(config: Configuration, run: Run) -> tuple[str, ...]:
    if run.phase == "ended":
        return (run.outcome,)
    if "target" in config.groups:
        is_stopped = not run.may_act and not run.writing
        return ("succeeded",) if run.at == PARTS else ("queued",) * is_stopped
    return ("succeeded", "failed") if config.edges else ("succeeded", "queued")


@action("core", OWNER)
def settles(config: Configuration, state: State) -> Steps:
    """A run ends: its key is unlocked, and its outcome written if it owns the job. The answer may be lost; then it is
    sent again and answered `already`."""
    for number, run in state.all_runs("acting", "ended", up=True):
        job, is_ended = run.job, run.phase == "ended"
        has_statement = (job, run.id) in state.statements or ("two_step" in config.groups and config.edges)
        if is_open(config, state, job) or has_statement:
            continue
        for outcome in outcomes(config, run):
            label = f"P{number} settles run {run.id} of job {job} as {outcome}"
            try:
                row, event = rows.settle(
                    state.rows[job], run.id, outcome, config.jobs[job].max_attempts, rules=config.rules
                )
            except Refused:
                yield Step(f"{label}: {'already' if is_ended else 'not applied'}", state.without_run(number, run))
                continue
            problem = "" if state.owns(run) else f"run {run.id} settles job {job}, which it does not own"
            written = state.put("rows", job, row)
            noticed = written.put("known", job, row.status) if "crash_server" in config.groups else written
            for new, events in after_end(config, noticed.without_run(number, run), job, ((job, event),)):
                yield Step(label, new, events, problem)
            if "lost_answers" in config.groups and not is_ended:
                kept = written.run(number, run, phase="ended", outcome=outcome, trusted=True, stop=False, locked=False)
                for new, events in after_end(config, kept, job, ((job, event),)):
                    yield Step(f"{label}, and the answer is lost", new, events, problem, is_fair=False)


@action("two_step", OWNER)
def end_reads(config: Configuration, state: State) -> Steps:
    """The end of a job of a graph reads how the others have ended, under the lock of the graph."""
    if config.edges and not (config.rules.graph_lock and any(each.outcome for each in state.open)):
        statuses = tuple(row.status for row in state.rows)
        for number, run in state.all_runs("acting", up=True):
            for outcome in outcomes(config, run) if all(run.job != each.job for each in state.open) else ():
                each = Open(number, run.job, outcome, statuses=statuses)
                yield Step(
                    f"P{number} begins to end job {run.job} as {outcome}", state._replace(open=(*state.open, each))
                )


@action("two_step", OWNER)
def end_writes(config: Configuration, state: State) -> Steps:
    """The end of a job of a graph writes what it has decided for its children."""
    for each in state.open:
        for number, run in state.all_runs("acting"):
            if each.outcome and (number, run.job) == (each.process, each.job):
                row, event = rows.settle(state.rows[run.job], run.id, each.outcome, config.jobs[run.job].max_attempts)
                closed = state._replace(open=tuple(other for other in state.open if other is not each))
                ended = closed.put("rows", run.job, row).without_run(number, run)
                for new, events in after_end(config, ended, run.job, ((run.job, event),), each.statuses):
                    yield Step(f"P{number} ends job {run.job} as {each.outcome}", new, events)


@action("core", OWNER)
def releases(config: Configuration, state: State) -> Steps:
    """An attempt is given back, and does not count: one that may not start because its key is locked, after which the
    job is blocked; or any at a shutdown."""
    for number, run in state.all_runs("refused", *(["acting"] * ("release" in config.groups)), up=True):
        reason = "lock_busy" if run.phase == "refused" else "shutdown"
        try:
            row, event = rows.release(state.rows[run.job], run.id, reason, config.rules)
        except Refused:
            yield Step(f"P{number} forgets run {run.id} of job {run.job}", state.without_run(number, run))
            continue
        problem = "" if state.owns(run) else f"run {run.id} releases job {run.job}, which it does not own"
        new = state.put("rows", run.job, row).without_run(number, run)
        for ended, events in after_end(config, new, run.job, ((run.job, event),)):
            yield Step(f"P{number} releases job {run.job}: {reason}", ended, events, problem, reason == "lock_busy")
