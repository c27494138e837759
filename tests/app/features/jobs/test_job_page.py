"""The page of a job, without scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest

from dataloader.app.db.pool import Pool
from dataloader.app.queue.job import Settlement, Status
from dataloader.app.queue.job_records import LogEntry
from dataloader.app.queue.workers import WorkerInfo, WorkerLiveness
from tests.support.databases import execute_sql


@pytest.fixture
def own_dsn(dsn: str) -> str:
    """The database of the client."""
    return dsn


def test_refused_edit_marks_its_fields(client, trigger):
    job_id = trigger()

    refused = client.post(f"/jobs/{job_id}/edit", data={"version": "1", "priority": "soon", "args": '{"a": '})

    assert refused.status_code == 422
    assert f'action="/jobs/{job_id}/edit"' in refused.text
    field = re.search(r'<input name="priority"[^>]*>', refused.text)
    assert field is not None
    assert 'aria-invalid="true" aria-describedby="submit_job_edit-priority-error" value="soon"' in field[0]
    assert "&#39;soon&#39; is not a whole number" in refused.text
    assert 'aria-describedby="submit_job_edit-args-error"' in refused.text  # all at once
    assert "{&#34;a&#34;: </textarea>" in refused.text  # what was entered


@pytest.mark.parametrize(
    ("data", "status", "message"),
    [
        ({"version": "1", "priority": "1" * 1001}, 422, 'id="submit_job_edit-priority-error"'),
        ({"version": "1", "colour": "red"}, 422, "Colour"),
        ({"version": "1", "priority": "3"}, 409, "has changed"),
    ],
)
def test_refused_edit_renders_the_job(client, trigger, data, status, message):
    job_id = trigger()

    refused = client.post(f"/jobs/{job_id}/edit", data=data)

    assert (refused.status_code, message in refused.text) == (status, True)
    assert f'action="/jobs/{job_id}/edit"' in refused.text


def test_retry_of_queued_job_is_refused_on_its_page(client, trigger):
    job_id = trigger()

    refused = client.post(f"/jobs/{job_id}/retry")

    assert (refused.status_code, 'id="refused"' in refused.text) == (409, True)
    assert "is queued" in refused.text
    assert f'hx-get="/jobs/{job_id}"' in refused.text  # not the address of the form


def test_log_says_first_what_was_left_out(client, queue, trigger):
    job_id = trigger()
    queue.write_logs(
        [
            LogEntry(UUID(job_id), 1, 0.0, "INFO", "stdout", "kept <b>"),
            LogEntry(UUID(job_id), 1, 0.0, "WARNING", "note", "… 57,944 lines left out …", 57_944),
            LogEntry(UUID(job_id), 2, 0.0, "ERROR", "log", "broken"),
        ]
    )

    for path in (f"/jobs/{job_id}", f"/jobs/{job_id}/log"):
        page = client.get(path).text
        assert page.index("<b>57 944 lines were left out</b>, 3 lines are kept") < page.index("kept &lt;b&gt;")
        assert "3 lines, 57 944 left out" in page


def test_log_is_filtered_by_level_and_attempt(client, queue, trigger):
    job_id = trigger()
    queue.write_logs(
        [
            LogEntry(UUID(job_id), 1, 0.0, "INFO", "stdout", "first"),
            LogEntry(UUID(job_id), 2, 0.0, "INFO", "log", "second"),
            LogEntry(UUID(job_id), 2, 0.0, "CRITICAL", "log", "third"),
        ]
    )

    def rows(query):
        page = client.get(f"/jobs/{job_id}/log?{query}").text
        return re.findall(r"<td>(\w+)</td><td>(\d)</td><td>(\w+)</td>", page)

    assert rows("") == [("stdout", "1", "first"), ("info", "2", "second"), ("critical", "2", "third")]
    assert rows("level=WARNING") == [("critical", "2", "third")]
    assert rows("attempt=1") == [("stdout", "1", "first")]
    assert rows("attempt=&level=&search=SEC") == [("info", "2", "second")]
    page = client.get(f"/jobs/{job_id}/log?attempt=2&level=ERROR").text
    assert f'href="/api/v1/jobs/{job_id}/log.txt?level=ERROR&amp;attempt=2"' in page
    assert client.get(f"/jobs/{job_id}/log?attempt=two").status_code == 400


def test_link_to_a_line_opens_the_page_that_has_it(client, queue, trigger):
    job_id = trigger()
    queue.write_logs([LogEntry(UUID(job_id), 1, 0.0, "INFO", "log", f"line {n}") for n in range(700)])

    page = client.get(f"/jobs/{job_id}/log?after=0").text
    link = re.findall(r'href="(/jobs/[^"]*)#(L\d+)"', page)[450]

    linked = client.get(link[0]).text
    assert f'id="{link[1]}"' in linked
    assert "line 450<" in linked
    assert "line 449<" not in linked


def test_error_of_a_job_is_shown_once(client, own_queue_db):  # of the database of the client
    run = own_queue_db.enqueue_and_claim("k", max_attempts=1)
    failed = Settlement(
        Status.FAILED, error="ValueError: no rates", traceback="Traceback\nValueError", error_fingerprint="f"
    )
    own_queue_db.queue.settle([(run, failed)])

    page = client.get(f"/jobs/{run.id}").text

    assert page.count("ValueError: no rates") == 1
    assert "Traceback\nValueError" in page


def test_runs_of_one_attempt_number_are_shown_apart(client, own_queue_db):
    for text in ("of the first", "of the second"):
        run = own_queue_db.enqueue_and_claim() if text == "of the first" else own_queue_db.claim()[0]
        assert run.attempt == 1
        own_queue_db.queue.write_logs([LogEntry(run.id, 1, 0.0, "INFO", "log", text)])
        own_queue_db.release(run)

    page, log = client.get(f"/jobs/{run.id}").text, client.get(f"/jobs/{run.id}/log").text
    lines = client.get(f"/api/v1/jobs/{run.id}/logs").json["lines"]
    text = client.get(f"/api/v1/jobs/{run.id}/log.txt").text

    assert re.findall(r"<h3>([^<]*)</h3>", page) == ["1, run 2", "1"]
    for shown in (page, log):
        assert re.findall(r"<td>(1[^<]*)</td><td>(of [^<]*)<", shown) == [
            ("1", "of the first"),
            ("1, run 2", "of the second"),
        ]
    assert [(line["attempt"], line["run"]) for line in lines] == [(1, 1), (1, 2)]
    assert [" 1, run 2 " in line for line in text.splitlines()] == [False, True]
    links = re.findall(r'log\?attempt=1&amp;after=(\d+)">Log \(1\)', page)
    assert [int(link) + 1 for link in links] == [line["log_id"] for line in reversed(lines)]


@pytest.fixture
def worker(dsn: str, pool: Pool) -> Iterator[None]:
    info = WorkerInfo(uuid4(), "w", "1", ("etl",), ("noop",), 1, unserved_tasks={"train": {"gpu": True}})
    WorkerLiveness(pool).send_heartbeat(info, heartbeat_sec=60)
    yield
    execute_sql(dsn, "TRUNCATE dl_workers")


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("is_deferred", [False, True])
def test_job_of_unknown_task_is_an_error(client, trigger, queue, is_deferred):
    job_id = trigger(task="nop")
    if is_deferred:
        queue.defer_unknown_tasks("etl", ["noop"])

    page = client.get(f"/jobs/{job_id}").text

    (note,) = re.findall(r'<div class="note failed"><p>(.*?)</p>', page)
    assert "the task &#39;nop&#39;; did you mean &#39;noop&#39;?" in note
    assert "Run now" not in page


@pytest.mark.usefixtures("worker")
def test_job_without_a_worker_with_its_labels_is_an_error(client, trigger):
    page = client.get(f"/jobs/{trigger(task='train')}").text

    assert '<div class="note failed"><p>No live worker of queue &#39;etl&#39; has gpu=true' in page


@pytest.mark.usefixtures("worker")
def test_scheduled_job_of_a_known_task_is_calm(client, trigger):

    page = client.get(f"/jobs/{trigger(available_at='2100-01-01T00:00:00Z')}").text

    assert ("Run now" in page, 'class="note failed"' in page) == (True, False)
