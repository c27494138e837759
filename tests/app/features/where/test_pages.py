"""The page of where a job is, and its part of the job's page."""

from __future__ import annotations

import re
from uuid import uuid4

from dataloader.app.queue.job import Status
from dataloader.pipelines.contract import Pipelines, load_tasks
from tests.app.features.where.conftest import WhereFixture
from tests.app.features.where.test_sessions import UPDATE, is_blocked, open_transaction


def test_page_shows_stack_sessions_and_the_root(where: WhereFixture, target_dsn: str):
    where.targets["warehouse"] = target_dsn
    with open_transaction(target_dsn, UPDATE):
        job_id = where.start("query", statement=UPDATE, target="warehouse")
        where.locate_until(job_id, is_blocked)
        page = where.client.get(f"/jobs/{job_id}/where").text
        refreshed = where.client.get(f"/jobs/{job_id}/where", headers={"HX-Request": "true"}).text

    assert re.search(
        r"<b>query in support/where_tasks\.py:\d+: a statement in target &#39;warehouse&#39; has waited ", page
    )
    assert re.search(r'<li><b>query</b> <span class="muted">.*where_tasks\.py:\d+</span></li>', page)
    assert re.search(r"<summary>\d+ frames of dataloader: ", page)
    assert "never shown" not in page
    assert f"<code>{UPDATE}</code>" in page
    assert "<b>nothing: the root</b>" in page
    assert "<html" not in refreshed
    assert 'id="where-now"' in refreshed


def test_page_shows_the_processes_of_a_task(where: WhereFixture):
    tasks = Pipelines()
    command = {"command": ["sh", "-c", f"while [ ! -e '{where.release_file}' ]; do sleep 0.05; done"]}
    assert load_tasks((), {"program": command}, known_tasks=tasks) == {}
    job_id = where.start("program", tasks)
    where.locate_until(job_id, lambda found: found["processes"])

    page = where.client.get(f"/jobs/{job_id}/where").text

    assert re.search(r'<th scope="row" class="mono">sh \d+</th>', page)
    assert "Stack of" not in page


def test_page_of_a_job_that_does_not_run_says_so(where: WhereFixture):
    job_id = where.pools.add_job("stay")

    page = where.client.get(f"/jobs/{job_id}/where").text

    assert "<b>The job has not started yet.</b>" in page
    assert where.client.get(f"/jobs/{uuid4()}/where").status_code == 404


def test_page_of_a_running_job_has_the_panel(where: WhereFixture):
    job_id = where.start("stay")

    running = where.client.get(f"/jobs/{job_id}").text
    where.release()
    where.pools.wait_for_status(job_id, Status.SUCCEEDED)
    ended = where.client.get(f"/jobs/{job_id}").text

    panel = re.search(r'<details class="fold" id="where".*?</details>', running, re.DOTALL)
    assert panel is not None
    assert f'data-panel="/jobs/{job_id}/where"' in panel[0]
    assert f'<a href="/jobs/{job_id}/where">' in panel[0]
    assert f'data-panel="/jobs/{job_id}/where"' not in ended
    assert where.pools.queue_fixture.fetch_row("SELECT count(*) FROM dl_where") == 0  # a closed panel asks nothing


def test_odd_names_are_escaped(where: WhereFixture):
    job_id = where.start("odd")
    where.locate_at(job_id, "wait_for")

    page = where.client.get(f"/jobs/{job_id}/where").text

    assert "q\N{REPLACEMENT CHARACTER}&lt;b&gt;" in page
    assert "<b><b>" not in page
