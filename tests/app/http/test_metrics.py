"""The numbers, with and without a database."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from dataloader.app.http.app import create_app
from dataloader.app.http.options import WebOptions
from dataloader.pipelines.contract import Pipelines


def scraped(client) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    response = client.get("/metrics")
    assert response.status_code == 200
    assert response.content_type.startswith("text/plain")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def test_jobs_are_counted_by_queue_and_status(client, trigger):
    trigger()
    trigger()
    client.post(f"/api/v1/jobs/{trigger()}/cancel")

    numbers = scraped(client)

    assert numbers[key("dataloader_jobs", queue="etl", status="queued")] == 2
    assert numbers[key("dataloader_jobs", queue="etl", status="canceled")] == 1
    assert numbers[key("dataloader_jobs", queue="etl", status="running")] == 0
    assert numbers[key("dataloader_database_up")] == 1
    assert key("dataloader_oldest_ready_seconds", queue="etl") in numbers


def test_queues_that_callers_invent_make_no_metrics_of_their_own(client, trigger):
    trigger(queue="invented-1")
    trigger(queue="invented-2")

    numbers = scraped(client)

    assert numbers[key("dataloader_jobs", queue="other", status="queued")] == 2
    assert "invented" not in str(numbers)


def test_one_look_at_the_table_serves_the_scrapes_of_a_while(queue, pool, request_body):
    options = WebOptions(version="1", queues=("etl",), metrics_max_age_sec=60)
    client = create_app(queue, Pipelines(), options, pool=pool).test_client()
    waiting = key("dataloader_jobs", queue="etl", status="queued")

    before = scraped(client)[waiting]
    client.post("/api/v1/jobs/trigger", json=request_body)

    assert (before, scraped(client)[waiting]) == (0, 0)


def test_requests_and_responses_are_counted_by_route_template(client):
    client.get("/api/v1/jobs/7/status")
    client.get("/api/v1/jobs/8/status")
    client.get("/some-address-of-a-scanner")

    numbers = scraped(client)

    assert numbers[key("requests_total")] == 4
    assert numbers[key("responses_total", route="/api/v1/jobs/{job_id}/status", status="404")] == 2
    assert numbers[key("responses_total", route="unknown", status="404")] == 1
    assert numbers[key("request_duration_seconds_count", route="/api/v1/jobs/{job_id}/status")] == 2
    assert "scanner" not in str(numbers)


def test_scrape_without_database_has_process_metrics(app_without_database):
    client = app_without_database()
    client.get("/health")

    numbers = scraped(client)

    assert numbers[key("dataloader_database_up")] == 0
    assert numbers[key("responses_total", route="/health", status="200")] == 1
    assert not [name for name, _ in numbers if name == "dataloader_jobs"]


def test_failed_queue_metrics_leave_other_metrics(app_without_database, broken, caplog):
    numbers = scraped(app_without_database(broken(RuntimeError("x"))))

    assert numbers[key("requests_total")] == 1
    assert key("dataloader_database_up") not in numbers
    assert "metrics.failed" in caplog.text


def test_others_may_add_their_numbers(app_without_database):
    class Workers(Collector):
        def collect(self) -> Iterable[Metric]:
            yield GaugeMetricFamily("dataloader_workers", "Worker threads.", 3)

    assert scraped(app_without_database(collectors=[Workers()]))[key("dataloader_workers")] == 3


def test_two_apps_in_one_process_count_apart(app_without_database):
    one, other = app_without_database(), app_without_database()
    one.get("/health")

    assert key("responses_total", route="/health", status="200") not in scraped(other)
