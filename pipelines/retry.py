"""Retry policies, and rules for errors that are not retried or do not count as an attempt. Portable."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Type, Union

from dataloader.pipelines.portable import TextEnum

_MAX_REQUESTED_DELAY_SEC = 7 * 86_400.0
_MAX_DELAY_SEC = 366 * 86_400.0
MIN_SNOOZE_SEC = 1.0  # no attempt counts a snooze: without a pause the job would run again and again


class Fail(Exception):
    """Raised by a pipeline: the job has failed, and a retry would not help."""


class Snooze(Exception):
    """Raised by a pipeline: run the job again in so many seconds, at least one, and do not count this attempt.

    Raises ValueError for seconds that are negative, no number, or more than 366 days.
    """

    def __init__(self, seconds: float, message: str = "") -> None:
        if not 0 <= (requested := float(seconds)) <= _MAX_DELAY_SEC:
            raise ValueError(f"Snooze takes from 0 to {_MAX_DELAY_SEC:.0f} seconds, not {requested:g}")
        self.seconds = max(MIN_SNOOZE_SEC, requested)
        super().__init__(message or f"not now; again in {self.seconds:g} s")

    def __reduce__(self) -> tuple[type[Snooze], tuple[float, str]]:
        return type(self), (self.seconds, str(self))  # it is pickled by pipelines with processes of their own


class Policy(Protocol):
    """How long to wait after the n-th attempt, counted from 1."""

    def pause(self, attempt: int) -> float: ...


@dataclass(frozen=True)
class Fixed:
    seconds: float

    def pause(self, attempt: int) -> float:
        return _bounded_delay(self.seconds)


@dataclass(frozen=True)
class Linear:
    """`step` seconds after the first attempt, twice that after the second, and so on, up to `cap`."""

    step: float = 30.0
    cap: float = _MAX_REQUESTED_DELAY_SEC

    def pause(self, attempt: int) -> float:
        return _bounded_delay(min(float(self.step) * attempt, self.cap))


def _draw() -> float:
    from random import random  # noqa: PLC0415 - slow to load, and needed in one process of a worker

    return random()  # noqa: S311 - no secret


@dataclass(frozen=True)
class Exponential:
    """`base`, `base × factor`, `base × factor²` … up to `cap`. `jitter`, from 0 to 1, is the share by which each is
    shortened or lengthened at random, so that jobs that failed together are not retried together."""

    base: float = 10.0
    factor: float = 2.0
    cap: float = 3600.0
    jitter: float = 0.1
    draw: Callable[[], float] = field(default=_draw, repr=False, compare=False)

    def pause(self, attempt: int) -> float:
        jitter = min(_bounded_delay(self.jitter), 1.0)
        try:
            delay = self.base * float(self.factor) ** (max(attempt, 1) - 1)
        except OverflowError:
            delay = self.cap
        # Below the cap by the share, so that delays at the cap are spread too.
        return _bounded_delay(min(delay, self.cap / (1 + jitter)) * (1 + jitter * (2 * self.draw() - 1)))


@dataclass(frozen=True)
class Table:
    """The delays one by one; the last one is repeated."""

    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.seconds:
            raise ValueError("a table of pauses needs at least one")

    def pause(self, attempt: int) -> float:
        return _bounded_delay(self.seconds[min(max(attempt, 1), len(self.seconds)) - 1])


def _bounded_delay(seconds: float) -> float:
    return min(max(0.0, seconds), _MAX_DELAY_SEC)  # in this order, NaN becomes 0


def snooze_delay(seconds: float) -> float:
    """Return the pause of a snooze: at least a second, at most 366 days."""
    return max(MIN_SNOOZE_SEC, _bounded_delay(seconds))


DEFAULT = Linear()


class RetryAction(TextEnum):
    RETRY = "retry"
    FAIL = "fail"
    SNOOZE = "snooze"


@dataclass(frozen=True)
class RetryDecision:
    """What to do after an error."""

    action: RetryAction
    delay_sec: float = 0.0


Rule = Union[RetryAction, float]  # a number: snooze for so many seconds
ErrorMatcher = Union[Type[BaseException], str]  # a class, its dotted name, or the beginning of a SQLSTATE

_MIN_SQLSTATE_LENGTH = 2


@dataclass(frozen=True)
class Rules:
    """Rules for errors; the first one that matches counts."""

    entries: tuple[tuple[ErrorMatcher, Rule], ...] = ()

    def __post_init__(self) -> None:
        for matcher, rule in self.entries:
            is_class = isinstance(matcher, type) and issubclass(matcher, BaseException)
            if not is_class and not (isinstance(matcher, str) and matcher.strip()):
                raise TypeError(f"{matcher!r} is neither an exception class nor the name of one nor a SQLSTATE")
            is_seconds = isinstance(rule, (int, float)) and not isinstance(rule, bool) and 0 <= rule <= _MAX_DELAY_SEC
            if not is_seconds and rule not in (RetryAction.RETRY, RetryAction.FAIL):
                limit = f"{_MAX_DELAY_SEC:.0f}"
                raise ValueError(f"{rule!r} is not a rule: 'retry', 'fail', or from 0 to {limit} seconds to snooze")

    def rule_for(self, error: BaseException) -> Rule | None:
        return next((rule for matcher, rule in self.entries if _matches(matcher, error)), None)


def _matches(matcher: ErrorMatcher, error: BaseException) -> bool:
    if not isinstance(matcher, str):
        return isinstance(error, matcher)
    if any(matcher in (kind.__name__, f"{kind.__module__}.{kind.__qualname__}") for kind in type(error).__mro__):
        return True
    sqlstate = getattr(error, "pgcode", None) or getattr(error, "sqlstate", None)
    if isinstance(sqlstate, str) and len(matcher) >= _MIN_SQLSTATE_LENGTH and sqlstate.startswith(matcher):
        return True
    # A class that a module exports by this name, such as `requests.Timeout`; its own name may differ.
    module, _, name = matcher.rpartition(".")
    exported = getattr(sys.modules.get(module), name, None)
    return isinstance(exported, type) and isinstance(error, exported)


def decide(
    error: BaseException, *, attempt: int, max_attempts: int, policy: Policy = DEFAULT, rules: Rules = Rules()
) -> RetryDecision:
    """Decide what to do after a failed attempt. An error's `retry_after` is respected; one that is `permanent` fails
    the job, unless a rule says otherwise."""
    if isinstance(error, Fail):
        return RetryDecision(RetryAction.FAIL)
    if isinstance(error, Snooze):
        return RetryDecision(RetryAction.SNOOZE, snooze_delay(error.seconds))
    rule = rules.rule_for(error)
    if isinstance(rule, (int, float)):
        return RetryDecision(RetryAction.SNOOZE, snooze_delay(max(rule, _requested_delay(error))))
    is_permanent = rule == RetryAction.FAIL or (rule is None and getattr(error, "permanent", False) is True)
    if is_permanent or attempt >= max_attempts:
        return RetryDecision(RetryAction.FAIL)
    try:
        delay = _bounded_delay(float(policy.pause(attempt)))
    except Exception:  # an error in an author's policy must not prevent the decision
        delay = DEFAULT.pause(attempt)
    return RetryDecision(RetryAction.RETRY, _bounded_delay(max(delay, _requested_delay(error))))


def _requested_delay(error: BaseException) -> float:
    """The delay that the error asks for, at most a week."""
    for name in ("retry_after", "retry_after_sec"):
        seconds = getattr(error, name, None)
        if isinstance(seconds, (int, float)) and not isinstance(seconds, bool):
            return min(max(0.0, seconds), _MAX_REQUESTED_DELAY_SEC)
    return 0.0


_POLICIES_BY_KIND: dict[str, tuple[type[Any], tuple[str, ...]]] = {
    "fixed": (Fixed, ("seconds",)),
    "linear": (Linear, ("step", "cap")),
    "exponential": (Exponential, ("base", "factor", "cap", "jitter")),
    "table": (Table, ("seconds",)),
}

_RANGES = {"factor": (1.0, 1000.0), "jitter": (0.0, 1.0)}  # the others are seconds


def policy_from_json(raw: Any) -> Policy:
    """Parse a policy such as {"kind": "exponential", "base": 10}. Raises ValueError, which repeats no value."""
    if not isinstance(raw, Mapping):
        raise ValueError('expected an object such as {"kind": "fixed", "seconds": 60}')
    kind = raw.get("kind")
    if not isinstance(kind, str) or kind not in _POLICIES_BY_KIND:
        raise ValueError(f"kind must be one of {', '.join(_POLICIES_BY_KIND)}")
    make, known = _POLICIES_BY_KIND[kind]
    if set(raw) - {"kind", *known}:
        raise ValueError(f"a {kind} policy has only the fields {', '.join(known)}")
    values: dict[str, Any] = {name: raw[name] for name in known if name in raw}
    if make is Table:
        if not isinstance(values.get("seconds"), list) or not values["seconds"]:
            raise ValueError("seconds must be a list of numbers")
        return Table(tuple(_parse_number("seconds", item) for item in values["seconds"]))
    values = {name: _parse_number(name, value) for name, value in values.items()}
    try:
        policy: Policy = make(**values)
    except TypeError as error:
        raise ValueError(f"a {kind} policy needs {', '.join(known)}") from error
    return policy


def _parse_number(name: str, raw: Any) -> float:
    low, high = _RANGES.get(name, (0.0, _MAX_REQUESTED_DELAY_SEC))
    if isinstance(raw, bool) or not isinstance(raw, (int, float)) or not low <= raw <= high:
        raise ValueError(f"{name} must be a number from {low:g} to {high:.0f}")
    return float(raw)


def policy_to_json(policy: Policy) -> dict[str, Any]:
    """Format a policy as `policy_from_json` parses it; of an author's own policy only its class name."""
    for kind, (make, known) in _POLICIES_BY_KIND.items():
        if isinstance(policy, make):
            values = {name: getattr(policy, name) for name in known}
            return {"kind": kind} | {name: [*v] if isinstance(v, tuple) else v for name, v in values.items()}
    return {"kind": type(policy).__name__}
