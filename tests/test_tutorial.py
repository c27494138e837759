"""The tutorials, followed to the letter; only the Bank of Russia is on loopback, and the month has four days."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime

import psycopg2
import pytest
from defusedxml import ElementTree as ET

from dataloader import Client
from dataloader.app.queue.job import Status
from tests.support import Databases, eventually
from tests.support.checkout import Checkout, open_checkout, python_blocks, shell_blocks
from tests.support.processes import ROOT
from tests.support_sources import Reply, Request, SourceServer


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
def checkout(databases: Databases) -> Iterator[Checkout]:
    """With an empty database, which `make run` prepares."""
    with databases.fresh(schema=False) as dsn, open_checkout(dsn) as opened:
        yield opened


@pytest.fixture
def bank() -> Iterator[SourceServer]:
    server = SourceServer()
    server.add_route("GET", "/scripts/XML_daily.asp", rates)
    yield server
    server.close()


def test_the_tutorial_does_what_it_says(checkout: Checkout, bank: SourceServer):
    text = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8").replace("--to 2026-01-31", "--to 2026-01-04")
    (chart,) = python_blocks(text)
    start, *blocks, restart, draw = shell_blocks(text)
    endpoints = {"DL_ENDPOINTS": json.dumps({"cbr": bank.url})}

    with checkout.running(start, endpoints):
        client = Client(checkout.url)
        result = "".join(map(checkout.shell, blocks))
        eventually(lambda: len(client.jobs(status=Status.SUCCEEDED, limit=100)) == 6, 60, lambda: result)
    checkout.write("my_etl/__init__.py", "")
    checkout.write("my_etl/chart.py", chart)
    with checkout.running(restart, endpoints):
        result += checkout.shell(draw)

    assert "picked" in result
    assert "4 of 4 slices" in result
    assert "done: 4 succeeded" in result
    assert "load.cbr.rates is on; next " in result
    assert "rates are late" in result
    drawn = ET.fromstring((checkout.folder / "rates.svg").read_text(encoding="utf-8"))
    lines = [line.get("points", "").split() for line in drawn.iter() if line.tag.endswith("polyline")]
    assert [len(points) for points in lines] == [6, 6], "those of the backfill, the one before, and yesterday"
    usd, cny = ([float(point.split(",")[1]) for point in points] for points in lines)
    assert usd[0] > usd[-1], "what rises is drawn upward"
    assert cny[0] < cny[-1]


def test_the_tutorial_with_files_does_what_it_says(databases: Databases):
    text = (ROOT / "docs/tutorial-file.md").read_text(encoding="utf-8")
    (task,) = python_blocks(text)
    prepare, start, *blocks = shell_blocks(text)
    with databases.fresh(schema=False) as dsn, open_checkout(dsn) as checkout:
        checkout.shell(prepare)
        checkout.write("my_etl/orders.py", task)
        with checkout.running(start):
            one_day, three_days, wrong, corrected, daily = map(checkout.shell, blocks)
        with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT day::text, count(*), sum(amount)::float FROM orders GROUP BY day ORDER BY day")
            days = cursor.fetchall()
        connection.close()

    assert "orders" in one_day
    assert "2 of 3 slices" in three_days
    assert "done: 2 succeeded" in three_days
    assert "could not convert string to float: 'seven'" in wrong
    assert "succeeded" in corrected
    assert "load.shop_orders is on; next " in daily
    assert days == [("2026-01-01", 2, 30.5), ("2026-01-02", 1, 7.25), ("2026-01-03", 3, 105.9), ("2026-01-04", 1, 7.0)]
