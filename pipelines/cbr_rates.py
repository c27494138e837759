"""`load.cbr.rates`: the Bank of Russia's official rates of a day, into `cbr.rate`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from xml.etree.ElementTree import Element
from zoneinfo import ZoneInfo

from pydantic import Field

from pipelines import targets, warehouse
from pipelines.arguments import Arguments
from pipelines.contract import Args, Context, register
from pipelines.toolkit.decode import decimal, xml_root
from pipelines.toolkit.errors import DecodeError
from pipelines.toolkit.load import upsert
from pipelines.toolkit.rejects import Rejects
from pipelines.toolkit.sources import HttpSource, Patience

_Day = date  # a field of that name would hide it
_MOSCOW = ZoneInfo("Europe/Moscow")
_PATIENCE = Patience(total_sec=120)
_MOST_BAD = 20  # of some fifty rates: beyond that the document is not what it was
_MOST_UNITS = 2**31 - 1  # that the column holds
_LARGEST = 4 * 1024**2  # bytes; the document has about ten thousand

_TABLE = """
CREATE SCHEMA IF NOT EXISTS cbr;
CREATE TABLE IF NOT EXISTS cbr.rate (
    date date NOT NULL,
    currency text NOT NULL,
    cbr_id text NOT NULL,
    num_code text NOT NULL,
    name text NOT NULL,
    nominal integer NOT NULL CHECK (nominal > 0),
    value numeric NOT NULL,
    rate numeric NOT NULL,
    PRIMARY KEY (date, currency)
);
COMMENT ON TABLE cbr.rate IS 'Official rates of the Bank of Russia, in roubles';
COMMENT ON COLUMN cbr.rate.value IS 'what `nominal` units cost, as published';
COMMENT ON COLUMN cbr.rate.rate IS 'what one unit costs';
"""
_COLUMNS = ("date", "currency", "cbr_id", "num_code", "name", "nominal", "value", "rate")
_KEY = ("date", "currency")


class RatesArguments(Arguments):
    date: _Day | None = Field(None, description="The day; today in Moscow if not given.")
    currencies: list[str] | None = Field(None, min_length=1, description="Letter codes such as USD; all by default.")


class UnknownCurrency(DecodeError):
    """None of the currencies asked for is among the rates."""


@dataclass(frozen=True)
class Rate:
    currency: str
    cbr_id: str
    num_code: str
    name: str
    nominal: int
    value: Decimal

    @property
    def rate(self) -> Decimal:
        return self.value / self.nominal


@register("load.cbr.rates", args=RatesArguments)
def load_rates(args: Args, ctx: Context) -> dict[str, Any]:
    asked = RatesArguments.read(args)
    day = asked.date or datetime.now(_MOSCOW).date()
    rejects = Rejects(_MOST_BAD)

    published, rates = _read(_fetch(day, ctx), rejects)
    wanted, unknown = _choose(rates, asked.currencies, published)
    with warehouse.opened("cbr", ctx) as conn:
        warehouse.ensure(conn, ("cbr.rate",), _TABLE)
        rows = [{"date": published, "rate": rate.rate, **asdict(rate)} for rate in wanted]
        loaded = upsert(conn, "cbr.rate", _COLUMNS, _KEY, rows, ctx=ctx)
        conn.commit()

    ctx.progress(len(wanted), len(wanted), "rates")
    return {
        "asked": day.isoformat(),
        "published": published.isoformat(),  # the last day before, when there are no rates of the day asked for
        "unknown": unknown,
        "rejects": [asdict(bad) for bad in rejects.first],
        "rejected": rejects.count,
        **{name: getattr(loaded, name) for name in ("rows", "inserted", "updated", "unchanged")},
    }


def _fetch(day: date, ctx: Context) -> bytes:
    url = f"{targets.endpoint('cbr', 'https://www.cbr.ru')}/scripts/XML_daily.asp"
    with HttpSource(ctx=ctx, patience=_PATIENCE, max_bytes=_LARGEST) as source:
        return source.get(url, params={"date_req": day.strftime("%d/%m/%Y")}).body


def _read(document: bytes, rejects: Rejects) -> tuple[date, list[Rate]]:
    """The day that the rates are of, and the rates; `DecodeError` if it is another kind of document."""
    root = xml_root(document)
    published = root.get("Date")
    if root.tag != "ValCurs" or published is None:
        said = "".join(root.itertext()).strip()[:200]  # a request it does not like is answered by a text
        raise DecodeError(f"expected <ValCurs Date=…> with rates, found <{root.tag}> that says {said!r}")
    try:
        day = datetime.strptime(published, "%d.%m.%Y").date()  # noqa: DTZ007 - a day has no zone
    except ValueError as error:
        raise DecodeError(f"the rates' date is {published[:40]!r}; expected one such as 31.01.2024") from error
    rates = list(_rates(root, rejects))
    if not rates:
        raise DecodeError(f"there are no rates in the document of {published}; bad ones: {rejects}")
    return day, rates


def _rates(root: Element, rejects: Rejects) -> Iterator[Rate]:
    for number, found in enumerate(root.iterfind("Valute"), 1):
        try:
            yield _rate(found)
        except (DecodeError, ValueError) as error:
            rejects.add(f"Valute {number} ({found.get('ID') or 'no ID'})", str(error))


def _rate(found: Element) -> Rate:
    texts = {name: (found.findtext(name) or "").strip() for name in ("CharCode", "NumCode", "Name", "Nominal", "Value")}
    if missing := [name for name in ("CharCode", "Nominal", "Value") if not texts[name]]:
        raise DecodeError(f"{', '.join(missing)} is missing")
    nominal, value = decimal(texts["Nominal"]), decimal(texts["Value"])
    if not 1 <= nominal <= _MOST_UNITS or nominal != nominal.to_integral_value() or value <= 0:
        raise DecodeError(f"{value} roubles for {nominal} units is no rate")
    return Rate(texts["CharCode"], found.get("ID") or "", texts["NumCode"], texts["Name"], int(nominal), value)


def _choose(rates: Sequence[Rate], currencies: Sequence[str] | None, day: date) -> tuple[list[Rate], list[str]]:
    """The rates asked for, and the codes that none of them has."""
    if currencies is None:
        return list(rates), []
    codes = [code.upper() for code in currencies]
    wanted = [rate for rate in rates if rate.currency in codes]
    unknown = sorted(set(codes) - {rate.currency for rate in wanted})
    if not wanted:
        known = ", ".join(rate.currency for rate in rates)
        raise UnknownCurrency(f"no rate for {', '.join(unknown)} on {day}; there are {known}")
    return wanted, unknown
