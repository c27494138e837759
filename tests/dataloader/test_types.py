"""The types of the installed package, as mypy and pyright check a user's project with them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.processes import ROOT, clean_environment

RIGHT_CODE = '''\
from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import assert_type
from uuid import UUID

import dataloader
from dataloader import (
    Breaker, Checkpoint, Client, Context, Daily, Fail, NotFound, Progress, Snooze, Wait, Workers, enqueue, register,
    schedule,
)


@schedule("0 6 * * *", zone="UTC", catch_up_window=timedelta(days=2))
@register("load.rates", lock_key="rates:{day}", partitions=Daily("2026-01-01"), breaker=Breaker(failures=3))
def load_rates(args: dict[str, str], ctx: Context) -> int:
    """Load the rates of a day."""
    assert_type(ctx.job_id, UUID)
    assert_type(ctx.attempt, int)
    with ctx.transaction() as connection:
        connection.cursor().execute("SELECT 1")
    ctx.log.info("loading", day=args["day"])
    jobs, last = ctx.fan_out([{"task": "load.part"}], then={"task": "load.end"})
    assert_type(jobs, list[UUID])
    assert_type(last, UUID)
    if ctx.attempt > 1:
        raise Snooze(60, "the source is not ready")
    return len(args)


@dataloader.register("load.parts", spread=True)
def load_parts(count: int) -> Iterator[Progress | Checkpoint | Wait]:
    for n in range(count):
        yield Progress(done=n, total=count)
        yield Checkpoint(n)
    raise Fail("there is no more")


assert_type(dataloader.__version__, str)


def ask(client: Client) -> str | None:
    try:
        return str(client.job(client.trigger("load.rates", {"day": "2026-01-01"}, priority=5)["job_id"])["status"])
    except NotFound as error:
        return str(error)


def run(pool: object, connection: object) -> UUID:
    with Workers(pool, {"etl": 2}, packages=["loads"]) as workers:
        assert_type(workers.failure, str | None)
    return enqueue(connection, "load.rates", {"day": "2026-01-01"}, queue="etl", lock_key="rates")
'''

WRONG_CODE = """\
from __future__ import annotations

import dataloader
from dataloader import Breaker, Client, Context, Daily, Snooze, Workers, no_such_name, register, schedule  # wrong


@schedule(6)  # wrong
@register("load.rates", no_such_option=True)  # wrong
def load_rates(args: dict[str, str], ctx: Context) -> int:
    ctx.no_such()  # wrong
    ctx.sleep("long")  # wrong
    ctx.attempt = 2  # wrong
    raise Snooze("soon")  # wrong


@register("load.parts")
def load_parts(count: int, ctx: Context) -> int:
    return ctx.attempt + count


def call(ctx: Context, client: Client) -> str:
    load_parts("7", ctx)  # wrong
    client.no_such()  # wrong
    client.trigger("load.parts", {}, no_such_option=1)  # wrong
    Daily(2026)  # wrong
    Breaker(failures="many")  # wrong
    Workers(None, ["etl"])  # wrong
    dataloader.no_such_name  # wrong
    return load_parts(7, ctx)  # wrong
"""


@dataclass(frozen=True)
class UsersProject:
    folder: Path
    python: Path


@pytest.fixture(scope="module")
def project(wheel_python: Path, tmp_path_factory: pytest.TempPathFactory) -> UsersProject:
    folder = tmp_path_factory.mktemp("project")
    (folder / "right.py").write_text(RIGHT_CODE, encoding="utf-8")
    (folder / "wrong.py").write_text(WRONG_CODE, encoding="utf-8")
    (folder / "pyrightconfig.json").write_text(
        json.dumps({"typeCheckingMode": "strict", "include": ["right.py", "wrong.py"], "pythonVersion": "3.11"})
    )
    return UsersProject(folder, wheel_python)


def wrong_lines() -> set[int]:
    return {number for number, line in enumerate(WRONG_CODE.splitlines(), 1) if line.endswith("# wrong")}


def find_pyright() -> str:
    """The path of pyright, which npm installs. Where CI is set, it must be there."""
    path = os.pathsep.join((os.environ.get("PATH", ""), str(ROOT / "build/tools/node_modules/.bin")))
    program = shutil.which("pyright", path=path)
    if program is None:
        reason = "pyright is missing: npm install --prefix build/tools pyright"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return program


@pytest.mark.full
@pytest.mark.timeout(400)
def test_mypy_knows_the_types_of_an_installed_wheel(project: UsersProject):
    argv = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(project.python), "--no-error-summary"]
    argv += ["--config-file", os.devnull, "--python-version", "3.11", "right.py", "wrong.py"]
    done = subprocess.run(
        argv, cwd=project.folder, env=clean_environment(), capture_output=True, text=True, timeout=300, check=False
    )
    found = re.findall(r"^(right|wrong)\.py:(\d+): error", done.stdout, re.MULTILINE)

    assert [line for line in done.stdout.splitlines() if line.startswith("right.py")] == []
    assert {int(line) for name, line in found if name == "wrong"} == wrong_lines(), done.stdout + done.stderr


@pytest.mark.full
@pytest.mark.timeout(400)
def test_pyright_knows_the_types_of_an_installed_wheel(project: UsersProject):
    argv = [find_pyright(), "--outputjson", "--pythonpath", str(project.python)]
    done = subprocess.run(
        argv, cwd=project.folder, env=clean_environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    errors = [error for error in json.loads(done.stdout)["generalDiagnostics"] if error["severity"] == "error"]
    places = [(Path(error["file"]).name, error["range"]["start"]["line"] + 1, error["message"]) for error in errors]

    assert [place for place in places if place[0] == "right.py"] == []
    assert {line for name, line, _ in places if name == "wrong.py"} == wrong_lines(), places


def run_python(project: UsersProject, code: str) -> str:
    done = subprocess.run(
        [str(project.python), "-c", code],
        cwd=project.folder, env=clean_environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_repl_completes_the_public_names(project: UsersProject):
    code = (
        "import dataloader, rlcompleter\n"
        "complete = rlcompleter.Completer({'dataloader': dataloader}).complete\n"
        "print(*(complete('dataloader.reg', n) for n in range(3)), sep='\\n')\n"
        "print(*dir(dataloader))\n"
    )

    *completions, names = run_python(project, code).splitlines()

    assert completions == ["dataloader.register(", "dataloader.registry", "None"]
    assert {"Client", "Context", "Workers", "__version__", "register", "schedule"} <= set(names.split())


def test_import_loads_nothing_else_of_ours(project: UsersProject):
    code = (
        "import sys, dataloader\n"
        "dir(dataloader)\n"
        "print(*sorted(name for name in sys.modules if name.split('.')[0] in\n"
        "    ('app', 'dataloader', 'importlib', 'inspect', 'pipelines', 'pydoc', 'workers')))\n"
    )

    loaded = run_python(project, code).split()

    assert [name for name in loaded if not name.startswith("importlib")] == ["dataloader"]
    assert "importlib.metadata" not in loaded


def test_version_is_that_of_the_installed_distribution(project: UsersProject):
    code = (
        "import dataloader\n"
        "from importlib import metadata\n"
        "print(dataloader.__version__, metadata.version('pg-dataloader'))\n"
    )

    shown, installed = run_python(project, code).split()

    assert shown == installed


def test_help_of_register_describes_each_option(project: UsersProject):
    code = (
        "import dataloader, inspect\n"
        "help(dataloader.register)\n"
        "print('ALL OPTIONS', *inspect.signature(dataloader.register).parameters)"
    )

    text, _, options = run_python(project, code).rpartition("ALL OPTIONS")

    described = set(re.findall(r"^ +(\w+): \S", text, re.MULTILINE))
    assert set(options.split()) == described
    assert "@register(" in text
