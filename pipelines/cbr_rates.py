"""`load.cbr.rates`: the Bank of Russia's official rates of a day, into `cbr.rate`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import date, datetime
from typing import Any
from xml.etree.ElementTree import Element
from zoneinfo import ZoneInfo

from pydantic import Field

from dataloader.pipelines import staging, targets
from dataloader.pipelines.arguments import Arguments
from dataloader.pipelines.contract import Context, Daily, register, schedule
from dataloader.pipelines.toolkit.decode import decimal, xml_root
from dataloader.pipelines.toolkit.errors import DecodeError
from dataloader.pipelines.toolkit.load import upsert
from dataloader.pipelines.toolkit.rejects import Rejects
from dataloader.pipelines.toolkit.sources import HttpSource, Timeouts

_Day = date  # a field of that name would hide it
_MOSCOW = ZoneInfo("Europe/Moscow")
_TIMEOUTS = Timeouts(total_sec=120)
_MAX_REJECTS = 20  # of some fifty rates; with more the document's format has changed
_MAX_NOMINAL = 2**31 - 1  # that the column holds
_MAX_RESPONSE_BYTES = 4 * 1024**2  # bytes; the document has about ten thousand

_CREATE_TABLE = """
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
_LARGEST_MOVE = """
SELECT max(abs(now.rate / before.rate - 1))
  FROM cbr.rate now JOIN cbr.rate before USING (currency)
 WHERE now.date = %(day)s AND before.date = (SELECT max(date) FROM cbr.rate WHERE date < %(day)s)
   AND before.rate > 0 AND now.date - before.date <= %(max_days)s
"""
_MAX_MOVE = 0.3  # a rate that moved by more from one day to the next is rather a mistake
_MAX_MOVE_DAYS = 14  # between the two days
_MAX_FEWER = 0.1  # of the usual number of currencies
_COLUMNS = ("date", "currency", "cbr_id", "num_code", "name", "nominal", "value", "rate")
_KEY = ("date", "currency")

Rate = dict[str, Any]  # by column, without the date


class RatesArguments(Arguments):
    date: _Day | None = Field(None, description="The day; today in Moscow if not given.")
    currencies: list[str] | None = Field(None, min_length=1, description="Letter codes such as USD; all by default.")


class UnknownCurrency(DecodeError):
    """None of the requested currencies is among the rates."""


@schedule(
    "0 6 * * *", zone="Europe/Moscow", queue="etl.default", args={"date": "{partition}"}, catch_up="all", off=True
)
@register("load.cbr.rates", args=RatesArguments, partitions=Daily(start="1992-07-01", zone="Europe/Moscow"))
def load_rates(arguments: RatesArguments, ctx: Context) -> dict[str, Any]:
    day = arguments.date or datetime.now(_MOSCOW).date()
    rejects = Rejects(_MAX_REJECTS)
    url = f"{targets.endpoint('cbr', 'https://www.cbr.ru')}/scripts/XML_daily.asp"
    with HttpSource(ctx=ctx, timeouts=_TIMEOUTS, max_bytes=_MAX_RESPONSE_BYTES) as source:
        document = source.get(url, params={"date_req": day.strftime("%d/%m/%Y")}).body

    published, rates = _parse_document(document, rejects)
    wanted, unknown = _select_currencies(rates, arguments.currencies, published)
    staging.ensure_tables(ctx, "cbr", ("cbr.rate",), _CREATE_TABLE)
    with ctx.transaction(target="cbr") as conn:
        rows = [{"date": published, **rate} for rate in wanted]
        loaded = upsert(conn, "cbr.rate", _COLUMNS, _KEY, rows, ctx=ctx)
        largest_move = _largest_move(conn, published)
    if largest_move is not None:
        ctx.check("largest move", largest_move, max=_MAX_MOVE, severity="warn")
    if arguments.currencies is None:
        ctx.check("currencies", len(wanted), vs="median:7", tolerance=_MAX_FEWER, severity="warn")
    ctx.produced("cbr.rate", rows=loaded.rows, partition=published.isoformat())

    ctx.progress(len(wanted), len(wanted), "rates")
    return {
        "asked": day.isoformat(),
        "published": published.isoformat(),  # the last day before, when there are no rates of the day asked for
        "unknown": unknown,
        "rejects": [asdict(bad) for bad in rejects.first],
        "rejected": rejects.count,
        **{name: getattr(loaded, name) for name in ("rows", "inserted", "updated", "unchanged")},
    }


def _largest_move(conn: Any, day: date) -> float | None:
    """By what part a rate moved since the day before; None: there is none to compare with."""
    with conn.cursor() as cursor:
        cursor.execute(_LARGEST_MOVE, {"day": day, "max_days": _MAX_MOVE_DAYS})
        (move,) = cursor.fetchone()
    return None if move is None else float(move)


def _parse_document(document: bytes, rejects: Rejects) -> tuple[date, list[Rate]]:
    """Return the day of the rates and the rates. Raises `DecodeError` for another kind of document."""
    root = xml_root(document)
    published = root.get("Date")
    if root.tag != "ValCurs" or published is None:
        text = "".join(root.itertext()).strip()[:200]  # an invalid request gets a text as its response
        raise DecodeError(f"expected <ValCurs Date=…> with rates, found <{root.tag}> with the text {text!r}")
    try:
        day = datetime.strptime(published, "%d.%m.%Y").date()  # noqa: DTZ007 - a day has no zone
    except ValueError as error:
        raise DecodeError(f"the rates' date is {published[:40]!r}; expected one such as 31.01.2024") from error
    rates = list(_parse_rates(root, rejects))
    if not rates:
        raise DecodeError(f"there are no rates in the document of {published}; bad ones: {rejects}")
    return day, rates


def _parse_rates(root: Element, rejects: Rejects) -> Iterator[Rate]:
    for number, element in enumerate(root.iterfind("Valute"), 1):
        try:
            yield _parse_rate(element)
        except (DecodeError, ValueError) as error:
            rejects.add(f"Valute {number} ({element.get('ID') or 'no ID'})", str(error))


def _parse_rate(element: Element) -> Rate:
    names = ("CharCode", "NumCode", "Name", "Nominal", "Value")
    texts = {name: (element.findtext(name) or "").strip() for name in names}
    if missing := [name for name in ("CharCode", "Nominal", "Value") if not texts[name]]:
        raise DecodeError(f"{', '.join(missing)} is missing")
    nominal, value = decimal(texts["Nominal"]), decimal(texts["Value"])
    if not 1 <= nominal <= _MAX_NOMINAL or nominal != nominal.to_integral_value() or value <= 0:
        raise DecodeError(f"{value} roubles for {nominal} units is no rate")
    return {
        "currency": texts["CharCode"],
        "cbr_id": element.get("ID") or "",
        "num_code": texts["NumCode"],
        "name": texts["Name"],
        "nominal": int(nominal),
        "value": value,
        "rate": value / nominal,
    }


def _select_currencies(
    rates: Sequence[Rate], currencies: Sequence[str] | None, day: date
) -> tuple[list[Rate], list[str]]:
    """Return the requested rates, and the codes that have none."""
    if currencies is None:
        return list(rates), []
    codes = [code.upper() for code in currencies]
    wanted = [rate for rate in rates if rate["currency"] in codes]
    unknown = sorted(set(codes) - {rate["currency"] for rate in wanted})
    if not wanted:
        known = ", ".join(rate["currency"] for rate in rates)
        raise UnknownCurrency(f"no rate for {', '.join(unknown)} on {day}; there are {known}")
    return wanted, unknown
