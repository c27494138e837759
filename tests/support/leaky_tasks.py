"""A pipeline that leaks secrets in every possible place."""

from __future__ import annotations

from typing import Any

from dataloader.pipelines.contract import Context, Fail, register


@register("indiscreet", isolation="process")
def leak_secrets(args: dict[str, Any], ctx: Context) -> dict[str, Any]:
    ctx.progress(1, note=args["p"])
    ctx.log.info(f"logged {args['p']}")
    print("printed", args["p"])  # noqa: T201 - it is told so
    if args["fail"]:
        raise Fail(f"not with {args['p']}")
    return {"had": args["p"], "long": len(args["p"])}
