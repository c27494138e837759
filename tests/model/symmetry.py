"""Which states count as one.

Processes have no names of their own, nor have jobs of the same kind or runs: of states that differ in names only one is
kept. That is sound whatever `canonical` returns, as long as it only renames. Where it also forgets (`forgets`), states
count as one that differ in what no later step reads; a test compares the steps of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations

from tests.model.rows import FINAL, GONE, Row
from tests.model.rules import ALL
from tests.model.state import Configuration, Open, Process, Run, State

_FORGETTABLE = frozenset({"crash", "freeze", "cancel"})  # no other group reads how a job has ended
_ENDED = Row("canceled", "scheduled")


class Symmetry:
    """Renames processes, jobs and runs. The order of the runs of a job stays: fences compare them."""

    def __init__(self, config: Configuration, *, forgets: bool = False) -> None:
        self._has_old = bool(config.old)
        self._has_more = bool(
            config.groups - {"crash", "freeze", "cancel", "lost_answers", "rows", "sessions", "release"}
        )
        has_order = self._has_more or config.edges or config.held is not None
        self._orders = [tuple(range(len(config.jobs)))] if has_order else list(_job_orders(config))
        self._parts: dict[object, object] = {}
        self._known: dict[State, State] = {}
        if forgets and not can_forget(config):
            raise ValueError(f"{config.name}: some step reads what would be forgotten")
        self.forgets = forgets

    def canonical(self, state: State) -> State:
        if not self.forgets:
            return self._least(state)
        state = forget(state)
        if (known := self._known.get(state)) is None:
            known = self._known[state] = self._least(state)
        return known

    def _least(self, state: State) -> State:
        """Equal parts are one object, which saves most of the memory."""
        orders = self._orders
        if len(orders) > 1:  # only those need renaming that have the least rows but for names
            keys = [_row_key(row, seen) for row, seen in zip(state.rows, state.seen, strict=True)]
            by_key = [([keys[job] for job in order], order) for order in orders]
            least_keys = min(by_key)[0]
            orders = [order for each, order in by_key if each == least_keys]
        least = self._renamed(state, orders[0])
        for order in orders[1:]:
            least = min(least, self._renamed(state, order))
        parts = self._parts
        rows = tuple([parts.setdefault(row, row) for row in least.rows])
        processes = tuple([parts.setdefault(process, process) for process in least.processes])
        shared = parts.setdefault(rows, rows), parts.setdefault(processes, processes)
        return State(*shared, *least[2:])  # type: ignore[arg-type]

    def _renamed(self, state: State, order: Sequence[int]) -> State:
        number_of = {job: n for n, job in enumerate(order)}
        run_of = self._run_names(state)
        owned: list[list[int]] = [[] for _ in state.processes]
        for job, row in enumerate(state.rows):
            if row.owner >= 0:
                owned[row.owner].append(number_of[job])
        for job, row in enumerate(state.copy):
            if row.owner >= 0:
                owned[row.owner].append(job + 100)
        for each in state.open:
            owned[each.process].append(each.job + (200 if each.outcome else 300))
        contents = []
        for number, process in enumerate(state.processes):
            named = process
            if process.runs:
                runs = [_named(run, number_of[run.job], run_of[run.job, run.id]) for run in process.runs]
                if len(runs) > 1:
                    runs.sort()
                named = Process(process.is_up, tuple(runs))
            contents.append((number if self._has_old else 0, named, sorted(owned[number]), number))
        contents.sort()
        name_of = {content[3]: n for n, content in enumerate(contents)}
        rows = tuple([_named_row(state.rows[job], job, run_of, name_of) for job in order])
        processes = tuple([content[1] for content in contents])
        new = State(rows, processes, tuple([state.seen[job] for job in order]), *state[3:])
        return self._rename_rest(new, state, run_of, name_of) if self._has_more else new

    def _run_names(self, state: State) -> dict[tuple[int, int], int]:
        """Runs that something refers to besides the row of their job."""
        known = {(run.job, run.id) for process in state.processes for run in process.runs}
        if self._has_more:
            known.update(state.statements)
            known.update((0, run) for run in (state.target.run, state.target.writer, state.target.holder) if run)
            known.update((job, saved[0]) for job, saved in enumerate(state.progress) if saved[0])
            if state.copy:
                known.update(
                    (job, row.run) for rows in (state.copy, state.rows) for job, row in enumerate(rows) if row.run
                )
        names: dict[tuple[int, int], int] = {}
        last, count = -1, 0
        for job, run in sorted(known):
            count = count + 1 if job == last else 1
            last, names[job, run] = job, count
        return names

    def _rename_rest(
        self, new: State, old: State, run_of: Mapping[tuple[int, int], int], name_of: Mapping[int, int]
    ) -> State:
        target = old.target._replace(**{  # type: ignore[arg-type]  # by name
            name: run_of.get((0, getattr(old.target, name)), 0) for name in ("run", "writer", "holder")
        })  # fmt: skip
        return new._replace(
            target=target,
            open=tuple(sorted(Open(name_of[each.process], *each[1:]) for each in old.open)),
            statements=tuple(sorted((job, run_of[job, run]) for job, run in old.statements)),
            progress=tuple((run_of.get((job, each[0]), 0), *each[1:]) for job, each in enumerate(old.progress)),
            copy=tuple(_named_row(row, job, run_of, name_of) for job, row in enumerate(old.copy)),
        )


def _named(run: Run, job: int, run_id: int) -> Run:
    return run if run.job == job and run.id == run_id else run._replace(job=job, id=run_id)


def _named_row(row: Row, job: int, run_of: Mapping[tuple[int, int], int], name_of: Mapping[int, int]) -> Row:
    run, owner = run_of.get((job, row.run), 0), name_of.get(row.owner, row.owner)
    return row if row.run == run and row.owner == owner else row._replace(run=run, owner=owner)


def _row_key(row: Row, seen: int) -> tuple[object, ...]:
    """What a row has besides names."""
    return (
        row.status,
        row.wait,
        row.attempt,
        row.cancel,
        row.silent,
        row.lapsed,
        row.owner if row.owner < 0 else 0,
        seen,
    )


def _job_orders(config: Configuration) -> Iterator[tuple[int, ...]]:
    """The orders in which jobs of the same kind, and keys, change places."""
    for order in permutations(range(len(config.jobs))):
        jobs = [config.jobs[job] for job in order]
        if [(job.max_attempts, job.is_limited, job.first) for job in jobs] == [
            (job.max_attempts, job.is_limited, job.first) for job in config.jobs
        ] and _pattern([job.key for job in jobs]) == _pattern([job.key for job in config.jobs]):
            yield order


def _pattern(keys: Sequence[int]) -> list[int]:
    return [keys.index(key) for key in keys]


# ── what no later step reads ────────────────────────────────────────────────────────────────────────────────────────


def can_forget(config: Configuration) -> bool:
    """Only under the whole protocol, and with the actions of which a test shows that they do not read it."""
    return (
        config.groups <= _FORGETTABLE
        and config.rules == ALL
        and not (config.edges or config.old)
        and config.held is None
    )


def forget(state: State) -> State:
    """How a job has ended, and by which run; the attempts of a job that is to be canceled; since when no heartbeat has
    come of a process that is proved dead; in which order runs have lost their job, and which of them know."""
    rows = tuple([_present(row) for row in state.rows])
    seen = tuple([0 if row.owner == GONE else count for row, count in zip(rows, state.seen, strict=True)])
    return State(rows, tuple([_own(state, process) for process in state.processes]), seen, *state[3:])


def _present(row: Row) -> Row:
    if row.status in FINAL:
        return _ENDED
    if row.status != "running":
        return row._replace(run=0) if row.run else row
    count = 0 if row.cancel else row.attempt
    is_silent = row.silent and row.owner != GONE
    return Row("running", "scheduled", count, 1, row.owner, row.cancel, is_silent, tries=count)


def _own(state: State, process: Process) -> Process:
    if not process.runs:
        return process
    runs: list[Run] = []
    for run in process.runs:
        is_owner = state.owns(run)
        number = 1 if is_owner else 2 + sum(other.job == run.job for other in runs)
        stop = run.stop or not (is_owner or run.trusted)
        is_same = run.id == number and run.stop == stop
        runs.append(run if is_same else run._replace(id=number, stop=stop))
    return Process(process.is_up, tuple(runs))
