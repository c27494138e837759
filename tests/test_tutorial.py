"""The tutorial, followed to the letter; only the Bank of Russia is on loopback, and the month has four days."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import psycopg2
import pytest
from defusedxml import ElementTree as ET

from app.db.schema import migrate
from app.queue.job import Status
from dataloader import Client
from tests.support import Databases, Process, eventually, free_port
from tests.support.processes import ROOT, clean_environment
from tests.support_sources import Reply, Request, SourceServer

TEXT = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
SHELL = [
    block for block in re.findall(r"^```sh\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL) if "make run" not in block
]
((PYTHON),) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def rates(request: Request) -> Reply:
    """Rates of a day: the dollar rises, the yuan falls, a little each day."""
    day = datetime.strptime(request.query["date_req"], "%d/%m/%Y").replace(tzinfo=None)  # noqa: DTZ007 - a day
    days = day.toordinal() - datetime(2024, 1, 1).toordinal()  # noqa: DTZ001 - likewise
    valutes = "".join(
        f'<Valute ID="R{code}"><NumCode>{number}</NumCode><CharCode>{code}</CharCode><Nominal>1</Nominal>'
        f"<Name>{code}</Name><Value>{value:.4f}</Value></Valute>".replace(".", ",")
        for code, number, value in (("USD", 840, 60 + days / 1000), ("CNY", 156, 80 - days / 1000))
    )
    document = (
        f'<?xml version="1.0" encoding="windows-1251"?><ValCurs Date="{day:%d.%m.%Y}" name="x">{valutes}</ValCurs>'
    )
    return Reply(document.encode("windows-1251"), headers={"Content-Type": "application/xml; charset=windows-1251"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The newcomer's checkout, as far as they see it: `.venv/bin/dataloader` and a folder of their own."""
    program = tmp_path / ".venv/bin/dataloader"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m app "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    mine = tmp_path / "my_etl"
    mine.mkdir()
    (mine / "__init__.py").touch()
    (mine / "chart.py").write_text(PYTHON, encoding="utf-8")
    return tmp_path


@pytest.fixture
def bank() -> Iterator[SourceServer]:
    server = SourceServer()
    server.add_route("GET", "/scripts/XML_daily.asp", rates)
    yield server
    server.close()


def test_the_tutorial_does_what_it_says(dsn: str, folder: Path, bank: SourceServer):
    port = free_port()
    env = {
        "DL_DB_DSN": dsn,
        "APP_PORT": str(port),
        "DL_PIPELINES": "pipelines,my_etl",
        "DL_ENDPOINTS": json.dumps({"cbr": bank.url}),
        "PYTHONPATH": str(ROOT),
    }
    argv = [sys.executable, "-m", "app", "serve"]
    with Process(argv, output=folder / "service.log", env=env, cwd=folder) as service:
        service.wait_for_line("is ready at")
        client = Client(f"http://127.0.0.1:{port}")
        result = "".join(shell(block.replace("--to 2026-01-31", "--to 2026-01-04"), folder, port) for block in SHELL)
        eventually(lambda: len(client.jobs(status=Status.SUCCEEDED, limit=100)) == 7, 60, lambda: result + service.text)

    assert "picked" in result
    assert "4 of 4 slices" in result
    assert "done: 4 succeeded" in result
    assert "load.cbr.rates is on; next " in result
    assert "rates are late" in result
    drawn = ET.fromstring((folder / "rates.svg").read_text(encoding="utf-8"))
    lines = [line.get("points", "").split() for line in drawn.iter() if line.tag.endswith("polyline")]
    assert [len(points) for points in lines] == [6, 6], "those of the backfill, the one before, and yesterday"
    usd, cny = ([float(point.split(",")[1]) for point in points] for points in lines)
    assert usd[0] > usd[-1], "what rises is drawn upward"
    assert cny[0] < cny[-1]


def test_the_tutorial_with_files_does_what_it_says(databases: Databases, folder: Path):
    text = (ROOT / "docs/tutorial-file.md").read_text(encoding="utf-8")
    (task,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    prepare, *blocks = [b for b in re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL) if "make" not in b]
    shell(prepare, folder, port := free_port())
    (folder / "my_etl/orders.py").write_text(task, encoding="utf-8")
    with databases.fresh() as dsn:
        migrate(dsn)
        env = {"DL_DB_DSN": dsn, "APP_PORT": str(port), "DL_PIPELINES": "pipelines,my_etl", "PYTHONPATH": str(ROOT)}
        with Process([sys.executable, "-m", "app", "serve"], output=folder / "log", env=env, cwd=folder) as service:
            service.wait_for_line("is ready at")
            one_day, three_days, wrong, corrected, daily = (shell(block, folder, port) for block in blocks)
        with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT day::text, count(*), sum(amount)::float FROM orders GROUP BY day ORDER BY day")
            days = cursor.fetchall()
        connection.close()

    assert "orders" in one_day
    assert "done: 3 succeeded" in three_days
    assert "could not convert string to float: 'seven'" in wrong
    assert "succeeded" in corrected
    assert "load.shop_orders is on; next " in daily
    assert days == [("2026-01-01", 2, 30.5), ("2026-01-02", 1, 7.25), ("2026-01-03", 3, 105.9), ("2026-01-04", 1, 7.0)]


def shell(script: str, folder: Path, port: int) -> str:
    env = clean_environment() | {"PATH": os.environ["PATH"], "DL_URL": f"http://127.0.0.1:{port}"}
    done = subprocess.run(
        ["sh", "-euc", script], capture_output=True, text=True, timeout=30, check=False, env=env, cwd=folder
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    return done.stdout
