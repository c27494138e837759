import copy
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from dataloader.pipelines.tenera.shapes import (
    MOSCOW,
    Grain,
    Layout,
    NumberFormat,
    SourceDeclaration,
    UnknownShape,
    parse_payload,
)
from dataloader.pipelines.tenera.sources import SOURCES
from dataloader.pipelines.toolkit.errors import TooManyRejects
from dataloader.pipelines.toolkit.rejects import Rejects
from tests.support_sources.tenera import PAYLOADS


def values(name, payload=None, rejects=None):
    return list(parse_payload(SOURCES[name], PAYLOADS[name] if payload is None else payload, rejects or Rejects(0)))


def changed(name, change):
    payload = copy.deepcopy(PAYLOADS[name])
    change(payload)
    return payload


def test_there_are_six_sources_and_each_has_its_shape():
    assert set(SOURCES) == set(PAYLOADS)
    assert len(SOURCES) == 6
    assert all(values(name) for name in SOURCES)


def test_cbr_price_is_per_unit_on_the_document_date():
    usd, kzt = values("cbr")

    assert (usd.section, usd.code, usd.title, usd.grain) == ("currency", "USD", "Доллар США", Grain.DAY)
    assert (usd.quoted_on, usd.quoted_at) == (date(2024, 1, 31), datetime(2024, 1, 31, tzinfo=MOSCOW))
    assert usd.values == {"close": Decimal("89.2887")}
    assert (kzt.values, kzt.measures) == ({"close": Decimal("0.199")}, {"nominal": Decimal(100)})


def test_investing_writes_numbers_and_days_its_own_way():
    (brent,) = values("investing")

    assert brent.quoted_on == date(2024, 1, 31)
    assert list(brent.values.values()) == [
        Decimal(text) for text in ("82500.10", "82900.00", "81100.00", "81710.50", "312450")
    ]
    assert brent.measures == {"change_percent": Decimal("-1.40")}


def test_a_day_in_singapore_stays_that_day_in_moscow():
    (ore,) = values("sgx")

    assert (ore.section, ore.code) == ("iron ore", "FEFG24")
    assert (ore.quoted_on, ore.quoted_at) == (date(2024, 1, 31), datetime(2024, 1, 31, tzinfo=MOSCOW))
    assert (ore.values["close"], ore.measures["open_interest"]) == (Decimal("132.1"), Decimal(45000))


def test_bloomberg_values_are_per_security_in_milliseconds():
    first, second = values("bloomberg")

    assert (first.section, first.code, first.title) == ("Energy", "CO1 Comdty", "Brent")
    assert first.quoted_at == datetime(2024, 1, 31, 21, tzinfo=UTC)
    assert first.quoted_at.tzinfo is MOSCOW
    assert first.quoted_on == date(2024, 2, 1)  # in Moscow it is midnight
    assert second.values == {
        "open": None,
        "high": None,
        "low": None,
        "close": Decimal("81.9"),
        "volume": Decimal(5),
    }


def test_tradingview_keeps_a_list_a_field_in_seconds():
    first, second = values("tradingview")

    assert (first.section, first.code) == ("NYMEX", "CL1!")
    assert (first.quoted_at, second.quoted_at) == (
        datetime(2024, 2, 1, 0, tzinfo=MOSCOW),
        datetime(2024, 2, 1, 1, tzinfo=MOSCOW),
    )
    assert (first.values["volume"], second.values["volume"]) == (Decimal(1000), None)


def test_tradingeconomics_means_utc():
    (oil,) = values("tradingeconomics")

    assert (oil.quoted_at, oil.quoted_on) == (datetime(2024, 2, 1, 0, 30, tzinfo=MOSCOW), date(2024, 2, 1))
    assert oil.measures == {"ytd_percent": Decimal("5.9")}


@pytest.mark.parametrize(
    ("name", "payload", "message"),
    [
        ("cbr", [], "the payload should be an object; it is a list"),
        ("cbr", {"Date": "x"}, "cbr: there is no Valute; it has Date"),
        ("cbr", {"Valute": []}, "Valute should be an object"),
        ("investing", {"data": {"a": 1}}, "data should be a list; it has a"),
        ("investing", {str(number): 1 for number in range(9)}, "it has 0, 1, 2, 3, 4, 5, 6, 7 …"),
        ("sgx", {"data": {"columns": []}}, "data should have columns and rows"),
        ("sgx", {"data": {"columns": [["a"]], "rows": []}}, "data should have columns and rows"),
        ("sgx", {"data": 5}, "data should be an object; it is a int"),
        ("bloomberg", {"securityData": [{}]}, r"there is no securityData\[0\]\.fieldData"),
        ("tradingview", {"series": [{"t": [1], "o": []}]}, r"series\[0\] should have lists of one length"),
        ("tradingview", {"series": [{"o": [1]}]}, "'t' among them"),
        ("tradingeconomics", {"Message": "key expired"}, "the payload should be a list; it has Message"),
        ("tradingeconomics", None, "it is a NoneType"),
    ],
)
def test_another_shape_is_named(name, payload, message):
    with pytest.raises(UnknownShape, match=message):
        list(parse_payload(SOURCES[name], payload, Rejects(0)))


@pytest.mark.parametrize(
    ("name", "change", "place", "reason"),
    [
        ("investing", lambda p: p["data"].insert(0, 5), "data[0]", "a int where a record"),
        ("investing", lambda p: p["data"].insert(0, {}), "data[0]", "a NoneType; expected a time"),
        ("investing", lambda p: p["data"][0].update(rowDate="soon"), "data[0]", "'soon' is no time"),
        ("investing", lambda p: p["data"][0].update(last_close="1,5"), "data[0]", "'last_close': '1,5' is no number"),
        ("investing", lambda p: p["data"][0].update(symbol=" "), "data[0]", "'symbol' is ' ', and should be a text"),
        ("investing", lambda p: p["data"][0].update(name=None), "data[0]", "'name' is None"),
        ("sgx", lambda p: p["data"]["rows"][0].pop(), "data.rows[0]", "a list where a record"),
        ("sgx", lambda p: p["data"]["rows"][0].__setitem__(2, 20240131), "data.rows[0]", "would be 1970"),
        ("cbr", lambda p: p["Valute"]["USD"].update(Nominal=0), "Valute.USD", "for that many units"),
        ("cbr", lambda p: p["Valute"]["USD"].update(Nominal=None), "Valute.USD", "'Nominal' is None"),
        ("cbr", lambda p: p["Valute"]["USD"].update(Value=None), "Valute.USD", "no value in Value"),
        ("cbr", lambda p: p["Valute"]["USD"].update(Value=True), "Valute.USD", "a bool where a number"),
        ("bloomberg", lambda p: p["securityData"][0].pop("sector"), "securityData[0].fieldData[0]", "'../sector'"),
        ("tradingview", lambda p: p["series"][0]["t"].__setitem__(0, "x"), "series[0][0]", "'x' is no time"),
    ],
)
def test_bad_record_is_located_and_others_are_read(name, change, place, reason):
    rejects = Rejects(5)

    parsed = values(name, changed(name, change), rejects)

    assert rejects.first[0].place == f"{name} {place}"
    assert reason in rejects.first[0].reason
    assert len(parsed) + rejects.count >= len(values(name))


def test_more_bad_records_than_allowed_are_an_error():
    with pytest.raises(TooManyRejects, match=r"investing data\[0\]"):
        values("investing", {"data": [5]})


def test_what_does_not_enclose_a_record_has_no_fields():
    source = SourceDeclaration(
        name="flat",
        path="/",
        records="[]",
        section="../../../a",
        code="=c",
        title="=t",
        at="at",
        grain=Grain.DAY,
        values={"close": "v.w"},
    )
    rejects = Rejects(1)

    list(parse_payload(source, [{"at": "2024-01-31", "v": {"w": 1}}], rejects))

    assert "'../../../a' is None" in rejects.first[0].reason
    assert source.layout is Layout.OBJECTS


def test_a_payload_may_be_the_record():
    source = SourceDeclaration(
        name="one",
        path="/",
        records="",
        section="=s",
        code="=c",
        title="/name",
        at="at",
        grain=Grain.DAY,
        values={"close": "v.w"},
    )

    (value,) = parse_payload(source, {"name": "N", "at": "2024-01-31", "v": {"w": "7"}}, Rejects(0))

    assert (value.title, value.values) == ("N", {"close": Decimal(7)})


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("81.71", "81.71"),
        ("82,500.10", "82500.10"),
        ("1 234 567", "1234567"),
        ("312.45K", "312450"),
        ("1.5m", "1500000"),
        ("2B", "2000000000"),
        ("-1.40%", "-1.40"),
        ("\u22120.5", "-0.5"),
        ("+3", "3"),
        (0.1, "0.1"),
        (7, "7"),
        (Decimal("1.10"), "1.10"),
    ],
)
def test_numbers_come_in_several_forms(written, meant):
    assert NumberFormat().parse(written) == Decimal(meant)


def test_a_comma_is_a_point_where_the_source_says_so():
    numbers = NumberFormat(decimal=",", thousands=".")

    assert numbers.parse("89,2887") == Decimal("89.2887")
    assert numbers.parse("1.234,5") == Decimal("1234.5")


@pytest.mark.parametrize("written", [None, "", " ", "-", "n/a", "NaN"])
def test_nothing_is_nothing(written):
    assert NumberFormat().parse(written) is None


@pytest.mark.parametrize("written", ["abc", "1,5", "12,34", "1.2.3", "K", "1e5", "9" * 61, True, [], {}])
def test_what_is_no_number_is_refused(written):
    with pytest.raises(ValueError):
        NumberFormat().parse(written)
