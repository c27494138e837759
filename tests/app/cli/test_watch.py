from __future__ import annotations

import signal
from typing import SupportsIndex
from uuid import UUID

import pytest

from dataloader import Client
from dataloader.app.cli import watch
from tests.app.cli.fake_service import BUSY
from tests.support import Process

RUNNING = {"status": "running", "attempt": 1}


# A shell that starts the tests in the background has its children ignore Ctrl-C; a terminal's shell does not.
ON_A_TERMINAL = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from dataloader.app.cli import main
main(sys.argv[1:])
"""


class NothingYet(list[list[str]]):
    """What a job says before each further look: nothing, without an end."""

    def pop(self, index: SupportsIndex = -1) -> list[str]:
        return []


def test_ctrl_c_ends_the_watching_and_not_the_job(service, tmp_path):
    job_id = service.add(RUNNING)
    command = (ON_A_TERMINAL, "status", job_id, "--watch")

    with Process.python(*command, output=tmp_path / "output", env={"DL_URL": service.url}) as process:
        process.wait_for_line("running")
        process.signal(signal.SIGINT)
        code = process.wait()

    assert code == 130
    assert f"dataloader cancel {job_id}" in process.text
    assert f"dataloader status {job_id} --watch" in process.text
    assert "Traceback" not in process.text
    assert service.jobs[job_id]["status"] == "running"


def test_ctrl_c_ends_the_showing_of_a_log(service, tmp_path):
    job_id = service.add()
    service.say(job_id, "hello")
    service.later[job_id] = NothingYet([[]])

    with Process.python(
        ON_A_TERMINAL, "logs", job_id, "-f", output=tmp_path / "output", env={"DL_URL": service.url}
    ) as process:
        process.wait_for_line("hello")
        process.signal(signal.SIGINT)
        code = process.wait()

    assert code == 130
    assert "Traceback" not in process.text


def test_outage_is_reported_once_and_survived(service, capsys):
    job_id = service.add(RUNNING, BUSY, BUSY, {"progress": {"done": 3}}, BUSY, {"status": "succeeded"})
    client = Client(service.url, retry_timeout_sec=0, sleep=lambda _: None)

    state = watch.watch_until_final(client, UUID(job_id), watch.LineView())

    shown = capsys.readouterr()
    assert state["status"] == "succeeded"
    assert shown.err.count("still watching") == 2
    assert shown.out.splitlines() == ["running, attempt 1", "running, attempt 1, 3", "succeeded, attempt 1, 3"]


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ({"rate": 12.4, "remaining_sec": 65.2, "stalled_sec": None}, ", 12/s, 1 min 5 s left"),
        ({"rate": 0.25, "remaining_sec": None, "stalled_sec": None}, ", 15/min"),
        ({"rate": None, "remaining_sec": None, "stalled_sec": 90.0}, ", no progress for 1 min 30 s"),
        ({"rate": None, "remaining_sec": 0, "stalled_sec": None}, ", 0 s left"),
        ({"rate": "odd"}, ""),
        (BUSY, ""),
        (None, ""),  # a service of before
    ],
)
def test_watched_progress_has_its_rate_and_time_left(service, capsys, answer, shown):
    progress = [{"progress": {"processed": n, "total": 1000, "unit": "rows"}} for n in (500, 600)]
    job_id = service.add({"status": "queued"}, RUNNING, *progress, {"status": "succeeded"})
    if answer is not None:
        service.progresses[job_id] = answer
    client = Client(service.url, retry_timeout_sec=0, sleep=lambda _: None)

    watch.watch_until_final(client, UUID(job_id), watch.LineView())

    assert capsys.readouterr().out.splitlines() == [
        "queued",
        "running, attempt 1",
        f"running, attempt 1, 500 of 1000 rows (50%){shown}",
        f"running, attempt 1, 600 of 1000 rows (60%){shown}",
        "succeeded, attempt 1, 600 of 1000 rows (60%)",
    ]
    asked = [request.query for request in service.asked if request.path.endswith("/progress")]
    assert asked == [{"limit": ["1"]}] * (1 if answer is None else 2)


def test_invisible_change_writes_no_line(service, capsys):
    job_id = service.add(
        RUNNING, {"heartbeat_at": "2026-11-21T10:00:10Z"}, {"heartbeat_at": "2026-11-21T10:00:20Z"}, {"status": "lost"}
    )
    client = Client(service.url, sleep=lambda _: None)

    state = watch.watch_until_final(client, UUID(job_id), watch.LineView())

    assert state["status"] == "lost"
    assert capsys.readouterr().out.splitlines() == ["running, attempt 1", "lost, attempt 1"]


def test_without_a_terminal_there_is_nothing_to_draw():
    assert type(watch.choose_view(as_json=False)) is watch.LineView
    assert type(watch.choose_view(as_json=True)) is watch.LineView
