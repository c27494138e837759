"""`dataloader top`: what it shows and what its keys do, without a terminal and on one."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner

from dataloader.app.cli.command import cli
from dataloader.app.features.where.screen import split_key
from dataloader.app.features.where.top_view import Action, TopView, Verb, cut
from dataloader.app.queue.job import Status
from tests.app.features.where.conftest import WhereFixture
from tests.support.api_server import serving
from tests.support.terminal import Terminal

HOSTILE = "evil\x1b[2J\r\n\u202e"


def job(**more: Any) -> dict[str, Any]:
    return {
        "job_id": str(uuid4()), "task": "load.sales", "queue": "q", "worker": "etl-01:7", "attempt": 1,
        "max_attempts": 3, "running_sec": 754.0, "progress": {"processed": 1, "total": 4, "unit": "files"},
        "summary": "load in sales/load.py:88.", "blocked": False, "isolation": "thread", "cpu_percent": 99.7,
        "memory_mb": None, **more,
    }  # fmt: skip


def view_of(*jobs: dict[str, Any], has_more: bool = False) -> TopView:
    view = TopView()
    view.show_jobs({"jobs": list(jobs), "has_more": has_more})
    return view


def test_list_has_a_row_for_each_job():
    first, second = job(), job(blocked=True, memory_mb=512.4, cpu_percent=None, progress={})

    lines = view_of(first, second, has_more=True).lines(120, 10)

    assert len(lines) == 10
    assert lines[0] == ("2 running jobs and more", "bold")
    assert lines[1].text.split() == ["JOB", "TASK", "PROGRESS", "RUNNING", "CPU", "MEMORY", "WHERE"]
    words = lines[2].text.split()
    assert words[0] == f"{first['job_id'][:4]}…{first['job_id'][-6:]}"
    assert " ".join(words[1:]) == "load.sales 1 of 4 files (25%) 12 min 34 s 100 % load in sales/load.py:88."
    assert (lines[2].style, lines[3].style) == ("reverse", "red")
    assert "512 MB" in lines[3].text
    assert lines[-1].text.startswith("↑ ↓ choose")


@pytest.mark.parametrize("width", [1, 12, 40, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int):
    view = view_of(*(job(task=HOSTILE + "界" * 50, summary=HOSTILE * 20) for _ in range(50)))

    lines = view.lines(width, 12)

    assert len(lines) == 12
    assert all(len(line.text) <= width and line.text.isprintable() for line in lines)


def test_selection_stays_in_view_and_with_its_job():
    jobs = [job() for _ in range(50)]
    view = view_of(*jobs)

    for _ in range(30):
        assert view.on_key("down") is None
    assert view.selected == jobs[30]["job_id"]
    assert any(line.style == "reverse" for line in view.lines(100, 12))
    view.show_jobs({"jobs": jobs[5:], "has_more": False})
    assert view.selected == jobs[30]["job_id"]
    view.show_jobs({"jobs": jobs[:3], "has_more": False})
    assert view.selected == jobs[2]["job_id"]
    for _ in range(9):
        view.on_key("k")
    assert view.selected == jobs[0]["job_id"]


def test_keys_ask_for_stack_log_and_end():
    first, second = job(), job()
    view = view_of(first, second)

    assert view.on_key("s") == Action(Verb.STACK, first["job_id"])
    view.show_detail(Verb.STACK, ["load in sales/load.py:88."])
    assert view.lines(80, 10)[1].text == "  load in sales/load.py:88."
    assert view.on_key("j") == Action(Verb.STACK, second["job_id"])
    assert view.on_key("l") == Action(Verb.LOG, second["job_id"])
    view.show_detail(Verb.LOG, [f"line {n}" for n in range(100)])
    assert view.lines(80, 10)[7].text == "  line 99"
    assert view.on_key("escape") is None
    assert view.detail_verb is None
    assert view.on_key("?") is None
    assert view.on_key("q") == Action(Verb.QUIT)


def test_cancel_asks_first():
    one = job()
    view = view_of(one)

    assert view.on_key("c") is None
    assert view.lines(80, 10)[-2] == (f"Cancel job {one['job_id']}? y: yes, any other key: no", "reverse")
    assert view.on_key("n") is None
    assert view.on_key("y") is None
    view.on_key("c")
    assert view.on_key("y") == Action(Verb.CANCEL, one["job_id"])


def test_empty_list_and_an_outage_are_sentences():
    view = TopView()
    assert view.lines(80, 10)[-2] == ("Reading …", "red")
    assert view.on_key("s") is view.on_key("c") is view.on_key("down") is None
    view.show_jobs({"jobs": [], "has_more": False})
    assert "No job runs." in [line.text for line in view.lines(80, 10)]
    view.problem = HOSTILE
    assert view.lines(80, 10)[-2].text == "evil [2J"


@pytest.mark.parametrize(
    ("pressed", "keys"),
    [
        (b"qs", ["q", "s"]),
        (b"\x1b[A\x1bOBk", ["up", "down", "k"]),
        (b"\x1bc", ["escape", "c"]),
        (b"\x1b[1;5Cq", ["\x1b", "q"]),
        (b"\r\xff", ["enter", "\N{REPLACEMENT CHARACTER}"]),
    ],
)
def test_keys_that_arrive_together_are_split(pressed: bytes, keys: list[str]):
    found = []
    while pressed:
        key, pressed = split_key(pressed)
        found.append(key)

    assert found == keys


def test_text_is_cut_by_columns():
    assert [cut("abc", 3), cut("abcd", 3), cut("界界", 3), cut("a", 0)] == ["abc", "ab…", "界…", ""]


def test_pipe_gets_a_table_once(where: WhereFixture):
    job_id = where.start("stay")
    where.locate_at(job_id, "wait_for")

    with serving(where.pools.dsn, where.pools.pipelines) as url:
        result = CliRunner().invoke(cli, ["top", "--task", "stay", "--url", url])
        none = CliRunner().invoke(cli, ["top", "--task", "other", "--url", url])

    heading, row = result.output.splitlines()
    assert heading.split() == ["job", "task", "progress", "running", "cpu", "memory", "where"]
    assert str(job_id) in row
    assert "wait_for in support/where_tasks.py:" in row
    assert none.output == "No job runs.\n"


@pytest.mark.full
def test_terminal_shows_stack_and_log_and_cancels(where: WhereFixture):
    job_id = where.start("stay_until_stopped")
    with (
        serving(where.pools.dsn, where.pools.pipelines) as url,
        Terminal.dataloader("top", "--url", url, env={}) as terminal,
    ):
        terminal.wait_for("stay_until_stopped in support/where_tasks.py:")
        terminal.press("s")
        terminal.wait_for("Thread worker-q-")
        terminal.press("l")
        terminal.wait_for("I am here")
        terminal.press("\x1b")
        terminal.press("c")
        terminal.wait_for(f"Cancel job {job_id}?")
        terminal.press("y")
        where.pools.wait_for_status(job_id, Status.CANCELED)
        terminal.wait_for("No job runs.")
        terminal.press("q")
        assert terminal.wait() == 0
        assert "\x1b[?1049l" in terminal.output


@pytest.mark.full
def test_ctrl_c_leaves_the_terminal_as_it_was(where: WhereFixture):
    with (
        serving(where.pools.dsn, where.pools.pipelines) as url,
        Terminal.dataloader("top", "--url", url, env={}) as terminal,
    ):
        terminal.wait_for("No job runs.")
        terminal.ctrl_c()
        assert terminal.wait() == 130
        assert terminal.output.rstrip().endswith("\x1b[?1049l")
