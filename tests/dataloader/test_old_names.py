"""Import names of 0.2.0 (`pipelines.contract`, `workers.testing`): in a checkout, in an installed wheel, and next to a
project's own packages of these names."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from dataloader.app.queue.job import Status
from tests.support import Process, eventually
from tests.support.processes import ROOT, clean_environment
from tests.support.queue_fixture import QueueFixture

MODULES = ("app", "pipelines", "workers")


@dataclass(frozen=True)
class Installation:
    """An interpreter that finds dataloader, and a folder for a project's modules."""

    python: Path
    project: Path
    environment: dict[str, str]

    def write(self, name: str, text: str = "") -> None:
        path = self.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def run(self, *argv: str) -> str:
        done = subprocess.run(
            [str(self.python), *argv],
            cwd=self.project, env=self.environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def evaluate(self, *lines: str) -> str:
        return self.run("-W", "always", "-c", "\n".join(lines)).strip()


def checkout_of(project: Path) -> Installation:
    return Installation(Path(sys.executable), project, {**clean_environment(), "PYTHONPATH": str(ROOT)})


@pytest.fixture
def checkout(tmp_path: Path) -> Installation:
    return checkout_of(tmp_path)


@pytest.fixture
def wheel(wheel_python: Path, tmp_path: Path) -> Installation:
    return Installation(wheel_python, tmp_path, clean_environment())


@pytest.fixture(params=["checkout", "wheel"])
def installation(request: pytest.FixtureRequest, wheel_python: Path, tmp_path: Path) -> Installation:
    if request.param == "checkout":
        return checkout_of(tmp_path)
    return Installation(wheel_python, tmp_path, clean_environment())


# A checkout's folder is found without it; an installed wheel has the old names once a module of tasks is loaded.
LOADED = "from dataloader import register"


@pytest.mark.parametrize("first", ["old", "new"])
def test_old_and_new_name_are_one_module(installation: Installation, first: str):
    imports = ["import pipelines.contract, pipelines.toolkit.decode", "import dataloader.pipelines.toolkit.decode"]
    shown = installation.evaluate(
        LOADED,
        *(imports if first == "old" else reversed(imports)),
        "import importlib, dataloader",
        "assert pipelines is dataloader.pipelines and pipelines.contract is dataloader.pipelines.contract",
        "assert pipelines.toolkit.decode is dataloader.pipelines.toolkit.decode",
        "assert pipelines.contract.registry is dataloader.pipelines.contract.registry",
        "assert pipelines.contract.__spec__.name == pipelines.contract.__name__ == 'dataloader.pipelines.contract'",
        "assert importlib.reload(pipelines.contract) is dataloader.pipelines.contract",
    )

    assert shown.count("DeprecationWarning") == 1
    assert "<string>:" in shown, "it names the line that imports"
    assert "import from dataloader.pipelines" in shown


def test_checkout_needs_no_other_import_first(checkout: Installation):
    shown = checkout.evaluate(
        "import workers.testing, app.config, dataloader.workers.testing, dataloader.app.config",
        "assert workers.testing is dataloader.workers.testing and app.config is dataloader.app.config",
    )

    assert shown.count("DeprecationWarning") == 1


def test_checkout_runs_modules_by_their_old_names(checkout: Installation):
    assert checkout.run("-W", "error", "-m", "app", "--help") == checkout.run("-m", "dataloader", "--help")
    assert checkout.run("-m", "app.http").startswith("{")


def test_wheel_has_no_old_name_of_app(wheel: Installation):
    assert wheel.evaluate(LOADED, "try:\n    import app.cli\nexcept ImportError as error:\n    print(error)") == (
        "No module named 'app'"
    )


def test_task_of_an_old_import_is_in_the_registry(installation: Installation):
    installation.write(
        "acme.py", "from pipelines.contract import register\n\n@register('acme.load')\ndef load(args): ...\n"
    )

    shown = installation.evaluate(
        "from dataloader.pipelines.contract import load_tasks, registry",
        "print(load_tasks(['acme']), registry.get('acme.load').name)",
    )

    assert "{} acme.load" in shown


def test_pickles_hold_the_new_name_and_load_by_the_old(installation: Installation):
    installation.evaluate(
        LOADED,
        "import pickle, dataloader",
        "from pipelines.retry import Fail",
        "assert b'dataloader.pipelines' in pickle.dumps(Fail('x'), 0)",
        "assert pickle.loads(b'cpipelines.retry\\nFail\\n.') is dataloader.Fail",
    )


def test_missing_module_is_named_by_its_old_name(installation: Installation):
    assert "No module named 'pipelines.nothing'" in installation.evaluate(
        LOADED, "try:\n    import pipelines.nothing\nexcept ModuleNotFoundError as error:\n    print(error)"
    )


IMPORT_OWN = (
    LOADED,
    "import app.own, pipelines.own, workers.own",
    "for name in ('app.cli', 'pipelines.contract', 'workers.testing'):",
    "    try:\n        __import__(name)",
    "    except ModuleNotFoundError as error:\n        print(error)",
)
MISSING = [f"No module named '{name}'" for name in ("app.cli", "pipelines.contract", "workers.testing")]


def test_own_packages_count_first(installation: Installation):
    for name in MODULES:
        installation.write(f"{name}/__init__.py")
        installation.write(f"{name}/own.py")

    assert installation.evaluate(*IMPORT_OWN).splitlines() == MISSING


def test_own_folders_without_init_count_first(wheel: Installation):
    for name in MODULES:
        wheel.write(f"{name}/own.py")

    assert wheel.evaluate(*IMPORT_OWN).splitlines() == MISSING


def test_setting_of_old_release_loads_shipped_pipelines(installation: Installation):
    installation.write("acme/__init__.py", "from pipelines.contract import register\n")
    installation.write("acme/loads.py", "from acme import register\n\n@register('acme.load')\ndef load(args): ...\n")
    installation.environment["DL_PIPELINES"] = "pipelines,acme"

    listed = installation.run("-m", "dataloader", "tasks")

    assert {"noop", "load.cbr.rates", "acme.load"} <= set(listed.split())


def test_setting_means_own_package_where_there_is_one(installation: Installation):
    installation.write("pipelines/__init__.py")
    installation.write(
        "pipelines/own/loads.py", "from dataloader import register\n\n@register('own')\ndef load(args): ...\n"
    )
    installation.write("pipelines/own/__init__.py")
    installation.environment["DL_PIPELINES"] = "pipelines.own"

    listed = installation.run("-m", "dataloader", "tasks").split()

    assert "own" in listed
    assert "noop" not in listed


def test_edit_of_a_package_by_its_old_name_is_seen(installation: Installation):
    assert "noop.py" in installation.evaluate(
        "from dataloader.app.config import load_settings",
        "from dataloader.app.runtime.dev import scan",
        "print(*(path.name for path in scan(load_settings({'DL_PIPELINES': 'pipelines'}, dotenv=None))))",
    )


def test_own_package_may_have_an_old_name(wheel: Installation):
    shown = wheel.run("-m", "dataloader", "new-pipeline", "load.orders", "--dir", "pipelines")

    assert "DL_PIPELINES=dataloader.pipelines,pipelines " in shown
    assert "Ran 2 tests" in wheel.run("-m", "unittest", "tests/pipelines/test_load_orders.py")


TASKS = """
from pipelines.contract import register
from pipelines.testing import FakeContext
from workers import testing

@register("acme.thread")
def in_thread(args):
    return register.__module__

@register("acme.process", isolation="process")
def in_process(args):
    return register.__module__
"""


def test_worker_runs_tasks_of_old_imports(wheel: Installation, dsn: str, tmp_path: Path):
    """In threads, in processes, and by an interpreter that the task names, which has dataloader too."""
    wheel.write("acme.py", TASKS)
    wheel.write("legacy.py", "def load(args, ctx):\n    from pipelines import own\n    return own.__name__\n")
    wheel.write("legacy_project/pipelines/own.py")
    legacy = {"call": "legacy:load", "python": str(wheel.python), "cwd": str(tmp_path / "legacy_project")}
    wheel.write("legacy_project/legacy.py", (tmp_path / "legacy.py").read_text(encoding="utf-8"))
    settings = {
        "DL_DB_DSN": dsn, "DL_PIPELINES": "pipelines,acme", "DL_TASKS": json.dumps({"acme.python": legacy}),
        "WORKERS_JSON": '[{"queue": "q", "concurrency": 2}]', "DL_MEMORY_HIGH": "0",
    }  # fmt: skip
    queue = QueueFixture(dsn)
    jobs = {name: queue.enqueue(name, task=name) for name in ("noop", "acme.thread", "acme.process", "acme.python")}
    try:
        with Process(
            [wheel.python, "-m", "dataloader", "worker"], output=tmp_path / "out", env=settings, cwd=tmp_path
        ) as worker:
            eventually(lambda: all(queue.status(job) is Status.SUCCEEDED for job in jobs.values()))
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 0
        results = {name: queue.job(job).result for name, job in jobs.items()}
        assert results["acme.thread"] == results["acme.process"] == "dataloader.pipelines.contract"
        assert results["acme.python"] == "pipelines.own"
    finally:
        queue.close()
