"""The pages of datasets, and the charts of data checks."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus

from flask import Response
from pydantic import Field

from dataloader.app.acts.matches import MAX_NAMES, Match, match_names
from dataloader.app.acts.task_parts import TaskPart
from dataloader.app.errors import DatasetNotFound
from dataloader.app.features.quality.rows import CheckHistory, DataQuality
from dataloader.app.http.links import quote_name
from dataloader.app.http.problems import ProblemCode
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.site import Site
from dataloader.app.ui.base import FormModel, FormText, PageRenderer
from dataloader.app.ui.line_chart import LineChart

_PAGE_SIZE = 100
_MAX_UPDATES_SHOWN = 50
_CHECK_RESULTS = 60  # of each data check of a task
_MAX_CHECK_CHARTS = 6


class DatasetsPageQuery(FormModel):
    after: FormText = Field("", description="The last dataset of the page before.")


def checks_of_task(site: Site, task: str) -> Iterator[TaskPart]:
    """What did not pass first; the first ones with a chart."""
    checks = DataQuality(site.executor).checks_of_task(task, limit=_CHECK_RESULTS).checks
    checks.sort(key=lambda check: check.results[0].outcome == "passed")
    if checks:
        with_charts = [(check, check_chart(check) if n < _MAX_CHECK_CHARTS else None) for n, check in enumerate(checks)]
        data = {"checks": with_charts}
        yield TaskPart(template="task_checks.html", data=data, is_wide=True, has_chart=True)
        yield TaskPart(template="task_check_facts.html", data=data)


def find_datasets(site: Site, text: str) -> Iterator[Match]:
    return match_names("dataset", "/datasets/", DataQuality(site.executor).dataset_names(limit=MAX_NAMES), text)


def create_datasets_page(site: Site) -> ApiBlueprint:
    source, options = site.executor, site.options
    pages = PageRenderer("datasets_page", options)
    quality = DataQuality(source)

    @pages.page("/datasets", query=DatasetsPageQuery)
    def show_datasets(query: DatasetsPageQuery) -> Response:
        """Show the datasets that jobs have reported, with the last update of each."""
        page = quality.datasets(after=query.after, limit=_PAGE_SIZE)
        return pages.render("datasets.html", query=query, page=page, path_of=dataset_path)

    @pages.page("/datasets/<dataset:name>", problems=(ProblemCode.DATASET_NOT_FOUND,))
    def show_dataset(name: str) -> Response:
        """Show a dataset: its last updates, which tasks update it, and which read it."""
        try:
            dataset = quality.dataset(name, limit=_MAX_UPDATES_SHOWN)
        except DatasetNotFound as error:
            return pages.render(
                "action_failed.html", status=HTTPStatus.NOT_FOUND, reason=f"{error}.", back_url="/datasets"
            )
        return pages.render("dataset.html", dataset=dataset, limit=_MAX_UPDATES_SHOWN)

    return pages.blueprint


def dataset_path(name: str) -> str:
    return f"/datasets/{quote_name(name)}"


def check_chart(check: CheckHistory) -> LineChart:
    """The values of a check with its limits, oldest first."""
    results = check.results[::-1]
    lines: dict[str, list[float | None]] = {
        "value": [result.value for result in results],
        "low": [result.low for result in results],
        "high": [result.high for result in results],
    }
    lines = {name: line for name, line in lines.items() if any(value is not None for value in line)}
    timestamps = [int(result.at.timestamp()) for result in results]
    return LineChart(check.name, "value", tuple(lines), timestamps, list(lines.values()), is_evenly_spaced=True)
