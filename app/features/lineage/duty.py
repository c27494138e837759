"""Sends OpenLineage events of jobs, with the packages of the extra `lineage`: each at least once, in their order.

The maintenance leader reads the event stream after a stored cursor. A short-lived thread sends a batch, so that a
receiver that hangs delays nothing else. The cursor is saved when all events before it were accepted or refused.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib import import_module
from itertools import islice
from typing import Any, cast

from dataloader.app import log
from dataloader.app.db.connection import Session
from dataloader.app.features.lineage.rows import Lineage, LineageJob
from dataloader.app.queue.events import MAX_EVENTS_PER_POLL, EventReader
from dataloader.app.queue.job_records import JobEvent
from dataloader.pipelines.portable import clock
from dataloader.workers.duties import Duty, DutyContext

_log = log.get(__name__)
_EVENT_TYPES = {"picked": "START", "done": "COMPLETE", "failed": "FAIL", "lost": "FAIL", "canceled": "ABORT"}
_NAMESPACE = "default"
_INTERVAL_SEC = 2.0
_BATCH_SIZE = 50  # events
_SENDING_CHECK_SEC = 0.1
_MAX_RETRY_DELAY_SEC = 60.0
_REFUSAL_STATUSES = frozenset({400, 409, 413, 422})  # about the event; others are about the receiver
_MAX_REFUSALS = 5
_WARN_AFTER_FAILURES = 2  # a connection that was kept open may just have been closed
_MAX_ERROR_LENGTH = 2_000
_URL_DATASET = re.compile(r"([a-z][a-z0-9+.-]*://[^/]+)/(.+)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class LineageOptions:
    url: str
    read_key: Callable[[], str] | None = field(default=None, repr=False)  # the bearer token
    version: str = "0"
    timeout_sec: float = 5.0
    first_retry_delay_sec: float = 1.0


class UnsendableEvent(Exception):
    """The event cannot be made from what the database has."""


class LineageDuty:
    """Reads events and hands them to a thread that sends them, one batch at a time."""

    def __init__(self, session: Session, options: LineageOptions) -> None:
        self._session, self._lineage, self._options = session, Lineage(session), options
        self._send: Callable[[JobEvent, LineageJob], None] | None = None  # only the leader imports the packages
        self._generation = -1  # of the connection that `_reader` and `_unsent` were made on
        self._reader = EventReader(session)
        self._saved_cursor: str | None = None
        self._unsent: deque[JobEvent] = deque()
        self._batch: _Batch | None = None
        self._failures = self._refusals = 0  # of the first unsent event
        self._next_attempt_at = 0.0

    def run(self) -> float | None:
        if self._batch is not None and self._batch.thread.is_alive():
            return _SENDING_CHECK_SEC
        if self._session.generation != self._generation:  # another process may have led since
            self._resume()
        elif self._batch is not None:
            self._finish(self._batch)
        if (pause := self._next_attempt_at - clock()) > 0:
            return pause
        if not self._unsent:
            read_count = self._read()
            if not self._unsent:
                return 0.0 if read_count == MAX_EVENTS_PER_POLL else None
        self._batch = self._start_batch()
        return _SENDING_CHECK_SEC

    def _resume(self) -> None:
        self._batch = None
        self._unsent.clear()
        self._saved_cursor = self._lineage.cursor()
        self._reader = EventReader(self._session, after=self._saved_cursor)
        self._generation = self._session.generation

    def _read(self) -> int:
        """Read the next events once all former ones are sent; return how many there were, of any kind."""
        events = self._reader.poll()
        self._unsent.extend(event for event in events if event.kind in _EVENT_TYPES)
        self._save_cursor()
        return len(events)

    def _save_cursor(self) -> None:
        cursor = self._reader.cursor
        if not self._unsent and cursor != self._saved_cursor:
            self._lineage.save_cursor(cursor)
            self._saved_cursor = cursor

    def _start_batch(self) -> _Batch:
        if self._send is None:
            self._send = create_sender(self._options)
        events = list(islice(self._unsent, _BATCH_SIZE))
        jobs = self._lineage.jobs(event.job_id for event in events)
        return _Batch([(event, jobs.get(event.job_id)) for event in events], self._send)

    def _finish(self, batch: _Batch) -> None:
        self._batch = None
        for _ in range(batch.done_count):
            self._unsent.popleft()
        if batch.done_count:
            self._end_outage()
            self._refusals = 0
        if isinstance(batch.error, UnsendableEvent):
            self._skip(batch.error)
        elif batch.error is not None:
            self._retry_later(batch.error)
        self._save_cursor()

    def _retry_later(self, error: Exception) -> None:
        """Retry the first unsent event after a pause; skip it if the receiver has refused it too often."""
        if getattr(getattr(error, "response", None), "status_code", None) in _REFUSAL_STATUSES:
            self._end_outage()
            self._refusals += 1
            if self._refusals == _MAX_REFUSALS:
                self._skip(error)
                return
        else:
            self._failures += 1
            if self._failures == _WARN_AFTER_FAILURES:
                _log.warning("lineage.unavailable", url=self._options.url, error=str(error))
        delay = self._options.first_retry_delay_sec * 2.0 ** min((self._failures or self._refusals) - 1, 10)
        self._next_attempt_at = clock() + min(_MAX_RETRY_DELAY_SEC, delay)

    def _skip(self, error: Exception) -> None:
        event = self._unsent.popleft()
        self._refusals = 0
        kind, job = _EVENT_TYPES[event.kind], str(event.job_id)
        _log.error("lineage.event_skipped", job=job, event=kind, error=str(error))

    def _end_outage(self) -> None:
        if self._failures >= _WARN_AFTER_FAILURES:
            _log.info("lineage.available", url=self._options.url)
        self._failures = 0


class _Batch:
    """Events that a thread sends, up to the first that fails. Its fields are read when the thread has ended."""

    def __init__(
        self, events: Sequence[tuple[JobEvent, LineageJob | None]], send: Callable[[JobEvent, LineageJob], None]
    ) -> None:
        """Nothing is sent for a job that has been deleted (None), or was canceled before it started."""
        self.done_count = 0
        self.error: Exception | None = None
        self._events, self._send = events, send
        self.thread = threading.Thread(target=self._run, name="lineage-send", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            for event, job in self._events:
                if job is not None and job.was_started:
                    self._send(event, job)
                self.done_count += 1
        except Exception as error:
            self.error = error


def create_sender(options: LineageOptions) -> Callable[[JobEvent, LineageJob], None]:
    """Return what sends the lineage event of a job's event, and raises unless the receiver has accepted it."""
    http, requests = import_module("openlineage.client.transport.http"), import_module("requests")
    session = requests.Session()
    session.max_redirects = 0  # a redirect turns a POST into a GET, which loses the event
    key = None if options.read_key is None else options.read_key()
    auth = http.TokenProvider({}) if key is None else http.ApiKeyTokenProvider({"apiKey": key})
    url = options.url.rstrip("/") + "/"
    transport = http.HttpTransport(
        http.HttpConfig(url=url, timeout=options.timeout_sec, auth=auth, session=session, retry={"total": 0})
    )
    builder = EventBuilder(options.version)

    def send(event: JobEvent, job: LineageJob) -> None:
        try:
            message = builder.build(event, job)
        except Exception as error:
            raise UnsendableEvent(f"{type(error).__name__}: {error}") from error
        response = transport.emit(message)
        if response.status_code >= HTTPStatus.MULTIPLE_CHOICES:  # the transport lets a redirect without a target pass
            raise requests.HTTPError(f"answered {response.status_code}", response=response)

    return send


class EventBuilder:
    """Makes OpenLineage run events: a job is a run of its task, under the job's id."""

    def __init__(self, version: str) -> None:
        self._events = import_module("openlineage.client.event_v2")
        self._facets = import_module("openlineage.client.facet_v2")
        self._producer = f"urn:dataloader:{version}"

    def build(self, event: JobEvent, job: LineageJob) -> Any:
        datasets = job.datasets if event.kind == "done" else []
        return self._events.RunEvent(
            eventType=self._events.RunState[_EVENT_TYPES[event.kind]],
            eventTime=event.ts.isoformat(),
            run=self._events.Run(runId=str(event.job_id), facets=self._run_facets(event, job)),
            job=self._events.Job(namespace=_NAMESPACE, name=job.task),
            inputs=[
                self._events.InputDataset(*split_dataset(d["dataset"])) for d in datasets if d["kind"] == "consumed"
            ],
            outputs=[self._output(d) for d in datasets if d["kind"] == "produced"],
            producer=self._producer,
        )

    def _run_facets(self, event: JobEvent, job: LineageJob) -> dict[str, Any]:
        facets: dict[str, Any] = {}
        if job.interval_start is not None:
            facets["nominalTime"] = self._facets.nominal_time_run.NominalTimeRunFacet(
                nominalStartTime=job.interval_start.isoformat(),
                nominalEndTime=None if job.interval_end is None else job.interval_end.isoformat(),
                producer=self._producer,
            )
        if error := event.payload.get("error"):
            facets["errorMessage"] = self._facets.error_message_run.ErrorMessageRunFacet(
                message=str(error)[:_MAX_ERROR_LENGTH], programmingLanguage="PYTHON", producer=self._producer
            )
        return facets

    def _output(self, dataset: dict[str, Any]) -> Any:
        statistics = self._facets.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet
        rows = dataset["rows"]
        counted = {} if rows is None else {"outputStatistics": statistics(rowCount=rows, producer=self._producer)}
        schema = self._schema(dataset["schema"])
        return self._events.OutputDataset(*split_dataset(dataset["dataset"]), outputFacets=counted, facets=schema)

    def _schema(self, schema: Any) -> dict[str, Any]:
        """The schema facet of {"column": "type"}; any other schema has none."""
        if not isinstance(schema, dict) or "$dropped" in schema:
            return {}
        if not all(isinstance(column_type, str) for column_type in schema.values()):
            return {}
        module = self._facets.schema_dataset
        fields = [module.SchemaDatasetFacetFields(name=name, type=of_type) for name, of_type in schema.items()]
        return {"schema": module.SchemaDatasetFacet(fields=fields, producer=self._producer)}


def split_dataset(name: str) -> tuple[str, str]:
    """The namespace and the name of a dataset: `s3://raw/orders` is `orders` in `s3://raw`."""
    match = _URL_DATASET.fullmatch(name)
    return (_NAMESPACE, name) if match is None else (match[1], match[2])


def create_duties(context: DutyContext) -> list[Duty]:
    options = context.options.features.get("lineage")
    session = cast(Session, context.executor)  # of the maintenance leader
    return [] if options is None else [Duty("lineage", _INTERVAL_SEC, LineageDuty(session, options).run)]
