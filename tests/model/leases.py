"""The actions around leases, the reaper and key locks. As those in actions.py."""

from __future__ import annotations

from tests.model import rows
from tests.model.actions import DUTY, FAULT, OWNER, PROCESS, REAPER, TIME, Steps, action, after_end, is_locked, is_open
from tests.model.rows import GONE, Row, move_wait
from tests.model.state import Configuration, Process, State, Step

# ── leases ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@action("core", PROCESS)
def beats(config: Configuration, state: State) -> Steps:
    """A heartbeat proves that a process lives, for all its runs, and reads which it owns and which are to be canceled.
    It trusts their leases from when it was sent. The answer may be lost."""
    rules = config.rules
    for number, process in enumerate(state.processes):
        if not process.is_up:
            continue
        own = {(run.job, run.id) for run in process.runs if number in config.old}
        beaten = state
        for job, row in enumerate(state.rows):
            if row.silent and (row.owner == number or (job, row.run) in own):
                beaten = beaten.row(job, silent=False)
        new, problem = beaten, ""
        for run in process.runs:
            row = state.rows[run.job]
            is_owner = row.status == "running" and (row.run == run.id or not rules.beat_fence)
            is_lost = rules.reads_ownership and not is_owner
            is_canceled = is_owner and row.cancel and rules.reads_cancels
            if run.phase == "acting":
                trusted = not is_lost and not run.row_over
                new = new.run(number, run, trusted=trusted, stop=run.stop or is_lost or is_canceled)
                if state.owns(run) and row.cancel and not is_canceled:
                    problem = f"run {run.id} is to be canceled, and its process does not learn of it"
        yield Step(f"P{number} beats", new, (), problem)
        if "lost_answers" in config.groups:
            yield Step(f"P{number} beats, and the answer is lost", beaten, is_fair=False)


@action("core", TIME)
def deadline_passes(config: Configuration, state: State) -> Steps:
    """By the clock of a process its last heartbeat was sent ttl - margin ago: it does not trust the lease any more."""
    for number, run in state.all_runs("acting", "unconfirmed") if config.rules.worker_stops_first else ():
        if run.trusted:
            label = f"the deadline of run {run.id} of job {run.job} passes in P{number}"
            yield Step(label, state.run(number, run, trusted=False))


def _is_trusted(state: State, job: int, by: str) -> bool:
    """Whether the run that owns the job trusts its lease, by its heartbeats or by the row."""
    owners = (
        run for _, run in state.all_runs("acting", "unconfirmed") if run.job == job and run.id == state.rows[job].run
    )
    return any(run.trusted if by == "beats" else not run.row_over for run in owners)


@action("core", TIME)
def lease_expires(config: Configuration, state: State) -> Steps:
    """By the clock of the database the last heartbeat is a lease old. That is later than the deadline of its process,
    which counts from when it was sent, and less a margin."""
    for job, row in enumerate(state.rows):
        is_early = config.rules.worker_stops_first and _is_trusted(state, job, "beats")
        if row.status == "running" and not row.silent and not is_early:
            yield Step(f"the lease of job {job} expires", state.row(job, silent=True))


@action("rows", TIME)
def row_deadline_passes(config: Configuration, state: State) -> Steps:
    """By the clock of a process the lease that it wrote into the row is over, less a margin."""
    for number, run in state.all_runs("acting", "unconfirmed") if config.rules.long_row_lease else ():
        if not run.row_over:
            label = f"the row's deadline of run {run.id} of job {run.job} passes in P{number}"
            yield Step(label, state.run(number, run, row_over=True, trusted=False))


@action("rows", TIME)
def row_lease_ends(config: Configuration, state: State) -> Steps:
    """By the clock of the database the row's lease_expires_at passes."""
    for job, row in enumerate(state.rows):
        is_early = config.rules.long_row_lease and _is_trusted(state, job, "row")
        if row.status == "running" and not row.lapsed and not is_early:
            yield Step(f"lease_expires_at of job {job} passes", state.row(job, lapsed=True))


@action("rows", OWNER)
def renews(config: Configuration, state: State) -> Steps:
    """The row of a run is rewritten, seldom: its lease is valid until after the next time."""
    for number, run in state.all_runs("acting", up=True):
        row = state.rows[run.job]
        is_owner = row.status == "running" and (row.run == run.id or not config.rules.beat_fence)
        if is_owner and not run.stop and (row.lapsed or run.row_over):
            problem = "" if state.owns(run) else f"run {run.id} renews job {run.job}, which it does not own"
            new = state.row(run.job, silent=False, lapsed=False).run(number, run, row_over=False)
            yield Step(f"P{number} renews job {run.job}", new, (), problem)


@action("rows", OWNER)
def disowns(config: Configuration, state: State) -> Steps:
    """A process gives up a run that it does not trust any more. The row's lease ends now, though the process lives."""
    for number, run in state.all_runs("acting", up=True):
        if not run.trusted and not run.stop:
            new = state.row(run.job, lapsed=True) if state.owns(run) else state
            yield Step(f"P{number} disowns run {run.id} of job {run.job}", new.run(number, run, stop=True))


# ── the reaper ──────────────────────────────────────────────────────────────────────────────────────────────────────


def is_expired(config: Configuration, row: Row) -> bool:
    return row.status == "running" and (row.silent or (row.lapsed and config.rules.row_lease))


def is_alive(config: Configuration, state: State, job: int) -> bool:
    """Whether the owner reaches the database and would have beaten, or renewed the row, in the time of a heartbeat."""
    row = state.rows[job]
    is_over = row.lapsed and config.rules.row_lease  # then the process alone does not prove that the run lives
    return any(
        process.is_up and ((row.owner == number and not is_over) or any(
            (run.job, run.id) == (job, row.run) and not (is_over and run.stop) for run in process.runs))
        for number, process in enumerate(state.processes)
    )  # fmt: skip


@action("core", REAPER)
def looks(config: Configuration, state: State) -> Steps:
    """A reaper finds the lease of a run expired for the first time. A heartbeat or renewal starts it over."""
    for job, row in enumerate(state.rows):
        if is_expired(config, row) and not state.seen[job] and any(process.is_up for process in state.processes):
            yield Step(f"a reaper finds the lease of job {job} expired", state.put("seen", job, 1))


@action("core", TIME)
def heartbeat_passes(config: Configuration, state: State) -> Steps:
    """The time of a heartbeat passes after that look: an owner that reaches the database has beaten."""
    for job, row in enumerate(state.rows):
        if state.seen[job] == 1 and row.status == "running" and not is_alive(config, state, job):
            yield Step(f"the time of a heartbeat passes after the look at job {job}", state.put("seen", job, 2))


@action("core", REAPER)
def reaps(config: Configuration, state: State) -> Steps:
    """A reaper takes a run whose lease it found expired twice, a heartbeat apart, and which still is; or one of a
    process that is proved dead. First it ends the sessions of the attempt."""
    rules = config.rules
    for job, row in enumerate(state.rows):
        if row.status != "running" or is_open(config, state, job):
            continue
        is_seen = state.seen[job] == 2 or (state.seen[job] and not rules.looks_twice)
        is_early = state.seen[job] < 2 and is_alive(config, state, job)
        problem = f"a reaper takes run {row.run}, whose process had no time for a heartbeat" if is_early else ""
        if rules.reaper and is_seen and (is_expired(config, row) or not rules.fresh_beat):
            yield from _reap(config, state, job, "lease_expired", problem)
        is_proved = rules.reaper and (row.owner == GONE or not rules.proof)
        if is_proved and any(process.is_up and number != row.owner for number, process in enumerate(state.processes)):
            yield from _reap(config, state, job, "process_died")


def _reap(config: Configuration, state: State, job: int, reason: str, problem: str = "") -> Steps:
    run, rules = state.rows[job].run, config.rules
    row, event = rows.reap(state.rows[job], run, reason, config.jobs[job].max_attempts, rules)
    if rules.end_sessions:
        state = state._replace(statements=tuple(each for each in state.statements if each != (job, run)))
    if state.progress and state.progress[job][0] == run:
        _, newest, of_row = state.progress[job]
        state = state.put("progress", job, (0, 0, newest if rules.saves_progress else of_row))
        problem = problem or (f"the progress of job {job} goes back" if state.progress[job][2] < newest else "")
    for new, events in after_end(config, state.put("rows", job, row), job, ((job, event),)):
        yield Step(f"a reaper takes job {job} from run {run}: {reason}", new, events, problem)


# ── keys ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@action("core", DUTY)
def repairs_blocked(config: Configuration, state: State) -> Steps:
    """A blocked job whose key runs nowhere, and which no session has locked, becomes ready: a wake-up was lost."""
    for job, row in enumerate(state.rows) if config.rules.repair else ():
        key = config.jobs[job].key
        is_busy = config.is_running(state, key) or is_locked(config, state, key) or is_open(config, state, job)
        if row.status == "queued" and row.wait == "blocked" and not is_busy:
            yield Step(f"the repair unblocks job {job}", state.put("rows", job, move_wait(row, "unblock")[0]))


@action("sessions", FAULT)
def session_ends(config: Configuration, state: State) -> Steps:
    """The connection with the key locks of a process is lost, also of a frozen one."""
    for number, process in enumerate(state.processes):
        if any(run.locked for run in process.runs):
            unlocked = Process(process.is_up, tuple(run._replace(locked=False) for run in process.runs))
            yield Step(f"the session of P{number} ends", state.put("processes", number, unlocked), is_fair=False)


@action("sessions", PROCESS)
def locks_again(config: Configuration, state: State) -> Steps:
    """A process locks the keys of its runs again; one whose key another session has is stopped."""
    for number, run in state.all_runs("acting", up=True):
        if not run.locked and not run.stop:
            is_taken = is_locked(config, state, config.jobs[run.job].key, number)
            new = state.run(number, run, stop=True) if is_taken else state.run(number, run, locked=True)
            yield Step(f"P{number} locks the key of run {run.id} again" + (": it is taken" if is_taken else ""), new)
