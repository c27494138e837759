"""`load.tenera`: each source is fetched and loaded on its own: if one fails, the others are loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

from psycopg2.extensions import connection
from pydantic import Field

from dataloader.pipelines import staging, targets
from dataloader.pipelines.arguments import Arguments
from dataloader.pipelines.contract import Context, Fail, register
from dataloader.pipelines.tenera.shapes import COLUMNS, MOSCOW, QuoteValue, SourceDeclaration, parse_payload
from dataloader.pipelines.tenera.sources import SOURCES
from dataloader.pipelines.toolkit.errors import SourceError, ToolkitError
from dataloader.pipelines.toolkit.load import Loaded, upsert
from dataloader.pipelines.toolkit.rejects import Rejects
from dataloader.pipelines.toolkit.sources import HttpSource, Timeouts

_DAYS_BACK = 7
_TABLES = ("quotes.quote_section", "quotes.quote", "quotes.quote_value")
_MAX_RESPONSE_BYTES = 64 * 1024**2
_TIMEOUTS = Timeouts(total_sec=300)


class TeneraArguments(Arguments):
    sources: list[str] = Field(list(SOURCES), min_length=1, description="The sources' names; all by default.")
    since: date | None = Field(None, description="The first day; a week before `until` if not given.")
    until: date | None = Field(None, description="The last day; today in Moscow if not given.")
    max_rejects: int = Field(100, ge=0, description="With more bad records a source is not loaded.")


class SourcesFailed(ToolkitError):
    """Some sources could not be loaded; the others are."""

    def __init__(self, failures: Mapping[str, Exception], loaded: Sequence[str]) -> None:
        errors = "; ".join(f"{name}: {type(error).__name__}: {error}" for name, error in failures.items())
        super().__init__(f"{errors}; loaded: {', '.join(loaded) or 'none'}")
        self.permanent = all(getattr(error, "permanent", False) for error in failures.values())
        waits = [error.retry_after for error in failures.values() if isinstance(error, SourceError)]
        self.retry_after = max((wait for wait in waits if wait is not None), default=None)


@register("load.tenera", args=TeneraArguments)
def load_tenera(arguments: TeneraArguments, ctx: Context) -> dict[str, Any]:
    until = arguments.until or datetime.now(MOSCOW).date()
    since = arguments.since or until - timedelta(days=_DAYS_BACK)
    if since > until:
        raise Fail(f"since is {since}, and that is after until, {until}")

    url, headers = targets.endpoint("tenera"), targets.authorization("tenera")
    results: dict[str, Any] = {}
    failures: dict[str, Exception] = {}
    names = list(dict.fromkeys(arguments.sources))
    with HttpSource(ctx=ctx, headers=headers, timeouts=_TIMEOUTS, max_bytes=_MAX_RESPONSE_BYTES) as http:
        staging.ensure_tables(
            ctx, "tenera", _TABLES, Path(__file__).with_name("tables.sql").read_text(encoding="utf-8")
        )
        for done, name in enumerate(names, 1):
            try:
                source = SOURCES.get(name.lower().removesuffix(".com"))
                if source is None:
                    raise UnknownSource(f"there is no source {name!r}; there are {', '.join(SOURCES)}")
                payload = http.get(url + source.path, params={"from": since, "to": until}).json()
                with ctx.transaction(target="tenera") as conn:
                    results[name] = _load_source(conn, source, payload, ctx, Rejects(arguments.max_rejects))
            except ToolkitError as error:
                failures[name] = error
            ctx.progress(done, len(names), "sources", failed=sorted(failures))
    if failures:
        raise SourcesFailed(failures, sorted(results))
    return results


class UnknownSource(ToolkitError):
    """A name that is none of the declared sources."""

    permanent = True


def _load_source(
    conn: connection, source: SourceDeclaration, payload: Any, ctx: Context, rejects: Rejects
) -> dict[str, Any]:
    """Load a source: its sections, its quotes, their values."""
    values = list(parse_payload(source, payload, rejects))
    sections = _upsert_sections(conn, source, values)
    quotes = _upsert_quotes(conn, sections, values)
    loaded = _upsert_values(conn, [(quotes[sections[value.section], value.code], value) for value in values], ctx)
    return {
        **{name: getattr(loaded, name) for name in ("rows", "inserted", "updated", "unchanged", "duplicates")},
        "quotes": len(quotes),
        "rejected": rejects.count,
        "rejects": [asdict(bad) for bad in rejects.first],
    }


def _upsert_sections(conn: connection, source: SourceDeclaration, values: Sequence[QuoteValue]) -> dict[str, int]:
    codes = sorted({value.section for value in values})
    rows = [(source.name, code) for code in codes]
    upsert(conn, "quotes.quote_section", ("source", "code"), ("source", "code"), rows)
    with conn.cursor() as cur:
        cur.execute(
            "SELECT code, section_id FROM quotes.quote_section WHERE source = %s AND code = ANY(%s)",
            [source.name, codes],
        )
        return dict(cur.fetchall())


def _upsert_quotes(
    conn: connection, sections: Mapping[str, int], values: Sequence[QuoteValue]
) -> dict[tuple[int, str], int]:
    titles = {(sections[value.section], value.code): value.title for value in values}
    rows = [(*key, title) for key, title in sorted(titles.items())]
    upsert(conn, "quotes.quote", ("section_id", "code", "name"), ("section_id", "code"), rows)
    with conn.cursor() as cur:
        cur.execute(
            "SELECT section_id, code, quote_id FROM quotes.quote WHERE section_id = ANY(%s)", [list(sections.values())]
        )
        return {(section, code): quote for section, code, quote in cur.fetchall() if (section, code) in titles}


def _upsert_values(conn: connection, values: Sequence[tuple[int, QuoteValue]], ctx: Context) -> Loaded:
    rows = [
        (
            quote_id,
            value.grain.value,
            value.quoted_at,
            value.quoted_on,
            *(value.values.get(column) for column in COLUMNS),
            # as numbers that JSON keeps exactly enough; a missing measure is left out
            {name: float(measure) for name, measure in value.measures.items() if measure is not None},
        )
        for quote_id, value in values
    ]
    columns = ("quote_id", "grain", "quoted_at", "quoted_on", *COLUMNS, "measures")
    return upsert(conn, "quotes.quote_value", columns, ("quote_id", "grain", "quoted_at"), rows, ctx=ctx)
