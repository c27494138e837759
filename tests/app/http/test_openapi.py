"""The document agrees with the service, and the service with the document."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from dataloader.app.http.__main__ import document_text
from dataloader.app.http.app import OPERATIONS
from dataloader.app.http.jobs.trigger_request import trigger_request_model
from dataloader.app.http.openapi import route_template
from dataloader.app.http.options import WebOptions
from dataloader.app.http.problems import ProblemCode
from dataloader.pipelines.contract import Pipelines
from tests.support.api_schema import DescribedApp

ROOT = Path(__file__).parents[3]


def test_saved_openapi_document_is_current():
    written = (ROOT / "docs" / "openapi.json").read_text(encoding="utf-8")

    assert written == document_text(), "run `make generated`"


def test_only_ids_are_uuids_in_the_address_of_a_request(client):
    """A generated client refuses the name of a schedule that is to be a UUID."""
    parameters = [
        parameter
        for path in client.get("/openapi.json").json["paths"].values()
        for operation in path.values()
        for parameter in operation.get("parameters", ())
        if parameter.get("in") == "path"
    ]
    uuids = {parameter["name"] for parameter in parameters if parameter["schema"].get("format") == "uuid"}

    assert uuids == {parameter["name"] for parameter in parameters if parameter["name"].endswith("_id")} - {"key_id"}


def test_the_document_is_valid_openapi_3_1(client):
    errors = [str(error) for error in OPENAPI_31_VALIDATOR.iter_errors(client.get("/openapi.json").json)]

    assert errors == []


def test_no_two_schemas_share_a_name(client):
    """Of two classes with one name the schemas get the path of their module, and generated clients refuse them."""
    schemas = client.get("/openapi.json").json["components"]["schemas"]

    assert [name for name in schemas if "__" in name] == []
    titles = [schema.get("title", name) for name, schema in schemas.items()]
    assert sorted({title for title in titles if titles.count(title) > 1}) == []


def test_document_has_the_routes_of_programs_and_no_page(client):
    routes = {
        (re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule), method)
        for rule in client.application.url_map.iter_rules()
        for method in rule.methods - {"HEAD", "OPTIONS"}
    }
    operations = {
        (path, method.upper()): operation
        for path, methods in client.get("/openapi.json").json["paths"].items()
        for method, operation in methods.items()
    }
    of_programs = {(path, method) for path, method in routes if path.startswith("/api/")}
    of_programs |= {(path, "GET") for path in ("/health", "/info", "/status", "/metrics", "/openapi.json")}
    of_programs |= {("/health/" + probe, "GET") for probe in ("started", "ready", "consuming")}

    assert set(operations) == of_programs | {("/audit/export", "GET")}
    assert [key for key, it in operations.items() if "text/html" in it["responses"]["200"]["content"]] == []


def test_every_code_is_described_with_its_status(client):
    document = client.get("/openapi.json").json
    elsewhere = {
        ProblemCode.NOT_FOUND,
        ProblemCode.METHOD_NOT_ALLOWED,
        ProblemCode.HTTP_ERROR,
        ProblemCode.OVERLOADED,
    }  # of no route in particular
    listed = {
        (int(status), code)
        for methods in document["paths"].values()
        for operation in methods.values()
        for status, response in operation["responses"].items()
        for code in re.findall(r"`(\w+)`", response.get("description", ""))
    }

    assert {(code.status, code.text) for code in set(ProblemCode) - elsewhere} <= listed


def test_every_problem_is_the_shared_response_of_its_status(client):
    document = client.get("/openapi.json").json
    responses = [
        (status, response)
        for methods in document["paths"].values()
        for operation in methods.values()
        for status, response in operation["responses"].items()
        if int(status) >= 400
    ]

    assert len(responses) > 500
    assert [response for _, response in responses if "$ref" not in response] == []
    assert len({(status, response["$ref"]) for status, response in responses}) == len(
        document["components"]["responses"]
    )
    for response in document["components"]["responses"].values():
        (content,) = response["content"].values()
        assert content["schema"] == {"$ref": "#/components/schemas/Problem"}


def test_requests_and_responses_have_valid_examples(client):
    document = client.get("/openapi.json").json
    contents = [
        (operation["operationId"], content["application/json"])
        for methods in document["paths"].values()
        for operation in methods.values()
        for content in (operation.get("requestBody", {}).get("content", {}), operation["responses"]["200"]["content"])
        if "application/json" in content and operation["operationId"] != "get_openapi"
    ]
    wrong = [
        (name, error.message)
        for name, content in contents
        for error in Draft202012Validator({**content["schema"], "components": document["components"]}).iter_errors(
            content["example"]
        )
    ]

    assert len(contents) > 100
    assert wrong == []


def test_requests_of_the_examples_are_accepted(client):
    """By the models, which check more than their schemas say."""
    paths = client.get("/openapi.json").json["paths"]
    operations = [operation for operation in client.application.extensions[OPERATIONS] if operation.body]
    assert len(operations) > 20

    for operation in operations:
        described = paths[route_template(operation.path)][operation.method.lower()]
        example = described["requestBody"]["content"]["application/json"]["example"]
        assert example, operation.name
        operation.body.model_validate(example)


def test_the_limits_of_the_settings_are_in_the_document(app_without_database):
    client = app_without_database(default_lease_ttl_sec=33, heartbeat_sec=8)

    fields = client.get("/openapi.json").json["components"]["schemas"]["TriggerRequest"]["properties"]

    assert fields["queue"]["maxLength"] == 1000
    assert fields["lease_ttl_sec"]["default"] == 33
    assert fields["lease_ttl_sec"]["minimum"] == 16


def schema_of(client, name):
    """A component's schema with all that it refers to, to validate requests by."""
    document = client.get("/openapi.json").json
    return Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": document["components"]})


A_JOB = {"queue": "q", "task": "noop", "lock_key": "k"}
CHANGES = {
    "JobEditRequest": ({"priority": 1}, {}),
    "QueueSettingsEdit": ({"queue": "q", "note": None}, {"queue": "q"}),
    "AlertRuleEdit": ({"active": True}, {"active": None}),
    "WebhookEdit": ({"active": True}, {"active": None}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_schema_of_a_change_wants_a_field(client, name):
    something, nothing = CHANGES[name]

    assert schema_of(client, name).is_valid(something)
    assert not schema_of(client, name).is_valid(nothing)


def test_schema_of_a_trigger_wants_queue_and_key(client):
    for field in ("queue", "task", "lock_key"):
        assert not schema_of(client, "TriggerRequest").is_valid({**A_JOB, field: "a\0b"})
        assert not schema_of(client, "TriggerRequest").is_valid({**A_JOB, field: " \n"})
        assert not schema_of(client, "TriggerRequest").is_valid({it: A_JOB[it] for it in A_JOB if it != field})

    assert schema_of(client, "TriggerRequest").is_valid(A_JOB)


def test_schema_of_a_trigger_knows_tasks_with_defaults():
    tasks = Pipelines()
    tasks.register("keyed", queue="q", lock_key="k")(lambda ctx: None)
    tasks.register("bare")(lambda ctx: None)
    schema = trigger_request_model(WebOptions(version="1"), tasks).model_json_schema()
    trigger = Draft202012Validator(schema)

    assert trigger.is_valid({"task": "keyed"})
    assert not trigger.is_valid({"task": "bare"})
    assert trigger.is_valid({**A_JOB, "task": "bare"})


def test_texts_of_requests_hold_no_nul_in_the_document(client):
    """Of bodies and of queries: every text has a pattern that NUL does not fit."""
    document = client.get("/openapi.json").json
    schemas = document["components"]["schemas"]
    bodies = [
        content["schema"]["$ref"].rsplit("/", 1)[-1]
        for methods in document["paths"].values()
        for operation in methods.values()
        for content in operation.get("requestBody", {}).get("content", {}).values()
    ]
    queries = [
        parameter["schema"]
        for methods in document["paths"].values()
        for operation in methods.values()
        for parameter in operation.get("parameters", ())
        if parameter["in"] == "query"
    ]
    found = list(texts([schemas[name]["properties"] for name in set(bodies)])) + list(texts(queries))

    assert len(found) > 50
    assert [text for text in found if re.search(text.get("pattern", ""), "a\0b")] == []


def texts(schema):
    """The schemas of plain texts inside another."""
    if isinstance(schema, dict):
        if schema.get("type") == "string" and not {"format", "enum", "const"} & set(schema):
            yield schema
        for value in schema.values():
            yield from texts(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from texts(value)


def test_every_operation_documents_early_rejections(client):
    document = client.get("/openapi.json").json
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]

    assert all({"408", "414", "431"} <= set(operation["responses"]) for operation in operations)
    for name in ("RequestTimeout", "UriTooLong", "HeadersTooLarge"):
        assert "application/problem+json" in document["components"]["responses"][name]["content"]


def test_every_path_answers_options_as_the_document_has_it(client):
    document = client.get("/openapi.json").json
    assert "`OPTIONS`" in document["info"]["description"]

    for path, methods in document["paths"].items():
        answer = client.options(re.sub(r"\{\w+\}", "00000000-0000-0000-0000-000000000000", path))
        known = {method.upper() for method in methods} | {"OPTIONS"} | ({"HEAD"} if "get" in methods else set())
        assert answer.status_code == 200, path
        assert known <= set(answer.allow), path


@pytest.mark.timeout(900)  # every operation there is
@pytest.mark.full
def test_generated_requests_are_answered_as_described(client):
    operations = DescribedApp(client.application).operations()
    assert len(operations) > 150

    for operation in operations:
        if operation.definition.raw["operationId"] == "stream_events":
            continue  # a stream does not end; tests/app/features/jobs/test_event_routes.py has it
        honest = [not_a_server_error] if operation.path.startswith("/health/") else []  # 503: no worker is here
        _try_out(operation.as_strategy(generation_mode=GenerationMode.POSITIVE), honest)
        if operation.body or operation.query:
            _try_out(operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))


def _try_out(requests, excluded=()):
    """Some valid requests and some that are not, always the same ones: none may be a 500 or undescribed.

    More of them, and against all checks, are in tests/hostile/test_document.py.
    """

    @settings(max_examples=3, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(case=requests)
    def answered_as_described(case):
        # What no JSON Schema can say (no NUL, no number beyond a column's) is refused though it is valid.
        # Without any key this machine is let in; tests/app/http/auth/test_guard.py has keys.
        case.call_and_validate(excluded_checks=[positive_data_acceptance, ignored_auth, *excluded])

    answered_as_described()
