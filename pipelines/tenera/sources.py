"""The six sources of the aggregator. Their real payloads are not public: edit the declarations here to fit them.

Below each the shape it stands for; the words are explained in `shapes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from zoneinfo import ZoneInfo

from dataloader.pipelines.tenera.shapes import MOSCOW, Grain, Layout, NumberFormat, SourceDeclaration
from dataloader.pipelines.toolkit.times import OffsetConflict, TimeReader, Unit

# The number 20240131 would be a time in 1970.
_time_reader = partial(TimeReader, not_before=datetime(1990, 1, 1, tzinfo=UTC))

CBR = SourceDeclaration(
    name="cbr",
    path="/quotes/cbr",
    # {"Date": "2024-01-31T11:30:00+03:00",
    #  "Valute": {"USD": {"CharCode": "USD", "Nominal": 1, "Name": "Доллар США", "Value": "89,2887", "Previous": …}}}
    records="Valute{}",
    section="=currency",
    code="@",
    title="Name",
    at="/Date",
    grain=Grain.DAY,
    time_reader=_time_reader(zone=MOSCOW),
    number_format=NumberFormat(decimal=",", thousands=" "),
    per="Nominal",
    values={"close": "Value"},
    measures={"nominal": "Nominal"},
)

INVESTING = SourceDeclaration(
    name="investing",
    path="/quotes/investing",
    # {"data": [{"group": "commodities", "symbol": "LCO", "name": "Brent", "rowDate": "Jan 31, 2024",
    #            "last_open": "82.50", "last_max": …, "last_min": …, "last_close": "81,710.5", "volume": "312.45K",
    #            "change_percent": "-1.40%"}]}
    records="data[]",
    section="group",
    code="symbol",
    title="name",
    at="rowDate",
    grain=Grain.DAY,
    time_reader=_time_reader(zone=MOSCOW, formats=("%b %d, %Y", "%m/%d/%Y")),
    values={"open": "last_open", "high": "last_max", "low": "last_min", "close": "last_close", "volume": "volume"},
    measures={"change_percent": "change_percent"},
)

SGX = SourceDeclaration(
    name="sgx",
    path="/quotes/sgx",
    # {"meta": {"category": "iron ore"}, "data": {"columns": ["symbol", "name", "date", "open", …],
    #                                             "rows": [["FEFG24", "Iron Ore 62%", "20240131", 131.5, …]]}}
    records="data",
    layout=Layout.TABLE,
    section="/meta.category",
    code="symbol",
    title="name",
    at="date",
    grain=Grain.DAY,
    time_reader=_time_reader(zone=ZoneInfo("Asia/Singapore"), formats=("%Y%m%d",)),
    values={"open": "open", "high": "high", "low": "low", "close": "settlement", "volume": "volume"},
    measures={"open_interest": "open_interest"},
)

BLOOMBERG = SourceDeclaration(
    name="bloomberg",
    path="/quotes/bloomberg",
    # {"securityData": [{"security": "CO1 Comdty", "name": "Brent", "sector": "Energy",
    #                    "fieldData": [{"time": 1706689800000, "PX_OPEN": 82.5, "PX_LAST": 81.7, "PX_BID": …}]}]}
    records="securityData[].fieldData[]",
    section="../sector",
    code="../security",
    title="../name",
    at="time",
    grain=Grain.MOMENT,
    time_reader=_time_reader(zone=MOSCOW, unit=Unit.MILLISECONDS),
    values={"open": "PX_OPEN", "high": "PX_HIGH", "low": "PX_LOW", "close": "PX_LAST", "volume": "PX_VOLUME"},
    measures={"bid": "PX_BID", "ask": "PX_ASK"},
)

TRADINGVIEW = SourceDeclaration(
    name="tradingview",
    path="/quotes/tradingview",
    # {"series": [{"exchange": "NYMEX", "symbol": "CL1!", "description": "WTI", "t": [1706689800, …], "o": […], …}]}
    records="series[]",
    layout=Layout.PARALLEL,
    section="../exchange",
    code="../symbol",
    title="../description",
    at="t",
    grain=Grain.MOMENT,
    time_reader=_time_reader(zone=MOSCOW, unit=Unit.SECONDS),
    values={"open": "o", "high": "h", "low": "l", "close": "c", "volume": "v"},
)

TRADINGECONOMICS = SourceDeclaration(
    name="tradingeconomics",
    path="/quotes/tradingeconomics",
    # [{"Category": "Commodity", "Symbol": "CL1:COM", "Name": "Crude Oil", "Date": "2024-01-31T15:30:00",
    #   "Open": 77.8, "High": …, "Low": …, "Close": 75.85, "YTD": …}]     times are UTC and do not say so
    records="[]",
    section="Category",
    code="Symbol",
    title="Name",
    at="Date",
    grain=Grain.MOMENT,
    time_reader=_time_reader(zone=MOSCOW, written_in=UTC, offset_conflict=OffsetConflict.EARLIER),
    values={"open": "Open", "high": "High", "low": "Low", "close": "Close"},
    measures={"ytd_percent": "YTD"},
)

SOURCES: Mapping[str, SourceDeclaration] = {
    source.name: source for source in (CBR, INVESTING, SGX, BLOOMBERG, TRADINGVIEW, TRADINGECONOMICS)
}
