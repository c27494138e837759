"""The actions of the queue: statements, and what processes and their surroundings do in between.

An action yields each step that it allows in a state. A statement with its locks is one step; where the locks are in
question (`two_step`), a claim and the end of a job read in one step and write in another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from itertools import product
from typing import Any, NamedTuple

from tests.model import rows
from tests.model.rows import Refused, move_wait
from tests.model.state import PARTS, Configuration, Open, Run, State, Step

Steps = Iterator[Step]
Statuses = tuple[str, ...]
Function = Callable[..., Steps]
Each = Callable[[State], Iterable[tuple[Any, ...]]]


class Action(NamedTuple):
    group: str  # a configuration names the groups whose actions it has
    by: str
    function: Function


ACTIONS: dict[str, Action] = {}


def action(group: str, by: str, each: Each = lambda state: [()]) -> Callable[[Function], Function]:
    """`each`: what the function is called for in a state, one after the other."""

    def register(function: Function) -> Function:
        def steps(config: Configuration, state: State) -> Steps:
            return (step for item in each(state) for step in function(config, state, *item))

        ACTIONS[function.__name__] = Action(group, by, wraps(function)(steps))
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


def has_room(config: Configuration, state: State, used: int) -> bool:
    """Whether one more job may start within the limit and the rate."""
    return rows.fits(used, 1, state.allowed) and rows.fits(state.starts[0], 1, config.rate)


def unless_owner(state: State, run: Run, does: str) -> str:
    """The problem with what a run does that has lost its job."""
    return "" if state.owns(run) else f"run {run.id} {does} job {run.job}, which it does not own"


def fault(label: str, state: State) -> Step:
    """What need not happen."""
    return Step(label, state, is_fair=False)


def after_end(config: Configuration, step: Step, job: int, read: Statuses = ()) -> Steps:
    """What a statement that ends a run or a wait does in the same transaction: the children of a graph are decided, a
    job that waits for the limit is woken, and one that waits for the key becomes ready; which of several is left open.
    """
    rules, key = config.rules, config.jobs[job].key
    if config.edges and step.state.rows[job].status in rows.FINAL:
        step = decide_children(config, step, job, read or tuple(row.status for row in step.state.rows))
    state = step.state
    can_wake = rules.limit_wake and has_room(config, state, config.used(state))
    is_free = rules.unblocks and state.rows[job].wait != "blocked" and not config.is_running(state, key)
    woken = [("wake", j) for j in state.waiting("limited") if can_wake]
    unblocked = [("unblock", j) for j in state.waiting("blocked") if is_free and config.jobs[j].key == key]
    for moves in product(*(each for each in (woken, unblocked) if each)):
        ended = step
        for move, other in moves:
            ended = ended.move(other, move_wait(state.rows[other], move))
        yield ended


def decide_children(config: Configuration, step: Step, job: int, read: Statuses) -> Step:
    """`read`: the statuses of all jobs, as the transaction that ends this one has read them."""
    rules, ended, met = config.rules, [job], list(step.state.met)
    while ended:
        parent = ended.pop()
        status = step.state.rows[parent].status
        if not rules.records_end and status != "succeeded":
            continue
        for n, (_, of, wants) in enumerate(config.edges):
            met[n] = (rows.is_met(wants, status) or not rules.asks_outcome) if of == parent else met[n]
        for child in {child for child, of, _ in config.edges if of == parent}:
            edges = [(n, of) for n, (c, of, _) in enumerate(config.edges) if c == child]
            seen = [met[n] if of in (parent, job) or read[of] in rows.FINAL else None for n, of in edges]
            outcome = rows.verdict(seen, any_is_enough=not rules.needs_all)
            row = step.state.rows[child]
            if row.wait != "waiting" or outcome == "waiting":
                continue
            is_ready = outcome == "ready"
            step = step.move(child, move_wait(row, "decide") if is_ready else rows.end_queued(row, kind="skipped"))
            ended += [child] * (not is_ready and rules.skips_on)
    return step._replace(state=step.state._replace(met=tuple(met)))


# ── claims ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def reads(config: Configuration, state: State) -> Iterator[Open]:
    """What a process sees that claims a ready job. A claim passes over a row that another session has locked."""
    passed = {config.held, *(each.job for each in state.open if config.rules.row_lock)}
    ready, used = list(state.waiting("ready")), config.used(state)
    if config.held in ready and not config.rules.skip_locked:
        return  # it waits for that row
    for (number, process), job in product(state.up(), ready):
        if job not in passed and not any(run.phase in ("unconfirmed", "refused") for run in process.runs):
            yield Open(number, job, is_busy=config.is_running(state, config.jobs[job].key), used=used)


def write_claim(config: Configuration, state: State, claim: Open) -> Steps:
    """The job is claimed, becomes blocked or limited, or the statement fails. The answer may be lost; then the process
    closes the session that held its key locks."""
    rules, job, number = config.rules, claim.job, claim.process
    spec, row, runs = config.jobs[job], state.rows[job], state.processes[number].runs
    asked = state if rules.asks_pause or state.allowed else state._replace(allowed=config.allowed)
    if (claim.is_busy and rules.key_look) or is_locked(config, state, spec.key, number):
        yield Step(f"P{number} finds the key of job {job} busy", state).move(job, move_wait(row, "block"))
    elif spec.is_limited and not has_room(config, asked, claim.used):
        yield Step(f"P{number} finds the limit of job {job} full", state).move(job, move_wait(row, "limit"))
    elif rules.key_index and any(config.jobs[j].key == spec.key and j != job for j, _ in state.running()):
        yield Step(f"the unique index refuses to let job {job} run", state)
    else:
        if config.rate is not None and spec.is_limited:
            state = state._replace(starts=(state.starts[0] + rules.records_rate, state.starts[1] + 1))
        # Session locks are re-entrant: an attempt whose key another one of the process holds is refused.
        is_refused = rules.one_holder and any(n == number for n, _ in config.runs_of_key(state, spec.key))
        run = Run(job, fresh_run(state, job), "refused" if is_refused else "acting", locked=not is_refused)
        problem = "a job starts while it is paused" if spec.is_limited and state.allowed == 0 else ""
        owner = rows.NO_PROCESS if number in config.old else number
        step = Step(f"P{number} claims job {job} as run {run.id}", state, problem=problem)
        step = step.move(job, rows.claim(row, run.id, owner, spec.max_attempts, rules))
        yield step._replace(state=step.state.process(number, runs=(*runs, run)))
        if "lost_answers" in config.groups:
            unlocked = tuple(other._replace(locked=False) for other in (*runs, run._replace(phase="unconfirmed")))
            yield step.unanswered(step.state.process(number, runs=unlocked))


def fresh_run(state: State, job: int) -> int:
    known = [state.target.run, state.target.writer, *(row.run for row in (state.rows[job], *state.copy[job : job + 1]))]
    known += [run for j, run in state.statements if j == job]
    return int(max([*known, *(run.id for process in state.processes for run in process.runs if run.job == job)])) + 1


@action("core", by="worker process")
def claims(config: Configuration, state: State) -> Steps:
    """A process claims a ready job with a fresh run_id; a job whose key is busy becomes blocked, one whose limit is
    full limited. The answer may be lost."""
    for claim in reads(config, state) if "two_step" not in config.groups else ():
        yield from write_claim(config, state, claim)


@action("two_step", by="worker process")
def claim_reads(config: Configuration, state: State) -> Steps:
    """The first part of a claim locks rows and tries keys; then it sees whether a key runs, and counts a limit."""
    is_limit_locked = config.rules.limit_lock and config.rules.limit_count
    is_counting = is_limit_locked and any(config.jobs[each.job].is_limited for each in state.open)
    for claim in reads(config, state):
        is_busy = is_open(config, state, claim.job) or any(each.process == claim.process for each in state.open)
        if not is_busy and not (is_counting and config.jobs[claim.job].is_limited):
            yield Step(f"P{claim.process} begins to claim job {claim.job}", state._replace(open=(*state.open, claim)))


@action("two_step", by="worker process")
def claim_writes(config: Configuration, state: State) -> Steps:
    """The second part of a claim writes what the first has seen."""
    for claim in (each for each in state.open if not each.outcome):
        used = config.used(state) if config.rules.limit_lock and config.rules.limit_count else claim.used
        yield from write_claim(config, state.closed(claim), claim._replace(used=used))


@action("lost_answers", by="worker process", each=lambda state: state.runs("unconfirmed", up=True))
def recovers_claim(config: Configuration, state: State, number: int, run: Run) -> Steps:
    """A process reads what a claim whose answer was lost has claimed; it locks the key, or refuses the attempt."""
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
        return ("succeeded",) if run.at == PARTS else ("queued",) * (not run.may_act and not run.writing)
    return ("succeeded", "failed" if config.edges else "queued")


def write_end(config: Configuration, state: State, number: int, run: Run, end: str, read: Statuses = ()) -> Steps:
    """What a run writes last, if it owns the job: its outcome, or why it gives its attempt back."""
    job, rules, row, most = run.job, config.rules, state.rows[run.job], config.jobs[run.job].max_attempts
    is_release = end in ("lock_busy", "shutdown")
    label = f"P{number} releases {run} for {end}" if is_release else f"P{number} settles {run} as {end}"
    try:
        move = rows.release(row, run.id, end, rules) if is_release else rows.settle(row, run.id, end, most, rules=rules)
    except Refused:
        answer = "already" if run.phase == "ended" else "not applied"
        yield Step(f"{label}: {answer}", state.without_run(number, run))
        return
    step = Step(label, state, (), unless_owner(state, run, "ends"), is_fair=end != "shutdown").move(job, move)
    written = step.state
    noticed = written.put("known", job, move[0].status) if "crash_server" in config.groups else written
    yield from after_end(config, step._replace(state=noticed.without_run(number, run)), job, read)
    if "lost_answers" in config.groups and run.phase == "acting" and not is_release:
        kept = written.run(number, run, phase="ended", outcome=end, trusted=True, stop=False, locked=False)
        yield from after_end(config, step.unanswered(kept), job)


@action("core", by="process of the run", each=lambda state: state.runs("acting", "ended", up=True))
def settles(config: Configuration, state: State, number: int, run: Run) -> Steps:
    """A run ends: its key is unlocked, and its outcome written if it owns the job. The answer may be lost; then it is
    sent again and answered `already`."""
    waits = is_open(config, state, run.job) or (run.job, run.id) in state.statements
    has_parts = config.edges and "two_step" in config.groups  # end_reads, end_writes
    for outcome in outcomes(config, run) if not waits and not has_parts else ():
        yield from write_end(config, state, number, run, outcome)


@action("two_step", by="process of the run", each=State.acting)
def end_reads(config: Configuration, state: State, number: int, run: Run) -> Steps:
    """The end of a job of a graph reads how the others have ended, under the lock of the graph."""
    waits = any(each.job == run.job or (each.outcome and config.rules.graph_lock) for each in state.open)
    for outcome in outcomes(config, run) if config.edges and not waits else ():
        end = Open(number, run.job, outcome, statuses=tuple(row.status for row in state.rows))
        yield Step(f"P{number} begins to end job {run.job} as {outcome}", state._replace(open=(*state.open, end)))


@action("two_step", by="process of the run", each=State.acting)
def end_writes(config: Configuration, state: State, number: int, run: Run) -> Steps:
    """The end of a job of a graph writes what it has decided for its children."""
    for end in (each for each in state.open if each.outcome and (each.process, each.job) == (number, run.job)):
        yield from write_end(config, state.closed(end), number, run, end.outcome, end.statuses)


@action("core", by="process of the run", each=lambda state: state.runs("refused", "acting", up=True))
def releases(config: Configuration, state: State, number: int, run: Run) -> Steps:
    """An attempt is given back, and does not count: one that may not start because its key is locked, after which the
    job is blocked; or any at a shutdown."""
    if run.phase == "refused" or "release" in config.groups:
        yield from write_end(config, state, number, run, "lock_busy" if run.phase == "refused" else "shutdown")
