"""The docs name everything there is, and what they show works."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import click
import psycopg2
import pytest
import yaml
from defusedxml import ElementTree as ET

from dataloader import Client, register
from dataloader.app.cli.command import cli
from dataloader.app.cli.exit_codes import ExitCode
from dataloader.app.config import Settings, load_settings
from dataloader.app.config.declaring import is_secret
from dataloader.app.config.loading import MERGED, REMOVED, RENAMED
from dataloader.app.db.schema import schema_text
from dataloader.app.http.__main__ import described_app
from dataloader.app.http.app import OPERATIONS as ROUTES
from dataloader.app.http.openapi import route_template
from dataloader.app.log import Alert
from dataloader.app.queue.job import WAIT_STATES, ReleaseReason, Status
from dataloader.pipelines.contract import Context
from docs import code_tables, drawings, make
from tests.support import Databases, Process, eventually, free_port
from tests.support.processes import ROOT, clean_environment
from tests.support.queue_fixture import QueueFixture

PAGES = sorted([*ROOT.glob("*.md"), *(page for page in (ROOT / "docs").rglob("*.md") if "_made" not in page.parts)])
SQL_TEXT = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "app/queue").glob("*.sql")) + schema_text()
OPERATIONS = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
A_BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
EVENT_LINES = re.compile(r"INSERT INTO dl_job_events.*?(?=jsonb_build_object)", re.DOTALL)
LOUD_LINE = re.compile(r"\b(?:_log|LOG)\.(warning|error|exception)\(\s*\"([a-z_.]+)\"")
PUBLIC_MODULES = re.compile(r"dataloader(\.testing|\.pipelines|\.pipelines\.toolkit\.\w+|\.wsgi)?")
DRAWN = {"svg", "title", "style", "defs", "marker", "path", "rect", "text"}
WHY_JOBS_WAIT = "-- why do jobs wait?"


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(path: Path, language: str) -> list[str]:
    found = A_BLOCK.findall(path.read_text(encoding="utf-8"))
    return [re.sub(rf"^{indent}", "", body, flags=re.MULTILINE) for indent, kind, body in found if kind == language]


def not_named(names: set[str], text: str) -> set[str]:
    """Those that stand nowhere in the text as code; a name may have its labels or arguments behind it."""
    report = set(re.findall(r"[\w.]+", " ".join(re.findall(r"`([^`\n]+)`", text))))
    return names - report


# ── everything is named ─────────────────────────────────────────────────────────────────────────────────────────────


def test_every_route_is_described():
    result = set(re.findall(r"^### `([A-Z]+ \S+)`$", page("docs/http-api.md"), re.MULTILINE))
    result |= set(re.findall(r"^\| `([A-Z]+ \S+)` \|", page("docs/dashboard.md"), re.MULTILINE))
    operations = described_app().extensions[ROUTES]
    there = {f"{operation.method} {route_template(operation.path)}" for operation in operations}

    assert there - result == set()
    assert result - there - {"GET /", "GET /docs", "GET /openapi.json"} == set(), "described, but not there"


def test_every_setting_is_described():
    assert not_named(set(Settings.fields_by_variable()), page("docs/configuration.md")) == set()


def test_no_page_speaks_of_a_setting_that_is_not_there():
    of_tests, of_the_client = (
        {"DL_TEST_DSN", "DL_TEST_POSTGRES", "DL_TEST_SCREENSHOTS"},
        {"DL_URL", "DL_API_KEY", "DL_API_KEY_FILE"},
    )
    of_remote_code = {"DL_JOB_ID", "DL_RUN_ID", "DL_OFFLOAD", "DL_FENCE_TOKEN"}
    of_programs = {"DL_TARGET", "DL_FENCE", "DL_EFFECTS_TABLE", "DL_POSITION"}
    other = {*of_tests, *of_the_client, *of_remote_code, *of_programs, "DL_SECRET_NAME", *RENAMED, *MERGED, *REMOVED}
    for path in PAGES:
        spoken_of = set(re.findall(r"\b(?:DL|APP|PG)_[A-Z][A-Z_]+\b", path.read_text(encoding="utf-8")))
        by_file = {f"{name}_FILE" for name, field in Settings.fields_by_variable().items() if is_secret(field)}
        assert spoken_of <= {*Settings.fields_by_variable(), *other, *by_file}, path.name


def test_every_command_is_described():
    assert set(cli.list_commands(click.Context(cli))) <= set(
        re.findall(r"^## (\w+(?:-\w+)*)$", page("docs/cli.md"), re.MULTILINE)
    )


def test_every_exit_code_is_described():
    assert {str(code.value) for code in ExitCode} == set(re.findall(r"^\| (\d+) \|", page("docs/cli.md"), re.MULTILINE))
    of_services = {
        ExitCode.OK,
        ExitCode.SCHEMA,
        ExitCode.UNAVAILABLE,
        ExitCode.SERVICE_FAULT,
        ExitCode.EMBEDDED,
        ExitCode.CONFIG,
    }
    assert {str(code.value) for code in of_services} == set(re.findall(r"^\| (\d+) \|", OPERATIONS, re.MULTILINE))


def test_every_status_is_described():
    assert not_named({*Status}, page("docs/job-lifecycle.md")) == set()
    assert not_named({*Status}, page("docs/http-api.md")) == set()


def test_every_kind_of_event_and_every_reason_is_described():
    kinds = set(re.findall(r"'(\w+)'", " ".join(EVENT_LINES.findall(SQL_TEXT))))
    reaped = re.findall(r"THEN '(\w+)' ELSE '(\w+)' END AS reason", SQL_TEXT)
    reasons = {
        *re.findall(r"'reason', '(\w+)'", SQL_TEXT),
        *(reason for both in reaped for reason in both),
        *ReleaseReason,
    }

    assert {"queued", "picked", "requeue", "done", "heartbeat", "cancel_requested"} <= kinds
    assert {"retry", "lease_expired", "process_died", "by_hand"} <= reasons
    assert not_named(kinds | reasons, page("docs/job-lifecycle.md")) == set()


def test_every_event_for_alerts_is_described():
    assert not_named({*Alert}, OPERATIONS) == set()


def test_every_loud_log_event_is_described_with_its_level():
    written: dict[str, set[str]] = {}
    for path in [*(ROOT / "app").rglob("*.py"), *(ROOT / "workers").rglob("*.py")]:
        for level, event in LOUD_LINE.findall(path.read_text(encoding="utf-8")):
            written.setdefault(event, set()).add(level.replace("exception", "error"))
    rows = re.findall(r"^\| (`[a-z_.`, ]+`) \| ([a-z, ]+) \|", OPERATIONS, re.MULTILINE)
    described = {name: set(levels.split(", ")) for names, levels in rows for name in re.findall(r"[a-z_.]+", names)}

    assert len(written) > 20
    assert {event: levels for event, levels in written.items() if not levels <= described.get(event, set())} == {}


def test_every_word_of_the_context_is_described():
    words = {word for word in vars(Context) if not word.startswith("_")}

    assert not_named(words, page("docs/writing-a-pipeline.md")) == set()


def test_every_option_of_a_task_is_described():
    table = page("docs/writing-a-pipeline.md").partition("## Task options")[2].partition("\n## ")[0]

    assert not_named(set(inspect.signature(register).parameters) - {"name"}, table) == set()


def test_every_method_of_the_client_is_described():
    methods = {name for name in vars(Client) if not name.startswith("_")}

    assert not_named(methods, page("docs/python-client.md")) == set()


@pytest.mark.parametrize("name", make.page_names())
def test_generated_page_matches_the_code(name):
    assert page(f"docs/{name}") == make.generated_page(name), "run `make generated`"


@pytest.mark.parametrize("name", drawings.DRAWINGS)
def test_drawing_is_current_and_has_no_script(name):
    text = (drawings.IMAGES / name).read_text(encoding="utf-8")

    assert text == drawings.DRAWINGS[name]().svg(), "run `python -m docs.drawings`"
    assert {element.tag.rpartition("}")[2] for element in ET.fromstring(text).iter()} <= DRAWN
    assert "prefers-color-scheme: dark" in text
    assert any(f"(images/{name})" in path.read_text(encoding="utf-8") for path in PAGES)


def test_list_for_programs_is_that_of_the_index():
    assert make.LLMS_FILE.read_text(encoding="utf-8") == make.llms_text(), "run `make generated`"
    assert len(links := re.findall(r"\]\(([^)]+)\)", make.llms_text())) > 40
    assert [link for link in links if not (make.DOCS.parent / link).exists()] == []


def test_every_folder_says_what_it_holds():
    table = page("docs/architecture.md").partition("<!-- generated: folders -->")[2]
    rows = [f"| `{code_tables.shown_path(path.parent)}/` | " for path in code_tables.source_files()]

    assert [row for row in rows if row not in table or f"{row} |" in table] == []


def test_architecture_page_says_what_each_wait_state_and_lock_is_for():
    assert code_tables.WAIT_STATE_TEXTS.keys() == {*WAIT_STATES}
    assert code_tables.lock_numbers() == sorted(code_tables.LOCK_TEXTS)
    assert len(code_tables.lock_numbers()) > 10


def test_pages_and_scaffolds_import_public_modules():
    """The old names are those of the page about the upgrade; decisions are of their time."""
    pages = {
        path: path.read_text("utf-8") for path in PAGES if path.name != "upgrading.md" and "decisions" not in path.parts
    }
    pages |= {path: path.read_text(encoding="utf-8") for path in (ROOT / "app/cli/templates").glob("*.txt")}
    imports = [
        (path.name, module)
        for path, text in pages.items()
        for module in re.findall(r"^ *(?:from|import) ((?:dataloader|pipelines|workers|app)[\w.]*)", text, re.MULTILINE)
    ]

    assert len(imports) > 40
    assert [it for it in imports if not PUBLIC_MODULES.fullmatch(it[1])] == []


# ── links ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links() -> list[tuple[Path, str]]:
    return [
        (path, target)
        for path in PAGES
        for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8"))
        if not target.startswith(("https://", "http://"))
    ]


def test_links_lead_somewhere():
    lost = []
    for path, target in links():
        name, _, anchor = target.partition("#")
        there = path.parent / name if name else path
        if not there.exists() or (anchor and anchor not in anchors(there)):
            lost.append(f"{path.relative_to(ROOT)}: {target}")

    assert lost == []


def test_each_cell_about_a_peer_names_its_source():
    text = page("docs/comparison.md")
    sources = dict(re.findall(r"^\[([a-z0-9-]+)\]: (https://\S+)$", text, re.MULTILINE))
    tables = text.partition("## Compared with others")[2].partition("## Measured")[0]
    rows = [re.split(r" ?\| ?", line)[1:-1] for line in re.findall(r"^\| [A-Za-z].*\|$", tables, re.MULTILINE)]

    assert len(rows) == 2 * 12
    cells = [(row[0], cell) for row in rows for cell in row[1:]]
    assert [it for it in cells if not re.search(r"\]\[[a-z0-9-]+\]|^not found in its documentation$", it[1])] == []
    assert set(re.findall(r"\]\[([a-z0-9-]+)\]", tables)) == set(sources)


# ── what is shown works ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", [path for path in PAGES if blocks(path, "sql")], ids=lambda path: path.stem)
@pytest.mark.superuser("docs/bulk.md shows an administrator how to make a role that may only enqueue")
def test_the_sql_of_a_page_runs_on_the_real_tables(path, dsn, superuser):
    connection = psycopg2.connect(superuser(dsn) if path.stem == "bulk" else dsn)
    try:
        for block in blocks(path, "sql"):
            with connection, connection.cursor() as cursor:
                cursor.execute(block)
    finally:
        connection.close()


def test_waiting_jobs_query_explains_each_job(databases: Databases):
    (why,) = (block for block in blocks(ROOT / "docs/troubleshooting.md", "sql") if block.startswith(WHY_JOBS_WAIT))
    with databases.fresh() as dsn:
        queue_db = QueueFixture(dsn)
        try:
            running = queue_db.enqueue_and_claim("busy", queue="live")
            queue_db.sql(
                "INSERT INTO dl_workers (worker_id, name, version, queues, tasks, threads, heartbeat_sec)"
                " VALUES (gen_random_uuid(), 'w', '0', '{live}', '{t}', 1, 3600)"
            )
            parked, later = queue_db.enqueue("busy", queue="live"), queue_db.insert("later", available_at="2100-01-01")
            queue_db.claim_once(queue="live")
            unknown = queue_db.enqueue("u", queue="live", task="nobody's")
            queue_db.queue.defer_unknown_tasks("live", ["t"])
            alone, waiting = queue_db.enqueue("a", queue="dead"), queue_db.enqueue("w", queue="live")
            child, limited = queue_db.enqueue("c", queue="live"), queue_db.enqueue("l", queue="live")
            queue_db.sql("UPDATE dl_jobs SET wait_state = 'waiting' WHERE job_id = %s", str(child))
            queue_db.sql("UPDATE dl_jobs SET wait_state = 'limited', waits_on = 'api' WHERE job_id = %s", str(limited))
            queue_db.sql("INSERT INTO dl_queues (queue, state) VALUES ('shut', 'paused')")
            paused = queue_db.enqueue("p", queue="shut")

            result = {row[0]: row[3] for row in queue_db.sql(why)}
        finally:
            queue_db.close()

    assert result[str(parked)] == f"its key is held by job {running.id}"
    assert result[str(later)].startswith("not before 2100-01-01")
    assert result[str(unknown)] == "no live worker knows the task 'nobody''s'"
    assert result[str(alone)] == "no live worker works on this queue"
    assert result[str(waiting)] == "for a free thread"
    assert result[str(child)] == "for other jobs, or for the end of an offload"
    assert result[str(limited)] == "for the limit api"
    assert result[str(paused)] == "its queue is paused"


def test_the_python_of_all_pages_runs(tmp_path):
    """In a process of its own, for it registers tasks. A page is a module; what is named test_ in it is a test."""
    for path in PAGES:
        examples = blocks(path, "python")
        if examples:
            module = tmp_path / f"test_{re.sub(r'[^a-z]', '_', path.stem.lower())}.py"
            module.write_text("\n".join([*examples, "\n\ndef test_that_it_runs(): ...\n"]), encoding="utf-8")

    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-c",
            os.devnull,
            "--rootdir",
            tmp_path,
            "-p",
            "no:cacheprovider",
            tmp_path,
        ],
        cwd=tmp_path,
        env=clean_environment() | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_json_of_a_page_can_be_read(path):
    for block in blocks(path, "json"):
        json.loads(block)


@pytest.fixture(scope="module")
def service(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real service, ready to work."""
    port, output = free_port(), tmp_path_factory.mktemp("service") / "output"
    with databases.fresh(schema=False) as dsn:
        env = {"DL_DB_DSN": dsn, "APP_PORT": str(port)}
        with Process.dataloader("serve", output=output, env=env) as process:
            process.wait_for_line("is ready at")
            url = f"http://127.0.0.1:{port}"
            eventually(lambda: asked(f"{url}/status")["ready"], message=lambda: f"ready:\n{process.text}")
            yield url


def test_every_number_of_a_real_service_is_described(service):
    names = set(re.findall(r"^# HELP (\w+) ", result(f"{service}/metrics"), re.MULTILINE))

    numbers = {name for name in names if not name.endswith("_created")}
    assert "dataloader_jobs" in numbers
    assert not_named(numbers, OPERATIONS) == set()


def test_status_page_lists_the_fields_of_a_real_service(service):
    shown = next(block for block in blocks(ROOT / "docs/operations.md", "json") if '"workers"' in block)

    there = asked(f"{service}/status")

    assert {name: keys(part) for name, part in json.loads(shown).items()} == {n: keys(p) for n, p in there.items()}


def keys(part: object) -> set[str]:
    return set(part) if isinstance(part, dict) else set()


def result(url: str) -> str:
    try:
        with urlopen(url, timeout=30) as answer:  # noqa: S310 - an address of our own
            return str(answer.read().decode())
    except HTTPError as refusal:
        with refusal:
            return str(refusal.read().decode())


def asked(url: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(result(url))
    return answer


# ── the container, as far as it can be read without an engine ──────────────────────────────────────────────────────


def test_compose_file_uses_existing_commands_and_settings():
    services = yaml.safe_load(page("compose.yaml"))["services"]
    ours = [service for service in services.values() if "dataloader:local" in service["image"]]

    assert {service["command"][0] for service in ours} == {"migrate", "serve", "worker"}
    for service in ours:
        cli.make_context("dataloader", [*service["command"], "--help"], resilient_parsing=True)
        settings = {name.removesuffix("_FILE"): str(value) for name, value in service["environment"].items()}
        assert set(settings) <= set(Settings.fields_by_variable())
        load_settings(settings, dotenv=None)


def test_the_image_copies_what_there_is_and_what_is_not_ignored():
    lines = re.findall(r"^COPY (?!--)(.+)$", page("Dockerfile"), re.MULTILINE)
    copied = {word for line in lines for word in shlex.split(line)[:-1]}
    allowed = set(re.findall(r"^!(.+)$", page(".dockerignore"), re.MULTILINE))

    assert copied == allowed
    assert [name for name in copied if not (ROOT / name).exists()] == []


def test_changelog_has_no_line_twice():
    entries = re.findall(r"^- .*(?:\n  .*)*", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert len(entries) > 100
    assert [entry for entry in set(entries) if entries.count(entry) > 1] == []
