"""Secrets that args refer to: put in for the run alone, and seen nowhere afterwards."""

from __future__ import annotations

import base64
import json
import logging
import sys
from pathlib import Path

import pytest

from app import log
from app.queue.job import Settlement, Status
from pipelines.contract import Pipelines, registry
from pipelines.references import BadReference, references
from tests.support import (
    eventually,
    indiscreet,  # noqa: F401 - registers its task
)
from tests.support.claims import Said, attempt_with
from workers.secrets import NOTHING_HIDDEN, NoSecret, Vault, Veil, uncover, variable_of

SECRET = "s3cr3t/of the+bank"
VAULT = Vault({"DL_SECRET_BANK": SECRET})
REFERENCE = {"$secret": "bank"}
FORMS = (SECRET, json.dumps(SECRET)[1:-1], "s3cr3t%2Fof%20the%2Bbank", base64.b64encode(SECRET.encode()).decode())


def run(call, args, *, vault=VAULT, **more):
    known = Pipelines()
    if isinstance(call, list):
        known.command("t", call, **more)
    else:
        known.register("t")(call)
    held = attempt_with(args_text=json.dumps(args), tools={"vault": vault})
    return held, held.run(known.get("t"))


def hidden(told: object) -> None:
    text = told if isinstance(told, str) else json.dumps(told, default=str)
    assert not [form for form in FORMS if form in text], text


# ── where they come from ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "variable"),
    [("bank", "DL_SECRET_BANK"), ("crm.api-token", "DL_SECRET_CRM_API_TOKEN"), ("a1", "DL_SECRET_A1")],
)
def test_a_secret_is_a_variable(name, variable):
    assert variable_of(name) == variable
    assert Vault({variable: "value"}).read(name) == "value"


def test_or_a_file_that_is_read_anew_for_each_run(tmp_path: Path):
    vault = Vault({}, tmp_path)
    (tmp_path / "bank").write_bytes(b"first\r\n")
    assert vault.read("bank") == "first"
    (tmp_path / "bank").write_text("second")
    assert vault.read("bank") == "second"


@pytest.mark.parametrize("content", [b"\xff\xfe\xff\xfe", b"x" * 70_000, b"", b"abc"])
def test_a_file_that_holds_no_secret_is_refused(tmp_path: Path, content):
    (tmp_path / "bank").write_bytes(content)

    with pytest.raises(NoSecret, match="'bank'"):
        Vault({}, tmp_path).read("bank")


def test_a_secret_that_is_missing_is_told_with_where_it_was_looked_for(tmp_path: Path):
    with pytest.raises(NoSecret, match=r"no variable DL_SECRET_BANK, and no DL_SECRETS_DIR"):
        Vault().read("bank")
    with pytest.raises(NoSecret, match=r"in DL_SECRETS_DIR: No such file"):
        Vault({}, tmp_path).read("bank")


@pytest.mark.parametrize(
    "name", ["../etc/passwd", "/etc/passwd", ".hidden", "a/b", "", "x" * 101, "a b", "é", 7, None, ["bank"]]
)
def test_a_name_leads_nowhere_else(name, tmp_path: Path):
    with pytest.raises(BadReference):
        references({"x": [{"$secret": name}]})
    assert uncover({"x": 1}, VAULT, "t") == ({"x": 1}, NOTHING_HIDDEN)
    with pytest.raises(NoSecret, match=r"args: x\[0\]"):
        uncover({"x": [{"$secret": name}]}, Vault({}, tmp_path), "t")


def test_a_reference_stands_alone():
    with pytest.raises(BadReference, match="stands alone"):
        references({"x": {"$secret": "bank", "more": 1}})


def test_references_are_found_wherever_they_are():
    assert references({"a": [{"b": REFERENCE}, 1], "c": {"d e": REFERENCE}, "$secrets": 1}) == [
        ("a[0].b", "bank"), ('c["d e"]', "bank"),
    ]  # fmt: skip


# ── what a run shows of them ────────────────────────────────────────────────────────────────────────────────────────


def test_the_pipeline_gets_it_and_what_it_leaves_does_not_have_it():
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


def test_an_error_and_its_traceback_do_not_have_it():
    def fails(args):
        raise RuntimeError(f"https://user:{args['p']}@bank refused {args['p']!r} " + " ".join(FORMS))

    _, end = run(fails, {"p": REFERENCE})

    assert "refused" in (end.error or "")
    hidden(f"{end.error} {end.traceback}")


def test_no_log_of_the_process_has_it(caplog):
    def speaks(args, ctx):
        ctx.log.info("have it", value=args["p"])
        logging.getLogger("some.library").warning("trying %s", args["p"])

    run(speaks, {"p": REFERENCE})

    assert log.mask(f"late: {SECRET}") == "late: ***"


def test_a_missing_one_fails_the_job_and_no_try_is_repeated():
    _, end = run(lambda args: None, {"p": {"$secret": "other"}})

    assert (end.status, end.error) == (
        Status.FAILED,
        "there is no secret 'other': the worker has no variable DL_SECRET_OTHER, and no DL_SECRETS_DIR",
    )


def test_a_follow_up_gets_the_reference_and_not_the_value():
    veil = Veil({"bank": SECRET})

    assert veil.referring({"a": [SECRET], "b": {"c": SECRET}, "d": 1}) == {
        "a": [REFERENCE],
        "b": {"c": REFERENCE},
        "d": 1,
    }
    with pytest.raises(ValueError, match="hand on the reference"):
        veil.referring({"header": f"Basic {SECRET}"})


def test_a_number_and_a_key_of_many_lines_are_hidden_too():
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG\n-----END KEY-----\n"
    veil = Veil({"pin": "12345678", "key": key})

    assert veil.value([12345678, 1, Path("a12345678"), Path("b")]) == ["***", 1, "a***", Path("b")]
    assert "MIIEv" not in veil.text(f"line: {key.splitlines()[1]}")


def test_a_run_without_secrets_is_left_as_it_is():
    value = {"a": [1]}

    assert Veil().value(value) is value


def test_a_process_of_its_own_gets_it_and_tells_nobody(plant):
    plant.pool(pipelines=registry, packages=("tests.support.indiscreet",), vault=VAULT)
    good = plant.add("indiscreet", args={"p": REFERENCE, "fail": False})
    bad = plant.add("indiscreet", args={"p": REFERENCE, "fail": True})

    done, failed = plant.until(good, Status.SUCCEEDED), plant.until(bad, Status.FAILED)

    assert done.result == {"had": "***", "long": len(SECRET)}
    assert failed.error == "Fail: not with ***"
    assert done.args == {"p": REFERENCE, "fail": False}
    eventually(lambda: plant.desk.one("SELECT count(*) FROM dl_job_logs WHERE line LIKE 'printed%%'") == 2)
    rows = plant.desk.sql("SELECT to_jsonb(j)::text FROM dl_jobs j") + plant.desk.sql("SELECT line FROM dl_job_logs")
    hidden(str(rows + plant.desk.sql("SELECT payload::text FROM dl_job_events")))


# ── programs ────────────────────────────────────────────────────────────────────────────────────────────────────────

SHOW = [sys.executable, "-c", "import os, json; print(json.dumps(dict(os.environ)))"]


def test_a_program_gets_no_secret_by_its_arguments():
    _, end = run(["echo", "{p}"], {"p": REFERENCE})

    assert end.status is Status.FAILED
    assert "can be read by everybody" in (end.error or "")


def test_a_program_inherits_neither_our_settings_nor_the_databases_password(monkeypatch):
    for name in ("DL_DB_DSN", "DL_SECRET_BANK", "DL_TOKENS", "PG_PASSWORD", "PGPASSWORD", "DL_SESSION_SECRET"):
        monkeypatch.setenv(name, "kept back")
    monkeypatch.setenv("PG_USER", "given")
    monkeypatch.setenv("COMPANY_THING", "given")
    said = Said()
    known = Pipelines()
    known.command("t", SHOW, inherit=["PG_USER"], env={"TOKEN": REFERENCE, "PLAIN": "x"})
    attempt_with(said, tools={"vault": VAULT}).run(known.get("t"))

    (line,) = said.of("stdout")
    found = json.loads(line)
    assert "kept back" not in found.values()
    assert {name: found.get(name) for name in ("PG_USER", "COMPANY_THING", "TOKEN", "PLAIN")} == {
        "PG_USER": "given", "COMPANY_THING": "given", "TOKEN": SECRET, "PLAIN": "x",
    }  # fmt: skip
    assert found["DL_JOB_ID"]
    hidden(str(log.mask(line)))


def test_a_program_whose_secret_is_missing_is_not_begun():
    _, end = run(["false"], {}, env={"TOKEN": {"$secret": "other"}})

    assert (end.status, "'other'" in (end.error or "")) == (Status.FAILED, True)


# ── errors of others ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ('connection to "postgresql://app:hunter2@db/x" failed', "hunter2"),
        ("FATAL: host=db password='hunter 2' user=x", "hunter 2"),
        ("Authorization: Bearer abcdefgh12345678", "abcdefgh12345678"),
        ("dlk_3f9a1c22b7d0_" + "ab" * 24, "ab" * 24),
        ('{"api_key": "abcdef"}', "abcdef"),
        ("GET /x?token=abcdef&y=1", "abcdef"),
    ],
)
def test_errors_are_kept_without_the_passwords_that_drivers_put_into_them(told, kept):
    def fails(args):
        raise RuntimeError(told)

    _, end = run(fails, {})

    assert kept not in f"{end.error}{end.traceback}".replace("raise RuntimeError(told)", "")
    assert "***" in (end.error or "")


@pytest.mark.parametrize("told", ["Unexpected token: '}'", "invalid key: 'abc'", "the secret of life is 42"])
def test_an_error_that_only_speaks_of_such_things_is_left_as_it_is(told):
    def fails(args):
        raise RuntimeError(told)

    assert run(fails, {})[1].error == f"RuntimeError: {told}"


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
def test_a_secret_is_given_to_the_tasks_it_is_for(tasks, allowed):
    seen = []
    vault = Vault(VAULT.variables, tasks=tasks)

    _, end = run(lambda args: seen.append(args["x"]), {"x": REFERENCE}, vault=vault)

    assert seen == ([SECRET] if allowed else [])
    assert end.status is (Status.SUCCEEDED if allowed else Status.FAILED)
    if not allowed:
        assert "the secret 'bank' is not for the task 't'; DL_SECRETS_ALLOW says" in end.error
        assert not end.retry_in
    hidden(str(end))


def test_what_a_command_is_given_by_whoever_configured_it_is_not_asked_for(tmp_path):
    vault = Vault(VAULT.variables, tasks={"*": ()})
    file = tmp_path / "seen"

    _, end = run(
        [sys.executable, "-c", f"import os; open({str(file)!r}, 'w').write(os.environ['TOKEN'])"], {}, vault=vault,
        env={"TOKEN": REFERENCE},
    )  # fmt: skip

    assert (end.status, file.read_text()) == (Status.SUCCEEDED, SECRET)
