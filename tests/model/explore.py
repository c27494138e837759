"""Explores all states breadth first, so that the first violation has the fewest steps.

Processes have no names of their own, nor have jobs of the same kind or runs: of states that differ in names only one is
kept. That is sound whatever `canonical` returns, as long as it only renames.
"""

from __future__ import annotations

import resource
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from dataloader.app.queue.job import TRANSITIONS, Status, Transition
from tests.model import leases, surroundings
from tests.model.actions import ACTIONS
from tests.model.rows import Event, Row
from tests.model.state import Configuration, Open, Process, Run, State, Step
from tests.model.stories import Story, first_line, step_line

_CHECK_TIME_STATES = 256
_REAPED = ("lease_expired", "process_died")
ACTION_MODULES = (leases, surroundings)  # which register their actions
_RELEASED = ("shutdown", "lock_busy", "not_started", "waits")


# ── steps of a configuration ────────────────────────────────────────────────────────────────────────────────────────


def steps(config: Configuration, state: State) -> Iterator[Step]:
    """Every step that a state allows. A look at an expired lease counts no more once the lease is valid."""
    for action in ACTIONS.values():
        if action.group in config.groups or action.group == "core":
            for step in action.function(config, state):
                yield step if step.state is state else step._replace(state=_forget_looks(config, step.state))


def _forget_looks(config: Configuration, state: State) -> State:
    if not any(state.seen) or not config.rules.fresh_beat:
        return state
    seen = tuple(n if leases.is_expired(config, row) else 0 for n, row in zip(state.seen, state.rows, strict=True))
    return state if seen == state.seen else state._replace(seen=seen)


def problem_of(config: Configuration, state: State, step: Step) -> str:
    """The promise that a step breaks: by itself, by a change without its event, or by what is true afterwards."""
    return step.problem or _unrecorded(state, step) or config.broken(step.state)


def _unrecorded(before: State, step: Step) -> str:
    if before.rows is step.state.rows or step.label.startswith(("a standby", "the server")):
        return ""
    events = dict(step.events)
    for job, (old, new) in enumerate(zip(before.rows, step.state.rows, strict=True)):
        if (old.status, old.attempt) == (new.status, new.attempt) or old.status == "absent":
            continue
        if job not in events:
            return f"job {job} becomes {new.status}, and no event says so"
        if not is_transition(old.status, events[job], new.status):
            return f"job {job} goes from {old.status} to {new.status} by {events[job].kind} {events[job].reason}"
    return ""


def is_transition(before: str, event: Event, after: str) -> bool:
    """Whether app/queue/job.py allows it."""
    if event.reason == "by_hand":
        return before != "queued"
    kind = Transition.SETTLE
    if event.kind == "picked":
        kind = Transition.CLAIM
    elif event.reason in _REAPED:
        kind = Transition.REAP
    elif event.reason in _RELEASED:
        kind = Transition.RELEASE
    elif event.reason in ("retry", "redrive"):
        kind = Transition.RETRY
    elif event.reason == "no_attempts":
        kind = Transition.REFUSE
    elif before == "queued":
        kind = Transition.CANCEL
    return Status(after) in TRANSITIONS.get((Status(before), kind), frozenset())


# ── symmetry ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Symmetry:
    """Renames processes, jobs and runs. The order of the runs of a job stays: fences compare them."""

    def __init__(self, config: Configuration) -> None:
        self._has_old = bool(config.old)
        self._has_more = bool(
            config.groups - {"crash", "freeze", "cancel", "lost_answers", "rows", "sessions", "release"}
        )
        has_order = self._has_more or config.edges or config.held is not None
        self._orders = [tuple(range(len(config.jobs)))] if has_order else list(_job_orders(config))
        self._parts: dict[object, object] = {}

    def canonical(self, state: State) -> State:
        """Equal parts are one object, which saves most of the memory."""
        least = (
            min(self._renamed(state, order) for order in self._orders)
            if len(self._orders) > 1
            else self._renamed(state, self._orders[0])
        )
        parts = self._parts
        rows = tuple([parts.setdefault(row, row) for row in least.rows])
        processes = tuple([parts.setdefault(process, process) for process in least.processes])
        return least._replace(rows=parts.setdefault(rows, rows), processes=parts.setdefault(processes, processes))  # type: ignore[arg-type]

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
        new = state._replace(
            rows=rows,
            processes=tuple([content[1] for content in contents]),
            seen=tuple([state.seen[job] for job in order]),
        )
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


# ── breadth first ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(kw_only=True)
class Result:
    config: Configuration
    states: int = 0
    edges: int = 0
    depth: int = 0  # steps from the first state to the last ones
    seconds: float = 0.0
    memory_mb: int = 0
    is_whole: bool = True  # else the time was over
    story: Story | None = None

    def line(self) -> str:
        end = "broken" if self.story else "all" if self.is_whole else f"not all: depth {self.depth} in part"
        return (
            f"{self.config.name:<20} {self.states:>9,} states {self.edges:>10,} edges  depth {self.depth:>3}"
            f"  {self.seconds:>6.1f} s  {self.memory_mb:>6,} MB  {end}"
        )


def explore(config: Configuration, *, max_sec: float = 600.0) -> Result:
    began, result = time.monotonic(), Result(config=config)
    search = Search(config)
    problem = search.run(result, began + max_sec)
    if not problem and result.is_whole and "progress" not in config.left_out:
        problem = search.find_stuck()
    if problem:
        result.story = Story(problem=problem[1], lines=search.path_to(*problem))
    result.seconds = time.monotonic() - began
    result.memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return result


Problem = tuple[int, str, Step | None]  # a state, what is wrong, and the step from it that shows it


class Search:
    """One exploration. `states` are numbered in the order in which they were found."""

    def __init__(self, config: Configuration) -> None:
        self._config, self._symmetry = config, Symmetry(config)
        first = self._symmetry.canonical(config.initial())
        self.states, self._numbers = [first], {first: 0}
        self._parents = array("i", [-1])
        self._fair_from, self._fair_to = array("i"), array("i")

    def run(self, result: Result, deadline: float) -> Problem | None:
        config, states, numbers, canonical = self._config, self.states, self._numbers, self._symmetry.canonical
        depth_ends_at, number = 1, 0
        while number < len(states):
            if number == depth_ends_at:
                result.depth, depth_ends_at = result.depth + 1, len(states)
            state = states[number]
            for step in steps(config, state):
                result.edges += 1
                if not step.problem and step.state == state:
                    continue
                new = canonical(step.state)
                found = numbers.get(new)
                if (
                    problem := step.problem
                    or _unrecorded(state, step)
                    or ("" if found is not None else config.broken(new))
                ):
                    result.states = len(states)
                    return number, problem, step
                if found is None:
                    found = numbers[new] = len(states)
                    states.append(new)
                    self._parents.append(number)
                if step.is_fair and found != number:
                    self._fair_from.append(number)
                    self._fair_to.append(found)
            number += 1
            if number % _CHECK_TIME_STATES == 0 and time.monotonic() > deadline:
                result.is_whole = False
                break
        result.states = len(states)
        return None

    def find_stuck(self) -> Problem | None:
        """A state from which no end is reachable by steps that happen by themselves."""
        count = len(self.states)
        first, order = _group_by_target(self._fair_to, self._fair_from, count)
        has_end = bytearray(count)
        waiting = [n for n, state in enumerate(self.states) if self._config.is_end(state)]
        for number in waiting:
            has_end[number] = 1
        while waiting:
            number = waiting.pop()
            for before in order[first[number] : first[number + 1]]:
                if not has_end[before]:
                    has_end[before] = 1
                    waiting.append(before)
        stuck = has_end.find(0)
        return None if stuck < 0 else (stuck, "progress: from this state no end is reachable", None)

    def path_to(self, number: int, problem: str, last: Step | None) -> list[str]:
        """The steps to a state, with the names that things have from the beginning."""
        path = [number]
        while self._parents[path[-1]] >= 0:
            path.append(self._parents[path[-1]])
        state = self._config.initial()
        lines = [first_line(self._config, state)]
        for goal in reversed(path[:-1]):
            step = next(s for s in steps(self._config, state) if self._symmetry.canonical(s.state) == self.states[goal])
            lines.append(step_line(self._config, len(lines), step))
            state = step.state
        if last is not None:
            broken = self._symmetry.canonical(last.state)
            last_steps = (s for s in steps(self._config, state) if problem_of(self._config, state, s))
            step = next(s for s in last_steps if self._symmetry.canonical(s.state) == broken)
            lines.append(step_line(self._config, len(lines), step))
        return lines


def _group_by_target(targets: array[int], sources: array[int], count: int) -> tuple[array[int], array[int]]:
    first = array("i", bytes(4 * (count + 2)))
    for target in targets:
        first[target + 2] += 1
    for number in range(1, count + 2):
        first[number] += first[number - 1]
    order = array("i", bytes(4 * len(sources)))
    for source, target in zip(sources, targets, strict=True):
        order[first[target + 1]] = source
        first[target + 1] += 1
    return first, order
