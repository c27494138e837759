"""Data checks of tasks, and datasets, over HTTP."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from werkzeug.routing import BaseConverter

from dataloader.app.features.quality.rows import DataQuality, DatasetDetail, DatasetPage, TaskChecks
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.problems import DATABASE_PROBLEMS, ProblemCode
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.schemas import MAX_PAGE_SIZE, QueryModel
from dataloader.app.http.site import Site

_MAX_RESULTS = 365  # of each check


class DatasetConverter(BaseConverter):
    """A name with slashes, such as `s3://raw/orders` or `/data/orders`."""

    regex = ".+"
    part_isolating = False


class ChecksQuery(QueryModel):
    name: Annotated[str | None, Field(description="Only this check.")] = None
    limit: Annotated[int, Field(ge=1, le=_MAX_RESULTS, description="The maximum number of results of each check.")] = 30


class DatasetsQuery(QueryModel):
    after: Annotated[str, Field(description="Continue after a page: its `next`.")] = ""
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE_SIZE, description="The maximum number of entries.")] = 100


class DatasetQuery(QueryModel):
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE_SIZE, description="The maximum number of updates.")] = 50


def create_data_quality_blueprint(site: Site) -> ApiBlueprint:
    executor = site.executor
    blueprint = ApiBlueprint("data_quality", "/api/v1", problems=DATABASE_PROBLEMS)
    quality = DataQuality(executor)

    @blueprint.get("/tasks/<path:task>/checks", query=ChecksQuery, response=TaskChecks, scope=Scope.READ, standby=True)
    def list_task_checks(query: ChecksQuery, task: str) -> TaskChecks:
        """List the data checks of a task by name, each with its last results, newest first."""
        return quality.checks_of_task(task, name=query.name, limit=query.limit)

    @blueprint.get("/datasets", query=DatasetsQuery, response=DatasetPage, scope=Scope.READ, standby=True)
    def list_datasets(query: DatasetsQuery) -> DatasetPage:
        """List datasets by name: the last update of each, and how many tasks update and read it."""
        return quality.datasets(after=query.after, limit=query.limit)

    @blueprint.get(
        "/datasets/<dataset:name>",
        query=DatasetQuery,
        response=DatasetDetail,
        problems=(ProblemCode.DATASET_NOT_FOUND,),
        scope=Scope.READ,
        standby=True,
    )
    def get_dataset(query: DatasetQuery, name: str) -> DatasetDetail:
        """Get a dataset: its last updates, which tasks update it, and which read it."""
        return quality.dataset(name, limit=query.limit)

    return blueprint
