"""The loads of a small company. They copy nothing: they take their time, and report as loads do."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dataloader import Context, Daily, register, schedule

ETL, REPORTS, EXPORTS = "etl.default", "report.default", "export.default"
DAYS = Daily("2026-01-01", zone="UTC")
SUPPORT_API = "support_api"
BROKEN_PRICES = "column 'price_net' is missing in prices.csv; it has: sku, price, currency"
PARTNER_DOWN = "the partner's server did not answer within 30 s"
_STEP_SEC = 0.5
_ARTICLES_A_STATEMENT = 100_000
# In the database: it takes its time, too, 8 s for so many articles, and no processor.
_MARGIN_FUNCTION = """
CREATE FUNCTION pg_temp.margin_of(article bigint) RETURNS float8 LANGUAGE plpgsql AS $$
BEGIN
    IF article % 1000 = 0 THEN
        PERFORM pg_sleep(0.08);
    END IF;
    RETURN sqrt(article);
END $$
"""
# As a real load would have them: shown in the accounts of the past.
STATEMENTS = ("INSERT INTO {} SELECT * FROM staging", "ANALYZE {}")
_CHANCE = random.Random()  # noqa: S311 - no secret


@dataclass(frozen=True)
class Load:
    name: str
    queue: str
    cron: str
    typical_sec: float
    rows: int
    source: str
    dataset: str | None
    description: str
    by_day: bool = False  # each run loads one day
    unit: str = "rows"
    limits: Mapping[str, int] = field(default_factory=dict)
    retried_share: float = 0.0  # of its runs


LOADS = (
    Load("load.orders", ETL, "0 2 * * *", 3480, 2_400_000, "shop", "warehouse.orders",
         "Copy a day's orders from the shop.", by_day=True),
    Load("load.order_items", ETL, "10 2 * * *", 4100, 7_900_000, "shop", "warehouse.order_items",
         "Copy the items of a day's orders.", by_day=True),
    Load("load.customers", ETL, "40 1 * * *", 420, 310_000, "shop", "warehouse.customers",
         "Upsert all customers that have changed."),
    Load("load.web_events", ETL, "15 * * * *", 1500, 1_300_000, "site", "warehouse.web_events",
         "Load an hour of the site's event files.", unit="events", retried_share=0.04),
    Load("load.ad_costs", ETL, "0 7 * * *", 6, 1_200, "advertising", "warehouse.ad_costs",
         "Load a day's costs of all campaigns.", by_day=True),
    Load("load.invoices", ETL, "30 2 * * *", 960, 84_000, "accounts", "warehouse.invoices",
         "Copy a day's invoices.", by_day=True),
    Load("load.ledger", ETL, "0 3 * * *", 1300, 420_000, "accounts", "warehouse.ledger",
         "Replace the open month of the ledger."),
    Load("load.exchange_rates", ETL, "0 6 * * *", 12, 170, "bank", "warehouse.exchange_rates",
         "Upsert the central bank's rates of a day.", by_day=True),
    Load("load.payments", ETL, "*/10 * * * *", 45, 900, "bank", "warehouse.payments",
         "Fetch new payments from the bank.", retried_share=0.01),
    Load("load.stock", ETL, "*/30 * * * *", 75, 48_200, "suppliers", "warehouse.stock",
         "Replace the stock of all warehouses."),
    Load("load.supplier_prices", ETL, "0 4 * * *", 420, 96_000, "suppliers", "warehouse.prices",
         "Replace the prices of all suppliers by their files."),
    Load("load.deliveries", ETL, "20 * * * *", 140, 5_100, "suppliers", "warehouse.deliveries",
         "Load the parcel services' delivery states."),
    Load("load.tickets", ETL, "*/15 * * * *", 30, 240, "support", "warehouse.tickets",
         "Fetch changed support tickets.", unit="tickets", limits={SUPPORT_API: 1}, retried_share=0.03),
    Load("load.reviews", ETL, "50 * * * *", 20, 90, "support", "warehouse.reviews",
         "Fetch new product reviews.", unit="reviews", limits={SUPPORT_API: 1}),
    Load("check.freshness", REPORTS, "*/5 * * * *", 3, 19, "warehouse", None,
         "Compare the age of each table with what its readers expect.", unit="tables"),
    Load("build.sales_mart", REPORTS, "30 4 * * *", 700, 5_300_000, "warehouse", "mart.sales",
         "Build the tables behind the sales dashboards."),
    Load("build.margins", REPORTS, "45 5 * * *", 260, 3_200_000, "warehouse", "mart.margins",
         "Compute the margin of each article in the database."),
    Load("report.daily_sales", REPORTS, "30 6 * * *", 95, 1, "mart", None,
         "Render the sales report of the day before.", by_day=True, unit="pages"),
    Load("report.weekly_cohorts", REPORTS, "0 6 * * 1", 5400, 52, "mart", None,
         "Compute the cohorts of all customers.", unit="weeks"),
    Load("export.partner_feed", EXPORTS, "40 */4 * * *", 300, 130_000, "mart", "partner.feed",
         "Send the catalogue to the partner.", unit="articles", retried_share=0.15),
)  # fmt: skip
BY_NAME = {load.name: load for load in LOADS}


def run(load: Load, args: Mapping[str, Any], ctx: Context) -> dict[str, int]:
    """`args` may say how much is done already, and how long all of it takes."""
    rows, sec = int(args.get("rows", load.rows)), float(args.get("sec", load.typical_sec)) * _CHANCE.uniform(0.85, 1.2)
    done = int(args.get("done", 0))
    ctx.consumed(f"{load.source}://{load.name.partition('.')[2]}")
    ctx.log.info("reading", source=load.source, rows=rows)
    while done < rows:
        ctx.progress(done, rows, load.unit)
        ctx.sleep(_STEP_SEC)
        done = min(rows, done + max(1, int(rows * _STEP_SEC / sec)))
    ctx.progress(rows, rows, load.unit)
    ctx.log.info("written", dataset=load.dataset or "nothing", rows=rows)
    if load.dataset is not None:
        ctx.produced(load.dataset, rows=rows, partition=args.get("day"))
    return {load.unit: rows}


def run_stock(load: Load, args: Mapping[str, Any], ctx: Context) -> dict[str, int]:
    result = run(load, args, ctx)
    ctx.check("rows", result[load.unit], vs="median:7", tolerance=0.3, severity="warn")
    ctx.check("rows without a price", _CHANCE.choice((0, 0, 0, 2)), max=0, severity="warn")
    return result


def run_supplier_prices(load: Load, args: Mapping[str, Any], ctx: Context) -> dict[str, int]:
    ctx.log.info("reading", file="prices.csv")
    ctx.sleep(4)
    raise ValueError(BROKEN_PRICES)


def run_partner_feed(load: Load, args: Mapping[str, Any], ctx: Context) -> dict[str, int]:
    if args.get("is_down", _CHANCE.random() < load.retried_share):
        ctx.log.warning("no answer yet", server="sftp.partner.example")
        ctx.sleep(8)
        raise TimeoutError(PARTNER_DOWN)
    return run(load, args, ctx)


def run_margins(load: Load, args: Mapping[str, Any], ctx: Context) -> dict[str, int]:
    """Statements on which the server works for seconds each."""
    articles, margin = int(args.get("articles", load.rows)), 0.0
    ctx.log.info("computing in the database", articles=articles)
    with ctx.connect("warehouse") as connection, connection.cursor() as cursor:
        cursor.execute(_MARGIN_FUNCTION)
        for first in range(1, articles + 1, _ARTICLES_A_STATEMENT):
            last = min(articles, first + _ARTICLES_A_STATEMENT - 1)
            cursor.execute(
                "SELECT sum(pg_temp.margin_of(article)) FROM generate_series(%s::bigint, %s::bigint) AS a (article)",
                (first, last),
            )
            margin += float(cursor.fetchone()[0])
            cursor.execute("INSERT INTO mart.margins VALUES (%s, %s)", (last, margin))
            connection.commit()
            ctx.progress(last, articles, "articles")
    ctx.log.info("computed", margin=round(margin))
    ctx.produced("mart.margins", rows=articles)
    return {"rows": articles}


_CALLS: dict[str, Callable[[Load, Mapping[str, Any], Context], dict[str, int]]] = {
    "load.stock": run_stock,
    "load.supplier_prices": run_supplier_prices,
    "export.partner_feed": run_partner_feed,
    "build.margins": run_margins,
}


def _register(load: Load) -> None:
    call = _CALLS.get(load.name, run)

    def task(args: dict[str, Any], ctx: Context) -> dict[str, int]:
        return call(load, args, ctx)

    task.__doc__ = load.description
    day = {"day": "{partition}"} if load.by_day else {}
    register(
        load.name,
        queue=load.queue,
        lock_key=f"{load.name}:{{day}}" if load.by_day else load.name,
        partitions=DAYS if load.by_day else None,
        limits=load.limits or None,
    )(schedule(load.cron, zone="UTC", args=day)(task))


for one in LOADS:
    _register(one)
