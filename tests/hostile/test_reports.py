"""What pipelines report, whatever it is: the job settles in a final state, and can be looked at."""

from __future__ import annotations

import json
import sys
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from itertools import count
from typing import Any, NoReturn
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataloader.app.http.json_io import dump_json
from dataloader.app.queue.job import Job, Status
from dataloader.pipelines.contract import Checkpoint, Context
from tests.support import Databases, eventually
from tests.support.worker_pool_fixture import WorkerPoolFixture

ENDED = (Status.SUCCEEDED, Status.FAILED)


class FailingObject:
    """An object each of whose methods fails."""

    def __fails(self, *_: object) -> NoReturn:
        raise RuntimeError("not telling")

    __str__ = __repr__ = __iter__ = __len__ = __bool__ = __eq__ = __hash__ = __format__ = __fails


class Endless(Mapping[str, int]):
    def __iter__(self) -> Iterator[str]:
        return map(str, count())

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, key: str) -> int:
        return 1


class Colour(Enum):
    RED = "red"


def self_reference() -> list[Any]:
    ring: list[Any] = []
    ring.append(ring)
    return ring


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": [value]}
    return value


VALUES: dict[str, Callable[[], Any]] = {
    "half a surrogate pair": lambda: "\ud800 and \udfff",
    "NUL": lambda: {"a\0b": "\0"},
    "no number": lambda: [float("nan"), float("inf"), -float("inf")],
    "an integer of 10,000 digits": lambda: 10**10_000,
    "an exponent of a million": lambda: Decimal("1e999999"),
    "no decimal": lambda: Decimal("sNaN"),
    "a list that holds itself": self_reference,
    "5,000 levels": lambda: nested(5_000),
    "bytes": lambda: {b"key": b"\xff\xfe", bytearray(b"x").hex(): memoryview(b"x")},
    "a set": lambda: {1, "a", None, (2, 3)},
    "keys that become one": lambda: {1: "a", "1": "b", None: "c", "None": "d", "\ud800": "e", "\ufffd": "f"},  # noqa: F601
    "an unkind object": lambda: {"a": FailingObject()},
    "a mapping without end": Endless,
    "a mapping of its own kind": lambda: UserDict({"a": {1, 2}}),
    "an enum and a class": lambda: {"a": Colour.RED, "b": Colour, "c": print},
    "odd zones": lambda: datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=23, minutes=59, seconds=59))),
    "ids and times": lambda: [
        UUID(int=0),
        datetime.max.replace(tzinfo=UTC),
        datetime.min.replace(tzinfo=UTC),
        timedelta.max,
        Decimal("-0"),
    ],
    "5 MB of text": lambda: "ж" * 2_500_000,
    "a million values": lambda: list(range(1_000_000)),
    "two million characters of escapes": lambda: '\x01"\\\n' * 500_000,
    "an exception": lambda: ValueError("as a value"),
    "what JSON would take for dropped": lambda: {"$dropped": "not really"},
}

# Megabytes of report for one job: too slow for every push.
_GIANTS = frozenset({"5 MB of text", "a million values", "two million characters of escapes"})
VALUE_CASES = [pytest.param(name, marks=pytest.mark.full if name in _GIANTS else ()) for name in VALUES]


def raise_error(error: BaseException) -> NoReturn:
    raise error


class UnprintableError(Exception):
    def __str__(self) -> NoReturn:
        raise RuntimeError("not telling")


def grouped(levels: int) -> Exception:
    group: Exception = ValueError("innermost")
    for _ in range(levels):
        group = ExceptionGroup("x" * 100, [group])
    return group


def exception_cycle() -> Exception:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    return one


def with_notes() -> Exception:
    error = ValueError("noted")
    error.__notes__ = ["\0\ud800" * 10, "n" * 1_000_000]
    return error


ERRORS: dict[str, Callable[[], BaseException]] = {
    "10 MB": lambda: ValueError("e" * 10_000_000),
    "NUL and surrogates": lambda: ValueError('\0 \ud800 \x1b[31m \r\n{"level": "info"}'),
    "one that cannot be formatted": UnprintableError,
    "one without words": ValueError,
    "an unkind argument": lambda: ValueError(FailingObject()),
    "groups in groups": lambda: grouped(60),
    "a ring of causes": exception_cycle,
    "notes": with_notes,
    "an exit that says no": lambda: SystemExit(3),
    "an exit with an object": lambda: SystemExit(FailingObject()),
    "an interrupt": KeyboardInterrupt,
    "the end of a generator": GeneratorExit,
    "the end of an iteration": lambda: StopIteration(1),
    "no memory": MemoryError,
    "too deep": lambda: RecursionError("maximum recursion depth exceeded"),
    "a kind made at run time": lambda: type("\ud800\0Error", (Exception,), {})("odd"),
    "a strange retry_after": lambda: _with(ValueError("later"), retry_after=float("nan")),
    "a strange permanent": lambda: _with(ValueError("odd"), permanent=FailingObject()),
}


def _with(error: Exception, **facts: Any) -> Exception:
    for name, value in facts.items():
        setattr(error, name, value)
    return error


@pytest.fixture(scope="module")
def worker_pools(databases: Databases) -> Iterator[WorkerPoolFixture]:
    with databases.fresh() as dsn:
        made = WorkerPoolFixture(dsn)
        tell: dict[str, Any] = {}

        def report(args: dict[str, Any], ctx: Context) -> Any:
            return tell["do"](ctx)

        made.pipelines.register("report")(report)
        made.tell = tell  # type: ignore[attr-defined]
        made.listening_pool({"q": 1})
        yield made
        made.close()


def run_to_end(worker_pools: WorkerPoolFixture, do: Callable[[Any], Any]) -> Job:
    """The job whose run does that, when it has settled; it can be shown to a caller."""
    worker_pools.tell["do"] = do  # type: ignore[attr-defined]
    job_id = worker_pools.add_job("report", max_attempts=1, lease_ttl_sec=30)
    eventually(
        lambda: worker_pools.queue_fixture.status(job_id) in ENDED,
        30,
        lambda: f"the end of {worker_pools.queue_fixture.job(job_id)}",
    )
    job = worker_pools.queue_fixture.job(job_id)
    json.loads(dump_json(vars(job)))
    assert worker_pools.crashes == []
    return job


@pytest.mark.parametrize("name", VALUE_CASES)
def test_a_value_of_any_kind_may_be_a_result_progress_or_a_line(worker_pools: WorkerPoolFixture, name: str):
    value = VALUES[name]

    def do(ctx: Context) -> Any:
        ctx.progress(1, 2, "x", told=value())
        ctx.log.info("told", value=value())
        sys.stdout.write(f"{name} \0 \ud800\n")
        return value()

    assert run_to_end(worker_pools, do).status is Status.SUCCEEDED


@pytest.mark.parametrize("name", VALUE_CASES)
def test_a_value_of_any_kind_as_a_checkpoint_settles_the_job(worker_pools: WorkerPoolFixture, name: str):
    def steps(ctx: Context) -> Any:
        ctx.checkpoint(VALUES[name]())
        return "kept"

    assert run_to_end(worker_pools, steps).status in ENDED


@pytest.mark.parametrize("name", ERRORS)
def test_error_of_any_kind_fails_only_its_job(worker_pools: WorkerPoolFixture, name: str):
    job = run_to_end(worker_pools, lambda ctx: raise_error(ERRORS[name]()))

    assert job.status is Status.FAILED
    assert job.error
    assert len(job.error) <= 8_100
    assert len(job.traceback or "") <= 64_100


hostile_text = st.text(st.characters(), max_size=30) | st.sampled_from(["\0", "\ud800", "\x1b[2J", "\r\n", "$dropped"])
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.decimals() | hostile_text | st.binary(max_size=20)
    | st.datetimes(timezones=st.none() | st.just(UTC)) | st.uuids() | st.complex_numbers() | st.timedeltas()
    | st.integers(300, 5_000).map(lambda n: 10**n)
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(hostile_text | st.integers(), inner, max_size=5)
    | st.tuples(inner, inner) | st.frozensets(st.integers(), max_size=3),
    max_leaves=15,
)  # fmt: skip


@pytest.mark.full
def test_generated_result_progress_and_error_settle(worker_pools: WorkerPoolFixture, long_run: bool):
    @settings(
        max_examples=1_000 if long_run else 60,
        derandomize=not long_run,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(values, values, st.none() | hostile_text)
    def settles(result: Any, progress: Any, error: str | None) -> None:
        def do(ctx: Context) -> Any:
            ctx.progress(told=progress)
            if error is not None:
                raise ValueError(error)
            return result

        assert run_to_end(worker_pools, do).status is (Status.SUCCEEDED if error is None else Status.FAILED)

    settles()


def test_unstorable_follow_up_is_refused_at_the_call(worker_pools: WorkerPoolFixture):
    def do(ctx: Context) -> Any:
        refused = []
        for args in ({"a": "\0"}, {"a": float("nan")}, {"a": 10**400}, nested(300)):
            try:
                ctx.enqueue("report", args)
            except Exception as error:
                refused.append(type(error).__name__)
        return refused

    job = run_to_end(worker_pools, do)

    assert job.result == ["InvalidJob"] * 4


def has_ended(worker_pools: WorkerPoolFixture, job_id: UUID, name: str) -> Job:
    eventually(lambda: worker_pools.queue_fixture.job(job_id).status in ENDED, 60, name)
    return worker_pools.queue_fixture.job(job_id)


def test_value_yielded_by_a_generator_ends_the_job(worker_pools: WorkerPoolFixture):
    """Progress is kept; anything else is refused, and nothing of it is stored."""

    def steps(args: dict[str, Any]) -> Iterator[Any]:
        yield VALUES[args["name"]]()
        yield Checkpoint({"at": "the end"})

    worker_pools.pipelines.register("steps of all kinds")(steps)
    worker_pools.listening_pool({"q2": 1})
    names = [name for name in VALUES if name != "a mapping without end"]  # it is copied, as the pipeline's own

    jobs = [
        worker_pools.add_job("steps of all kinds", args={"name": name}, queue="q2", max_attempts=1) for name in names
    ]

    for name, job_id in zip(names, jobs, strict=True):
        job = has_ended(worker_pools, job_id, name)
        assert (job.error or "NotProgress").startswith("NotProgress"), name
        assert job.progress == {}, name
