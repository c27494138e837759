"""The actions around leases, the reaper and key locks. As those in actions.py."""

from __future__ import annotations

from tests.model import rows
from tests.model.actions import Steps, action, after_end, fault, is_locked, is_open, unless_owner
from tests.model.rows import GONE, Row, move_wait
from tests.model.state import Configuration, Process, Run, State, Step

# ── leases ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@action("core", by="worker process", each=State.up)
def beats(config: Configuration, state: State, number: int, process: Process) -> Steps:
    """A heartbeat proves that a process lives, for all its runs, and reads which it owns and which are to be canceled.
    It trusts their leases from when it was sent. The answer may be lost."""
    rules, beaten, problem = config.rules, state, ""
    own = {(run.job, run.id) for run in process.runs if number in config.old}
    for job, row in state.running():
        if row.silent and (row.owner == number or (job, row.run) in own):
            beaten = beaten.row(job, silent=False)
    new = beaten
    for run in (run for run in process.runs if run.phase == "acting"):
        is_owner, is_to_end = is_taken_for_owner(config, state, run), state.rows[run.job].cancel
        is_lost = rules.reads_ownership and not is_owner
        is_canceled = rules.reads_cancels and is_owner and is_to_end
        new = new.run(number, run, trusted=not (is_lost or run.row_over), stop=run.stop or is_lost or is_canceled)
        if state.owns(run) and is_to_end and not is_canceled:
            problem = f"run {run.id} is to be canceled, and its process does not learn of it"
    yield Step(f"P{number} beats", new, problem=problem)
    if "lost_answers" in config.groups:
        yield Step(f"P{number} beats", state).unanswered(beaten)


def is_taken_for_owner(config: Configuration, state: State, run: Run) -> bool:
    """Whether a heartbeat or a renewal finds that the run owns its job."""
    return state.owns(run) or (state.rows[run.job].status == "running" and not config.rules.beat_fence)


@action("core", by="time", each=State.claimed)
def deadline_passes(config: Configuration, state: State, number: int, run: Run) -> Steps:
    """By the clock of a process its last heartbeat was sent ttl - margin ago: it does not trust the lease any more."""
    if run.trusted and config.rules.worker_stops_first:
        yield Step(f"the deadline of {run} passes in P{number}", state.run(number, run, trusted=False))


def owners_of(state: State, job: int) -> list[Run]:
    return [run for _, run in state.claimed() if run.job == job and state.owns(run)]


@action("core", by="time", each=State.running)
def lease_expires(config: Configuration, state: State, job: int, row: Row) -> Steps:
    """By the clock of the database the last heartbeat is a lease old. That is later than the deadline of its process,
    which counts from when it was sent, and less a margin."""
    is_early = config.rules.worker_stops_first and any(run.trusted for run in owners_of(state, job))
    if not row.silent and not is_early:
        yield Step(f"the lease of job {job} expires", state.row(job, silent=True))


@action("rows", by="time", each=State.claimed)
def row_deadline_passes(config: Configuration, state: State, number: int, run: Run) -> Steps:
    """By the clock of a process the lease that it wrote into the row is over, less a margin."""
    if not run.row_over and config.rules.long_row_lease:
        new = state.run(number, run, row_over=True, trusted=False)
        yield Step(f"the row's deadline of {run} passes in P{number}", new)


@action("rows", by="time", each=State.running)
def row_lease_ends(config: Configuration, state: State, job: int, row: Row) -> Steps:
    """By the clock of the database the row's lease_expires_at passes."""
    is_early = config.rules.long_row_lease and not all(run.row_over for run in owners_of(state, job))
    if not row.lapsed and not is_early:
        yield Step(f"lease_expires_at of job {job} passes", state.row(job, lapsed=True))


@action("rows", by="process of the run", each=State.acting)
def renews(config: Configuration, state: State, number: int, run: Run) -> Steps:
    """The row of a run is rewritten, seldom: its lease is valid until after the next time."""
    if (run.row_over or state.rows[run.job].lapsed) and not run.stop and is_taken_for_owner(config, state, run):
        new = state.row(run.job, silent=False, lapsed=False).run(number, run, row_over=False)
        yield Step(f"P{number} renews job {run.job}", new, problem=unless_owner(state, run, "renews"))


@action("rows", by="process of the run", each=State.acting)
def disowns(config: Configuration, state: State, number: int, run: Run) -> Steps:
    """A process gives up a run that it does not trust any more. The row's lease ends now, though the process lives."""
    if not run.trusted and not run.stop:
        new = state.row(run.job, lapsed=True) if state.owns(run) else state
        yield Step(f"P{number} disowns {run}", new.run(number, run, stop=True))


# ── the reaper ──────────────────────────────────────────────────────────────────────────────────────────────────────


def is_expired(config: Configuration, row: Row) -> bool:
    return row.status == "running" and (row.silent or (row.lapsed and config.rules.row_lease))


def is_alive(config: Configuration, state: State, job: int) -> bool:
    """Whether the owner reaches the database and would have beaten, or renewed the row, in the time of a heartbeat."""
    row = state.rows[job]
    is_over = row.lapsed and config.rules.row_lease  # then the process alone does not prove that the run lives
    runs = (run for _, process in state.up() for run in process.runs if (run.job, run.id) == (job, row.run))
    beats_on = any(row.owner == number for number, _ in state.up()) and not is_over
    return beats_on or any(not (is_over and run.stop) for run in runs)


@action("core", by="any worker process", each=State.running)
def looks(config: Configuration, state: State, job: int, row: Row) -> Steps:
    """A reaper finds the lease of a run expired for the first time. A heartbeat or renewal starts it over."""
    if is_expired(config, row) and not state.seen[job] and any(state.up()):
        yield Step(f"a reaper finds the lease of job {job} expired", state.put("seen", job, 1))


@action("core", by="time", each=State.running)
def heartbeat_passes(config: Configuration, state: State, job: int, row: Row) -> Steps:
    """The time of a heartbeat passes after that look: an owner that reaches the database has beaten."""
    if state.seen[job] == 1 and not is_alive(config, state, job):
        yield Step(f"the time of a heartbeat passes after the look at job {job}", state.put("seen", job, 2))


@action("core", by="any worker process", each=State.running)
def reaps(config: Configuration, state: State, job: int, row: Row) -> Steps:
    """A reaper takes a run whose lease it found expired twice, a heartbeat apart, and which still is; or one of a
    process that is proved dead. First it ends the sessions of the attempt."""
    rules = config.rules
    can_reap = rules.reaper and not is_open(config, state, job)
    is_seen = state.seen[job] >= (2 if rules.looks_twice else 1)
    is_early = state.seen[job] < 2 and is_alive(config, state, job)
    problem = f"a reaper takes run {row.run}, whose process had no time for a heartbeat" if is_early else ""
    if can_reap and is_seen and (is_expired(config, row) or not rules.fresh_beat):
        yield from reap(config, state, job, "lease_expired", problem)
    if can_reap and (row.owner == GONE or not rules.proof) and any(number != row.owner for number, _ in state.up()):
        yield from reap(config, state, job, "process_died")


def reap(config: Configuration, state: State, job: int, reason: str, problem: str = "") -> Steps:
    run, rules = state.rows[job].run, config.rules
    if rules.end_sessions:
        state = state._replace(statements=tuple(each for each in state.statements if each != (job, run)))
    if state.progress[job][0] == run:
        _, newest, of_row = state.progress[job]
        state = state.put("progress", job, (0, 0, newest if rules.saves_progress else of_row))
        problem = problem or (f"the progress of job {job} goes back" if state.progress[job][2] < newest else "")
    move = rows.reap(state.rows[job], run, reason, config.jobs[job].max_attempts, rules)
    step = Step(f"a reaper takes job {job} from run {run}: {reason}", state, problem=problem)
    return after_end(config, step.move(job, move), job)


# ── keys ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@action("core", by="maintenance leader", each=lambda state: state.jobs("queued"))
def repairs_blocked(config: Configuration, state: State, job: int, row: Row) -> Steps:
    """A blocked job whose key runs nowhere, and which no session has locked, becomes ready: a wake-up was lost."""
    key = config.jobs[job].key
    is_busy = config.is_running(state, key) or is_locked(config, state, key) or is_open(config, state, job)
    if row.wait == "blocked" and not is_busy and config.rules.repair:
        yield Step(f"the repair unblocks job {job}", state).move(job, move_wait(row, "unblock"))


@action("sessions", by="fault", each=State.numbered)
def session_ends(config: Configuration, state: State, number: int, process: Process) -> Steps:
    """The connection with the key locks of a process is lost, also of a frozen one."""
    if any(run.locked for run in process.runs):
        yield fault(f"the session of P{number} ends", state.put("processes", number, process.without_locks()))


@action("sessions", by="worker process", each=State.acting)
def locks_again(config: Configuration, state: State, number: int, run: Run) -> Steps:
    """A process locks the keys of its runs again; one whose key another session has is stopped."""
    if not run.locked and not run.stop:
        is_taken = is_locked(config, state, config.jobs[run.job].key, number)
        label = f"P{number} locks the key of run {run.id} again" + (": it is taken" if is_taken else "")
        yield Step(label, state.run(number, run, stop=is_taken, locked=not is_taken))
