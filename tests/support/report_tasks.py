"""Pipelines that report data checks, datasets and links."""

from __future__ import annotations

from typing import Any

from dataloader.pipelines.contract import Context


def load(args: dict[str, Any], ctx: Context) -> None:
    ctx.consumed("s3://raw/orders")
    ctx.produced("warehouse.sales", rows=args["rows"], schema={"id": "int"})
    ctx.link("report", "https://host/x")
    ctx.check("rows", args["rows"], min=1)
    ctx.check("refused", 3, max=0, severity="warn")


def compare(args: dict[str, Any], ctx: Context) -> None:
    ctx.check("rows", args["rows"], vs="median:7", tolerance=0.3)


def load_in_transaction(args: dict[str, Any], ctx: Context) -> None:
    with ctx.transaction(final=True) as connection:
        connection.cursor().execute("INSERT INTO witness VALUES ('loaded')")
        ctx.produced("warehouse.sales", rows=args["rows"])
        ctx.check("rows", args["rows"], min=1, vs="median:7", tolerance=0.3)
