"""The Bank of Russia's rates, from a server that speaks as the Bank does."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
import time_machine
from psycopg2.extensions import make_dsn

from dataloader.pipelines import targets
from dataloader.pipelines.cbr_rates import UnknownCurrency
from dataloader.pipelines.contract import Fail, registry
from dataloader.pipelines.schedule_definition import definition_from, scheduled_job
from dataloader.pipelines.toolkit.errors import DecodeError, SourceAnswered, SourceBusy, SourceTruncated, TooManyRejects
from tests.support import Process
from tests.support.databases import another_role
from tests.support_sources import RecordingContext, Reply, start_task

PATH = "/scripts/XML_daily.asp"
USD = ("R01235", "840", "USD", "1", "Доллар США", "88,1327")
KZT = ("R01335", "398", "KZT", "100", "Казахстанских тенге", "19,6430")
UZS = ("R01717", "860", "UZS", "10000", "Узбекских сумов", "71,2345")


def load_rates(args, ctx):
    return start_task("load.cbr.rates", args, ctx)


def document(*rates, day="31.01.2024"):
    elements = "".join(
        f'<Valute ID="{cbr_id}"><NumCode>{number}</NumCode><CharCode>{code}</CharCode><Nominal>{nominal}</Nominal>'
        f"<Name>{name}</Name><Value>{value}</Value><VunitRate>{value}</VunitRate></Valute>"
        for cbr_id, number, code, nominal, name, value in rates
    )
    text = (
        '<?xml version="1.0" encoding="windows-1251"?>'
        f'<ValCurs Date="{day}" name="Foreign Currency Market">{elements}</ValCurs>'
    )
    return Reply(text.encode("windows-1251"), headers={"Content-Type": "application/xml; charset=windows-1251"})


def test_rates_are_kept_by_day_and_currency_for_one_unit(source, rows):
    source.add_route("GET", PATH, document(USD, KZT, UZS))

    result = load_rates({"date": "2024-01-31"}, RecordingContext())

    assert source.requests_to(PATH)[0].query == {"date_req": "31/01/2024"}
    assert rows("SELECT * FROM cbr.rate WHERE currency = 'KZT'") == [
        {
            "date": date(2024, 1, 31),
            "currency": "KZT",
            "cbr_id": "R01335",
            "num_code": "398",
            "name": "Казахстанских тенге",
            "nominal": 100,
            "value": Decimal("19.6430"),
            "rate": Decimal("0.19643"),
        }
    ]
    assert rows("SELECT rate FROM cbr.rate WHERE currency = 'UZS'") == [{"rate": Decimal("0.00712345")}]
    assert result == {
        "asked": "2024-01-31",
        "published": "2024-01-31",
        "unknown": [],
        "rejects": [],
        "rejected": 0,
        "rows": 3,
        "inserted": 3,
        "updated": 0,
        "unchanged": 0,
    }


def test_second_load_changes_only_corrected_rates(source, rows):
    source.add_route("GET", PATH, document(USD, KZT), document(USD, (*KZT[:5], "20,0000")))

    load_rates({"date": "2024-01-31"}, RecordingContext())
    result = load_rates({"date": "2024-01-31"}, RecordingContext(attempt=2))

    assert (result["inserted"], result["updated"], result["unchanged"]) == (0, 1, 1)
    assert rows("SELECT currency, rate FROM cbr.rate ORDER BY currency") == [
        {"currency": "KZT", "rate": Decimal("0.2")},
        {"currency": "USD", "rate": Decimal("88.1327")},
    ]


def test_day_without_rates_loads_the_previous_day(source, rows):
    source.add_route("GET", PATH, document(USD, day="06.01.2024"))

    result = load_rates({"date": "2024-01-08"}, RecordingContext())

    assert (result["asked"], result["published"]) == ("2024-01-08", "2024-01-06")
    assert rows("SELECT date FROM cbr.rate") == [{"date": date(2024, 1, 6)}]


def test_without_a_date_it_is_today_in_moscow(source, rows):
    source.add_route("GET", PATH, document(USD))

    with time_machine.travel(datetime(2024, 2, 1, 1, 0, tzinfo=ZoneInfo("Europe/Moscow")), tick=True):
        result = load_rates({}, RecordingContext())

    assert result["asked"] == "2024-02-01"
    assert source.requests_to(PATH)[0].query == {"date_req": "01/02/2024"}


def test_currencies_can_be_chosen_and_unknown_ones_are_named(source, rows):
    source.add_route("GET", PATH, document(USD, KZT))

    result = load_rates({"date": "2024-01-31", "currencies": ["usd", "XXX"]}, RecordingContext())

    assert result["unknown"] == ["XXX"]
    assert rows("SELECT currency FROM cbr.rate") == [{"currency": "USD"}]


def test_only_unknown_currencies_are_an_error_that_names_them(source, rows):
    source.add_route("GET", PATH, document(USD, KZT))

    with pytest.raises(UnknownCurrency, match=r"XXX, YYY on 2024-01-31; there are USD, KZT") as caught:
        load_rates({"date": "2024-01-31", "currencies": ["YYY", "XXX"]}, RecordingContext())

    assert caught.value.permanent


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (("R1", "1", "", "1", "x", "1,0"), "CharCode is missing"),
        (("R1", "1", "AAA", "1", "x", "n/a"), "'n/a' is no number"),
        (("R1", "1", "AAA", "0", "x", "1,0"), "is no rate"),
        (("R1", "1", "AAA", "1,5", "x", "1,0"), "is no rate"),
        (("R1", "1", "AAA", "1", "x", "-1,0"), "is no rate"),
    ],
)
def test_a_bad_rate_is_named_and_the_others_are_kept(source, rows, bad, reason):
    source.add_route("GET", PATH, document(USD, bad))

    result = load_rates({"date": "2024-01-31"}, RecordingContext())

    assert result["rejected"] == 1
    assert result["rejects"][0]["place"] == "Valute 2 (R1)"
    assert reason in result["rejects"][0]["reason"]
    assert rows("SELECT currency FROM cbr.rate") == [{"currency": "USD"}]


def test_a_document_full_of_bad_rates_is_not_loaded(source, rows):
    source.add_route("GET", PATH, document(USD, *[("", "1", "AAA", "1", "x", "")] * 21))

    with pytest.raises(TooManyRejects, match="no ID"):
        load_rates({}, RecordingContext())


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<ValCurs>Error in parameters</ValCurs>", "Error in parameters"),
        (b"<html><body>Maintenance</body></html>", "found <html>"),
        (b'<ValCurs Date="2024-01-31" name="x"></ValCurs>', "2024-01-31"),
        (b'<ValCurs Date="31.01.2024" name="x"></ValCurs>', "no rates"),
        (b'<!DOCTYPE x [<!ENTITY a "b">]><ValCurs Date="31.01.2024">&a;</ValCurs>', "not safe"),
        (b"404", "no XML"),
    ],
)
def test_another_document_is_an_error_and_nothing_is_loaded(source, rows, body, message):
    source.add_route("GET", PATH, Reply(body))

    with pytest.raises(DecodeError, match=message):
        load_rates({"date": "2024-01-31"}, RecordingContext())


def test_a_source_that_is_busy_is_asked_again(source, rows):
    ctx = RecordingContext()
    source.add_route("GET", PATH, Reply(status=503, headers={"Retry-After": "7"}), document(USD))

    assert load_rates({}, ctx)["inserted"] == 1
    assert ctx.sleeps == [7]


def test_busy_or_truncated_source_is_an_error(source, rows):
    source.add_route("GET", PATH, Reply(status=503))
    with pytest.raises(SourceBusy):
        load_rates({}, RecordingContext())

    source.add_route("GET", PATH, Reply(document(USD).body, length=10_000))
    with pytest.raises(SourceTruncated):
        load_rates({}, RecordingContext())

    source.add_route("GET", PATH, Reply(status=403))
    with pytest.raises(SourceAnswered):
        load_rates({}, RecordingContext())


@pytest.mark.parametrize("args", [{"date": "31.01.2024"}, {"date": 5}, {"currencies": []}, {"currency": ["USD"]}])
def test_args_that_do_not_fit_are_named(args, rows):
    with pytest.raises(Fail, match=next(iter(args))):
        load_rates(args, RecordingContext())


def test_role_without_create_loads_into_existing_table(source, rows, empty_dsn):
    source.add_route("GET", PATH, document(USD), document(KZT))
    load_rates({}, RecordingContext())
    with another_role(empty_dsn) as role:
        rows(f"GRANT USAGE ON SCHEMA cbr TO {role}; GRANT ALL ON cbr.rate TO {role}")
        targets.configure({"cbr": source.url}, {"cbr": make_dsn(empty_dsn, user=role, password="x")})
        assert load_rates({}, RecordingContext())["inserted"] == 1


def test_it_runs_on_the_terminal_without_a_queue(source, rows, empty_dsn, tmp_path):
    source.add_route("GET", PATH, document(USD))
    env = {"DL_ENDPOINTS": json.dumps({"cbr": source.url}), "DL_TARGETS": json.dumps({"cbr": empty_dsn})}
    command = ["run", "load.cbr.rates", "--arg", "date=2024-01-31", "--local"]
    with Process.dataloader(*command, output=tmp_path / "output", env=env) as process:
        assert process.wait() == 0, process.text

    assert rows("SELECT currency FROM cbr.rate") == [{"currency": "USD"}]
    assert rows("SELECT to_regclass('dl_effects') AS table") == [{"table": None}], "not fenced: it is no job"
    assert process.text.count("target.not_fenced") == 1


def test_a_rate_that_moved_by_more_than_a_third_is_a_warning(source, rows):
    source.add_route("GET", PATH, document(USD, day="30.01.2024"), document((*USD[:5], "130,0000"), day="31.01.2024"))
    ctx = RecordingContext()
    load_rates({"date": "2024-01-30"}, RecordingContext())

    load_rates({"date": "2024-01-31"}, ctx)

    checks = {check.name: check for check in ctx.checks}
    assert checks["largest move"].outcome == "warned"
    assert round(checks["largest move"].value, 3) == 0.475
    assert [(update.dataset, update.rows, update.partition) for update in ctx.datasets] == [
        ("cbr.rate", 1, "2024-01-31")
    ]


def test_its_schedule_loads_the_day_before_and_is_off():
    (declared,) = [d for d in registry.declared_schedules() if d["task"] == "load.cbr.rates"]

    assert (declared["definition"]["off"], declared["definition"]["args"]) == (True, {"date": "{partition}"})
    definition = definition_from({k: v for k, v in declared["definition"].items() if k != "off"}, zone="UTC")
    job = scheduled_job(
        "load.cbr.rates", "id", definition, datetime(2026, 2, 1, 6, tzinfo=ZoneInfo("Europe/Moscow")),
        registry.get("load.cbr.rates"), default_lease_sec=60,
    )  # fmt: skip
    assert (job["args"], job["partition_key"]) == ({"date": "2026-01-31"}, "2026-01-31")
