"""Interpreters of tasks: options that fit, and those that are missing or too old."""

from __future__ import annotations

import pytest

from dataloader.pipelines.contract import Pipelines, register
from dataloader.workers.isolation.interpreter import find_unusable
from tests.workers.isolation.old_project import OLDEST


def test_options_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="isolation='process'"):
        register("t", python=OLDEST)(print)
    with pytest.raises(ValueError, match="needs python"):
        register("t", cwd="/srv")
    with pytest.raises(ValueError, match="absolute path"):
        Pipelines().call("t", "a:b", python=OLDEST, cwd="srv")
    with pytest.raises(ValueError, match="no function of a module"):
        Pipelines().register("t", python=OLDEST, isolation="process")(lambda: None)


def test_missing_and_old_interpreters_are_named(tmp_path):
    old = tmp_path / "python3.6"
    old.write_text("#!/bin/sh\necho 3 6\n", encoding="utf-8")
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    for program in (old, silent):
        program.chmod(0o755)
    known = Pipelines()
    for name, python in {"a": "/nowhere/python", "b": str(old), "c": str(silent), "d": OLDEST}.items():
        known.call(name, "a:b", python=python)
    known.register("e")(print)

    found = find_unusable(known)

    assert found == [
        "'/nowhere/python' of task 'a', which cannot be started: No such file or directory",
        f"{str(old)!r} of task 'b', which is Python 3.6",
        f"{str(silent)!r} of task 'c', which does not run Python code",
    ]
