"""Tasks in a project that has packages `app`, `workers` and `pipelines` of its own: Django, and an installed wheel."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from pathlib import Path
from textwrap import dedent

import pytest

from dataloader._distribution import NAME
from dataloader.app.queue.job import Status
from tests.support import Process, eventually
from tests.support.processes import clean_environment
from tests.support.queue_fixture import QueueFixture
from tests.support.wheel import make_environment, run_pip

# The packages are installed, as those of a company are: the wheel and they share one folder.
FILES = {
    "app/__init__.py": "",
    "app/settings.py": """
        import os
        from psycopg2.extensions import parse_dsn

        dsn = parse_dsn(os.environ["SHOP_DSN"])
        SECRET_KEY, USE_TZ = "x", True
        INSTALLED_APPS = ["app"]
        DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
        DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": dsn["dbname"],
            "HOST": dsn.get("host", ""), "PORT": dsn.get("port", ""), "USER": dsn.get("user", ""),
            "PASSWORD": dsn.get("password", "")}}
    """,
    "app/models.py": """
        from django.db import models

        class Order(models.Model):
            number = models.IntegerField(unique=True)
            confirmed_by = models.CharField(max_length=100, default="")
    """,
    "workers/__init__.py": "",
    "workers/orders.py": """
        import django

        from dataloader import register

        django.setup()
        from app.models import Order

        def confirm(number, task):
            assert Order.objects.filter(number=number).update(confirmed_by=task) == 1

        @register("order.confirm")
        def confirm_in_thread(args):
            confirm(args["number"], "order.confirm")
    """,
    "pipelines/__init__.py": "",
    "pipelines/process.py": """
        from dataloader import Context, register
        from workers.orders import confirm

        @register("order.isolated", isolation="process")
        def confirm_in_process(args, ctx: Context):
            confirm(args["number"], ctx.task)
    """,
    "pipelines/legacy.py": """
        def confirm(args, ctx):
            from workers.orders import confirm
            confirm(args["number"], ctx.task)
    """,
}
PLACE_ORDERS = """
    import django
    django.setup()
    from django.core.management import call_command
    from app.models import Order

    call_command("migrate", "--run-syncdb", verbosity=0)
    Order.objects.bulk_create(Order(number=n) for n in range(3))
"""


@pytest.fixture(scope="module")
def environment(wheel_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an environment that has the project, and dataloader installed after it."""
    folder = tmp_path_factory.mktemp("project") / "venv"
    python = make_environment(folder)
    for name, text in FILES.items():
        path = packages_of(folder) / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
    run_pip(python, "install", "--no-deps", "--no-index", str(wheel_path))
    return folder


@pytest.fixture
def packages(environment: Path, tmp_path: Path) -> Path:
    """The folder of installed packages of such an environment, of this test's own."""
    return packages_of(Path(shutil.copytree(environment, tmp_path / "venv", symlinks=True)))


def packages_of(environment: Path) -> Path:
    (folder,) = (environment / "lib").glob("python3*/site-packages")
    return folder


def python_of(packages: Path) -> Path:
    return packages.parents[2] / "bin/python"


def project_files(packages: Path) -> dict[str, str]:
    return {name: (packages / name).read_text(encoding="utf-8") for name in FILES if (packages / name).is_file()}


def test_worker_runs_tasks_that_use_the_projects_packages(packages: Path, dsn: str, tmp_path: Path):
    variables = {"SHOP_DSN": dsn, "DJANGO_SETTINGS_MODULE": "app.settings"}
    subprocess.run(
        [python_of(packages), "-c", dedent(PLACE_ORDERS)],
        cwd=tmp_path, env={**clean_environment(), **variables}, check=True, timeout=100,
    )  # fmt: skip
    legacy = {"call": "pipelines.legacy:confirm", "python": str(python_of(packages))}
    queue = QueueFixture(dsn)
    tasks = ["order.confirm", "order.isolated", "order.legacy"]
    jobs = [queue.enqueue(task, task=task, args={"number": number}) for number, task in enumerate(tasks)]
    try:
        with Process(
            [python_of(packages), "-m", "dataloader", "worker"],
            output=tmp_path / "out",
            env=variables | {
                "DL_DB_DSN": dsn, "DL_PIPELINES": "dataloader.pipelines,workers,pipelines", "DL_MEMORY_HIGH": "0",
                "DL_TASKS": json.dumps({"order.legacy": legacy}), "WORKERS_JSON": '[{"queue": "q", "concurrency": 2}]',
            },
            cwd=tmp_path,
        ) as worker:  # fmt: skip
            eventually(lambda: all(queue.job(job).status.final for job in jobs), message=lambda: worker.text)
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 0

        assert [(queue.job(job).error, queue.status(job)) for job in jobs] == [(None, Status.SUCCEEDED)] * 3
        assert queue.sql("SELECT number, confirmed_by FROM app_order ORDER BY number") == list(enumerate(tasks))
    finally:
        queue.close()


def test_install_and_uninstall_leave_the_projects_packages(packages: Path):
    written = {name: dedent(text) for name, text in FILES.items()}

    assert project_files(packages) == written
    run_pip(python_of(packages), "uninstall", "--yes", NAME)
    assert project_files(packages) == written
    assert not (packages / "dataloader").exists()
