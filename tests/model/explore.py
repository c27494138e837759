"""Explores all states breadth first, so that the first violation has the fewest steps.

Of states that differ in names only one is kept (symmetry.py).
"""

from __future__ import annotations

import gc
import resource
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from dataloader.app.queue.job import TRANSITIONS, Status, Transition
from tests.model import leases, surroundings
from tests.model.actions import ACTIONS
from tests.model.rows import FINAL, Event
from tests.model.state import Configuration, State, Step
from tests.model.stories import Story, first_line, step_line
from tests.model.symmetry import Symmetry

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
                new = _forget_looks(config, step.state)
                yield step if new is step.state else step._replace(state=new)


def _forget_looks(config: Configuration, state: State) -> State:
    if not any(state.seen) or not config.rules.fresh_beat:
        return state
    seen = tuple([n if leases.is_expired(config, row) else 0 for n, row in zip(state.seen, state.rows, strict=True)])
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


def _ends(step: Step) -> bool:
    """Whether a job ends with the step: later its row counts as any other that has ended."""
    return any(step.state.rows[job].status in FINAL for job, _ in step.events)


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


def explore(config: Configuration, *, max_sec: float = 600.0, forgets: bool = False) -> Result:
    """`forgets`: states count as one that differ in what no later step reads; see symmetry.py."""
    began, result = time.monotonic(), Result(config=config)
    search = Search(config, forgets=forgets)
    gc.disable()  # states are tuples of tuples, in which there is no cycle to be found
    try:
        problem = search.run(result, began + max_sec)
    finally:
        gc.enable()
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

    def __init__(self, config: Configuration, *, forgets: bool = False) -> None:
        self._config, self._symmetry = config, Symmetry(config, forgets=forgets)
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
                is_checked = found is not None and not (self._symmetry.forgets and _ends(step))
                problem = step.problem or _unrecorded(state, step) or ("" if is_checked else config.broken(step.state))
                if problem:
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
