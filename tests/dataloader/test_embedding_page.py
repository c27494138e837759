"""The examples of docs/embedding.md, run in Flask and in Django."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from psycopg2.errors import UniqueViolation
from psycopg2.pool import ThreadedConnectionPool

from dataloader.app.queue.job import Status
from dataloader.pipelines import contract
from tests.support import eventually
from tests.support.api_server import serving
from tests.support.processes import ROOT, clean_environment
from tests.support.queue_fixture import QueueFixture

EXAMPLES: list[str] = re.findall(
    r"^```python\n(.*?)^```$", (ROOT / "docs/embedding.md").read_text("utf-8"), re.DOTALL | re.M
)
DJANGO = """
import os
from django.conf import settings
from psycopg2.extensions import parse_dsn

dsn = parse_dsn(os.environ["SHOP_DSN"])
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": dsn["dbname"],
    "HOST": dsn.get("host", ""), "PORT": dsn.get("port", ""), "USER": dsn.get("user", ""),
    "PASSWORD": dsn.get("password", "")}})
"""
DJANGO_MAIN = """
print(place_order(1))
try:
    place_order(1)
except Exception as error:
    print(type(error).__name__)
"""


def example(marker: str) -> str:
    (found,) = (code for code in EXAMPLES if marker in code)
    return found


def names_of(marker: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "shop"}
    exec(compile(example(marker), "embedding.md", "exec"), names)  # noqa: S102 - it is our page
    return names


@pytest.fixture
def queue(dsn: str) -> Iterator[QueueFixture]:
    fixture = QueueFixture(dsn)
    fixture.sql("CREATE TABLE orders (number int PRIMARY KEY)")
    yield fixture
    fixture.close()


@pytest.fixture
def pool(dsn: str) -> Iterator[ThreadedConnectionPool]:
    made = ThreadedConnectionPool(1, 4, dsn)
    yield made
    made.closeall()


@pytest.fixture(autouse=True)
def forget_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract.registry, "_tasks", {})


def test_flask_example_enqueues_and_runs_its_jobs(pool, queue):
    names = names_of("Flask(")
    app = names["create_app"](pool)
    app.testing = True

    with app.test_client() as client:
        job_id = UUID(client.post("/orders/1").json["job_id"])
        with pytest.raises(UniqueViolation):
            client.post("/orders/1")
    workers = names["start_workers"](pool)
    try:
        eventually(lambda: queue.job(job_id).status is Status.SUCCEEDED)
    finally:
        names["atexit"].unregister(workers.stop)
        assert workers.stop()

    assert queue.job(job_id).result == "order 1 is confirmed"
    assert queue.sql("SELECT count(*) FROM dl_jobs")[0][0] == 1


def test_django_example_enqueues_in_its_transaction(queue, dsn):
    code = DJANGO + example("transaction.atomic") + DJANGO_MAIN
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**clean_environment(), "SHOP_DSN": dsn},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    job_id, error = done.stdout.split()
    assert error == "IntegrityError"
    assert queue.job(UUID(job_id)).args == {"number": 1}
    assert queue.sql("SELECT count(*) FROM dl_jobs")[0][0] == 1


def test_worker_example_runs_until_it_is_stopped(queue, dsn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "shop_tasks.py").write_text("from dataloader import register\n\nregister('t')(lambda args: 'done')\n")
    monkeypatch.syspath_prepend(tmp_path)
    stopping = threading.Event()
    thread = threading.Thread(target=names_of("run_workers")["run_workers"], args=(dsn, stopping))
    job_id = queue.enqueue("k", queue="shop")

    thread.start()
    eventually(lambda: queue.job(job_id).result == "done")
    stopping.set()
    thread.join(60)

    assert not thread.is_alive()


def test_http_example_triggers(queue, dsn):
    names = names_of("Client(url)")
    with serving(dsn) as url:
        thread = threading.Thread(target=names["confirm_and_wait"], args=(url, 7))
        thread.start()
        (job_id,) = eventually(lambda: [row[0] for row in queue.sql("SELECT job_id FROM dl_jobs")])
        queue.queue.cancel(job_id)
        thread.join(30)

    assert not thread.is_alive()
