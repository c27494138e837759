"""Two spans of time side by side, over HTTP."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dataloader.app.features.statistics.comparison import ComparedSpans, Span, SpanComparisons
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.problems import DATABASE_PROBLEMS
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.schemas import QueryModel, Timestamp
from dataloader.app.http.site import Site


class ComparedSpansQuery(QueryModel):
    span: Annotated[Span, Field(description="The length of each span: a day, a week or four weeks.")] = "7d"
    task: Annotated[str | None, Field(max_length=1000, description="Only this task.")] = None
    until: Annotated[Timestamp, Field(description="The end of the later span; by default now.")] = None


def create_comparison_blueprint(site: Site) -> ApiBlueprint:
    blueprint = ApiBlueprint("comparison", "/api/v1", problems=DATABASE_PROBLEMS)
    comparisons = SpanComparisons(site.executor)

    @blueprint.get("/compare", query=ComparedSpansQuery, response=ComparedSpans, scope=Scope.READ, standby=True)
    def compare_spans_of_time(query: ComparedSpansQuery) -> ComparedSpans:
        """Compare a span of time with the one before it: failures, durations, queue time and reported rows, by task.

        Of the statistics by the hour, which are kept for ninety days. The answer may be ten seconds old.
        """
        return comparisons.get(query.span, query.until, task=query.task)

    return blueprint
