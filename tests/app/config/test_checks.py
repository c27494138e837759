"""Settings that contradict each other, and variables that are nearly ours."""

from __future__ import annotations

import json

import pytest

from dataloader.app.config import Settings, checks, load_settings
from dataloader.app.config.checks import unknown_variables
from dataloader.app.errors import ConfigError


def load(**environ: str) -> Settings:
    return load_settings(environ, dotenv=None)


def near(*given: str) -> tuple[list[str], list[str]]:
    faults, warnings = unknown_variables(given, Settings.fields_by_variable())
    return [f"{fault.variable}: {fault.remedy}" for fault in faults], warnings


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("DL_DSN", "DL_DB_DSN"),
        ("DL_HEARTBEAT", "DL_HEARTBEAT_SEC"),
        ("DL_LEASE_TTL_SEC", "DL_DEFAULT_LEASE_TTL_SEC"),
        ("DL_SHUTDOWN_GRACE", "DL_SHUTDOWN_GRACE_SEC"),
        ("dl_db_dsn", "DL_DB_DSN"),
    ],
)
def test_misspelt_variable_with_our_prefix_is_an_error(variable, meant):
    assert near(variable) == ([f"{variable}: did you mean {meant}?"], [])


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("WORKER_JSON", "WORKERS_JSON"),
        ("PG_PASSWD", "PG_PASSWORD"),
        ("LOG_FILENAME", "LOG_FILE_NAME"),
        ("TIME_ZONE", "TIMEZONE"),
        ("ENVIROMENT", "ENVIRONMENT"),
        ("app_port", "APP_PORT"),
    ],
)
def test_another_variable_that_is_nearly_right_is_pointed_out(variable, meant):
    assert near(variable) == ([], [f"{variable} is not a setting of dataloader; did you mean {meant}?"])


@pytest.mark.parametrize(
    "variable",
    [
        *("PGHOST", "PGPORT", "PGUSER", "PGPASSWORD", "PGDATABASE", "PGSSLMODE", "PGPASSFILE"),
        *("PG_MAJOR", "PG_VERSION", "LOG_LEVEL", "APP_ENV", "PATH", "HOME", "LANG", "TZ", "HOSTNAME"),
        *("DL_TEST_DSN", "DL_TEST_POSTGRES", "DL_URL", "DL_DB_DSN"),
    ],
)
def test_other_peoples_variables_and_our_own_are_let_be(variable):
    assert near(variable) == ([], [])


def test_an_unknown_variable_with_our_prefix_is_pointed_out():
    assert near("DL_MOON") == ([], ["DL_MOON is not a setting of dataloader; it has no effect"])


def test_misspelt_variables_are_found_in_the_dotenv_file_too(tmp_path):
    dotenv = tmp_path / ".env"
    dotenv.write_text("DL_PIPELINE=x\n")

    with pytest.raises(ConfigError, match="DL_PIPELINES"):
        load_settings({}, dotenv=dotenv)


def test_warnings_are_kept_for_start():
    assert load(WORKER_JSON="[]").warnings == (
        "WORKER_JSON is not a setting of dataloader; did you mean WORKERS_JSON?",
    )


def test_a_lease_of_exactly_two_heartbeats_will_do():
    assert load(DL_HEARTBEAT_SEC="30", DL_DEFAULT_LEASE_TTL_SEC="60").heartbeat_sec == 30

    with pytest.raises(ConfigError, match="DL_DEFAULT_LEASE_TTL_SEC: found 59 with DL_HEARTBEAT_SEC=30"):
        load(DL_HEARTBEAT_SEC="30", DL_DEFAULT_LEASE_TTL_SEC="59")


@pytest.mark.parametrize("variable", ["DL_DATA_DIR", "LOG_PATH", "METRIC_PATH", "AUDIT_LOG_PATH"])
def test_a_file_is_no_folder(variable, tmp_path):
    file = tmp_path / "file"
    file.touch()

    with pytest.raises(ConfigError, match=f"{variable}: .*file.*not a folder"):
        load(**{variable: str(file)})
    load(**{variable: str(tmp_path)})
    load(**{variable: str(tmp_path / "new")})


def test_inaccessible_folder_is_no_settings_error(tmp_path):
    folder = tmp_path / ("x" * 300)

    assert load(LOG_PATH=str(folder)).log_path == folder


def test_two_logs_do_not_share_a_file(tmp_path):
    folder = str(tmp_path)

    with pytest.raises(ConfigError, match=r"AUDIT_LOG_FILE_NAME: found 'app\.log', the file that LOG_FILE_NAME names"):
        load(LOG_PATH=folder, AUDIT_LOG_PATH=f"{folder}/.", AUDIT_LOG_FILE_NAME="app.log")
    load(LOG_PATH=folder, METRIC_PATH=folder, AUDIT_LOG_PATH=folder)
    load(LOG_FILE_NAME="same.log", METRIC_FILE_NAME="same.log")


def test_process_with_a_name_needs_its_reaper():
    assert not load(DL_REAPER="false").reaper
    with pytest.raises(ConfigError, match="DL_REAPER: found false with DL_WORKER_NAME; true, or no DL_WORKER_NAME"):
        load(DL_REAPER="false", DL_WORKER_NAME="etl-0")


def test_lineage_needs_its_packages(monkeypatch):
    url = "https://marquez.internal:5000"
    assert load(DL_LINEAGE=url).lineage == url

    monkeypatch.setattr(checks, "_module_exists", lambda name: not name.startswith("openlineage"))
    load()
    with pytest.raises(ConfigError, match=r"DL_LINEAGE: found a receiver.* pip install 'pg-dataloader\[lineage\]'"):
        load(DL_LINEAGE=url)


def test_lineage_receiver_has_its_key_by_reference():
    receiver = {"url": "https://marquez.internal", "key": {"$secret": "lineage"}}
    assert load(DL_LINEAGE=json.dumps(receiver)).lineage == receiver

    for text in (
        "https://user:pass@marquez.internal",
        '{"url": "https://a", "key": "abc"}',
        '{"url": "https://a"}',
        "{",
    ):
        with pytest.raises(ConfigError, match="DL_LINEAGE: "):
            load(DL_LINEAGE=text)


def test_listening_for_a_host_is_refused_with_the_alternatives():
    with pytest.raises(ConfigError, match="use process with more threads in fewer processes, or off"):
        load(DL_LISTEN="host")

    assert load(DL_LISTEN="off").listen == "off"
