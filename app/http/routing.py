"""Route decorators: they validate requests, check scopes, encode responses and describe operations for OpenAPI."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from http import HTTPStatus
from typing import Any, TypeVar, get_origin

from flask import Blueprint, Response, current_app, g, request
from pydantic import BaseModel, ValidationError
from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import NotFound, RequestEntityTooLarge, UnsupportedMediaType

from dataloader.app.db.statements import acting_as
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.auth.guard import CSRF_FIELD, IS_READ, REQUEST_ID, authorize
from dataloader.app.http.json_io import MAX_JSON_DEPTH, FieldError, dump_body, dump_json, parse
from dataloader.app.http.links import page_path
from dataloader.app.http.problems import InvalidRequest, ProblemCode, problem_code
from dataloader.app.http.schemas import field_errors
from dataloader.app.http.standby_reads import CHANGED_COOKIE, DATA_AGE_HEADER, MAX_LAG_KEY, allowing_standby

JSON = "application/json"
HTML = "text/html"
FORM = "application/x-www-form-urlencoded"
Handler = TypeVar("Handler", bound=Callable[..., Any])
Model = TypeVar("Model", bound=BaseModel)

_NO_ARGS: MultiDict[str, str] = MultiDict()  # spares parsing an empty query string

# The scopes of which a caller needs one.
RequiredScopes = tuple[Scope, ...]
OPEN: RequiredScopes = ()
ANY_KEY: RequiredScopes = (Scope.READ, Scope.TRIGGER)
_SCOPE_MISSING: RequiredScopes = (Scope.ADMIN,)  # of an operation that declares no scope; a test rejects it

JSON_CONTENT_TYPES = frozenset({JSON, "application/json; charset=utf-8", "application/json;charset=utf-8"})


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A route as its decorator declares it. `form` is a body sent by a form instead of JSON; `if_match`: the request
    may carry `If-Match`; `html_responses` describes statuses other than 200 that are answered in HTML."""

    method: str
    path: str  # as Flask writes it
    tag: str
    name: str
    summary: str
    description: str
    response: Any  # the type of a JSON response; str for text
    media_type: str = JSON
    body: type[BaseModel] | None = None
    form: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    problems: Sequence[ProblemCode] = ()  # in addition to those of authorization and validation
    scope: Scope | RequiredScopes | None = None
    html_responses: Mapping[int, str] | None = None
    if_match: bool = False
    standby: bool = False  # the answer may be as old as a standby's data
    max_body_bytes: int | None = None  # None: as set for the app
    refuse_form: Callable[[Mapping[str, Any], Exception], Any] | None = None  # None: an invalid form is a problem
    page_url: str | None = None  # of the page that has the form

    @property
    def required_scopes(self) -> RequiredScopes:
        if self.scope is None:
            return _SCOPE_MISSING
        return (self.scope,) if isinstance(self.scope, Scope) else self.scope

    @property
    def is_conditional(self) -> bool:
        """Whether it answers 304 to a known ETag."""
        return self.method == "GET" and self.media_type == JSON and self.path.startswith("/api/")


@dataclass(frozen=True)
class ApiBlueprint:
    """A Flask blueprint whose decorators validate requests, check scopes and describe the operations.

    Every operation declares its scope: one (`scope=Scope.OPERATE`), a tuple of alternatives, `ANY_KEY` or `OPEN`.
    """

    name: str
    prefix: str
    max_json_depth: int = MAX_JSON_DEPTH
    problems: Sequence[ProblemCode] = ()  # of all operations
    operations: list[Operation] = field(default_factory=list)
    blueprint: Blueprint = field(init=False)

    def __post_init__(self) -> None:
        blueprint = Blueprint(self.name, __name__, url_prefix=self.prefix or None)
        object.__setattr__(self, "blueprint", blueprint)

    def get(self, path: str, **options: Any) -> Callable[[Handler], Handler]:
        return self.route("GET", path, **options)

    def post(self, path: str, **options: Any) -> Callable[[Handler], Handler]:
        return self.route("POST", path, **options)

    def put(self, path: str, **options: Any) -> Callable[[Handler], Handler]:
        return self.route("PUT", path, **options)

    def patch(self, path: str, **options: Any) -> Callable[[Handler], Handler]:
        return self.route("PATCH", path, **options)

    def delete(self, path: str, **options: Any) -> Callable[[Handler], Handler]:
        return self.route("DELETE", path, **options)

    def route(self, method: str, path: str, **options: Any) -> Callable[[Handler], Handler]:
        def register(handler: Handler) -> Handler:
            name, (summary, _, description) = handler.__name__, (handler.__doc__ or "").partition("\n")
            operation = Operation(
                method=method,
                path=self.prefix + path,
                tag=self.name,
                name=name,
                summary=summary.strip().rstrip("."),
                description=" ".join(description.split()),
                **{**options, "problems": (*options.get("problems", ()), *self.problems)},
            )
            self.operations.append(operation)
            view = self._make_view(operation, handler)
            view = _check_scope(operation, _read_from_standby(view) if operation.standby else view)
            self.blueprint.add_url_rule(path, name, view, methods=[method])
            return handler

        return register

    def _make_view(self, operation: Operation, handler: Callable[..., Any]) -> Callable[..., Response]:
        """Return the view that parses the request, calls the handler and encodes its result."""
        respond = _text_response(operation.media_type)
        if operation.media_type == JSON:
            respond = _etag_response if operation.is_conditional else _json_response

        def view(**path: Any) -> Response:
            if "\0" in request.environ["PATH_INFO"]:
                raise NotFound  # PostgreSQL stores no such name
            models: list[BaseModel] = []
            if operation.form is not None:
                try:
                    models.append(_parse_form(operation.form))
                except InvalidRequest as error:
                    if operation.refuse_form is None:
                        raise
                    return respond(operation.refuse_form(path, error))
            elif operation.body is not None:
                if operation.max_body_bytes is not None:
                    request.max_content_length = operation.max_body_bytes
                _require_json()
                models.append(parse_body(operation.body, _request_body(), self.max_json_depth))
            if operation.query is not None:
                models.append(_validate_flat(operation.query, request.args if request.query_string else _NO_ARGS))
            return respond(handler(*models, **path))

        return view


def _check_scope(operation: Operation, view: Callable[..., Response]) -> Callable[..., Response]:
    """Authorize the caller before the request is parsed, and record changes in the audit table as the caller's."""
    required_scopes, is_page = operation.required_scopes, operation.media_type == HTML

    def checked_view(**path: Any) -> Response:
        environ = request.environ
        environ[IS_READ] = operation.method == "GET" or operation.scope is Scope.READ
        if operation.page_url is not None:
            g.page_path = page_path(operation.page_url, path)
        actor = authorize(environ, required_scopes, is_page=is_page)
        if actor is None or operation.method == "GET":
            return view(**path)
        with acting_as(actor.audit_context(operation.name, environ[REQUEST_ID])):
            response = view(**path)
        if is_page and (max_lag_sec := current_app.config.get(MAX_LAG_KEY)) is not None:
            response.set_cookie(CHANGED_COOKIE, "1", max_age=math.ceil(max_lag_sec), httponly=True, samesite="Lax")
        return response

    return checked_view


def _read_from_standby(view: Callable[..., Response]) -> Callable[..., Response]:
    """Let a standby answer what the view reads, unless this browser has just changed something.

    What is not found there may be new: the primary is asked.
    """

    def standby_view(**path: Any) -> Response:
        if CHANGED_COOKIE in request.cookies:
            return view(**path)
        with allowing_standby() as reads:
            try:
                response = view(**path)
            except Exception as error:
                if reads.age_sec is None or problem_code(error).status != HTTPStatus.NOT_FOUND:
                    raise
            else:
                if reads.age_sec is not None:
                    response.headers[DATA_AGE_HEADER] = f"{reads.age_sec:.1f}"
                return response
        return view(**path)

    return standby_view


def _parse_form(model: type[BaseModel]) -> BaseModel:
    if request.mimetype != FORM:
        raise UnsupportedMediaType(f"send the form as {FORM}")
    return _validate_flat(model, request.form, ignored=CSRF_FIELD)


def parse_body(model: type[Model], data: bytes, max_depth: int) -> Model:
    """Parse and validate a JSON body; all errors are reported together. Raises InvalidJson or InvalidRequest."""
    parsed = parse(data, max_depth=max_depth)
    if not parsed.errors and not isinstance(parsed.value, dict):
        raise InvalidRequest([FieldError("body", "is not a JSON object such as {}")])
    try:
        validated = model.model_validate(parsed.value)
    except ValidationError as error:
        raise InvalidRequest([*parsed.errors, *_additional_errors(field_errors(error), parsed.errors)]) from None
    if parsed.errors:
        raise InvalidRequest(parsed.errors)
    return validated


def _require_json() -> None:
    environ = request.environ
    if environ.get("CONTENT_TYPE") not in JSON_CONTENT_TYPES:
        charset = request.mimetype_params.get("charset", "utf-8").lower()
        if request.mimetype != JSON or charset not in ("utf-8", "utf8"):
            raise UnsupportedMediaType(ProblemCode.UNSUPPORTED_MEDIA_TYPE.description)
    if environ.get("HTTP_CONTENT_ENCODING", "identity") != "identity":
        raise UnsupportedMediaType(ProblemCode.UNSUPPORTED_MEDIA_TYPE.description)


def _request_body() -> bytes:
    data = request.get_data(cache=False)
    # werkzeug cuts a chunked body off at the limit without an error: a remaining byte shows that it was longer.
    is_full = len(data) == request.max_content_length and request.content_length is None
    if is_full and request.environ["wsgi.input"].read(1):
        raise RequestEntityTooLarge
    return data


def _additional_errors(errors: Iterable[FieldError], known: Sequence[FieldError]) -> Iterable[FieldError]:
    """The errors of fields for which no error is known yet: a field that could not be parsed is reported once."""
    fields = {_top_level_field(error.field) for error in known}
    return [error for error in errors if "body" not in fields and _top_level_field(error.field) not in fields]


def _top_level_field(path: str) -> str:
    return path.partition(".")[0].partition("[")[0]


def _validate_flat(model: type[BaseModel], texts: MultiDict[str, str], *, ignored: str = "") -> BaseModel:
    """Validate the fields of a query string or form: one text for each name, unless its field is a list."""
    lists = _list_fields(model)
    errors = [
        FieldError(name, "is sent more than once")
        for name, values in texts.lists()
        if len(values) > 1 and name not in lists
    ]
    errors += [
        FieldError(name, "contains the character NUL, which PostgreSQL cannot store")
        for name, values in texts.lists()
        if any("\0" in value for value in values)
    ]
    if errors:
        raise InvalidRequest(errors)
    try:
        fields = {name: values if name in lists else values[0] for name, values in texts.lists() if name != ignored}
        return model.model_validate(fields)
    except ValidationError as error:
        raise InvalidRequest(field_errors(error)) from None


@cache
def _list_fields(model: type[BaseModel]) -> frozenset[str]:
    return frozenset(name for name, field in model.model_fields.items() if get_origin(field.annotation) is list)


def _json_response(result: Any) -> Response:
    if isinstance(result, VersionedResponse):
        return with_etag(dump_json(result.content), result.version)
    return result if isinstance(result, Response) else Response(dump_body(result), content_type=JSON)


def _etag_response(result: Any) -> Response:
    if isinstance(result, Response | VersionedResponse):
        return _json_response(result)
    return with_etag(dump_json(result))


def _text_response(media_type: str) -> Callable[[Any], Response]:
    content_type = f"{media_type}; charset=utf-8"
    return lambda text: text if isinstance(text, Response) else Response(text, content_type=content_type)


_DIGEST_BYTES = 12
_CACHE_CONTROL = "private, no-cache"  # clients may store the response and must revalidate it


@dataclass(frozen=True)
class VersionedResponse:
    """A response with the version of its resource, which `If-Match` may require."""

    content: Any
    version: str


def with_etag(text: str, version: str | None = None) -> Response:
    """Return the response of a JSON text with its ETag, or a 304 if the caller has it already."""
    tag = etag_of(text) if version is None else f"{version}.{etag_of(text)}"
    if request.method == "GET" and request.if_none_match.contains_weak(tag):
        response = Response(status=304)
    else:
        response = Response(f"{text}\n", content_type=JSON)
    response.set_etag(tag)
    response.headers["Cache-Control"] = _CACHE_CONTROL
    return response


def etag_of(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()


def if_match_version() -> str | None:
    """Return the version that `If-Match` requires, or None if any version will do; "" for a tag of no version."""
    tags = request.if_match
    if not request.headers.get("If-Match") or tags.star_tag:
        return None
    versions = list({tag.partition(".")[0] for tag in tags.as_set() if tag})  # werkzeug yields None for an empty tag
    return versions[0] if len(versions) == 1 else ""
