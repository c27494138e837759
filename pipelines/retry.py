"""When to try again: pauses that grow, and rules for errors that must not be retried or are not the job's fault."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

_LONGEST = 7 * 86_400.0


class Fail(Exception):
    """Raised by a pipeline: the job has failed, and trying again would not help."""


class Snooze(Exception):
    """Raised by a pipeline: not now. The job is queued again after so many seconds, and this try is not counted."""

    def __init__(self, seconds: float, message: str = "") -> None:
        super().__init__(message or f"not now; again in {seconds:g} s")
        self.seconds = seconds


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
    """`step` seconds after the first try, twice that after the second, and so on."""

    step: float = 30.0
    cap: float = _LONGEST

    def pause(self, attempt: int) -> float:
        return _bounded(min(self.step * attempt, self.cap))


@dataclass(frozen=True)
class Exponential:
    """`base`, `base × factor`, `base × factor²` … up to `cap`; `jitter` is the share by which each is shortened or
    lengthened at random, so that jobs that failed together do not come back together."""

    base: float = 10.0
    factor: float = 2.0
    cap: float = 3600.0
    jitter: float = 0.1
    draw: Callable[[], float] = field(default=random.random, repr=False, compare=False)

    def pause(self, attempt: int) -> float:
        try:
            grown = self.base * self.factor ** (attempt - 1)
        except OverflowError:
            grown = self.cap
        return _bounded(min(grown, self.cap) * (1 + self.jitter * (2 * self.draw() - 1)))


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
    return min(max(0.0, seconds), _LONGEST)


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

_SQLSTATE_LENGTH = 5


@dataclass(frozen=True)
class Rules:
    """What is known of some errors; the first rule that fits counts."""

    of: tuple[tuple[Which, Rule], ...] = ()

    def __post_init__(self) -> None:
        for which, rule in self.of:
            if not isinstance(which, str) and not (isinstance(which, type) and issubclass(which, BaseException)):
                raise TypeError(f"{which!r} is neither an exception class nor a name or SQLSTATE")
            if isinstance(rule, str) and rule not in (Answer.RETRY, Answer.FAIL):
                raise ValueError(f"{rule!r} is not a rule: 'retry', 'fail', or seconds to snooze")

    def find(self, error: BaseException) -> Rule | None:
        return next((rule for which, rule in self.of if _fits(which, error)), None)


def _fits(which: Which, error: BaseException) -> bool:
    if not isinstance(which, str):
        return isinstance(error, which)
    if _looks_like_sqlstate(which):
        code = getattr(error, "pgcode", None) or getattr(error, "sqlstate", None)
        return isinstance(code, str) and code.startswith(which)
    names = {name for kind in type(error).__mro__ for name in (kind.__name__, f"{kind.__module__}.{kind.__qualname__}")}
    return which in names


def _looks_like_sqlstate(text: str) -> bool:
    return 1 < len(text) <= _SQLSTATE_LENGTH and text.isalnum() and text == text.upper()


def decide(
    error: BaseException,
    *,
    attempt: int,
    max_attempts: int,
    policy: Policy = DEFAULT,
    rules: Rules = Rules(),
) -> Verdict:
    """What to do about a failed try. An error that says how long to wait (`retry_after`) is believed."""
    if isinstance(error, Fail):
        return Verdict(Answer.FAIL)
    if isinstance(error, Snooze):
        return Verdict(Answer.SNOOZE, _bounded(error.seconds))
    rule = rules.find(error)
    if isinstance(rule, float | int):
        return Verdict(Answer.SNOOZE, _bounded(max(rule, _asked_for(error))))
    if rule == Answer.FAIL or attempt >= max_attempts:
        return Verdict(Answer.FAIL)
    return Verdict(Answer.RETRY, _bounded(max(policy.pause(attempt), _asked_for(error))))


def _asked_for(error: BaseException) -> float:
    for name in ("retry_after", "retry_after_sec"):
        seconds = getattr(error, name, None)
        if isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds == seconds:  # noqa: PLR0124 - NaN
            return float(seconds)
    return 0.0


_KINDS: dict[str, tuple[type[Any], tuple[str, ...]]] = {
    "fixed": (Fixed, ("seconds",)),
    "linear": (Linear, ("step", "cap")),
    "exponential": (Exponential, ("base", "factor", "cap", "jitter")),
    "table": (Table, ("seconds",)),
}


def from_json(told: Mapping[str, Any]) -> Policy:
    """A policy from {"kind": "exponential", "base": 10, …}; ValueError says what is wrong."""
    kind = told.get("kind")
    if kind not in _KINDS:
        raise ValueError(f"kind must be one of {', '.join(_KINDS)}, not {kind!r}")
    make, known = _KINDS[kind]
    unknown = sorted(set(told) - {"kind", *known})
    if unknown:
        raise ValueError(f"a {kind} policy has {', '.join(known)}, not {', '.join(unknown)}")
    values = {name: _numbers(name, told[name], many=kind == "table") for name in known if name in told}
    try:
        policy: Policy = make(**values)
    except TypeError as error:
        raise ValueError(f"a {kind} policy needs {', '.join(known)}") from error
    return policy


def _numbers(name: str, value: Any, *, many: bool) -> Any:
    if many:
        if not isinstance(value, list) or not value:
            raise ValueError(f"{name} must be a list of numbers")
        return tuple(_numbers(name, item, many=False) for item in value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LONGEST:
        raise ValueError(f"{name} must be a number from 0 to {_LONGEST:g}, not {value!r}")
    return float(value)


def to_json(policy: Policy) -> dict[str, Any]:
    for kind, (make, known) in _KINDS.items():
        if isinstance(policy, make):
            return {"kind": kind} | {name: getattr(policy, name) for name in known}
    return {"kind": type(policy).__name__}
