"""Secrets that args refer to: resolved for one attempt and redacted from all it reports."""

from __future__ import annotations

import base64
import json
import logging
import sys
from pathlib import Path

import pytest

from dataloader.app import log
from dataloader.app.queue.job import Settlement, Status
from dataloader.pipelines.contract import Pipelines, registry
from dataloader.pipelines.job_args import BadReference, Reference, find_references
from dataloader.workers.reports.secrets import (
    NO_REDACTION,
    Redactor,
    SecretStore,
    SecretUnavailable,
    resolve_references,
    variable_name,
)
from tests.support import (
    eventually,
    leaky_tasks,  # noqa: F401 - registers its task
)
from tests.support.claimed_jobs import CapturedLines, attempt_with

SECRET = "s3cr3t/of the+bank"
VAULT = SecretStore({"DL_SECRET_BANK": SECRET})
REFERENCE = {"$secret": "bank"}
FORMS = (SECRET, json.dumps(SECRET)[1:-1], "s3cr3t%2Fof%20the%2Bbank", base64.b64encode(SECRET.encode()).decode())


def run(call, args, *, vault=VAULT, **more):
    known = Pipelines()
    if isinstance(call, list):
        known.command("t", call, **more)
    else:
        known.register("t")(call)
    held = attempt_with(args_text=json.dumps(args), settings={"secret_store": vault})
    return held, held.run(known.get("t"))


def hidden(output: object) -> None:
    text = output if isinstance(output, str) else json.dumps(output, default=str)
    assert not [form for form in FORMS if form in text], text


# ── where they come from ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "variable"),
    [("bank", "DL_SECRET_BANK"), ("crm.api-token", "DL_SECRET_CRM_API_TOKEN"), ("a1", "DL_SECRET_A1")],
)
def test_secret_is_read_from_a_variable(name, variable):
    assert variable_name(name) == variable
    assert SecretStore({variable: "value"}).read(name) == "value"


def test_secret_file_is_read_again_for_each_attempt(tmp_path: Path):
    vault = SecretStore({}, tmp_path)
    (tmp_path / "bank").write_bytes(b"first\r\n")
    assert vault.read("bank") == "first"
    (tmp_path / "bank").write_text("second")
    assert vault.read("bank") == "second"


@pytest.mark.parametrize("content", [b"\xff\xfe\xff\xfe", b"x" * 70_000, b"", b"abc"])
def test_unusable_secret_file_is_refused(tmp_path: Path, content):
    (tmp_path / "bank").write_bytes(content)

    with pytest.raises(SecretUnavailable, match="'bank'"):
        SecretStore({}, tmp_path).read("bank")


def test_missing_secret_names_variable_and_folder(tmp_path: Path):
    with pytest.raises(SecretUnavailable, match=r"no variable DL_SECRET_BANK, and no DL_SECRETS_DIR"):
        SecretStore().read("bank")
    with pytest.raises(SecretUnavailable, match=r"in DL_SECRETS_DIR: No such file"):
        SecretStore({}, tmp_path).read("bank")


@pytest.mark.parametrize(
    "name", ["../etc/passwd", "/etc/passwd", ".hidden", "a/b", "", "x" * 101, "a b", "é", 7, None, ["bank"]]
)
def test_secret_name_cannot_leave_the_folder(name, tmp_path: Path):
    with pytest.raises(BadReference):
        list(find_references({"x": [{"$secret": name}]}))
    assert resolve_references({"x": 1}, VAULT, "t") == ({"x": 1}, NO_REDACTION)
    with pytest.raises(SecretUnavailable, match=r"args: x\[0\]"):
        resolve_references({"x": [{"$secret": name}]}, SecretStore({}, tmp_path), "t")


def test_reference_with_other_keys_is_refused():
    with pytest.raises(BadReference, match="has no other keys"):
        list(find_references({"x": {"$secret": "bank", "more": 1}}))


def test_nested_references_are_found():
    assert list(find_references({"a": [{"b": REFERENCE}, 1], "c": {"d e": REFERENCE}, "$secrets": 1})) == [
        ("a[0].b", Reference("$secret", "bank")), ('c["d e"]', Reference("$secret", "bank")),
    ]  # fmt: skip


# ── what a run shows of them ────────────────────────────────────────────────────────────────────────────────────────


def test_pipeline_gets_the_secret_and_results_are_redacted():
    def leaks(args, ctx):
        assert args["auth"]["password"] == SECRET
        ctx.progress(1, 2, note=f"with {args['auth']['password']}", list=[args["auth"]["password"]])
        ctx.checkpoint({"as": args["auth"]["password"]})
        return {args["auth"]["password"]: [FORMS, 7, None, True, {"n": 1.5}]}

    held, end = run(leaks, {"auth": {"password": REFERENCE}})

    assert isinstance(end, Settlement)
    assert end.status is Status.SUCCEEDED
    hidden([end.result, end.progress, end.checkpoint])
    assert end.result["***"][1:] == [7, None, True, {"n": 1.5}]
    assert held.job.args_text == json.dumps({"auth": {"password": REFERENCE}})


def test_error_and_traceback_are_redacted():
    def fails(args):
        raise RuntimeError(f"https://user:{args['p']}@bank refused {args['p']!r} " + " ".join(FORMS))

    _, end = run(fails, {"p": REFERENCE})

    assert "refused" in (end.error or "")
    hidden(f"{end.error} {end.traceback}")


def test_process_log_is_redacted(caplog):
    def speaks(args, ctx):
        ctx.log.info("have it", value=args["p"])
        logging.getLogger("some.library").warning("trying %s", args["p"])

    run(speaks, {"p": REFERENCE})

    assert log.mask(f"late: {SECRET}") == "late: ***"


def test_missing_secret_fails_the_job_without_retry():
    _, end = run(lambda args: None, {"p": {"$secret": "other"}})

    assert (end.status, end.error) == (
        Status.FAILED,
        "there is no secret 'other': the worker has no variable DL_SECRET_OTHER, and no DL_SECRETS_DIR",
    )


def test_follow_up_gets_the_reference_of_a_secret():
    veil = Redactor({"bank": SECRET})

    assert veil.restore_references({"a": [SECRET], "b": {"c": SECRET}, "d": 1}) == {
        "a": [REFERENCE],
        "b": {"c": REFERENCE},
        "d": 1,
    }
    with pytest.raises(ValueError, match="hand on the reference"):
        veil.restore_references({"header": f"Basic {SECRET}"})


def test_numeric_and_multiline_secrets_are_redacted():
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG\n-----END KEY-----\n"
    veil = Redactor({"pin": "12345678", "key": key})

    assert veil.redact_value([12345678, 1, Path("a12345678"), Path("b")]) == ["***", 1, "a***", Path("b")]
    assert "MIIEv" not in veil.redact_text(f"line: {key.splitlines()[1]}")


def test_attempt_without_secrets_is_unchanged():
    value = {"a": [1]}

    assert Redactor().redact_value(value) is value


def test_isolated_process_gets_the_secret_redacted(worker_pools):
    worker_pools.pool(pipelines=registry, packages=("tests.support.leaky_tasks",), secret_store=VAULT)
    good = worker_pools.add_job("indiscreet", args={"p": REFERENCE, "fail": False})
    bad = worker_pools.add_job("indiscreet", args={"p": REFERENCE, "fail": True})

    done, failed = (
        worker_pools.wait_for_status(good, Status.SUCCEEDED),
        worker_pools.wait_for_status(bad, Status.FAILED),
    )

    assert done.result == {"had": "***", "long": len(SECRET)}
    assert failed.error == "Fail: not with ***"
    assert done.args == {"p": REFERENCE, "fail": False}
    eventually(
        lambda: (
            worker_pools.queue_fixture.fetch_row("SELECT count(*) FROM dl_job_logs WHERE line LIKE 'printed%%'") == 2
        )
    )
    rows = worker_pools.queue_fixture.sql("SELECT to_jsonb(j)::text FROM dl_jobs j") + worker_pools.queue_fixture.sql(
        "SELECT line FROM dl_job_logs"
    )
    hidden(str(rows + worker_pools.queue_fixture.sql("SELECT payload::text FROM dl_job_events")))


# ── programs ────────────────────────────────────────────────────────────────────────────────────────────────────────

SHOW = [sys.executable, "-c", "import os, json; print(json.dumps(dict(os.environ)))"]


def test_command_arguments_cannot_hold_secrets():
    _, end = run(["echo", "{p}"], {"p": REFERENCE})

    assert end.status is Status.FAILED
    assert (end.error or "").startswith("every user of the machine can read")
    assert "***" not in (end.error or "")


def test_command_inherits_no_settings_or_passwords(monkeypatch):
    for name in ("DL_DB_DSN", "DL_SECRET_BANK", "DL_TOKENS", "PG_PASSWORD", "PGPASSWORD", "DL_WEBHOOK_SECRET"):
        monkeypatch.setenv(name, "kept back")
    monkeypatch.setenv("PG_USER", "given")
    monkeypatch.setenv("COMPANY_THING", "given")
    answer = CapturedLines()
    known = Pipelines()
    known.command("t", SHOW, inherit=["PG_USER"], env={"TOKEN": REFERENCE, "PLAIN": "x"})
    attempt_with(answer, settings={"secret_store": VAULT}).run(known.get("t"))

    (line,) = answer.texts_of("stdout")
    found = json.loads(line)
    assert "kept back" not in found.values()
    assert {name: found.get(name) for name in ("PG_USER", "COMPANY_THING", "TOKEN", "PLAIN")} == {
        "PG_USER": "given", "COMPANY_THING": "given", "TOKEN": SECRET, "PLAIN": "x",
    }  # fmt: skip
    assert found["DL_JOB_ID"]
    hidden(str(log.mask(line)))


def test_command_with_missing_secret_is_not_started():
    _, end = run(["false"], {}, env={"TOKEN": {"$secret": "other"}})

    assert (end.status, "'other'" in (end.error or "")) == (Status.FAILED, True)


# ── errors of others ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("output", "kept"),
    [
        ('connection to "postgresql://app:hunter2@db/x" failed', "hunter2"),
        ("FATAL: host=db password='hunter 2' user=x", "hunter 2"),
        ("Authorization: Bearer abcdefgh12345678", "abcdefgh12345678"),
        ("dlk_3f9a1c22b7d0_" + "ab" * 24, "ab" * 24),
        ('{"api_key": "abcdef"}', "abcdef"),
        ("GET /x?token=abcdef&y=1", "abcdef"),
    ],
)
def test_passwords_in_driver_errors_are_redacted(output, kept):
    def fails(args):
        raise RuntimeError(output)

    _, end = run(fails, {})

    assert kept not in f"{end.error}{end.traceback}".replace("raise RuntimeError(told)", "")
    assert "***" in (end.error or "")


@pytest.mark.parametrize("output", ["Unexpected token: '}'", "invalid key: 'abc'", "the secret of life is 42"])
def test_error_without_credentials_is_unchanged(output):
    def fails(args):
        raise RuntimeError(output)

    assert run(fails, {})[1].error == f"RuntimeError: {output}"


# ── for whom they are ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("tasks", "allowed"),
    [
        ({}, True),
        ({"bank": ("t",)}, True),
        ({"bank": ("load.*", "t*")}, True),
        ({"bank": ("load.*", "T")}, False),
        ({"bank": ()}, False),
        ({"crm": ("t",)}, True),
        ({"crm": ("t",), "*": ()}, False),
        ({"bank": ("t",), "*": ()}, True),
    ],
)
def test_secret_is_limited_to_its_tasks(tasks, allowed):
    seen = []
    vault = SecretStore(VAULT.variables, task_patterns=tasks)

    _, end = run(lambda args: seen.append(args["x"]), {"x": REFERENCE}, vault=vault)

    assert seen == ([SECRET] if allowed else [])
    assert end.status is (Status.SUCCEEDED if allowed else Status.FAILED)
    if not allowed:
        assert "the secret 'bank' is not for the task 't'; DL_TASK_SECRETS says" in end.error
        assert not end.retry_in_sec
    hidden(str(end))


def test_secrets_of_a_commands_env_need_no_task_rule(tmp_path):
    vault = SecretStore(VAULT.variables, task_patterns={"*": ()})
    file = tmp_path / "seen"

    _, end = run(
        [sys.executable, "-c", f"import os; open({str(file)!r}, 'w').write(os.environ['TOKEN'])"], {}, vault=vault,
        env={"TOKEN": REFERENCE},
    )  # fmt: skip

    assert (end.status, file.read_text()) == (Status.SUCCEEDED, SECRET)
