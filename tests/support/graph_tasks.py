"""Tasks of a graph, importable by an isolated process."""

from __future__ import annotations

from typing import Any

from dataloader.pipelines.contract import Context


def extract(args: dict[str, Any]) -> dict[str, Any]:
    return {"rows": args["rows"]}


def report(args: dict[str, Any], ctx: Context) -> dict[str, Any]:
    return {"rows": sum(parent.result["rows"] for parent in ctx.upstream.values()), "from": sorted(ctx.upstream)}


def lists_files(args: dict[str, Any]) -> dict[str, Any]:
    return {"rows": 3, "files": ["x", {"$secret": "bank"}]}


def returns(args: dict[str, Any]) -> dict[str, Any]:
    return args


def breaks(args: dict[str, Any]) -> None:
    raise ValueError("broken")
