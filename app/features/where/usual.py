"""What is different from the usual run of a task: in one sentence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from dataloader.app.features.where.account import KINDS, Cause, decode_entries
from dataloader.app.features.where.accounts import StoredAccount
from dataloader.app.wording import format_count, format_duration

MIN_USUAL_RUNS = 3
MIN_RATIO = 1.25  # a run that takes less is as usual
_MIN_MORE_SEC = 1.0
_MIN_SHARE = 0.25  # of the time more that a sentence explains

_MIN_CAUSE_SEC = 0.001

_T = TypeVar("_T")
Key = tuple[str, str | None, str | None]


@dataclass(frozen=True)
class UsualRun:
    """The median of the last runs that succeeded. `count` is their number."""

    count: int
    wall_sec: float
    cpu_sec: float | None
    by_key: Mapping[Key, float]
    by_kind: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A run next to the usual one. `ratio` is of their times; `cause` of what took the largest part of the time more,
    and `cause_sec` how much of it that is. `sentence` says it."""

    ratio: float
    usual_sec: float
    usual_runs: int
    more_sec: float
    cause: str | None
    cause_sec: float | None
    sentence: str

    @property
    def is_slower(self) -> bool:
        return self.ratio >= MIN_RATIO and self.more_sec >= _MIN_MORE_SEC


def usual_run(accounts: Sequence[StoredAccount]) -> UsualRun | None:
    """None: too few runs."""
    if len(accounts) < MIN_USUAL_RUNS:
        return None
    keys = [_by_key(account) for account in accounts]
    kinds = [account.account["kinds"] for account in accounts]
    cpu = [account.cpu_sec for account in accounts if account.cpu_sec is not None]
    return UsualRun(
        len(accounts),
        median(account.wall_sec for account in accounts),
        median(cpu) if cpu else None,
        {key: median(of.get(key, 0.0) for of in keys) for key in {key for of in keys for key in of}},
        {kind: median(of.get(kind, 0.0) for of in kinds) for kind in {kind for of in kinds for kind in of}},
    )


def compare(account: StoredAccount, usual: UsualRun) -> Comparison:
    more_sec = account.wall_sec - usual.wall_sec
    ratio = account.wall_sec / usual.wall_sec if usual.wall_sec > 0 else 1.0
    text, sec = _cause_of_more(account, usual, more_sec)
    found = Comparison(
        ratio=round(ratio, 2),
        usual_sec=round(usual.wall_sec, 3),
        usual_runs=usual.count,
        more_sec=round(more_sec, 3),
        cause=text,
        cause_sec=None if sec is None else round(sec, 3),
        sentence="",
    )
    return Comparison(**{**vars(found), "sentence": _sentence(account, found)})


def _sentence(account: StoredAccount, found: Comparison) -> str:
    runs, usual = format_count(found.usual_runs, "run"), format_duration(found.usual_sec)
    if not found.is_slower:
        if found.ratio * MIN_RATIO <= 1 and account.ended_at is not None:
            return f"{1 / found.ratio:.1f} × faster than usual ({usual}, the median of {runs})."
        return f"As usual: {usual} is the median of {runs}."
    text = f"{found.ratio:.1f} × slower than usual ({usual}, the median of {runs})"
    if found.cause is None or found.cause_sec is None:
        return f"{text}; no single cause explains it."
    more = format_duration(found.more_sec)
    amount = f"all {more}" if found.cause_sec >= found.more_sec else f"{format_duration(found.cause_sec)} of the {more}"
    return f"{text}: {amount} more {found.cause}."


def _cause_of_more(account: StoredAccount, usual: UsualRun, more_sec: float) -> tuple[str | None, float | None]:
    """What took the largest part of the time more, if that is worth a word: an entry, else a kind."""
    by_key = _by_key(account)
    key, sec = _largest({key: sec - usual.by_key.get(key, 0.0) for key, sec in by_key.items()})
    if key is not None and sec >= max(_MIN_SHARE * more_sec, _MIN_CAUSE_SEC):
        cause = next(cause for cause, _ in decode_entries(account.account["entries"]) if cause.key == key)
        before = usual.by_key.get(key, 0.0)
        return f"{describe_more(cause)}{f' (usually {format_duration(before)})' if before >= 1 else ''}", sec
    kinds: Mapping[str, float] = account.account["kinds"]
    kind, sec = _largest({kind: sec - usual.by_kind.get(kind, 0.0) for kind, sec in kinds.items()})
    if kind is not None and sec >= max(_MIN_SHARE * more_sec, _MIN_CAUSE_SEC):
        return f"went into many places, of the kind “{KINDS.get(kind, kind)}”", sec
    return None, None


def _largest(more: Mapping[_T, float]) -> tuple[_T | None, float]:
    return max(more.items(), key=lambda entry: entry[1], default=(None, 0.0))


def describe_more(cause: Cause) -> str:
    """What the time more was: such as `are waits for a lock on sales held by psql (user ann)`."""
    if cause.kind == "sql_lock":
        return f"are {cause.text}"
    return f"went into {cause.text}" if cause.kind.startswith("sql") else f"went into: {cause.text}"


def _by_key(account: StoredAccount) -> dict[Key, float]:
    by_key: dict[Key, float] = defaultdict(float)
    for cause, sec in decode_entries(account.account["entries"]):
        by_key[cause.key] += sec
    return by_key
