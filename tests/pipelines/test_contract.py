from __future__ import annotations

import asyncio
import builtins
import functools
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dataloader.pipelines.contract import (
    Context,
    Fail,
    Pipelines,
    Stop,
    StopReason,
    TaskConflict,
    TaskKind,
    load_tasks,
    task_from_callable,
)

CONTEXT: Any = object()


def plain(args):
    return args


def with_context(args, ctx):
    return args, ctx


def annotated(args, job: Context):
    return args, job


def annotated_by_text(args, job: "dataloader.pipelines.contract.Context"):  # type: ignore[name-defined]  # noqa: F821, UP037
    return args, job


def nothing():
    return "called"


def anything(*everything):
    return everything


def spread_values(customer_id, since, limit=10):
    return customer_id, since, limit


def spread_with_context(customer_id, since, ctx):
    return customer_id, since, ctx


def one_value(customer_id):
    return customer_id


def default_context(args, ctx=None):
    return args, ctx


class Callable_:
    def __call__(self, args, ctx):
        return args, ctx

    def method(self, args):
        return args

    @classmethod
    def of_class(cls, args, ctx):
        return args, ctx

    @staticmethod
    def static(args):
        return args


def wrapped(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def inner(*args: Any, **named: Any) -> Any:
        return call(*args, **named)

    return inner


ARGS = {"customer_id": 7, "since": "2026"}


@pytest.mark.parametrize(
    ("call", "spread", "result"),
    [
        (plain, None, ARGS),
        (with_context, None, (ARGS, CONTEXT)),
        (annotated, None, (ARGS, CONTEXT)),
        (annotated_by_text, None, (ARGS, CONTEXT)),
        (default_context, None, (ARGS, CONTEXT)),
        (nothing, None, "called"),
        (anything, None, (ARGS,)),
        (spread_values, None, (7, "2026", 10)),
        (spread_with_context, None, (7, "2026", CONTEXT)),
        (Callable_(), None, (ARGS, CONTEXT)),
        (Callable_().method, None, ARGS),
        (Callable_.of_class, None, (ARGS, CONTEXT)),
        (Callable_.static, None, ARGS),
        (wrapped(with_context), None, (ARGS, CONTEXT)),
        (functools.partial(with_context), None, (ARGS, CONTEXT)),
        (functools.partial(spread_values, limit=5), None, (7, "2026", 5)),
        (lambda args: args["since"], None, "2026"),
        (builtins.len, None, 2),
        (builtins.dict, None, ARGS),  # its signature cannot be read
    ],
)
def test_callable_gets_the_arguments_of_its_signature(call, spread, result):
    assert task_from_callable("t", call, spread=spread).start(ARGS, CONTEXT) == result


def test_single_parameter_is_spread_on_request():
    assert task_from_callable("t", one_value, spread=True).start({"customer_id": 7}, CONTEXT) == 7
    assert task_from_callable("t", one_value).start({"customer_id": 7}, CONTEXT) == {"customer_id": 7}


@pytest.mark.parametrize(
    ("args", "faults"),
    [
        ({"customer_id": 7}, {"since": "is required"}),
        ({**ARGS, "untill": 1}, {"untill": "is no argument of this task; leave it out"}),
        ({}, {"customer_id": "is required", "since": "is required"}),
        ({**ARGS, "limit": 1}, {}),
    ],
)
def test_args_that_do_not_fit_signature_are_named(args, faults):
    task = task_from_callable("t", spread_values)

    assert dict(task.check_args(args)) == faults
    if faults:
        with pytest.raises(Fail, match=f"the args do not fit: {next(iter(faults))}"):
            task.start(args, CONTEXT)


def test_context_of_a_spread_callable_is_no_argument():
    task = task_from_callable("t", spread_with_context)

    assert task.check_args(ARGS) == []
    assert dict(task.check_args({**ARGS, "ctx": 1})) == {"ctx": "is no argument of this task; leave it out"}


def test_any_name_fits_a_callable_that_takes_any():
    assert task_from_callable("t", lambda a, **more: more, spread=True).check_args({"a": 1, "b": 2}) == []
    assert task_from_callable("t", builtins.dict, spread=True).check_args({"b": 2}) == []


def test_secret_fits_any_parameter():
    assert task_from_callable("t", spread_values).check_args({"customer_id": {"$secret": "id"}, "since": 1}) == []


def test_callable_that_cannot_be_called_fails_without_retry():
    def needs_more(args, *, day): ...

    with pytest.raises(Fail, match="cannot be called like this.*day"):
        task_from_callable("t", needs_more).start({}, CONTEXT)


def test_type_error_from_inside_the_callable_is_its_own():
    def fails(args):
        return len(args["n"])

    with pytest.raises(TypeError, match="has no len"):
        task_from_callable("t", fails).start({"n": 1}, CONTEXT)


def generator(args) -> Iterator[int]:
    yield 1


async def coroutine(args):
    await asyncio.sleep(0)


async def async_generator(args) -> AsyncIterator[int]:
    yield 1


class Stepper:
    def __call__(self, args) -> Iterator[int]:
        yield 1


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (plain, TaskKind.FUNCTION),
        (generator, TaskKind.GENERATOR),
        (coroutine, TaskKind.COROUTINE),
        (async_generator, TaskKind.ASYNC_GENERATOR),
        (functools.partial(functools.partial(generator)), TaskKind.GENERATOR),
        (wrapped(coroutine), TaskKind.COROUTINE),
        (Stepper(), TaskKind.GENERATOR),
        (Stepper, TaskKind.FUNCTION),
        (builtins.len, TaskKind.FUNCTION),
    ],
)
def test_kind_is_inferred_from_the_callable(call, kind: TaskKind):
    assert task_from_callable("t", call).kind is kind


def test_object_that_is_not_callable_is_refused():
    with pytest.raises(TypeError, match="cannot be called"):
        task_from_callable("t", "text")  # type: ignore[arg-type]


# ── the registry ────────────────────────────────────────────────────────────────────────────────────────────────


def test_register_returns_the_callable_unchanged():
    tasks = Pipelines()

    assert tasks.register("b")(plain) is plain
    assert tasks.register("a")(nothing) is nothing
    assert tasks.names == ("a", "b")
    assert [task.name for task in tasks] == ["a", "b"]
    assert len(tasks) == 2
    assert tasks.get("a") is not None
    assert tasks.get("c") is None


def test_second_callable_of_a_name_is_refused():
    tasks = Pipelines()
    tasks.register("t")(plain)
    tasks.register("t")(plain)

    with pytest.raises(TaskConflict, match=r"'t' is registered twice: by .*plain and by .*nothing"):
        tasks.register("t")(nothing)


@pytest.mark.parametrize("name", ["", "x" * 201])
def test_name_of_wrong_length_is_refused(name: str):
    with pytest.raises(ValueError, match="1 to 200 characters"):
        Pipelines().register(name)


def test_stop_is_not_an_exception():
    stop = Stop(StopReason.CANCEL)

    assert not isinstance(stop, Exception)
    assert (stop.reason, str(stop)) == (StopReason.CANCEL, "cancel")


# ── loading ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "some_jobs"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    for name in [name for name in sys.modules if name.startswith("some_jobs")]:
        del sys.modules[name]


def test_broken_module_does_not_keep_others_from_loading(package: Path):
    (package / "good.py").write_text("LOADED = True\n")
    (package / "bad.py").write_text("raise RuntimeError('no such thing')\n")
    (package / "__main__.py").write_text("raise RuntimeError('this is a program')\n")
    for name, text in {"deeper": "", "spoilt": "1 / 0\n"}.items():
        (package / name).mkdir()
        (package / name / "__init__.py").write_text(text)
        (package / name / "inner.py").write_text("LOADED = True\n")

    failures = load_tasks(["some_jobs"])

    assert {"some_jobs", "some_jobs.good", "some_jobs.deeper", "some_jobs.deeper.inner"} <= set(sys.modules)
    assert set(failures) == {"some_jobs.bad", "some_jobs.spoilt"}
    assert "no such thing" in failures["some_jobs.bad"]
    assert "ZeroDivisionError" in failures["some_jobs.spoilt"]


def test_missing_package_is_a_failure():
    failures = load_tasks(["no_such_package_at_all", "json.decoder"])

    assert list(failures) == ["no_such_package_at_all"]
    assert "ModuleNotFoundError" in failures["no_such_package_at_all"]
