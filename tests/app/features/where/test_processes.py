"""Where a job is that runs in a process, in an interpreter of its own, or as a program; and one that cannot answer."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from dataloader.app.features.where import where as where_module
from dataloader.app.queue.job import Status
from dataloader.pipelines.contract import Pipelines, load_tasks
from dataloader.workers.listener import ListenMode
from tests.app.features.where.conftest import WhereFixture, isolated
from tests.support import eventually, where_tasks
from tests.workers.isolation.old_project import OLDEST


def functions(thread: dict[str, Any], kind: str = "task") -> list[str]:
    return [frame["function"] for frame in thread["frames"] if frame["kind"] == kind]


@pytest.mark.usefixtures("start_method")
def test_stack_of_a_process_names_the_task(where: WhereFixture):
    job_id = where.start("where.apart", isolated("where.apart"))

    answer = where.locate_at(job_id, "wait_for")

    (thread,) = answer["threads"]
    assert (answer["isolation"], answer["problem"]) == ("process", None)
    assert functions(thread) == ["wait_for", "stay_here", "stay_apart"]
    assert "never shown" not in str(answer)
    (process,) = answer["processes"]
    assert process["depth"] == 0
    assert process["state"] in ("running", "sleeping")  # it sleeps for a hundredth of a second at a time
    assert process["memory_mb"] > 1
    assert answer["cpu_percent"] == process["cpu_percent"]
    assert where.locate(job_id)["summary"].startswith("wait_for in support/where_tasks.py:")
    where.release()
    where.pools.wait_for_status(job_id, Status.SUCCEEDED)


def test_coroutine_of_a_process_is_shown_where_it_awaits(where: WhereFixture):
    job_id = where.start("where.awaits", isolated("where.awaits"))

    answer = where.locate_at(job_id, "wait_in_coroutine")

    assert functions(answer["threads"][0]) == ["wait_in_coroutine", "await_apart"]


def test_other_threads_of_a_process_follow(where: WhereFixture):
    job_id = where.start("where.helped", isolated("where.helped"))

    answer = where.locate_at(job_id, "wait_for")

    main, helper = answer["threads"]
    assert (main["is_task"], functions(main)) == (True, ["stay_with_helper"])
    assert (helper["is_task"], helper["name"], functions(helper)) == (
        False, "helper-thread", ["wait_for", "stay_here"],
    )  # fmt: skip


def test_deep_recursion_in_a_process_is_one_frame(where: WhereFixture):
    job_id = where.start("where.recursive", isolated("where.recursive"), depth=600)

    answer = where.locate_at(job_id, "wait_for")

    frames = [frame for frame in answer["threads"][0]["frames"] if frame["kind"] == "task"]
    assert [(f["function"], f["repeated"]) for f in frames[:3]] == [
        ("wait_for", 1), ("recurse", 1), ("recurse", 600),
    ]  # fmt: skip


def test_process_whose_interpreter_is_held_is_named_with_its_state(where: WhereFixture):
    job_id = where.start("where.frozen", isolated("where.frozen"))
    eventually(where.release_file.exists, message="the task runs")

    answer = where.locate_until(
        job_id, lambda found: found["processes"] and found["problem"] and found["cpu_percent"] == 0
    )

    assert answer["problem"].startswith("its process did not answer within a second: native code")
    assert (answer["threads"], [process["state"] for process in answer["processes"]]) == ([], ["sleeping"])
    assert " is sleeping, 0 % of a CPU." in answer["summary"]
    os.kill(answer["processes"][0]["pid"], signal.SIGKILL)


def test_stack_of_an_interpreter_of_its_own_names_the_task(where: WhereFixture):
    where.release_file.parent.joinpath("loads.py").write_text(
        "import os, time\n\n\ndef load(args, ctx):\n    while not os.path.exists(args['file']):\n"
        "        time.sleep(0.01)\n",
        encoding="utf-8",
    )
    tasks = Pipelines()
    definition = {"call": "loads:load", "python": OLDEST, "cwd": str(where.release_file.parent)}
    assert load_tasks((), {"legacy": definition}, known_tasks=tasks) == {}
    job_id = where.start("legacy", tasks)

    answer = where.locate_at(job_id, "load")

    assert (answer["isolation"], answer["problem"]) == ("interpreter", None)
    assert functions(answer["threads"][0]) == ["load"]
    assert answer["summary"].startswith(f"load in {where.release_file.parent.name}/loads.py:")


def test_processes_of_a_program_are_a_tree(where: WhereFixture):
    tasks = Pipelines()
    wait = f"while [ ! -e '{where.release_file}' ]; do sleep 0.05; done"
    shell = {"command": ["sh", "-c", f'sh -c "{wait}"; exit 0']}
    assert load_tasks((), {"program": shell}, known_tasks=tasks) == {}
    job_id = where.start("program", tasks)

    answer = where.locate_until(job_id, lambda found: found["process_count"] >= 2)

    assert (answer["isolation"], answer["threads"], answer["problem"]) == ("program", [], None)
    assert [(p["name"], p["depth"]) for p in answer["processes"][:2]] == [("sh", 0), ("sh", 1)]
    assert answer["processes"][1]["parent_pid"] == answer["processes"][0]["pid"]
    assert str(where.release_file) not in str(answer)


def test_worker_that_is_silent_is_named_after_a_bounded_wait(where: WhereFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(where_module, "WAIT_SEC", 0.4)
    job_id = where.pools.queue_fixture.enqueue_and_claim(task="stay").id

    answer = where.locate(job_id)

    assert (answer["status"], answer["threads"]) == ("running", [])
    assert "did not answer within" in answer["problem"]
    assert answer["summary"].startswith("Its worker process")
    assert [server["server"] for server in answer["servers"]] == ["queue server"]


def test_worker_without_notifications_is_named(where: WhereFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(where_module, "WAIT_SEC", 0.4)
    where.pools.pool(pipelines=where_tasks.in_threads(), listen=ListenMode.OFF, claim_backoff_sec=0.1)
    job_id = where.start("stay")

    answer = where.locate_until(job_id, lambda found: "DL_LISTEN=off" in (found["problem"] or ""))

    assert "its last heartbeat was" in answer["problem"]
