"""When to try again: pauses that grow, and rules for errors that must not be retried or are not the job's fault."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

_WEEK = 7 * 86_400.0
_LONGEST = 366 * 86_400.0  # whatever anybody says, a job is not put off for longer


class Fail(Exception):
    """Raised by a pipeline: the job has failed, and trying again would not help."""


class Snooze(Exception):
    """Raised by a pipeline: not now. The job is queued again after so many seconds, and this try is not counted."""

    def __init__(self, seconds: float, message: str = "") -> None:
        self.seconds = float(seconds)
        super().__init__(message or f"not now; again in {self.seconds:g} s")

    def __reduce__(self) -> tuple[type[Snooze], tuple[float, str]]:
        return type(self), (self.seconds, str(self))  # it may have to leave a process of its own


class Policy(Protocol):
    """How long to wait after the n-th try, counted from 1."""

    def pause(self, attempt: int) -> float: ...


@dataclass(frozen=True)
class Fixed:
    seconds: float

    def pause(self, attempt: int) -> float:
        return _bounded(self.seconds)


@dataclass(frozen=True)
class Linear:
    """`step` seconds after the first try, twice that after the second, and so on, up to `cap`."""

    step: float = 30.0
    cap: float = _WEEK

    def pause(self, attempt: int) -> float:
        return _bounded(min(float(self.step) * attempt, self.cap))


@dataclass(frozen=True)
class Exponential:
    """`base`, `base × factor`, `base × factor²` … and never over `cap`; `jitter`, from 0 to 1, is the share by which
    each is shortened or lengthened at random, so that jobs that failed together do not come back together."""

    base: float = 10.0
    factor: float = 2.0
    cap: float = 3600.0
    jitter: float = 0.1
    draw: Callable[[], float] = field(default=random.random, repr=False, compare=False)

    def pause(self, attempt: int) -> float:
        jitter = min(_bounded(self.jitter), 1.0)
        try:
            grown = self.base * float(self.factor) ** (max(attempt, 1) - 1)
        except OverflowError:
            grown = self.cap
        # Below the cap by the share: those that have reached it must be spread as well.
        return _bounded(min(grown, self.cap / (1 + jitter)) * (1 + jitter * (2 * self.draw() - 1)))


@dataclass(frozen=True)
class Table:
    """The pauses one by one; the last one stays."""

    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.seconds:
            raise ValueError("a table of pauses needs at least one")

    def pause(self, attempt: int) -> float:
        return _bounded(self.seconds[min(max(attempt, 1), len(self.seconds)) - 1])


def _bounded(seconds: float) -> float:
    return min(max(0.0, seconds), _LONGEST)  # in this order: not a number becomes 0


DEFAULT = Linear()


class Answer(StrEnum):
    RETRY = "retry"
    FAIL = "fail"
    SNOOZE = "snooze"


@dataclass(frozen=True)
class Verdict:
    """What an error means for its job."""

    answer: Answer
    pause: float = 0.0


Rule = Answer | float  # a number: snooze for so many seconds
Which = type[BaseException] | str  # a class, its dotted name, or the beginning of a SQLSTATE

_SQLSTATE_CLASS = 2  # characters: of a shorter beginning too much would fit


@dataclass(frozen=True)
class Rules:
    """What is known of some errors; the first rule that fits counts."""

    of: tuple[tuple[Which, Rule], ...] = ()

    def __post_init__(self) -> None:
        for which, rule in self.of:
            _check_which(which)
            _check_rule(rule)

    def find(self, error: BaseException) -> Rule | None:
        return next((rule for which, rule in self.of if _fits(which, error)), None)


def _check_which(which: object) -> None:
    named = isinstance(which, str) and which.strip() != ""
    if not named and not (isinstance(which, type) and issubclass(which, BaseException)):
        raise TypeError(f"{which!r} is neither an exception class nor the name of one nor a SQLSTATE")


def _check_rule(rule: object) -> None:
    known = isinstance(rule, str) and rule in (Answer.RETRY, Answer.FAIL)
    seconds = isinstance(rule, int | float) and not isinstance(rule, bool) and 0 <= rule <= _LONGEST
    if not known and not seconds:
        raise ValueError(f"{rule!r} is not a rule: 'retry', 'fail', or from 0 to {_LONGEST:.0f} seconds to snooze")


def _fits(which: Which, error: BaseException) -> bool:
    if not isinstance(which, str):
        return isinstance(error, which)
    return which in _names(error) or _has_sqlstate(error, which) or isinstance(error, _known_as(which))


def _names(error: BaseException) -> Iterator[str]:
    for kind in type(error).__mro__:
        yield kind.__name__
        yield f"{kind.__module__}.{kind.__qualname__}"


def _has_sqlstate(error: BaseException, beginning: str) -> bool:
    code = getattr(error, "pgcode", None) or getattr(error, "sqlstate", None)
    return isinstance(code, str) and len(beginning) >= _SQLSTATE_CLASS and code.startswith(beginning)


def _known_as(dotted: str) -> tuple[type[Any], ...]:
    """The class of that name, which may not be the name it was born with: `requests.Timeout`, say."""
    module, _, name = dotted.rpartition(".")
    found = getattr(sys.modules.get(module), name, None)
    return (found,) if isinstance(found, type) else ()


def decide(
    error: BaseException,
    *,
    attempt: int,
    max_attempts: int,
    policy: Policy = DEFAULT,
    rules: Rules = Rules(),
) -> Verdict:
    """What to do about a failed try. An error that says how long to wait (`retry_after`) is believed; one that says it
    is `permanent` fails, unless a rule knows better."""
    if isinstance(error, Fail):
        return Verdict(Answer.FAIL)
    if isinstance(error, Snooze):
        return Verdict(Answer.SNOOZE, _bounded(error.seconds))
    rule = rules.find(error)
    if isinstance(rule, int | float):
        return Verdict(Answer.SNOOZE, _bounded(max(rule, _asked_for(error))))
    hopeless = rule == Answer.FAIL or (rule is None and getattr(error, "permanent", False) is True)
    if hopeless or attempt >= max_attempts:
        return Verdict(Answer.FAIL)
    return Verdict(Answer.RETRY, _bounded(max(_pause(policy, attempt), _asked_for(error))))


def _pause(policy: Policy, attempt: int) -> float:
    try:
        return _bounded(float(policy.pause(attempt)))
    except Exception:  # an author's own policy must not keep the end of a try from being decided
        return DEFAULT.pause(attempt)


def _asked_for(error: BaseException) -> float:
    """The pause that the error itself asks for, but no more than a week: a source may say anything."""
    for name in ("retry_after", "retry_after_sec"):
        seconds = getattr(error, name, None)
        if isinstance(seconds, int | float) and not isinstance(seconds, bool):
            return min(max(0.0, seconds), _WEEK)
    return 0.0


_KINDS: dict[str, tuple[type[Any], tuple[str, ...]]] = {
    "fixed": (Fixed, ("seconds",)),
    "linear": (Linear, ("step", "cap")),
    "exponential": (Exponential, ("base", "factor", "cap", "jitter")),
    "table": (Table, ("seconds",)),
}

_RANGES = {"factor": (1.0, 1000.0), "jitter": (0.0, 1.0)}  # the others are seconds


def from_json(told: Any) -> Policy:
    """A policy from {"kind": "exponential", "base": 10, …}. ValueError says what would do, and repeats no value."""
    if not isinstance(told, Mapping):
        raise ValueError('an object would do, such as {"kind": "fixed", "seconds": 60}')
    kind = told.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"kind must be one of {', '.join(_KINDS)}")
    make, known = _KINDS[kind]
    if set(told) - {"kind", *known}:
        raise ValueError(f"a {kind} policy has {', '.join(known)}, and nothing else")
    values = {name: _value(name, told[name], many=make is Table) for name in known if name in told}
    try:
        policy: Policy = make(**values)
    except TypeError as error:
        raise ValueError(f"a {kind} policy needs {', '.join(known)}") from error
    return policy


def _value(name: str, told: Any, *, many: bool) -> Any:
    if many:
        if not isinstance(told, list) or not told:
            raise ValueError(f"{name} must be a list of numbers")
        return tuple(_number(name, item) for item in told)
    return _number(name, told)


def _number(name: str, told: Any) -> float:
    low, high = _RANGES.get(name, (0.0, _WEEK))
    if isinstance(told, bool) or not isinstance(told, int | float) or not low <= told <= high:
        raise ValueError(f"{name} must be a number from {low:g} to {high:.0f}")
    return float(told)


def to_json(policy: Policy) -> dict[str, Any]:
    """What `from_json` reads; of a policy of somebody's own only its name."""
    for kind, (make, known) in _KINDS.items():
        if isinstance(policy, make):
            values = {name: getattr(policy, name) for name in known}
            return {"kind": kind} | {name: [*v] if isinstance(v, tuple) else v for name, v in values.items()}
    return {"kind": type(policy).__name__}
