"""The loads of a small company, for pictures of the dashboard."""

from __future__ import annotations

from typing import Any

from dataloader import Context, Daily, register, schedule

DAY = {"day": "{partition}"}
DAYS = Daily("2026-01-01", zone="UTC")


def load(args: dict[str, Any], ctx: Context) -> dict[str, int]:
    """Copies slowly from the row that the args name."""
    rows, done = args.get("rows", 0), args.get("done", args.get("rows", 0))
    ctx.progress(done, rows, "rows")
    ctx.log.info("reading from the source")
    while done < rows:
        ctx.sleep(0.1)
        done += max(1, rows // 100_000)
        ctx.progress(done, rows, "rows")
    return {"rows": rows}


def load_stock(args: dict[str, Any], ctx: Context) -> dict[str, int]:
    """Reports what it has loaded, with data checks."""
    rows = args.get("rows", 0)
    ctx.link("report", "https://reports.example.com/stock")
    ctx.consumed("s3://warehouse-export/stock")
    ctx.produced("warehouse.stock", rows=rows, partition=args.get("day"), schema={"sku": "text", "quantity": "int"})
    ctx.check("rows", rows, vs="median:7", tolerance=0.3, severity="warn")
    ctx.check("rows without a price", 0, max=0)
    return {"rows": rows}


def load_supplier_prices(args: dict[str, Any], ctx: Context) -> None:
    """Fails as a source does whose export has changed."""
    raise ValueError("column 'price_net' is missing in prices-2026-11-25.csv; it has: sku, price, currency")


for name, at, call, description in (
    ("load.orders", "0 2 * * *", load, "Copy a day's orders from the shop."),
    ("load.invoices", "30 2 * * *", load, "Copy a day's invoices from the accounts."),
    ("load.web_events", "15 * * * *", load, "Load the event files of the site into the warehouse."),
    ("load.exchange_rates", "0 6 * * *", load, "Upsert the central bank's rates of a day."),
    ("load.supplier_prices", "0 4 * * *", load_supplier_prices, "Replace the prices of all suppliers by their files."),
    ("load.stock", "0 5 * * *", load_stock, "Replace the stock of all warehouses."),
    ("report.daily_sales", "30 6 * * *", load, "Build the tables behind the sales report."),
):

    def task(args: dict[str, Any], ctx: Context, call: Any = call) -> Any:
        return call(args, ctx)

    task.__doc__ = description
    queue = "report.default" if name.startswith("report.") else "etl.default"
    register(name, queue=queue, lock_key=f"{name}:{{day}}", partitions=DAYS)(schedule(at, zone="UTC", args=DAY)(task))
