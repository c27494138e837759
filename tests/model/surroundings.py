"""The actions of callers, faults, servers, limits and targets. As those of the queue in actions.py."""

from __future__ import annotations

from tests.model import rows
from tests.model.actions import CALLER, DUTY, FAULT, OTHERS, OWNER, TIME, Steps, action, after_end, has_room, is_open
from tests.model.rows import GONE, Event, Row, move_wait
from tests.model.state import PARTS, SLICES, Configuration, Process, State, Step

# ── callers, operators, other programs ──────────────────────────────────────────────────────────────────────────────


@action("enqueue", CALLER)
def enqueues(config: Configuration, state: State) -> Steps:
    """A caller enqueues a job, or another program inserts it; it is acknowledged when it is committed."""
    for job, row in enumerate(state.rows):
        if row.status == "absent":
            new = state.put("rows", job, Row()).put("known", job, "queued")
            yield Step(f"job {job} is accepted", new, ((job, Event("queued")),))


@action("cancel", CALLER)
def cancels(config: Configuration, state: State) -> Steps:
    """A queued job is canceled at once, in any wait state; a running one gets the flag."""
    for job, row in enumerate(state.rows):
        if row.status in ("queued", "running") and not row.cancel and not is_open(config, state, job):
            new, event = rows.cancel(row)
            changed, events = state.put("rows", job, new), ((job, event),)
            ends = after_end(config, changed, job, events) if new.status == "canceled" else [(changed, events)]
            for ended, more in ends:
                yield Step(f"job {job} is to be canceled", ended, more, is_fair=False)


@action("retry", CALLER)
def retries(config: Configuration, state: State) -> Steps:
    """An operator queues a job again that failed, was canceled or lost: the same job with all its attempts."""
    for job, row in enumerate(state.rows):
        if row.status in ("failed", "canceled", "lost"):
            new, event = rows.retry(row)
            yield Step(f"job {job} is retried", state.put("rows", job, new), ((job, event),), is_fair=False)


@action("by_hand", OTHERS)
def updates_by_hand(config: Configuration, state: State) -> Steps:
    """Another program sets a running job to queued with a plain UPDATE; triggers reset it as a release would."""
    for job, row in enumerate(state.rows):
        if row.status == "running" and not row.cancel:
            new, event = rows.requeue_by_hand(row)
            yield Step(f"an UPDATE queues job {job}", state.put("rows", job, new), ((job, event),), is_fair=False)


@action("follow_ups", OWNER)
def enqueues_follow_up(config: Configuration, state: State) -> Steps:
    """A run enqueues a follow-up; one with its key exists already if an earlier attempt did."""
    for number, run in state.all_runs("acting", up=True):
        if state.follow_ups < 2 and run.may_act:
            count = 1 if config.rules.follow_up_keys else state.follow_ups + 1
            yield Step(f"run {run.id} in P{number} enqueues a follow-up", state._replace(follow_ups=count))


# ── faults ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@action("crash", FAULT)
def crashes(config: Configuration, state: State) -> Steps:
    """A process dies, and a new one with another worker_id takes its place. Its rows stay, and its sessions end; what
    its attempts execute in servers continues."""
    for number, process in enumerate(state.processes):
        if process.runs or not process.is_up:
            left, copy = (tuple(row._replace(owner=GONE) if row.owner == number else row for row in each)
                          for each in (state.rows, state.copy))  # fmt: skip
            new = state._replace(rows=left, copy=copy).put("processes", number, Process())
            yield Step(f"P{number} dies, and a new process takes its place", new, is_fair=False)


@action("freeze", FAULT)
def freezes(config: Configuration, state: State) -> Steps:
    """A process is frozen, or cut off from the database. Its sessions stay, with their locks."""
    for number, process in enumerate(state.processes):
        if process.is_up and process.runs:
            yield Step(
                f"P{number} is frozen", state.put("processes", number, process._replace(is_up=False)), is_fair=False
            )


@action("freeze", TIME)
def thaws(config: Configuration, state: State) -> Steps:
    """A frozen process continues, or reaches the database again."""
    for number, process in enumerate(state.processes):
        if not process.is_up:
            yield Step(f"P{number} is thawed", state.put("processes", number, process._replace(is_up=True)))


@action("forget", FAULT)
def forgets(config: Configuration, state: State) -> Steps:
    """A process forgets a run that the row says it has, and continues to beat."""
    for number, run in state.all_runs("acting", up=True):
        yield Step(f"P{number} forgets run {run.id} of job {run.job}", state.without_run(number, run), is_fair=False)


def _without_sessions(state: State) -> State:
    """Every session ends, and the reaper's looks count no more: they were on another server."""
    processes = tuple(
        Process(process.is_up, tuple(run._replace(locked=False) for run in process.runs)) for process in state.processes
    )
    return state._replace(processes=processes, seen=(0,) * len(state.rows), statements=())


@action("crash_server", FAULT)
def server_restarts(config: Configuration, state: State) -> Steps:
    """The server crashes and recovers: what it has answered is on its disk."""
    new = _without_sessions(state)
    if config.rules.sync_commit:
        yield Step("the server crashes and recovers", new, is_fair=False)
    elif state.copy:
        yield Step(
            "the server crashes, and recovers what was on its disk", new._replace(rows=state.copy), is_fair=False
        )


@action("failover", TIME)
def replicates(config: Configuration, state: State) -> Steps:
    """The standby receives what the primary has committed; or the disk, where commits do not wait for it."""
    if state.copy != state.rows:
        yield Step("the commits so far are copied", state._replace(copy=state.rows, drawn=(state.drawn[0],) * 2))


@action("promote", FAULT)
def fails_over(config: Configuration, state: State) -> Steps:
    """An asynchronous standby is promoted, without the last commits. Its timeline is a higher one."""
    if state.copy and state.drawn[0] < 100:
        drawn = state.drawn[1] + (100 if config.rules.fence_grows else 0)
        new = _without_sessions(state)._replace(rows=state.copy, copy=(), drawn=(drawn, 0))
        yield Step("a standby is promoted that has the copy", new, is_fair=False)


# ── statements of attempts, progress ────────────────────────────────────────────────────────────────────────────────


@action("statements", OWNER)
def executes(config: Configuration, state: State) -> Steps:
    """An attempt begins a long statement in a server, over a session that has its name."""
    for number, run in state.all_runs("acting", up=True):
        if run.may_act and (run.job, run.id) not in state.statements:
            new = state._replace(statements=tuple(sorted((*state.statements, (run.job, run.id)))))
            yield Step(f"run {run.id} of job {run.job} in P{number} begins a statement", new)


@action("statements", TIME)
def statement_ends(config: Configuration, state: State) -> Steps:
    """A statement ends by itself, some time after its client died."""
    for each in state.statements:
        rest = tuple(other for other in state.statements if other != each)
        yield Step(f"the statement of run {each[1]} of job {each[0]} ends", state._replace(statements=rest))


@action("progress", OWNER)
def saves_progress(config: Configuration, state: State) -> Steps:
    """A run saves its progress, if it owns the job."""
    for number, run in state.all_runs("acting", up=True):
        job, (saved_by, newest, of_row) = run.job, state.progress[run.job]
        if (state.owns(run) or not config.rules.beat_fence) and newest < 2:
            new = state.put("progress", job, (run.id, newest + 1 if saved_by == run.id else of_row + 1, of_row))
            problem = "" if state.owns(run) else f"the progress of run {run.id} is saved, which does not own job {job}"
            yield Step(f"run {run.id} in P{number} saves its progress", new, (), problem)


@action("effects", OWNER)
def commits_effect(config: Configuration, state: State) -> Steps:
    """A run commits in the queue's database; its last statement locks the job's row and compares the run."""
    for number, run in state.all_runs("acting", up=True):
        if state.owns(run) or not config.rules.effect_fence:
            problem = "" if state.owns(run) else f"run {run.id} commits, which does not own job {run.job}"
            yield Step(f"run {run.id} of job {run.job} in P{number} commits rows", state, (), problem)


# ── limits ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@action("limits", DUTY)
def sweeps_limits(config: Configuration, state: State) -> Steps:
    """Jobs that wait for a limit, as many as may start, become ready."""
    for job, row in enumerate(state.rows) if config.rules.limit_sweep and has_room(config, state) else ():
        if row.status == "queued" and row.wait == "limited":
            new, event = move_wait(row, "wake")
            yield Step(f"the sweep wakes job {job}", state.put("rows", job, new), ((job, event),))


@action("pause", CALLER)
def sets_limit(config: Configuration, state: State) -> Steps:
    """An operator pauses what the limit counts, or a breaker opens it; or it is raised again, and wakes a job."""
    if state.allowed:
        yield Step("the limit is set to 0", state._replace(allowed=0), is_fair=False)
        return
    new, events = state._replace(allowed=config.allowed), ()
    waiting = [job for job, row in enumerate(state.rows) if row.status == "queued" and row.wait == "limited"]
    if config.rules.reopen_wakes:
        for job in waiting[: (config.allowed or 0) - config.used(state)]:
            row, event = move_wait(new.rows[job], "wake")
            new, events = new.put("rows", job, row), (*events, (job, event))  # type: ignore[assignment]
    yield Step("the limit is raised again", new, events)


@action("rate", TIME)
def period_ends(config: Configuration, state: State) -> Steps:
    """The period of the rate is over."""
    if state.starts != (0, 0):
        yield Step("the period of the rate ends", state._replace(starts=(0, 0)))


@action("backfill", DUTY)
def reads_backfill(config: Configuration, state: State) -> Steps:
    """A process reads up to which slice a backfill has come. There may be two leaders."""
    for number, process in enumerate(state.processes):
        if process.cursor < state.backfill[0] < SLICES:
            new = state.put("processes", number, process._replace(cursor=state.backfill[0]))
            yield Step(f"P{number} reads the backfill's cursor", new)


@action("backfill", DUTY)
def makes_backfill(config: Configuration, state: State) -> Steps:
    """It makes the job of the next slice, if the cursor is still where it was read, and moves the cursor on."""
    for number, process in enumerate(state.processes):
        if process.cursor >= 0 and (process.cursor == state.backfill[0] or not config.rules.backfill_cursor):
            moved = state._replace(backfill=(process.cursor + 1, min(state.backfill[1] + 1, SLICES + 1)))
            new = moved.put("processes", number, process._replace(cursor=-1))
            yield Step(f"P{number} asks for slice {process.cursor} of the backfill", new)


# ── a target on another server ──────────────────────────────────────────────────────────────────────────────────────


@action("target", OWNER)
def claims_target(config: Configuration, state: State) -> Steps:
    """An attempt claims the job's row in the target: it locks the row, draws a higher fence from the queue, which gives
    it to the owner only, and reads where to continue, or that the work is done."""
    rules, target = config.rules, state.target
    for number, run in state.all_runs("acting", up=True):
        is_free = target.holder == 0 or not rules.target_lock
        if run.fence or not is_free or run.stop or not (state.owns(run) or not rules.fence_of_owner):
            continue
        fence = state.drawn[0] + 1 if rules.fence_grows else state.rows[run.job].attempt
        label = f"run {run.id} in P{number} claims its row in the target with fence {fence}"
        if fence <= target.fence and rules.fence_grows:
            yield Step(f"{label}: lost", state.run(number, run, stop=True))
            continue
        at = PARTS if target.done and rules.reads_done else target.position
        claimed = state._replace(
            target=target._replace(fence=fence, run=run.id), drawn=(max(fence, state.drawn[0]), state.drawn[1])
        )
        yield Step(label, claimed.run(number, run, fence=fence, at=at))


def _is_fenced(config: Configuration, state: State, run_id: int, fence: int) -> bool:
    target = state.target
    is_own = target.fence == fence and (target.run == run_id or not config.rules.fence_grows)
    return config.rules.target_compare and not is_own


@action("target", OWNER)
def opens_target_transaction(config: Configuration, state: State) -> Steps:
    """A transaction in the target begins: it locks the job's row there, and compares the fence."""
    for number, run in state.all_runs("acting", up=True):
        is_free = state.target.holder == 0 or not config.rules.target_lock
        if run.fence and run.at < PARTS and not run.writing and is_free:
            label = f"run {run.id} in P{number} begins part {run.at} in the target"
            if not _is_fenced(config, state, run.id, run.fence):
                new = state._replace(target=state.target._replace(holder=run.id))
                yield Step(label, new.run(number, run, writing=True))
            else:
                yield Step(f"{label}: it has lost the fence", state.without_run(number, run))


@action("target", OWNER)
def commits_target_transaction(config: Configuration, state: State) -> Steps:
    """It compares the fence again, and commits rows and position together; the last one that the work is done."""
    target, rules = state.target, config.rules
    for number, run in state.all_runs("acting", up=True):
        if not run.writing:
            continue
        label = f"run {run.id} in P{number} commits part {run.at} in the target"
        free = target._replace(holder=0 if target.holder == run.id else target.holder)
        if _is_fenced(config, state, run.id, run.fence):
            yield Step(f"{label}: it has lost the fence", state._replace(target=free).without_run(number, run))
            continue
        problem = f"run {run.id} commits after a later run has committed" if target.writer > run.id else ""
        written = tuple(count + (part == run.at) for part, count in enumerate(target.written))
        is_last = run.at == PARTS - 1
        new = free._replace(written=written, done=target.done or is_last, writer=max(run.id, target.writer))
        new = new._replace(position=target.position if is_last or not rules.position_with_rows else run.at + 1)
        yield Step(label, state._replace(target=new).run(number, run, writing=False, at=run.at + 1), (), problem)


@action("target", TIME)
def target_session_ends(config: Configuration, state: State) -> Steps:
    """The session in the target of a process that died ends, and its transaction with it."""
    holder = state.target.holder
    if holder and not any(run.writing and run.id == holder for _, run in state.all_runs("acting")):
        yield Step(
            "the session of a dead process in the target ends", state._replace(target=state.target._replace(holder=0))
        )
