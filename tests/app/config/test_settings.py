"""What the environment says, what is made of it, and what is reported when it cannot work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from dataloader.app.config import QueueWorkers, Settings, load_settings
from dataloader.app.config.dsn import parse_dsn
from dataloader.app.config.loading import MERGED, REMOVED, RENAMED
from dataloader.app.errors import ConfigError

SECRET = "hunter2-never-shown"


def load(**environ: str) -> Settings:
    return load_settings(environ, dotenv=None)


def faults(**environ: str) -> dict[str, str]:
    """Variable -> what was found, and what would do."""
    with pytest.raises(ConfigError) as caught:
        load(**environ)
    result = {fault.variable: f"{fault.problem}; {fault.remedy}" for fault in caught.value.errors}
    assert len(result) == len(caught.value.errors), "a variable was reported twice"
    return result


def test_nothing_given_is_a_service_on_the_embedded_server():
    settings = load()

    assert (settings.app_port, settings.timezone, settings.schema) == (8081, "Europe/Moscow", "public")
    assert settings.dsn is None
    assert settings.workers == (QueueWorkers("etl.default", 2),)
    assert (settings.heartbeat_sec, settings.default_lease_ttl_sec, settings.reaper_period_sec) == (10, 60, 10)
    assert (settings.claim_backoff_sec, settings.shutdown_grace_sec) == (15, 30)
    assert settings.warnings == ()
    assert settings.secrets == ()


def test_the_process_environment_is_read_when_no_other_is_given(monkeypatch):
    monkeypatch.setenv("APP_PORT", "9001")

    assert load_settings(dotenv=None).app_port == 9001


def test_only_load_reads_the_environment(monkeypatch):
    monkeypatch.setenv("APP_PORT", "9001")

    assert Settings().app_port == 8081


def test_settings_stay_as_they_are():
    with pytest.raises(ValidationError):
        load().app_port = 1  # type: ignore[misc]


def test_environment_overrides_dotenv_unless_empty(tmp_path):
    dotenv = tmp_path / ".env"
    dotenv.write_text("APP_PORT=9001\nAPP_THREADS=3\nPG_HOST=filehost\n# a remark\nOTHER_TOOL=1\nDEBUG\n")

    settings = load_settings({"APP_PORT": "9002", "PG_HOST": " "}, dotenv=dotenv)

    assert (settings.app_port, settings.http_threads, settings.pg_host) == (9002, 3, None)
    sources = {knob.variable: knob.source for knob in settings.describe()}
    assert (sources["APP_PORT"], sources["APP_HTTP_THREADS"], sources["PG_HOST"]) == ("environment", ".env", "default")


def test_a_dotenv_file_that_is_not_there_is_no_fault(tmp_path):
    assert load_settings({}, dotenv=tmp_path / ".env").app_port == 8081


def test_binary_dotenv_file_is_an_error_with_the_others(tmp_path):
    dotenv = tmp_path / ".env"
    dotenv.write_bytes("ENVIRONMENT=тест".encode("cp1251"))

    with pytest.raises(ConfigError) as caught:
        load_settings({"APP_PORT": "x"}, dotenv=dotenv)

    assert [fault.variable for fault in caught.value.errors] == [str(dotenv), "APP_PORT"]
    assert "UTF-8" in str(caught.value)


def test_a_dotenv_file_that_cannot_be_read_is_a_fault(tmp_path, monkeypatch):
    dotenv = tmp_path / ".env"
    dotenv.write_text("APP_PORT=1")

    def refuse(*_given, **_named):  # root may read everything, so that a mode would not do
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("dataloader.app.config.loading.DotEnvSettingsSource", refuse)
    with pytest.raises(ConfigError, match=r"cannot be read \(Permission denied\)"):
        load_settings({}, dotenv=dotenv)


def test_secret_is_read_from_the_file_of_its_variable(tmp_path):
    password, dsn = tmp_path / "password", tmp_path / "dsn"
    password.write_text("p@ss word\n")
    dsn.write_text("postgresql://etl:other-secret@db/etl\r\n")

    parts = load_settings({"PG_HOST": "db", "PG_PASSWORD_FILE": str(password)}, dotenv=None)
    whole = load_settings({"DL_DB_DSN_FILE": str(dsn)}, dotenv=None)

    assert parts.dsn is not None
    assert parse_dsn(parts.dsn.get_secret_value())["password"] == "p@ss word"
    assert {"p@ss word", "other-secret"} <= {*parts.secrets, *whole.secrets}
    assert not [*parts.warnings, *whole.warnings]
    assert {knob.variable: knob.source for knob in whole.describe()}["DL_DB_DSN"] == "DL_DB_DSN_FILE"


def test_file_of_a_secret_that_cannot_be_used_is_an_error(tmp_path):
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "good").write_text("secret")

    result = faults(
        PG_PASSWORD="given", PG_PASSWORD_FILE=str(tmp_path / "good"), DL_TOKENS_FILE=str(tmp_path / "empty"),
        DL_DB_DSN_FILE=str(tmp_path / "missing"), DL_TARGETS_FILE=str(tmp_path / "binary"), PG_HOST="db",
    )  # fmt: skip

    assert set(result) == {"PG_PASSWORD_FILE", "DL_TOKENS_FILE", "DL_DB_DSN_FILE", "DL_TARGETS_FILE"}


def test_override_counts_instead_of_the_file(tmp_path):
    environment = {"DL_DB_DSN_FILE": str(tmp_path / "missing")}

    settings = load_settings(environment, dotenv=None, overrides={"DL_DB_DSN": "host=other"})

    assert settings.dsn is not None
    assert settings.dsn.get_secret_value() == "host=other"


def test_all_errors_are_reported_at_once_by_variable():
    result = faults(
        APP_PORT="99999",
        APP_HTTP_THREADS="many",
        TIMEZONE="Mars/Olympus",
        DEBUG="release",
        DL_LOG_FORMAT="xml",
        DL_CLAIM_BACKOFF_SEC="nan",
        PG_SCHEMA_QUEUE='x"; DROP',
        LOG_FILE_NAME="../app.log",
        DL_DB_DSN="not a dsn",
        DL_HEARTBEAT_SEC="40",
        DL_HEARTBEET_SEC="3",
    )

    assert result["APP_PORT"] == "'99999'; a whole number from 1 to 65535 would do"
    assert result["APP_HTTP_THREADS"] == "'many'; a whole number from 1 to 256 would do"
    assert result["DEBUG"] == "'release'; true or false would do"
    assert result["DL_LOG_FORMAT"] == "'xml'; auto, json or text would do"
    assert result["DL_CLAIM_BACKOFF_SEC"] == "'nan'; a number from 0.05 to 3600 would do"
    assert "Europe/Moscow" in result["TIMEZONE"]
    assert "identifier" in result["PG_SCHEMA_QUEUE"]
    assert "without a folder" in result["LOG_FILE_NAME"]
    assert "postgresql://" in result["DL_DB_DSN"]
    assert "two heartbeats (80)" in result["DL_DEFAULT_LEASE_TTL_SEC"]
    assert result["DL_HEARTBEET_SEC"].endswith("did you mean DL_HEARTBEAT_SEC?")
    assert len(result) == 11


def test_conflict_with_invalid_setting_is_not_reported():
    assert set(faults(DL_HEARTBEAT_SEC="-1", DL_DEFAULT_LEASE_TTL_SEC="1")) == {"DL_HEARTBEAT_SEC"}


def test_a_long_faulty_text_is_shown_in_part():
    result = faults(ENVIRONMENT="x" * 5000)["ENVIRONMENT"]

    assert "5000 characters" in result
    assert len(result) < 200


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://etl:{SECRET}@db:port/jobs",
        f"postgresql://etl:p/{SECRET}@db/jobs",
        f"mysql://etl:{SECRET}@db/jobs",
        f"host=db password='{SECRET}",
        f"host=db password {SECRET}",
        f"{SECRET}",
    ],
)
def test_a_connection_string_that_cannot_be_read_is_not_shown(dsn):
    with pytest.raises(ConfigError) as caught:
        load(DL_DB_DSN=dsn)

    assert SECRET not in repr((caught.value, caught.value.errors))
    assert f"{len(dsn)} characters (hidden)" in str(caught.value)
    assert caught.value.__context__ is None or SECRET not in repr(caught.value.__context__)


@pytest.mark.parametrize(
    "url",
    [f"https://etl:{SECRET}@h/x", f"https://{SECRET}@h/x", f"https://etl:a/{SECRET}@h/x", f"etl:{SECRET}@h/x",
     f"https:/etl:{SECRET}@h/x", f"ftp://h/x?token={SECRET}"],
)  # fmt: skip
def test_refused_endpoint_is_not_shown(url):
    with pytest.raises(ConfigError) as caught:
        load(DL_ENDPOINTS=json.dumps({"llm": url}))

    assert SECRET not in repr((caught.value, caught.value.errors))
    assert "characters (hidden); llm: it " in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("DL_LINEAGE", f"https://etl:{SECRET}@marquez"),
        ("DL_LINEAGE", json.dumps({"url": "https://marquez", "key": SECRET})),
        ("DL_EXECUTORS", json.dumps({"ray": {"token": SECRET}})),
    ],
)
def test_secret_in_place_of_its_reference_is_not_shown(variable, text):
    with pytest.raises(ConfigError, match="characters \\(hidden\\)") as caught:
        load(**{variable: text})

    assert SECRET not in repr((caught.value, caught.value.errors))


def test_no_secret_is_in_any_text_of_the_settings():
    settings = load(DL_DB_DSN=f"postgresql://etl:{SECRET}@db:6432/jobs?sslmode=require", PG_PASSWORD=SECRET)

    shown = {knob.variable: knob.value for knob in settings.describe()}
    assert shown["DL_DB_DSN"] == "user=etl password=*** host=db port=6432 dbname=jobs sslmode=require"
    assert shown["PG_PASSWORD"] == "***"
    assert SECRET not in repr(settings) + str(settings) + repr(settings.describe())
    assert settings.dsn is not None
    assert settings.dsn.get_secret_value() == f"postgresql://etl:{SECRET}@db:6432/jobs?sslmode=require"


def test_secrets_are_known_to_redaction():
    settings = load(DL_DB_DSN="postgresql://etl:p%40ss@db/jobs?sslpassword=key", PG_PASSWORD=SECRET)

    assert {SECRET, "p@ss", "key"} < set(settings.secrets)


def test_secrets_of_pipelines_reach_pipelines_only():
    settings = load(
        DL_ENDPOINTS='{"llm": "http://models:8000/v1"}',
        DL_TARGETS=f'{{"default": "postgresql://etl:{SECRET}@db/dwh", "opu": "host=opu password=0pu"}}',
        DL_TOKENS='{"llm": "t0ken"}',
    )

    shown = {knob.variable: knob.value for knob in settings.describe()}
    assert shown["DL_ENDPOINTS"] == '{"llm": "http://models:8000/v1"}'
    assert shown["DL_TARGETS"] == (
        '{"default": "user=etl password=*** host=db dbname=dwh", "opu": "host=opu password=***"}'
    )
    assert shown["DL_TOKENS"] == '{"llm": "***"}'
    assert not [secret for secret in (SECRET, "0pu", "t0ken") if secret in repr(settings) + repr(settings.describe())]
    assert {SECRET, "0pu", "t0ken"} < set(settings.secrets)
    assert settings.pipeline_connections() == (
        {"llm": "http://models:8000/v1"},
        {"default": f"postgresql://etl:{SECRET}@db/dwh", "opu": "host=opu password=0pu"},
        {"llm": "t0ken"},
    )


@pytest.mark.parametrize("variable", ["DL_TARGETS", "DL_TOKENS"])
def test_a_fault_in_secrets_of_pipelines_does_not_repeat_them(variable):
    with pytest.raises(ConfigError) as caught:
        load(**{variable: f'{{"default": "{SECRET} {SECRET}", "other": 7}}'})

    assert variable in str(caught.value)
    assert SECRET not in repr((caught.value, caught.value.errors))


def test_a_misspelt_secret_is_not_shown():
    with pytest.raises(ConfigError) as caught:
        load(DL_DB_DNS=f"postgresql://etl:{SECRET}@db/jobs")

    assert "did you mean DL_DB_DSN?" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_connection_string_is_made_of_its_parts():
    settings = load(PG_HOST="db", PG_PORT="6432", PG_USER="etl", PG_PASSWORD=r"it's \ here", PG_DATABASE="jobs")

    assert settings.dsn is not None
    assert settings.dsn.get_secret_value() == (r"host=db port=6432 user=etl dbname=jobs password='it\'s \\ here'")


def test_what_is_not_given_is_left_to_libpq():
    settings = load(PG_HOST="db")

    assert settings.dsn is not None
    assert settings.dsn.get_secret_value() == "host=db port=5432"


def test_dsn_overrides_its_parts_with_a_warning():
    settings = load(DL_DB_DSN="host=one", PG_HOST="two", PG_USER="etl")

    assert settings.dsn is not None
    assert settings.dsn.get_secret_value() == "host=one"
    assert "DL_DB_DSN wins" in settings.warnings[0]


def test_blanks_of_a_password_are_part_of_it(tmp_path):
    file = tmp_path / "password"
    file.write_text(" from a file \n", encoding="utf-8")

    found = [load(PG_HOST="db", PG_PASSWORD=" x "), load(PG_HOST="db", PG_PASSWORD_FILE=str(file))]

    passwords = [settings.pg_password and settings.pg_password.get_secret_value() for settings in found]
    assert passwords == [" x ", " from a file "]


@pytest.mark.parametrize("part", ["PG_PORT", "PG_USER", "PG_PASSWORD", "PG_DATABASE"])
def test_pg_variables_without_host_are_an_error(part):
    result = faults(**{part: "5433"})

    assert set(result) == {"PG_HOST"}
    assert part in result["PG_HOST"]


def test_values_are_described_the_way_they_are_written():
    text = '[{"queue":"etl.a","concurrency":3}]'
    settings = load(
        WORKERS_JSON=text,
        DL_PIPELINES="pipelines, company.loads",
        DEBUG="yes",
        DL_HEARTBEAT_SEC="0.5",
        LOG_ROTATION="6 hours",
        LOG_PATH="logs",
    )

    shown = {knob.variable: knob.value for knob in settings.describe()}
    assert json.loads(shown["WORKERS_JSON"]) == json.loads(text)
    assert shown["DL_PIPELINES"] == "pipelines,company.loads"
    assert (shown["DEBUG"], shown["DL_HEARTBEAT_SEC"], shown["LOG_ROTATION"]) == ("true", "0.5", "6 hours")
    assert (shown["LOG_PATH"], shown["METRIC_PATH"]) == ("logs", "")


def test_defaults_written_into_an_environment_are_the_defaults():
    plain = load()
    written = {knob.variable: knob.default for knob in plain.describe() if knob.default}
    written.pop("PG_PORT")  # would need a PG_HOST

    again = load(**written)

    assert [knob.value for knob in again.describe()] == [knob.value for knob in plain.describe()]


def test_every_setting_has_a_meaning_in_a_sentence():
    for knob in load().describe():
        assert knob.meaning[0].isupper(), knob.variable
        assert knob.meaning.endswith("."), knob.variable
        assert knob.accepts, knob.variable


def test_paths_are_paths():
    assert load(DL_DATA_DIR="/var/lib/x").data_dir == Path("/var/lib/x")


def test_worker_dsn_is_checked_and_masked():
    settings = load(DL_DB_DSN="host=pooler dbname=jobs", DL_WORKER_DSN=f"postgresql://etl:{SECRET}@db/jobs")

    assert {SECRET, f"postgresql://etl:{SECRET}@db/jobs"} <= set(settings.secrets)
    with pytest.raises(ConfigError) as unreadable:
        load(DL_DB_DSN="host=pooler", DL_WORKER_DSN="not a dsn")
    assert "DL_WORKER_DSN" in str(unreadable.value)
    assert "not a dsn" not in str(unreadable.value)


def test_worker_dsn_without_dsn_is_an_error():
    with pytest.raises(ConfigError) as caught:
        load(DL_WORKER_DSN="host=db dbname=jobs")

    assert "DL_DB_DSN: found nothing, although DL_WORKER_DSN is given" in str(caught.value)


def test_old_name_sets_the_renamed_setting_with_a_warning():
    settings = load(DL_KEEP_JOURNAL_DAYS="7", APP_THREADS="3", DL_RETENTION="false")

    assert (settings.keep_events_days, settings.http_threads, settings.retention_enabled) == (7, 3, False)
    assert settings.is_retention_decided
    assert sorted(warning.split()[0] for warning in settings.warnings) == [
        "APP_THREADS", "DL_KEEP_JOURNAL_DAYS", "DL_RETENTION",
    ]  # fmt: skip


def test_new_name_wins_over_the_old_one():
    assert load(APP_THREADS="3", APP_HTTP_THREADS="5").http_threads == 5


@pytest.mark.parametrize("variable", sorted(REMOVED))
def test_removed_setting_is_a_warning(variable):
    assert load(**{variable: "1"}).warnings == (
        f"{variable} was removed and has no effect; docs/upgrading.md has what counts now",
    )


def test_retention_of_single_statuses_is_merged_with_a_warning():
    settings = load(DL_KEEP_LOST_DAYS="90", DL_KEEP_SUCCEEDED_DAYS="0.5")

    assert settings.keep_jobs_days == {"succeeded": 0.5, "failed": 30, "canceled": 14, "lost": 90}
    assert [warning.split()[0] for warning in settings.warnings] == ["DL_KEEP_SUCCEEDED_DAYS", "DL_KEEP_LOST_DAYS"]
    assert {info.variable: info.source for info in settings.describe()}["DL_KEEP_JOBS_DAYS"] == "environment"
    assert load(DL_KEEP_LOST_DAYS="90", DL_KEEP_JOBS_DAYS="7").keep_jobs_days["lost"] == 7
    assert load(DL_KEEP_LOST_DAYS="+09.", DL_KEEP_FAILED_DAYS=".5").keep_jobs_days["lost"] == 9
    for text in ("long", '1, "failed": 2', "{}"):
        with pytest.raises(ConfigError, match="DL_KEEP_LOST_DAYS: found"):
            load(DL_KEEP_LOST_DAYS=text)
    with pytest.raises(ConfigError, match="lost: Input should be"):
        load(DL_KEEP_LOST_DAYS="nan")


def test_the_number_of_settings_is_bounded():
    """A new setting replaces another one; first ask whether a constant would do."""
    assert len(Settings.fields_by_variable()) <= 72


def test_every_renamed_setting_exists():
    assert set(RENAMED.values()) <= set(Settings.fields_by_variable())
    assert not (RENAMED.keys() | MERGED.keys() | REMOVED) & set(Settings.fields_by_variable())
