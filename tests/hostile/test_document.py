"""Whatever the OpenAPI document holds at run time is tried, by requests made from it: right ones and wrong ones.

`DL_HOSTILE=long` tries several thousand, in the phases that look at edges and at what one answer says of the next.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest
from flask import Flask
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance

from dataloader.app.db.pool import Pool
from dataloader.app.http.app import create_app
from dataloader.app.http.options import WebOptions
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import Pipelines
from tests.support import Databases
from tests.support.api_schema import DescribedApp

A_JOB = {"queue": "q", "task": "noop", "lock_key": "k"}
# What no JSON Schema can say (no NUL, no number beyond a column's) is refused though it is valid; and there are no keys
# here: the loopback is open without them. Of server errors a 503 may be honest; the others are counted below.
EXCLUDED_CHECKS = [positive_data_acceptance, ignored_auth, not_a_server_error]
ALLOWED_SERVER_ERRORS = {503}
EARLY_REJECTIONS = {408, 414, 431}  # any operation may have them; their descriptions list no codes


@pytest.fixture(scope="module")
def service(databases: Databases) -> Iterator[Flask]:
    closing = Event()
    closing.set()
    with databases.fresh() as dsn:
        tasks = Pipelines()
        tasks.register("noop")(len)
        pool = Pool(dsn, size=2, overflow=2)
        yield create_app(JobQueue(pool), tasks, WebOptions(version="1.0.0"), pool=pool, closing=closing)
        pool.close()


@pytest.mark.timeout(3600)  # of the long run; the short one takes seconds
def test_every_operation_responds_as_documented(service: Flask, long_run: bool):
    """Every check that schemathesis has, on every operation there is."""
    client: Any = service.test_client()
    known = client.post("/api/v1/jobs/trigger", json=A_JOB).json["job_id"]

    described = DescribedApp(service)
    operations = described.operations()
    assert len(operations) > 150
    answers: Counter[int] = Counter()
    broken: Counter[str] = Counter()
    otherwise: dict[str, str] = {}
    modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)

    for operation in operations:
        for mode in modes:
            if mode is GenerationMode.NEGATIVE and not (operation.body or operation.query or operation.path_parameters):
                continue
            requests = operation.as_strategy(generation_mode=mode)

            @settings(
                max_examples=120 if long_run else 4,
                derandomize=not long_run,
                database=None,
                phases=[Phase.explicit, Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=requests)
            def answers_as_described(case):
                positive = case.meta.generation.mode is GenerationMode.POSITIVE
                if positive and "job_id" in (case.path_parameters or ()) and hash(str(case.query)) % 2:
                    case.path_parameters["job_id"] = known
                answer = case.call()
                answers[answer.status_code] += 1
                if answer.status_code >= 500 and answer.status_code not in ALLOWED_SERVER_ERRORS:
                    broken[f"{answer.status_code} of {case.operation.label}"] += 1
                case.validate_response(answer, excluded_checks=EXCLUDED_CHECKS)
                if answer.status_code not in EARLY_REJECTIONS:
                    assert described.undeclared_code(case.operation, answer) is None

            try:
                answers_as_described()
            except Exception as wrong:
                otherwise[f"{operation.label}, {mode.value}"] = "".join(traceback.format_exception(wrong))[-3000:]

    output = {f"{kind}xx": sum(n for status, n in answers.items() if status // 100 == kind) for kind in (2, 3, 4, 5)}
    print(f"\n{answers.total()} cases of {len(operations)} operations: {output}; {dict(sorted(answers.items()))}")  # noqa: T201 - the figures are wanted
    assert otherwise == {}, "\n\n".join(f"── {where}\n{why}" for where, why in otherwise.items())
    assert answers.total() > (5_000 if long_run else 150)
    assert not broken
    assert client.get("/health").status_code == 200


def test_response_values_work_in_follow_up_requests(service: Flask):
    """A job made from the document's own example goes through each operation that takes a job."""
    client: Any = service.test_client()
    document = client.get("/openapi.json").json
    job_id = client.post("/api/v1/jobs/trigger", json=A_JOB).json["job_id"]
    of_jobs = [
        (method, path)
        for path, methods in document["paths"].items()
        for method in methods
        if path.count("{") == 1 and "{job_id}" in path and method in ("get", "post")
    ]
    assert len(of_jobs) >= 5

    for method, path in of_jobs:
        answer = client.open(
            path.replace("{job_id}", job_id), method=method.upper(), json={} if method == "post" else None
        )
        assert answer.status_code < 500 or answer.status_code in ALLOWED_SERVER_ERRORS, (method, path, answer.text)
