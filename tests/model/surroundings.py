"""The actions of callers, faults, servers, limits and targets. As those of the queue in actions.py."""

from __future__ import annotations

from tests.model import rows
from tests.model.actions import Steps, action, after_end, fault, has_room, is_open, unless_owner
from tests.model.rows import GONE, Event, Row, move_wait
from tests.model.state import PARTS, SLICES, Configuration, Process, Run, State, Step

# ── callers, operators, other programs ──────────────────────────────────────────────────────────────────────────────


@action("enqueue", by="caller or operator", each=lambda state: state.jobs("absent"))
def enqueues(config: Configuration, state: State, job: int, row: Row) -> Steps:
    """A caller enqueues a job, or another program inserts it; it is acknowledged when it is committed."""
    yield Step(f"job {job} is accepted", state.put("known", job, "queued")).move(job, (Row(), Event("queued")))


@action("cancel", by="caller or operator", each=lambda state: state.jobs("queued", "running"))
def cancels(config: Configuration, state: State, job: int, row: Row) -> Steps:
    """A queued job is canceled at once, in any wait state; a running one gets the flag."""
    if not row.cancel and not is_open(config, state, job):
        step = fault(f"job {job} is to be canceled", state).move(job, rows.cancel(row))
        yield from after_end(config, step, job) if row.status == "queued" else [step]


@action("retry", by="caller or operator", each=lambda state: state.jobs("failed", "canceled", "lost"))
def retries(config: Configuration, state: State, job: int, row: Row) -> Steps:
    """An operator queues a job again that failed, was canceled or lost: the same job with all its attempts."""
    yield fault(f"job {job} is retried", state).move(job, rows.retry(row))


@action("by_hand", by="another program", each=State.running)
def updates_by_hand(config: Configuration, state: State, job: int, row: Row) -> Steps:
    """Another program sets a running job to queued with a plain UPDATE; triggers reset it as a release would."""
    if not row.cancel:
        yield fault(f"an UPDATE queues job {job}", state).move(job, rows.requeue_by_hand(row))


@action("follow_ups", by="process of the run", each=State.acting)
def enqueues_follow_up(config: Configuration, state: State, number: int, run: Run) -> Steps:
    """A run enqueues a follow-up; one with its key exists already if an earlier attempt did."""
    if state.follow_ups < 2 and run.may_act:
        count = 1 if config.rules.follow_up_keys else state.follow_ups + 1
        yield Step(f"run {run.id} in P{number} enqueues a follow-up", state._replace(follow_ups=count))


# ── faults ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@action("crash", by="fault", each=State.numbered)
def crashes(config: Configuration, state: State, number: int, process: Process) -> Steps:
    """A process dies, and a new one with another worker_id takes its place. Its rows stay, and its sessions end; what
    its attempts execute in servers continues."""
    if process.runs or not process.is_up:
        left, copy = (tuple(row._replace(owner=GONE) if row.owner == number else row for row in each)
                      for each in (state.rows, state.copy))  # fmt: skip
        new = state._replace(rows=left, copy=copy).put("processes", number, Process())
        yield fault(f"P{number} dies, and a new process takes its place", new)


@action("freeze", by="fault", each=State.up)
def freezes(config: Configuration, state: State, number: int, process: Process) -> Steps:
    """A process is frozen, or cut off from the database. Its sessions stay, with their locks."""
    if process.runs:
        yield fault(f"P{number} is frozen", state.process(number, is_up=False))


@action("freeze", by="time", each=State.numbered)
def thaws(config: Configuration, state: State, number: int, process: Process) -> Steps:
    """A frozen process continues, or reaches the database again."""
    if not process.is_up:
        yield Step(f"P{number} is thawed", state.process(number, is_up=True))


@action("forget", by="fault", each=State.acting)
def forgets(config: Configuration, state: State, number: int, run: Run) -> Steps:
    """A process forgets a run that the row says it has, and continues to beat."""
    yield fault(f"P{number} forgets {run}", state.without_run(number, run))


def without_sessions(state: State) -> State:
    """Every session ends, and the reaper's looks count no more: they were on another server."""
    processes = tuple(process.without_locks() for process in state.processes)
    return state._replace(processes=processes, seen=(0,) * len(state.rows), statements=())


@action("crash_server", by="fault")
def server_restarts(config: Configuration, state: State) -> Steps:
    """The server crashes and recovers: what it has answered is on its disk."""
    kept = state.rows if config.rules.sync_commit else state.copy
    if kept:
        yield fault("the server crashes, and recovers what its disk has", without_sessions(state)._replace(rows=kept))


@action("failover", by="time")
def replicates(config: Configuration, state: State) -> Steps:
    """The standby receives what the primary has committed; or the disk, where commits do not wait for it."""
    if state.copy != state.rows:
        yield Step("the commits so far are copied", state._replace(copy=state.rows, drawn=(state.drawn[0],) * 2))


@action("promote", by="fault")
def fails_over(config: Configuration, state: State) -> Steps:
    """An asynchronous standby is promoted, without the last commits. Its timeline is a higher one."""
    if state.copy and state.drawn[0] < 100:
        drawn = state.drawn[1] + (100 if config.rules.fence_grows else 0)
        new = without_sessions(state)._replace(rows=state.copy, copy=(), drawn=(drawn, 0))
        yield fault("a standby is promoted that has the copy", new)


# ── statements of attempts, progress ────────────────────────────────────────────────────────────────────────────────


@action("statements", by="process of the run", each=State.acting)
def executes(config: Configuration, state: State, number: int, run: Run) -> Steps:
    """An attempt begins a long statement in a server, over a session that has its name."""
    if run.may_act and (run.job, run.id) not in state.statements:
        new = state._replace(statements=tuple(sorted((*state.statements, (run.job, run.id)))))
        yield Step(f"{run} in P{number} begins a statement", new)


@action("statements", by="time", each=lambda state: state.statements)
def statement_ends(config: Configuration, state: State, job: int, run: int) -> Steps:
    """A statement ends by itself, some time after its client died."""
    rest = tuple(each for each in state.statements if each != (job, run))
    yield Step(f"the statement of run {run} of job {job} ends", state._replace(statements=rest))


@action("progress", by="process of the run", each=State.acting)
def saves_progress(config: Configuration, state: State, number: int, run: Run) -> Steps:
    """A run saves its progress, if it owns the job."""
    saved_by, newest, of_row = state.progress[run.job]
    if (state.owns(run) or not config.rules.beat_fence) and newest < 2:
        new = state.put("progress", run.job, (run.id, (newest if saved_by == run.id else of_row) + 1, of_row))
        yield Step(f"run {run.id} in P{number} saves its progress", new, problem=unless_owner(state, run, "reports"))


@action("effects", by="process of the run", each=State.acting)
def commits_effect(config: Configuration, state: State, number: int, run: Run) -> Steps:
    """A run commits in the queue's database; its last statement locks the job's row and compares the run."""
    if state.owns(run) or not config.rules.effect_fence:
        yield Step(f"{run} in P{number} commits rows", state, problem=unless_owner(state, run, "commits for"))


# ── limits ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@action("limits", by="maintenance leader", each=lambda state: state.jobs("queued"))
def sweeps_limits(config: Configuration, state: State, job: int, row: Row) -> Steps:
    """Jobs that wait for a limit, as many as may start, become ready."""
    if row.wait == "limited" and config.rules.limit_sweep and has_room(config, state, config.used(state)):
        yield Step(f"the sweep wakes job {job}", state).move(job, move_wait(row, "wake"))


@action("pause", by="caller or operator")
def sets_limit(config: Configuration, state: State) -> Steps:
    """An operator pauses what the limit counts, or a breaker opens it; or it is raised again, and wakes a job."""
    step = fault("the limit is set to 0", state._replace(allowed=0))
    if not state.allowed:
        step = Step("the limit is raised again", state._replace(allowed=config.allowed))
        count = (config.allowed or 0) - config.used(state) if config.rules.reopen_wakes else 0
        for job in list(state.waiting("limited"))[:count]:
            step = step.move(job, move_wait(state.rows[job], "wake"))
    yield step


@action("rate", by="time")
def period_ends(config: Configuration, state: State) -> Steps:
    """The period of the rate is over."""
    if state.starts != (0, 0):
        yield Step("the period of the rate ends", state._replace(starts=(0, 0)))


@action("backfill", by="maintenance leader", each=State.up)
def reads_backfill(config: Configuration, state: State, number: int, process: Process) -> Steps:
    """A process reads up to which slice a backfill has come. There may be two leaders."""
    if process.cursor < state.backfill[0] < SLICES:
        yield Step(f"P{number} reads the backfill's cursor", state.process(number, cursor=state.backfill[0]))


@action("backfill", by="maintenance leader", each=State.up)
def makes_backfill(config: Configuration, state: State, number: int, process: Process) -> Steps:
    """It makes the job of the next slice, if the cursor is still where it was read, and moves the cursor on."""
    if process.cursor >= 0 and (process.cursor == state.backfill[0] or not config.rules.backfill_cursor):
        moved = state._replace(backfill=(process.cursor + 1, min(state.backfill[1] + 1, SLICES + 1)))
        yield Step(f"P{number} asks for slice {process.cursor} of the backfill", moved.process(number, cursor=-1))


# ── a target on another server ──────────────────────────────────────────────────────────────────────────────────────


def is_lockable(config: Configuration, state: State) -> bool:
    return state.target.holder == 0 or not config.rules.target_lock


def has_lost_fence(config: Configuration, state: State, run: Run) -> bool:
    is_own = state.target.fence == run.fence and (state.target.run == run.id or not config.rules.fence_grows)
    return config.rules.target_compare and not is_own


@action("target", by="process of the run", each=State.acting)
def claims_target(config: Configuration, state: State, number: int, run: Run) -> Steps:
    """An attempt claims the job's row in the target: it locks the row, draws a higher fence from the queue, which gives
    it to the owner only, and reads where to continue, or that the work is done."""
    rules, target, (last, copied) = config.rules, state.target, state.drawn
    if run.fence or run.stop or not is_lockable(config, state) or (rules.fence_of_owner and not state.owns(run)):
        return
    fence = last + 1 if rules.fence_grows else state.rows[run.job].attempt
    label = f"run {run.id} in P{number} claims its row in the target with fence {fence}"
    if fence <= target.fence and rules.fence_grows:
        yield Step(f"{label}: lost", state.run(number, run, stop=True))
    else:
        claimed = state._replace(drawn=(max(fence, last), copied)).with_target(fence=fence, run=run.id)
        at = PARTS if target.done and rules.reads_done else target.position
        yield Step(label, claimed.run(number, run, fence=fence, at=at))


@action("target", by="process of the run", each=State.acting)
def opens_target_transaction(config: Configuration, state: State, number: int, run: Run) -> Steps:
    """A transaction in the target begins: it locks the job's row there, and compares the fence."""
    label = f"run {run.id} in P{number} begins part {run.at} in the target"
    if run.fence and run.at < PARTS and not run.writing and is_lockable(config, state):
        if has_lost_fence(config, state, run):
            yield Step(f"{label}: it has lost the fence", state.without_run(number, run))
        else:
            yield Step(label, state.with_target(holder=run.id).run(number, run, writing=True))


@action("target", by="process of the run", each=State.acting)
def commits_target_transaction(config: Configuration, state: State, number: int, run: Run) -> Steps:
    """It compares the fence again, and commits rows and position together; the last one that the work is done."""
    label = f"run {run.id} in P{number} commits part {run.at} in the target"
    free = state.with_target(holder=0) if state.target.holder == run.id else state
    if run.writing and has_lost_fence(config, state, run):
        yield Step(f"{label}: it has lost the fence", free.without_run(number, run))
    elif run.writing:
        target, is_last = state.target, run.at == PARTS - 1
        problem = f"run {run.id} commits after a later run has committed" if target.writer > run.id else ""
        written = tuple(count + (part == run.at) for part, count in enumerate(target.written))
        position = target.position if is_last or not config.rules.position_with_rows else run.at + 1
        done, writer = target.done or is_last, max(run.id, target.writer)
        new = free.with_target(position=position, done=done, written=written, writer=writer)
        yield Step(label, new.run(number, run, writing=False, at=run.at + 1), problem=problem)


@action("target", by="time")
def target_session_ends(config: Configuration, state: State) -> Steps:
    """The session in the target of a process that died ends, and its transaction with it."""
    holder = state.target.holder
    if holder and not any(run.writing and run.id == holder for _, run in state.runs("acting")):
        yield Step("the session of a dead process in the target ends", state.with_target(holder=0))
