"""The fields by which jobs are selected, each declared once. Loads the standard library alone.

From the declarations follow the parameters of `GET /api/v1/jobs` and of bulk operations, the form of the job list, the
options of `dataloader jobs` and `dataloader bulk`, and the condition of `dl_job_matches` in the schema.

To add a field: declare it here, run `make generated`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Annotated, Any, get_args, get_type_hints
from uuid import UUID

MAX_JOB_IDS = 500  # in a filter
MAX_SEARCH_LENGTH = 200
MAX_ARGS = 4  # in a filter


@dataclass(frozen=True, kw_only=True)
class FilterField:
    """A field of a filter. What has another type than a text is parsed by its type."""

    text: str  # which jobs it selects
    label: str  # in the form
    condition: str  # on the row `j` of dl_jobs; {value} is the text of the field's value
    choices: tuple[str, ...] = ()
    max_length: int | None = None
    pattern: str | None = None
    name: str = ""  # that of its annotation
    type: Any = str

    @property
    def sql(self) -> str:
        value = f"filter ->> '{self.name}'"
        return f"({value} IS NULL OR {self.condition.format(value=value)})"


def _field(text: str, label: str, condition: str, **more: Any) -> FilterField:
    return FilterField(text=text, label=label, condition=condition, **more)


def _args_condition() -> str:
    """The condition of each pair `key:value`. Without a subquery: the planner inlines dl_job_matches."""
    pairs = [f"split_part({{value}}, E'\\n', {n})" for n in range(1, MAX_ARGS + 1)]
    conditions = [
        f"({pair} = '' OR j.args #>> string_to_array(split_part({pair}, ':', 1), '.')\n"
        f"             = substr({pair}, strpos({pair}, ':') + 1))"
        for pair in pairs
    ]
    return "\n            AND ".join(conditions)


@dataclass(frozen=True, kw_only=True)
class JobFilterFields:
    """Which jobs to select; None matches any. Time ranges include their start and exclude their end."""

    # fmt: off
    job_id: Annotated[frozenset[UUID] | None, _field(
        f"Only jobs with one of these ids, at most {MAX_JOB_IDS}, separated by commas.", "Job ids",
        "j.job_id = ANY (({value})::uuid[])")] = None
    idempotency_key: Annotated[str | None, _field(
        "Only the job with this idempotency key.", "Idempotency key", "j.idempotency_key = {value}")] = None
    status: Annotated[frozenset[str] | None, _field(
        "Only jobs with one of these statuses, separated by commas.", "Status",
        "j.status::text = ANY (({value})::text[])")] = None
    wait_state: Annotated[str | None, _field(
        "Only queued jobs that wait like this.", "Wait state",
        "j.status::text = 'queued' AND j.wait_state::text = {value}",
        choices=("scheduled", "ready", "blocked", "limited", "waiting"))] = None
    queue: Annotated[str | None, _field("Only jobs of this queue.", "Queue", "j.queue = {value}")] = None
    task: Annotated[str | None, _field("Only jobs of this task.", "Task", "j.task = {value}")] = None
    lock_key: Annotated[str | None, _field("Only jobs with this key.", "Lock key", "j.lock_key = {value}")] = None
    partition_key: Annotated[str | None, _field(
        "Only jobs with this partition key.", "Partition key", "j.partition_key = {value}")] = None
    producer: Annotated[str | None, _field("Only jobs of this producer.", "Producer", "j.producer = {value}")] = None
    consumer_group: Annotated[str | None, _field(
        "Only jobs of this consumer group.", "Consumer group", "j.consumer_group = {value}")] = None
    tag: Annotated[str | None, _field("Only jobs with this tag.", "Tag", "j.tags @> ARRAY[{value}]")] = None
    fingerprint: Annotated[str | None, _field(
        "Only jobs whose last error has this fingerprint, as `error_fingerprint` has it.", "Fingerprint",
        "j.error_fingerprint = {value}")] = None
    warnings: Annotated[bool | None, _field(
        "true: only jobs that succeeded with data checks that did not pass; false: only others.", "Data checks",
        "(j.warnings IS NOT NULL) = ({value})::bool")] = None
    created_from: Annotated[datetime | None, _field(
        "Only jobs created then or later.", "Created from", "j.created_at >= ({value})::timestamptz")] = None
    created_to: Annotated[datetime | None, _field(
        "Only jobs created before.", "Created before", "j.created_at < ({value})::timestamptz")] = None
    started_from: Annotated[datetime | None, _field(
        "Only jobs first started then or later.", "Started from", "j.started_at >= ({value})::timestamptz")] = None
    started_to: Annotated[datetime | None, _field(
        "Only jobs first started before.", "Started before", "j.started_at < ({value})::timestamptz")] = None
    finished_from: Annotated[datetime | None, _field(
        "Only jobs finished then or later.", "Finished from", "j.finished_at >= ({value})::timestamptz")] = None
    finished_to: Annotated[datetime | None, _field(
        "Only jobs finished before.", "Finished before", "j.finished_at < ({value})::timestamptz")] = None
    text: Annotated[str | None, _field(
        "Only jobs with this text in their args or error.", "Search args and errors",
        "strpos(lower(j.args::text), lower({value})) > 0\n"
        "            OR strpos(lower(coalesce(j.error, '')), lower({value})) > 0",
        max_length=MAX_SEARCH_LENGTH)] = None
    args: Annotated[str | None, _field(
        "Only jobs with this value in their args, `key:value`; a dot goes into an object, and further pairs, up to "
        f"{MAX_ARGS}, are on lines of their own.", "Args", _args_condition(), max_length=1000,
        pattern=rf"^[^:\n]+:[^\n]*(\n[^:\n]+:[^\n]*){{0,{MAX_ARGS - 1}}}$")] = None
    error: Annotated[str | None, _field(
        "Only jobs with this text in their error.", "Error",
        "strpos(lower(coalesce(j.error, '')), lower({value})) > 0", max_length=MAX_SEARCH_LENGTH)] = None
    worker: Annotated[str | None, _field(
        "Only jobs whose last attempt a worker had whose name starts like this.", "Worker",
        "starts_with(j.worker, {value})", max_length=MAX_SEARCH_LENGTH)] = None
    # fmt: on


def _declared(name: str, annotation: Any) -> FilterField:
    optional, field = get_args(annotation)
    declared: FilterField = replace(field, name=name, type=get_args(optional)[0])
    return declared


_TYPES = get_type_hints(JobFilterFields, include_extras=True)
FILTER_FIELDS: Mapping[str, FilterField] = {f.name: _declared(f.name, _TYPES[f.name]) for f in fields(JobFilterFields)}
