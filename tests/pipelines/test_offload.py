"""Names, fingerprints and options of offloads, and the context of tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from dataloader.pipelines.context import Context, Handle, Wait
from dataloader.pipelines.executors import Engines
from dataloader.pipelines.executors.http import LogPieces
from dataloader.pipelines.offload import (
    OffloadFailed,
    OffloadSpec,
    UnknownEngine,
    check_json_result,
    fingerprint,
    offload_name,
    parse_call,
    parse_progress,
)
from dataloader.pipelines.testing import FakeContext, run

ROOT = Path(__file__).parents[2]
JOB = UUID(int=7)


def work(rows: list[int]) -> int:
    return sum(rows)


def test_name_is_that_of_the_job_and_the_call():
    assert offload_name(JOB, "1", 1) == f"dl-{JOB}-1"
    assert offload_name(JOB, "train", 3) == f"dl-{JOB}-train.3"


def test_fingerprint_is_the_same_in_each_process():
    code = (
        "from dataloader.pipelines.offload import OffloadSpec, fingerprint\n"
        "print(fingerprint('ray', OffloadSpec(entrypoint='x', env={'b': '1', 'a': '2'}, args=({'x', 'y', 'z'},))))"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed}, check=True,
            capture_output=True, text=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(seen) == 1


def test_fingerprint_changes_with_code_and_arguments():
    def other(rows: list[int]) -> int:
        return sum(rows) + 1

    specs = [
        OffloadSpec(call=work, args=([1],)), OffloadSpec(call=work, args=([2],)), OffloadSpec(call=other, args=([1],)),
        OffloadSpec(entrypoint="a"), OffloadSpec(entrypoint="a", env={"x": "1"}), OffloadSpec(entrypoint="b"),
    ]  # fmt: skip
    assert len({fingerprint("ray", spec) for spec in specs}) == len(specs)
    assert fingerprint("ray", specs[0]) == fingerprint("ray", OffloadSpec(call=work, args=([1],)))


def test_call_is_a_function_or_a_program():
    with pytest.raises(TypeError, match="or entrypoint="):
        parse_call("ray", None, (), {})
    with pytest.raises(TypeError, match="or entrypoint="):
        parse_call("ray", work, (), {"entrypoint": "x"})
    with pytest.raises(TypeError, match="in entrypoint="):
        parse_call("ray", None, (1,), {"entrypoint": "x"})
    for options in ({"key": "A"}, {"key": "x" * 17}, {"on_shutdown": "wait"}, {"grace": -1}):
        with pytest.raises(ValueError):
            parse_call("ray", None, (), {"entrypoint": "x", **options})  # type: ignore[typeddict-item]


def test_progress_and_result_lines_are_parsed():
    assert parse_progress("::progress done=3 total=10") == {"processed": 3, "total": 10}
    assert parse_progress("::progress nothing") is None
    assert parse_progress("progress done=3") is None
    with pytest.raises(OffloadFailed, match="no JSON"):
        check_json_result("{")


def test_piece_of_a_log_has_whole_lines():
    pieces = LogPieces()

    assert pieces.cut("n", "a\nb", "", is_over=False) == (["a"], "2")
    assert pieces.cut("n", "a\nbc\r\nd", "2", is_over=True) == (["bc", "d"], "7")


def test_unknown_engine_names_the_known_ones():
    engines = Engines({"gpu": {"kind": "none"}, "bad": {"kind": "ray", "adress": "x"}})

    with pytest.raises(UnknownEngine, match="'ray' is known among bad, gpu, process"):
        engines.get("ray")
    with pytest.raises(UnknownEngine, match="which is none of dask, kubernetes, process, ray"):
        engines.get("gpu")
    with pytest.raises(ValueError, match="has no adress"):
        engines.get("bad")


def test_secret_of_an_engine_is_filled_in():
    engines = Engines({"ray": {"address": "x", "token": {"$secret": "ray"}}}, read_secret=lambda name: f"of {name}")

    assert engines.resolved_settings() == {"ray": {"address": "x", "token": "of ray"}}


# ── the context of tests ────────────────────────────────────────────────────────────────────────────────────────────


def task(args, ctx: Context):
    handle = ctx.offload("dask", work, args["rows"], timeout=60)
    yield Wait(handle)
    return handle.result()


def test_fake_context_runs_functions_in_place():
    ctx = FakeContext()

    assert run(task, {"rows": [1, 2]}, ctx) == 3

    assert [(it.engine, it.call, it.args, it.options) for it in ctx.offloads] == [
        ("dask", work, ([1, 2],), {"timeout": 60})
    ]


def test_fake_context_ends_at_a_wait():
    ctx = FakeContext(offloads_done=False)

    with pytest.raises(Wait):
        run(task, {"rows": []}, ctx)

    assert ctx.waited == [(f"dl-{ctx.job_id}-1",)]


def test_fake_context_answers_for_engines():
    ctx = FakeContext(offload=lambda work: {"ran": work.options["entrypoint"]})

    assert ctx.offload("ray", entrypoint="train").result() == {"ran": "train"}


def test_wait_takes_handles_or_jobs():
    survives, mortal = Handle("ray", "dl-1"), Handle("process", "dl-2", survives=False)

    assert Wait([survives, survives]).offloads == ("dl-1",)
    with pytest.raises(TypeError, match="not both"):
        Wait([survives, JOB])
    with pytest.raises(ValueError, match="take its result"):
        Wait(mortal)
