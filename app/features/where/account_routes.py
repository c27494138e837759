"""The accounts of attempts over HTTP, and totals by task and day."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dataloader.app.features.where.account_reader import AccountReader, AccountTotals, JobAccount
from dataloader.app.features.where.sampler_options import WhereOptions
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.problems import DATABASE_PROBLEMS, ProblemCode
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.schemas import QueryModel, parse_job_id
from dataloader.app.http.site import Site


class TotalsQuery(QueryModel):
    """Which totals to return."""

    days: Annotated[int, Field(ge=1, le=400, description="Of how many days, today among them.")] = 30
    task: Annotated[str | None, Field(max_length=1000, description="Only of this task.")] = None


def make_account_reader(site: Site) -> AccountReader:
    """For `Site.shared`."""
    options: WhereOptions = site.options.features.get("where") or WhereOptions()
    prices = options.sampler.prices
    return AccountReader(site.queue, None if prices is None else prices.currency)


def create_account_blueprint(site: Site) -> ApiBlueprint:
    blueprint = ApiBlueprint("accounts", "/api/v1", problems=DATABASE_PROBLEMS)
    reader = site.shared(make_account_reader)

    @blueprint.get(
        "/jobs/<job:job_id>/account", response=JobAccount, problems=(ProblemCode.JOB_NOT_FOUND,), scope=Scope.READ
    )
    def show_account(job_id: str) -> JobAccount:
        """Return for what the time of a job's attempts went: by kind, place and statement, with CPU time and memory.

        Attempts that ran for less than ten seconds have none. The account of a running attempt is up to a minute old,
        or a tenth of its age.
        """
        return reader.of_job(parse_job_id(job_id))

    @blueprint.get("/accounts", query=TotalsQuery, response=AccountTotals, scope=Scope.READ)
    def list_account_totals(query: TotalsQuery) -> AccountTotals:
        """Return what the attempts of each task used on each day: CPU, memory, rows and money."""
        return reader.totals(days=query.days, task=query.task)

    return blueprint
