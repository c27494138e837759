"""load.tenera against servers that speak the six sources' shapes, and a real PostgreSQL."""

from __future__ import annotations

import copy
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
import time_machine

from dataloader.pipelines.contract import Fail, Stop
from dataloader.pipelines.tenera.load import SourcesFailed
from dataloader.pipelines.tenera.shapes import COLUMNS
from tests.support_sources import RecordingContext, Reply, start_task
from tests.support_sources.tenera import PAYLOADS

VALUES = """
SELECT source, s.code AS section, q.code, q.name, grain, quoted_on, quoted_at, open, high, low, close, volume, measures
  FROM quotes.quote_value JOIN quotes.quote AS q USING (quote_id) JOIN quotes.quote_section AS s USING (section_id)
 ORDER BY source, q.code, quoted_at
"""


@pytest.fixture
def tenera(source, rows):
    for name, payload in PAYLOADS.items():
        source.add_route("GET", f"/quotes/{name}", Reply.from_json(payload))
    return source


def load(ctx=None, **args):
    return start_task("load.tenera", args, ctx)


def test_all_six_sources_are_loaded(tenera, rows):
    ctx = RecordingContext()

    result = load(ctx, since="2024-01-31", until="2024-02-01")

    assert {name: loaded["inserted"] for name, loaded in result.items()} == {
        "cbr": 2,
        "investing": 1,
        "sgx": 1,
        "bloomberg": 2,
        "tradingview": 2,
        "tradingeconomics": 1,
    }
    assert tenera.requests[0].query == {"from": "2024-01-31", "to": "2024-02-01"}
    assert tenera.requests[0].headers["Authorization"] == "Bearer 10"
    assert [note["done"] for note in ctx.progress_reports] == [1, 2, 3, 4, 5, 6]
    stored = rows(VALUES)
    assert len(stored) == 9
    assert stored[0] == {
        "source": "bloomberg",
        "section": "Energy",
        "code": "CO1 Comdty",
        "name": "Brent",
        "grain": "moment",
        "quoted_on": date(2024, 2, 1),
        "quoted_at": datetime(2024, 1, 31, 21, tzinfo=UTC),
        "open": Decimal("82.5"),
        "high": Decimal(83),
        "low": Decimal(82),
        "close": Decimal("81.7"),
        "volume": None,
        "measures": {"bid": 81.6},
    }


def test_loading_again_changes_what_differs_and_nothing_else(tenera, rows):
    load()
    before = rows(VALUES)
    payload = copy.deepcopy(PAYLOADS["tradingview"])
    payload["series"][0]["c"][1] = 80
    payload["series"][0]["description"] = "WTI Crude"
    tenera.add_route("GET", "/quotes/tradingview", Reply.from_json(payload))

    result = load()

    assert {name: (loaded["inserted"], loaded["updated"]) for name, loaded in result.items()} == {
        **dict.fromkeys(PAYLOADS, (0, 0)),
        "tradingview": (0, 1),
    }
    after = rows(VALUES)
    assert [row for row in after if row["source"] != "tradingview"] == [
        row for row in before if row["source"] != "tradingview"
    ]
    assert [(row["name"], row["close"]) for row in after if row["source"] == "tradingview"] == [
        ("WTI Crude", Decimal("77.9")),
        ("WTI Crude", Decimal(80)),
    ]


def test_a_day_and_a_moment_of_one_quote_are_two_values(tenera, rows):
    load(sources=["bloomberg"])
    rows(
        "INSERT INTO quotes.quote_value (quote_id, grain, quoted_at, quoted_on) "
        "SELECT quote_id, 'day', quoted_at, quoted_on FROM quotes.quote_value"
    )

    assert load(sources=["bloomberg"])["bloomberg"]["unchanged"] == 2
    assert len(rows(VALUES)) == 4


def test_the_last_week_in_moscow_is_loaded_by_default(tenera, rows):
    with time_machine.travel(datetime(2024, 1, 31, 22, tzinfo=UTC), tick=True):
        load(sources=["cbr"])

    assert tenera.requests[0].query == {"from": "2024-01-25", "to": "2024-02-01"}


def test_names_may_be_written_as_people_do(tenera, rows):
    assert set(load(sources=["Investing.com", "CBR"])) == {"Investing.com", "CBR"}


def test_bad_records_are_reported_and_others_loaded(tenera, rows):
    payload = copy.deepcopy(PAYLOADS["investing"])
    payload["data"] += [{"symbol": "X"}, None]
    tenera.add_route("GET", "/quotes/investing", Reply.from_json(payload))

    loaded = load(sources=["investing"])["investing"]

    assert (loaded["rows"], loaded["rejected"]) == (1, 2)
    assert [bad["place"] for bad in loaded["rejects"]] == ["investing data[1]", "investing data[2]"]


def test_what_fails_is_named_and_the_rest_still_loads(tenera, rows):
    tenera.add_route("GET", "/quotes/investing", Reply.from_json({"quotes": []}))
    tenera.add_route("GET", "/quotes/sgx", Reply(b"<html>"))
    bad = copy.deepcopy(PAYLOADS["tradingeconomics"])
    bad[0]["Name"] = "a\x00b"
    tenera.add_route("GET", "/quotes/tradingeconomics", Reply.from_json(bad))

    with pytest.raises(SourcesFailed) as caught:
        load(sources=[*PAYLOADS, "reuters"])

    message = str(caught.value)
    assert "investing: UnknownShape: investing: there is no data; it has quotes" in message
    assert "sgx: SourceBroken" in message
    assert "tradingeconomics: UnsuitableValue" in message
    assert "reuters: UnknownSource: there is no source 'reuters'; there are cbr, investing" in message
    assert message.endswith("loaded: bloomberg, cbr, tradingview")
    assert caught.value.permanent
    assert {row["source"] for row in rows(VALUES)} == {"bloomberg", "cbr", "tradingview"}


def test_a_source_that_is_busy_makes_the_job_worth_another_try(tenera, rows):
    tenera.add_route("GET", "/quotes/cbr", Reply(status=503, headers={"Retry-After": "400"}))
    tenera.add_route("GET", "/quotes/sgx", Reply.from_json([]))

    with pytest.raises(SourcesFailed) as caught:
        load()

    assert not caught.value.permanent
    assert caught.value.retry_after == 400
    assert len(tenera.requests) == 6


def test_a_source_with_nothing_new_is_no_fault(tenera, rows):
    tenera.add_route("GET", "/quotes/tradingeconomics", Reply.from_json([]))

    assert load(sources=["tradingeconomics"])["tradingeconomics"]["rows"] == 0


def test_a_stop_keeps_what_was_loaded_before(tenera, rows):
    ctx = RecordingContext()
    ctx.stop_when = lambda: len(ctx.progress_reports) == 2

    with pytest.raises(Stop):
        load(ctx)

    assert {row["source"] for row in rows(VALUES)} == {"cbr", "investing"}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"since": "2024-02-01", "until": "2024-01-01"}, "since is 2024-02-01, and that is after until"),
        ({"sources": []}, "sources"),
        ({"since": 5}, "since"),
        ({"from": "2024-01-01"}, "from"),
    ],
)
def test_args_that_do_not_fit_are_named(rows, args, message):
    with pytest.raises(Fail, match=message):
        load(**args)


def test_every_declared_column_is_one_of_the_table(tenera, rows):
    load(sources=["cbr"])

    assert set(COLUMNS) < set(rows("SELECT * FROM quotes.quote_value")[0])
