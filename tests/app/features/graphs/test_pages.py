"""The pages of graphs, without scripts."""

from __future__ import annotations

import html
import json
import re
from uuid import uuid4

import pytest

from dataloader.app.features.graphs.rows import Graphs, NewGraphJob
from dataloader.app.queue.job import NewJob
from tests.support.databases import execute_sql


@pytest.fixture
def graphs(queue):
    return Graphs(queue.executor)


def job(key, *after):
    return NewGraphJob(key=key, job=NewJob(queue="none", task="noop", lock_key=key), after=after)


def test_graph_page_has_jobs_by_layer_and_acts(client, graphs):
    made = graphs.enqueue(
        [job("load"), job("mart", ("load", "succeeded")), job("alarm", ("load", "failed"))], name="day"
    )

    page = client.get(f"/graphs/{made.graph_id}").text
    assert '<span class="st waiting pill" id="state">waiting</span>' in page
    assert "0 of 3 have ended" in page
    picture = re.search(r'data-graph="([^"]*)"', page)
    assert picture is not None
    drawn = json.loads(html.unescape(picture[1]))
    assert {edge["on"] for edge in drawn["edges"]} == {"succeeded", "failed"}
    assert "Cancel 3 jobs" in page

    assert client.post(f"/graphs/{made.graph_id}/cancel").headers["Location"] == f"/graphs/{made.graph_id}"
    page = client.get(f"/graphs/{made.graph_id}").text
    assert '<span class="st canceled pill" id="state">canceled</span>' in page
    assert "Retry 3 jobs" in page
    assert client.get(f"/graphs/{uuid4()}").status_code == 404


def test_job_page_names_its_neighbours(client, graphs):
    made = graphs.enqueue([job("load"), job("mart", ("load", "ended")), job("report", ("mart", "succeeded"))])

    page = client.get(f"/jobs/{made.jobs['mart']}").text

    before = page.index(f'href="/jobs/{made.jobs["load"]}">noop')
    after = page.index(f'href="/jobs/{made.jobs["report"]}"')
    assert page.index("<h3>After</h3>") < before < page.index("<h3>Before</h3>") < after
    assert "when ended" in page


def test_list_has_open_graphs_first_and_pages(client, graphs):
    _, second, third = (graphs.enqueue([job(f"{n}")], name=f"graph {n}") for n in "abc")
    graphs.cancel(second.graph_id)
    graphs.cancel(third.graph_id)

    page = client.get("/graphs").text
    assert page.index("graph a") < page.index("graph c") < page.index("graph b")
    assert "No graph matches" in client.get("/graphs?name=zzz").text
    assert "graph b" not in client.get(f"/graphs?before={second.graph_id}").text
    assert client.get("/graphs?before=x").status_code == 400


def test_api_lists_graphs_with_their_status(client, graphs):
    ended, opened = graphs.enqueue([job("x")], name="one"), graphs.enqueue([job("y")], name="two")
    graphs.cancel(ended.graph_id)

    listed = client.get("/api/v1/graphs?limit=2").json
    assert [(graph["name"], graph["status"], graph["jobs"], graph["ended"]) for graph in listed["graphs"]] == [
        ("two", "waiting", 1, 0),
        ("one", "canceled", 1, 1),
    ]
    assert listed["next"] == str(min(ended.graph_id, opened.graph_id))
    assert client.get(f"/api/v1/graphs?before={listed['next']}").json == {"graphs": [], "next": None}


def test_bar_of_a_graph_is_as_long_as_what_succeeded(client, graphs, dsn):
    made = graphs.enqueue([job("a"), job("b"), job("c")], name="bad")
    ended = "UPDATE dl_jobs SET status = '{}', finished_at = now(), started_at = now() WHERE job_id = '{}'"
    execute_sql(dsn, ended.format("succeeded", made.jobs["a"]), ended.format("failed", made.jobs["b"]))
    client.post(f"/graphs/{made.graph_id}/cancel")

    (summary,) = graphs.newest(name="bad").graphs
    assert (summary.failed, summary.ended) == (1, 3)
    for path in (f"/graphs/{made.graph_id}", "/graphs?name=bad"):
        assert re.findall(r'<progress class="bar failed" max="3" value="(\d)"', client.get(path).text) == ["1"]


def set_times(dsn, job_id, status, started, finished=None):
    """`started` and `finished` in minutes before now; the job and its graph were created two hours ago."""
    ended = "NULL" if finished is None else f"now() - interval '{finished} min'"
    started = "NULL" if started is None else f"now() - interval '{started} min'"
    execute_sql(
        dsn,
        f"UPDATE dl_jobs SET status = '{status}', created_at = now() - interval '2 h',"
        f" available_at = now() - interval '2 h', started_at = {started}, finished_at = {ended}"
        f" WHERE job_id = '{job_id}'",
    )


def add_run(dsn, task, n, ran_sec, outcome="succeeded"):
    execute_sql(
        dsn,
        "INSERT INTO dl_recent_runs (task, event_id, job_id, queue, ended_at, outcome, attempt, ran_sec)"
        f" VALUES ('{task}', {n}, dl_new_id(), 'none', now(), '{outcome}', 1, {ran_sec})",
    )


def legend_of(page):
    (legend,) = re.findall(r'<ul class="legend">(.*?)</ul>', page, re.S)
    return re.findall(r"<li>(?:<span[^>]*>)?([^<:]*)", legend)


def test_legend_names_only_what_the_picture_shows(client, graphs, dsn):
    made = graphs.enqueue([job("load"), job("mart", ("load", "succeeded"))])
    assert legend_of(client.get(f"/graphs/{made.graph_id}").text) == ["ready", "waiting"]

    set_times(dsn, made.jobs["load"], "succeeded", 60, 30)
    assert legend_of(client.get(f"/graphs/{made.graph_id}").text)[:2] == ["ready", "succeeded"]
    assert legend_of(client.get(f"/graphs/{made.graph_id}").text)[2:] == ["bold"]

    made = graphs.enqueue([job("a"), job("alarm", ("a", "failed")), job("end", ("a", "ended"))])
    assert legend_of(client.get(f"/graphs/{made.graph_id}").text) == ["ready", "waiting", "dotted", "long dashes"]


def test_queue_time_of_a_job_begins_when_its_parents_have_ended(client, graphs, dsn):
    made = graphs.enqueue([job("load"), job("mart", ("load", "succeeded")), job("report", ("mart", "succeeded"))])
    set_times(dsn, made.jobs["load"], "succeeded", 115, 60)
    set_times(dsn, made.jobs["mart"], "running", 53)

    page = client.get(f"/graphs/{made.graph_id}").text
    assert re.findall(r'data-l="Queue time">([^<]*)', page) == ["5 min", "7 min", ""]


def test_remaining_time_follows_the_usual_durations(client, graphs, dsn):
    tasks = {"load": "load.a", "mart": "mart.b", "alarm": "alarm.c"}
    after = {"load": (), "mart": (("load", "succeeded"),), "alarm": (("load", "failed"),)}
    made = graphs.enqueue([
        NewGraphJob(key=key, job=NewJob(queue="none", task=task, lock_key=key), after=after[key])
        for key, task in tasks.items()
    ])  # fmt: skip
    path = f"/graphs/{made.graph_id}"
    assert " left" not in client.get(path).text

    for n, seconds in enumerate((60, 1200, 1800)):
        add_run(dsn, "load.a", n, seconds)
    add_run(dsn, "load.a", 9, 5, "failed")
    add_run(dsn, "alarm.c", 1, 9000)
    assert "at least <span data-counting>20 min</span> left" in client.get(path).text

    add_run(dsn, "mart.b", 1, 600)
    assert "about <span data-counting>30 min</span> left" in client.get(path).text
    set_times(dsn, made.jobs["load"], "running", 15)
    assert re.search(r"about <span data-counting>1(5 min|4 min 5\d s)</span> left", client.get(path).text)
    set_times(dsn, made.jobs["load"], "succeeded", 15, 5)
    set_times(dsn, made.jobs["mart"], "running", 30)
    assert "longer than its tasks usually take" in client.get(path).text
