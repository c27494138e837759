from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata

import click
import pytest

from dataloader import NotFound
from dataloader.app.cli.command import GROUPS, INDEX_FILE, cli, main
from dataloader.app.cli.exit_codes import ExitCode, error_report
from dataloader.app.cli.operations import OPERATIONS_FILE
from dataloader.app.errors import DatabaseUnavailable, DataloaderError, EmbeddedServerError, PortTaken, SchemaMissing
from docs import commands
from tests.app.cli.fake_service import problem
from tests.support.processes import ROOT, clean_environment

HEAVY = (
    "flask",
    "werkzeug",
    "pydantic",
    "pydantic_settings",
    "psycopg2",
    "gunicorn",
    "rich",
    "dataloader.app.config",
    "pipelines",
)


@pytest.mark.parametrize("command", [["jobs"], ["jobs", "--json"], ["trigger", "noop"], ["trigger", "noop", "--watch"]])
def test_client_commands_load_neither_flask_nor_pydantic(service, command):
    service.next_lives = [{"status": "succeeded"}]
    look = (
        "import sys\nfrom dataloader.app.cli import main\n"
        f"try:\n    main({command!r})\nexcept SystemExit as end:\n    assert end.code == 0, end.code\n"
        f"print('loaded:', [name for name in {HEAVY!r} if name in sys.modules])"
    )

    ran = subprocess.run(
        [sys.executable, "-c", look], env={**clean_environment(), "DL_URL": service.url}, cwd=ROOT,
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip

    assert ran.stdout.splitlines()[-1] == "loaded: []"


def test_python_m_app_is_the_same_command():
    ran = subprocess.run(
        [sys.executable, "-m", "app", "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )

    assert ran.stdout.startswith("Usage: dataloader ")
    assert "trigger" in ran.stdout


def test_help_lists_commands_in_titled_groups(run):
    shown = run("-h").stdout

    sections = re.findall(r"^(\w[^\n]*):\n((?:  .*\n)+)", shown, re.MULTILINE)
    groups = {title: re.findall(r"^  (\S+)", lines, re.MULTILINE) for title, lines in sections}
    assert list(groups) == ["Options", *GROUPS]
    del groups["Options"]
    assert groups["Run the service"] == [
        "serve",
        "dev",
        "worker",
        "drain",
        "migrate",
        "prune",
        "psql",
        "doctor",
        "demo",
    ]
    assert groups["Jobs"][:3] == ["trigger", "status", "logs"]
    assert [name for names in groups.values() for name in names] == cli.list_commands(click.Context(cli))
    assert "..." not in shown.partition("\n")[2], "no line is cut"


def test_every_command_explains_itself(run):
    for name in cli.list_commands(click.Context(cli)):
        shown = run(name, "--help")

        assert shown.exit_code == 0
        assert "Usage:" in shown.stdout


def test_command_loads_its_own_feature_only():
    code = (
        "import sys\nfrom dataloader.app.cli import main\n"
        "try:\n    main(['limits', '--help'])\nexcept SystemExit:\n    pass\n"
        "print('loaded:', [name for name in sys.modules if name.startswith('dataloader.app.features.')])"
    )

    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )  # fmt: skip

    loaded = ran.stdout.splitlines()[-1]
    assert loaded == "loaded: ['dataloader.app.features.limits', 'dataloader.app.features.limits.commands']"


@pytest.mark.parametrize(
    ("file", "make"), [(OPERATIONS_FILE, commands.operations_text), (INDEX_FILE, commands.index_text)]
)
def test_generated_file_is_up_to_date(file, make):
    assert file.read_text(encoding="utf-8") == make(), "run `make generated`"


def test_version_is_printed(run, monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: f"1.2.3 of {name}")

    assert run("--version").stdout == "dataloader 1.2.3 of pg-dataloader\n"


def test_a_checkout_that_is_not_installed_has_a_version(run, monkeypatch):
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)

    assert run("--version").stdout == "dataloader 0+unknown\n"


def test_an_unknown_command_is_a_mistake_in_usage():
    with pytest.raises(SystemExit) as end:
        main(["triger"])
    assert end.value.code == ExitCode.USAGE


def test_ctrl_c_has_its_own_code(run, service, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dataloader.client.Client.request", interrupted)

    assert run("jobs").exit_code == ExitCode.INTERRUPTED


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DatabaseUnavailable("no answer"), 69),
        (SchemaMissing("run `dataloader migrate`"), 65),
        (EmbeddedServerError("no binaries"), 71),
        (PortTaken("127.0.0.1", 8081), 69),
        (DataloaderError("something new"), 4),
        (NotFound(404, {}), 3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_error_has_its_exit_code(error, code):
    assert error_report(error).exit_code == code
    assert error_report(error).detail


def test_what_a_service_says_does_not_act_on_the_terminal(run, service):
    evil = "\x1b]0;owned\x07\x9b2J\u202e"
    for _ in range(2):
        service.unruly.append(problem(400, "invalid_request", f"no {evil}", errors=[{"field": evil, "message": evil}]))

    for refused in (run("jobs"), run("jobs", "--json")):
        assert refused.exit_code == 4
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(refused.stderr)


def iter_options(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Option]]:
    """Yield every option of a command and of its subcommands, with their path."""
    yield from ((path, parameter) for parameter in command.params if isinstance(parameter, click.Option))
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if (below := command.get_command(context, name)) is not None:
                yield from iter_options(below, (*path, name))


OPTIONS = [(" ".join((*path, option.opts[-1])), option) for path, option in iter_options(cli) if not option.hidden]
VALUES = re.compile(r"[\w, ]+[:;,] ")  # `open: …; closed: …`: what each value means
# What click makes of a type's name or of a list of formats when an option names no value.
UNNAMED = re.compile(r"PARSED|RANGE|^(TEXT|INTEGER|FLOAT|UUID|FILENAME)$|%")


@pytest.mark.parametrize(("name", "option"), OPTIONS, ids=[name for name, _ in OPTIONS])
def test_option_has_help_and_metavar(name, option):
    assert option.help, name
    assert option.help[0].isupper() or option.help[0] in "`'" or VALUES.match(option.help), f"{name}: {option.help}"
    if not option.is_flag and option.opts[-1] not in {"--text", "--note", "--description"}:
        shown = option.make_metavar(click.Context(cli))
        assert not UNNAMED.search(shown), f"{name} {shown}: name its value in its metavar"


def test_help_of_jobs_names_values(run):
    shown = run("jobs", "--help").stdout

    assert "--created-from TIME" in shown
    assert "--limit NUMBER" in shown
    assert "PARSED" not in shown
