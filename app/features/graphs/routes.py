"""Graphs over HTTP: jobs that wait for other jobs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AfterValidator, Field, ValidationError

from dataloader.app.acts.web import add_routes
from dataloader.app.features.graphs.acts import cancel_graph, retry_graph
from dataloader.app.features.graphs.rows import MAX_EDGES, MAX_JOBS, Graph, GraphPage, Graphs, NewGraphJob
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.auth.guard import current_actor
from dataloader.app.http.jobs.trigger_request import (
    MAX_PARENTS,
    JobRequest,
    ParentEnd,
    trigger_request_model,
)
from dataloader.app.http.json_io import MAX_JSON_DEPTH, FieldError
from dataloader.app.http.middleware import audit_action
from dataloader.app.http.problems import DATABASE_PROBLEMS, InvalidRequest, ProblemCode
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.schemas import BodyModel, Name, QueryModel, field_errors, parse_name
from dataloader.app.http.site import Site

_MAX_KEY_LENGTH = 200
_OWN_FIELDS = ("key", "after", "need")
_GRAPH_FIELDS = ("idempotency_key", "live_key", "debounce", "throttle")  # a job of a graph cannot have them

GraphKey = Annotated[str, Field(min_length=1, max_length=_MAX_KEY_LENGTH), AfterValidator(parse_name)]

_UNKNOWN = (ProblemCode.GRAPH_NOT_FOUND,)


class GraphParent(BodyModel):
    """A job of the same graph that another one waits for."""

    job: GraphKey = Field(description="The key of the parent.")
    on: ParentEnd = "succeeded"


class GraphJobEdges(BodyModel):
    """What a job of a graph has beyond the fields of a trigger."""

    key: GraphKey = Field(description="The name of the job in the graph.")
    after: Annotated[list[GraphParent], Field(max_length=MAX_PARENTS)] = Field(
        [], description="The jobs that this one waits for."
    )
    need: Literal["all", "any"] | None = Field(None, description="all parents, or the first that ends as asked.")


class GraphRequest(BodyModel):
    """Jobs that wait for one another."""

    name: Annotated[str, Field(max_length=200)] = Field("", description="A name to show.")
    on_failure: Literal["cancel", "continue"] = Field(
        "cancel",
        description="cancel: when a job failed or was lost, what has not started is canceled, except jobs that wait "
        "for a failure or for any end. continue: only what needs the failed job is skipped.",
    )
    idempotency_key: Name | None = Field(
        None, description="A second request with it and the same jobs returns the same graph."
    )
    jobs: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_JOBS)] = Field(
        description="The jobs, in any order: `key`, `after`, `need`, and the fields of a trigger without its keys.",
        examples=[
            [
                {"key": "extract", "queue": "etl.default", "task": "noop", "lock_key": "extract"},
                {
                    "key": "report", "queue": "etl.default", "task": "noop", "lock_key": "report",
                    "after": [{"job": "extract", "on": "succeeded"}],
                },
            ]
        ],
    )  # fmt: skip


class GraphsQuery(QueryModel):
    """Which graphs to list."""

    name: Annotated[str | None, Field(max_length=200, description="Only graphs whose name has this text.")] = None
    before: Annotated[UUID | None, Field(description="Only older ones: `next` of the last page.")] = None
    limit: Annotated[int, Field(ge=1, le=200, description="The maximum number of graphs of a page.")] = 50


@dataclass(frozen=True)
class GraphResponse:
    """The graph, and the job of each key. `created` is false if the idempotency key found it."""

    graph_id: UUID
    created: bool
    jobs: dict[str, UUID]


def create_graphs_blueprint(site: Site) -> ApiBlueprint:
    queue, options = site.queue, site.options
    blueprint = ApiBlueprint("graphs", "/api/v1", MAX_JSON_DEPTH + 2, problems=DATABASE_PROBLEMS)
    model, graphs = trigger_request_model(options, site.pipelines, has_live_keys=False), Graphs(queue.executor)

    @blueprint.post(
        "/graphs",
        body=GraphRequest,
        response=GraphResponse,
        problems=(ProblemCode.QUEUE_DRAINING, ProblemCode.IDEMPOTENCY_CONFLICT, ProblemCode.OUTSIDE_KEY_LIMITS),
        scope=Scope.TRIGGER,
        max_body_bytes=options.max_batch_bytes,
    )
    def trigger_graph(body: GraphRequest) -> GraphResponse:
        """Trigger jobs that wait for one another.

        At most 10,000 jobs and 50,000 edges, created in one transaction or not at all. A job runs when its parents have
        ended as it asks, and is skipped (canceled) when they cannot any more. A circle is refused.
        """
        errors: list[FieldError] = []
        jobs = [job for n, item in enumerate(body.jobs) if (job := _parse_job(n, item, errors)) is not None]
        if sum(len(job.after) for job in jobs) > MAX_EDGES:
            errors.append(FieldError("jobs", f"have more than {MAX_EDGES:,} edges"))
        if errors:
            raise InvalidRequest(errors)
        enqueued = graphs.enqueue(
            jobs,
            name=body.name,
            on_failure=body.on_failure,
            idempotency_key=body.idempotency_key,
            created_by=current_actor().name,
        )
        audit_action("graph.triggered", graph_id=enqueued.graph_id, jobs=len(jobs), created=enqueued.created)
        return GraphResponse(enqueued.graph_id, enqueued.created, enqueued.jobs)

    def _parse_job(position: int, item: dict[str, Any], errors: list[FieldError]) -> NewGraphJob | None:
        path, found = f"jobs[{position}]", []
        own = {name: item[name] for name in _OWN_FIELDS if name in item}
        fields = {name: value for name, value in item.items() if name not in _OWN_FIELDS}
        found += [
            FieldError(name, "is not for a job of a graph; the graph may have an idempotency_key")
            for name in _GRAPH_FIELDS
            if fields.get(name) is not None
        ]
        keys: list[str] | None = None
        try:
            edges = GraphJobEdges.model_validate(own)
            keys = [parent.job for parent in edges.after]
        except ValidationError as error:
            found += field_errors(error)
        try:
            request: JobRequest = model.model_validate(fields)
            site.jobs.check(task=request.task, queue=request.queue, args=request.args, parent_keys=keys)
        except ValidationError as error:
            found += field_errors(error)
        except InvalidRequest as error:
            found += error.errors
        errors += [FieldError(f"{path}.{error.field}", error.message) for error in found]
        if found:
            return None
        after = [(parent.job, parent.on) for parent in edges.after]
        return NewGraphJob(key=edges.key, job=request.to_new_job(), after=after, need=edges.need)

    @blueprint.get("/graphs", query=GraphsQuery, response=GraphPage, scope=Scope.READ)
    def list_graphs(query: GraphsQuery) -> GraphPage:
        """List graphs with the number of their jobs: those with open jobs first, then the newest.

        `status` is that of the whole: `running` or `waiting` while jobs are open, then `failed` if one has failed or
        was lost, `canceled`, or `succeeded`.
        """
        return graphs.newest(limit=query.limit, before=query.before, name=query.name)

    @blueprint.get("/graphs/<uuid:graph_id>", response=Graph, problems=_UNKNOWN, scope=Scope.READ)
    def get_graph(graph_id: UUID) -> Graph:
        """Get a graph: its jobs in the order of their creation, and its edges."""
        graph = graphs.get(graph_id)
        actor = current_actor()
        visible = [job for job in graph.jobs if actor.can_see(job.task, job.queue)]
        shown = {job.job_id for job in visible}
        edges = [edge for edge in graph.edges if edge.child_id in shown and edge.parent_id in shown]
        return replace(graph, jobs=visible, edges=edges)

    add_routes(blueprint, (retry_graph, cancel_graph), site.runner)
    return blueprint
