"""Each way of making a job refuses the same, in the same words. Where it cannot, the table says why."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import date
from html import unescape
from typing import Any
from uuid import UUID

import psycopg2
import pytest
from click.testing import CliRunner, Result
from pydantic import BaseModel

import dataloader
from dataloader import Client, Refused
from dataloader.app.cli.command import cli
from dataloader.app.db.statements import Executor
from dataloader.app.errors import IdempotencyConflict, InvalidJob
from dataloader.app.features.graphs.rows import Graphs
from dataloader.app.http.app import create_app
from dataloader.app.http.auth.api_keys import ApiKeys, NewApiKey, Scope
from dataloader.app.http.options import WebOptions
from dataloader.app.queue.job import NewJob
from dataloader.app.queue.jobs import JobQueue
from tests.support.api_server import serving_app
from tests.support.databases import execute_sql
from tests.support.real_service import query_rows

OTHER, ORIGINAL = UUID(int=7), UUID(int=8)
JOB: dict[str, Any] = {"queue": "etl", "task": "rates", "lock_key": "k", "args": {"day": "2026-11-22"}}
WITHOUT_CALLER = "the caller of HTTP has a key; others have the rights of their database role"
OF_SERVICE = "the service made the work that leads to the job, which is not lost while its queue is being drained"
NOT_KNOWN = "the process may not know the task; a wrong job fails in its first attempt"
TABLES = "dl_jobs, dl_schedules, dl_backfills, dl_graphs, dl_limits, dl_queues, dl_api_keys"


Answer = tuple[str, str, str]  # code, field, message


@dataclass(frozen=True)
class Refusal:
    """A job that is refused: what its request has, what there is before, and the answer."""

    fields: Mapping[str, Any]
    code: str
    message: str
    before: str = ""  # SQL
    at: str = ""  # the field
    not_by: Mapping[str, str] = field(default_factory=dict)  # why a way has no such refusal


OF_SCHEDULE = "a schedule makes no job before its time; its jobs are those of the service"
NOT_MADE = "there is no schedule with it, which is refused in the same words"
NO_FIELD = "has no field for it"
OUTSIDE_HTTP = ("sql", "connection", "enqueue", "fan-out")
GRAPHS = ("graph", "client, graph")
SCHEDULES = ("schedule", "run of a schedule")
REFUSALS = {
    "queue that is being drained": Refusal(
        {}, "queue_draining", "queue 'etl' is being drained and takes no new jobs: moving",
        before="INSERT INTO dl_queues (queue, state, note) VALUES ('etl', 'draining', 'moving')",
        not_by=dict.fromkeys(OUTSIDE_HTTP, OF_SERVICE) | {"schedule": OF_SCHEDULE},
    ),
    "queue outside the key's limits": Refusal(
        {"queue": "other"}, "outside_key_limits", "this key may not trigger the task 'rates' in the queue 'other'",
        not_by=dict.fromkeys(OUTSIDE_HTTP, WITHOUT_CALLER)
        | dict.fromkeys(
            ("clone", "clone form", *SCHEDULES, "backfill"), "a key that may do so has no limits"
        ),
    ),
    "args that the task does not take": Refusal(
        {"args": {"day": "tomorrow"}}, "invalid_request", "Input should be a valid date or datetime", at="args.day",
        not_by=dict.fromkeys(OUTSIDE_HTTP, NOT_KNOWN) | {"run of a schedule": NOT_MADE},
    ),
    "result of a job that is no parent": Refusal(
        {"args": {"day": {"$result": "extract"}}}, "invalid_request",
        "refers to the result of a job that this one does not wait for; name its parents in `after`", at="args.day",
        not_by=dict.fromkeys(OUTSIDE_HTTP, NOT_KNOWN) | {"run of a schedule": NOT_MADE},
    ),
    "parent that does not exist": Refusal(
        {"after": [{"job_id": str(OTHER), "on": "succeeded"}]}, "invalid_request",
        f"[0].job_id: there is no job {OTHER}", at="after",
        not_by=dict.fromkeys(("clone", "clone form"), "a clone waits for no job")
        | dict.fromkeys(GRAPHS, "names parents by their keys")
        | {"fan-out": "names no parents"}
        | dict.fromkeys((*SCHEDULES, "backfill", "command"), NO_FIELD),
    ),
    "weight above its limit": Refusal(
        {"limits": {"api": 3}}, "invalid_request", 'asks for 3 of "api", which has 2', at="limits",
        before="INSERT INTO dl_limits (name, concurrency) VALUES ('api', 2)",
        not_by={"schedule": "its limit may be another one when it fires", "backfill": NO_FIELD},
    ),
    "idempotency key of another request": Refusal(
        {"idempotency_key": "once"}, "idempotency_conflict",
        f"the key 'once' already belongs to job {OTHER}, which has another queue, task or args",
        before="INSERT INTO dl_jobs (job_id, queue, task, lock_key, idempotency_key)"
        f" VALUES ('{OTHER}', 'etl', 'other', 'x', 'once')",
        not_by=dict.fromkeys(GRAPHS, "its jobs have no keys") | {"sql": "an outcome has no text"}
        | dict.fromkeys(("clone form", *SCHEDULES, "backfill"), NO_FIELD),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Site:
    client: Any
    executor: Executor
    dsn: str
    url: str
    env: dict[str, str]  # of commands

    def limit_caller(self) -> None:
        key = NewApiKey(
            name="caller", scopes=frozenset({Scope.READ, Scope.TRIGGER}), created_by="test",
            tasks=frozenset({"rates"}), queues=frozenset({"etl"}),
        )  # fmt: skip
        self.env["DL_API_KEY"] = ApiKeys(self.executor).create(key)[1]
        self.client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {self.env['DL_API_KEY']}"

    def caught(self, send: Callable[[Client], Any]) -> Answer:
        """The refusal of a request that a client sends."""
        with pytest.raises(Refused) as caught:
            send(Client(self.url, key=self.env.get("DL_API_KEY")))
        errors = [vars(error) for error in caught.value.errors]
        return _answer({"code": caught.value.code, "detail": caught.value.detail, "errors": errors}, "jobs[0].")

    def run(self, *args: str, lines: str = "") -> Result:
        return CliRunner().invoke(cli, ["trigger", *args, "--json"], env={"DL_URL": self.url, **self.env}, input=lines)

    def post(self, path: str, body: Any) -> Any:
        return self.client.post(f"/api/v1{path}", json=body)

    def insert_original(self, fields: Mapping[str, Any]) -> None:
        """A job that was made before whatever refuses its clone now."""
        limits = f"'{json.dumps(fields['limits'])}'" if "limits" in fields else "NULL"
        execute_sql(
            self.dsn,
            "INSERT INTO dl_jobs (job_id, queue, task, lock_key, args, limits) VALUES"
            f" ('{ORIGINAL}', 'etl', 'rates', 'k', '{{\"day\": \"2026-11-22\"}}', {limits})",
        )


def _answer(problem: Mapping[str, Any], prefix: str = "") -> Answer:
    errors = problem["errors"] if problem.get("errors") else [{"field": "", "message": problem["detail"]}]
    return problem["code"], errors[0]["field"].removeprefix(prefix), errors[0]["message"]


def by_trigger(site: Site, fields: Mapping[str, Any]) -> Answer:
    return _answer(site.post("/jobs/trigger", {**JOB, **fields}).json)


def by_batch(site: Site, fields: Mapping[str, Any]) -> Answer:
    (item,) = site.post("/jobs/batch", {"jobs": [{**JOB, **fields}]}).json["items"]
    return _answer(item["problem"])


def by_graph(site: Site, fields: Mapping[str, Any]) -> Answer:
    return _answer(site.post("/graphs", {"jobs": [{**JOB, **fields, "key": "a"}]}).json, "jobs[0].")


def by_client(site: Site, fields: Mapping[str, Any]) -> Answer:
    job = {**JOB, **fields}
    task, args = job.pop("task"), job.pop("args")
    return site.caught(lambda client: client.trigger(task, args, **job))


def by_client_batch(site: Site, fields: Mapping[str, Any]) -> Answer:
    (item,) = Client(site.url, key=site.env.get("DL_API_KEY")).trigger_many([{**JOB, **fields}])["items"]
    return _answer(item["problem"])


def by_client_graph(site: Site, fields: Mapping[str, Any]) -> Answer:
    return site.caught(lambda client: client.trigger_graph([{**JOB, **fields, "key": "a"}]))


def by_command(site: Site, fields: Mapping[str, Any]) -> Answer:
    """As `dataloader trigger rates` does."""
    job = {**JOB, **fields}
    task = job.pop("task")
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in job.items()}
    options = [text for name, value in texts.items() for text in (f"--{name.replace('_', '-')}", value)]
    result = site.run(task, *options)
    assert result.exit_code == 4, result.output
    return _answer(json.loads(result.stderr))


def by_import(site: Site, fields: Mapping[str, Any]) -> Answer:
    """As `dataloader trigger --from FILE` does with each line."""
    result = site.run("--from", "-", lines=json.dumps({**JOB, **fields}))
    assert result.exit_code == 4, result.output
    (line,) = json.loads(result.stdout)["rejected"]
    return _answer(line)


def _changes(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != "limits"}


def by_clone(site: Site, fields: Mapping[str, Any]) -> Answer:
    return _answer(site.post(f"/jobs/{ORIGINAL}/clone", _changes(fields)).json)


def by_clone_form(site: Site, fields: Mapping[str, Any]) -> str:
    return _submit(site, f"/jobs/{ORIGINAL}/clone", {"lock_key": "k", **_changes(fields)})


def by_start_form(site: Site, fields: Mapping[str, Any]) -> str:
    of_form = {"queue": fields.get("queue", "etl"), "args": fields.get("args", JOB["args"])}
    more = {name: value for name, value in fields.items() if name not in of_form}
    return _submit(site, "/tasks/rates", {**of_form, "lock_key": "k", "more": more})


def _submit(site: Site, path: str, values: Mapping[str, Any]) -> str:
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
    response = site.client.post(path, data=texts)
    assert response.status_code in (409, 422), response.text
    assert response.mimetype == "text/html"
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", response.text)).split())


def by_schedule(site: Site, fields: Mapping[str, Any]) -> Answer:
    return _answer(site.post("/schedules", {**_schedule("new"), **fields}).json)


def by_run_of_schedule(site: Site, fields: Mapping[str, Any]) -> Answer:
    assert site.post("/schedules", {**_schedule("original"), **fields}).status_code == 200
    return _answer(site.post("/schedules/original/run", {}).json)


def by_backfill(site: Site, fields: Mapping[str, Any]) -> Answer:
    slices = {"from": "2026-11-01", "to": "2026-11-02", "unit": "day"}
    answer = site.post("/backfills", {"task": "rates", "slices": slices, **_template(), **fields})
    code, at, message = _answer(answer.json)
    return code, at, message.removeprefix("of the slice 2026-11-02: ")


def _template() -> dict[str, Any]:
    return {name: JOB[name] for name in ("queue", "args", "lock_key")}


def _schedule(name: str) -> dict[str, Any]:
    return {"name": name, "expression": "0 6 * * *", "task": "rates", **_template()}


def by_sql(site: Site, fields: Mapping[str, Any]) -> Answer:
    request = json.dumps([{**JOB, **fields}]).replace("'", "''")
    ((at, detail),) = query_rows(site.dsn, f"SELECT field, detail FROM dl_enqueue_many('{request}')")
    return "invalid_request", at, detail


def by_connection(site: Site, fields: Mapping[str, Any]) -> Answer:
    """As `dataloader.enqueue` does in the caller's transaction."""
    connection = psycopg2.connect(site.dsn)
    with pytest.raises((psycopg2.DataError, psycopg2.IntegrityError)) as caught, closing(connection):
        dataloader.enqueue(connection, **{**JOB, **fields})
    message = caught.value.diag.message_primary or ""
    if isinstance(caught.value, psycopg2.IntegrityError):
        return "idempotency_conflict", "", message
    at, _, detail = message.partition(" ")
    return "invalid_request", at, detail


def _caught(enqueue: Callable[[NewJob], Any], fields: Mapping[str, Any]) -> Answer:
    try:
        enqueue(NewJob(**{**JOB, **fields}))
    except InvalidJob as error:
        return "invalid_request", error.field, str(error).removeprefix(f"{error.field}: ")
    except IdempotencyConflict as error:
        return "idempotency_conflict", "", str(error)
    pytest.fail("made a job")


def by_enqueue(site: Site, fields: Mapping[str, Any]) -> Answer:
    """As `ctx.enqueue` does."""
    return _caught(JobQueue(site.executor).enqueue, fields)


def by_fan_out(site: Site, fields: Mapping[str, Any]) -> Answer:
    then = NewJob(**{**JOB, "lock_key": "then"})
    return _caught(lambda job: Graphs(site.executor).fan_out([job], then, on="succeeded", need="all"), fields)


WAYS: Mapping[str, Callable[[Site, Mapping[str, Any]], Answer | str]] = {
    "trigger": by_trigger, "batch": by_batch, "graph": by_graph, "client": by_client, "client, batch": by_client_batch,
    "client, graph": by_client_graph, "command": by_command, "import": by_import,
    "clone": by_clone, "clone form": by_clone_form,
    "start form": by_start_form, "schedule": by_schedule, "run of a schedule": by_run_of_schedule,
    "backfill": by_backfill, "sql": by_sql, "connection": by_connection, "enqueue": by_enqueue,
    "fan-out": by_fan_out,
}  # fmt: skip


class Rates(BaseModel):
    day: date


@pytest.fixture
def site(queue, pipelines, pool, dsn):
    @pipelines.register("rates", args=Rates)
    def rates(args, ctx):
        """Rates of the bank."""

    execute_sql(dsn, f"TRUNCATE {TABLES} CASCADE")
    app = create_app(queue, pipelines, WebOptions(version="1", queues=("etl",)), pool=pool, keys=ApiKeys(pool))
    with serving_app(app) as url:
        yield Site(app.test_client(), pool, dsn, url, {})
    execute_sql(dsn, f"TRUNCATE {TABLES} CASCADE")


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_each_way_refuses_the_same(refusal: Refusal, site: Site):
    site.insert_original(refusal.fields)
    if refusal.code == "outside_key_limits":
        site.limit_caller()
    execute_sql(site.dsn, refusal.before or "SELECT")
    job_ids = query_rows(site.dsn, "SELECT job_id FROM dl_jobs ORDER BY 1")
    answers = {}
    for way, perform in WAYS.items():
        if way not in refusal.not_by:
            answers[way] = perform(site, refusal.fields)

    for way, answer in answers.items():
        if isinstance(answer, str):
            assert refusal.message in answer, way
        else:
            assert answer[:2] == (refusal.code, refusal.at), way
            assert refusal.message in answer[2], way
    assert len({answer[2] for answer in answers.values() if not isinstance(answer, str)}) == 1
    assert query_rows(site.dsn, "SELECT job_id FROM dl_jobs ORDER BY 1") == job_ids
