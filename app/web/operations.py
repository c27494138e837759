"""Routes that describe themselves: a decorator binds a handler, validates for it, and feeds the document."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from flask import Blueprint, Response, request
from pydantic import BaseModel, ValidationError
from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import RequestEntityTooLarge, UnsupportedMediaType

from app.queue.audit import acting
from app.queue.keys import Scope
from app.web.answers import json_text
from app.web.auth import REQUEST_ID, TOKEN_FIELD, admit
from app.web.conditional import Versioned, tagged
from app.web.models import faults_of
from app.web.problems import Code, InvalidRequest
from app.web.strictjson import FieldFault, read

JSON = "application/json"
HTML = "text/html"
FORM = "application/x-www-form-urlencoded"
Handler = TypeVar("Handler", bound=Callable[..., Any])
Model = TypeVar("Model", bound=BaseModel)

# Who may call an operation: anybody; whoever has a key; those whose key has one of these scopes.
Access = tuple[Scope, ...]
OPEN: Access = ()
ANY_KEY: Access = (Scope.READ, Scope.TRIGGER)
_FORGOTTEN: Access = (Scope.ADMIN,)  # nobody said; a test refuses it

PLAIN_JSON = frozenset({JSON, "application/json; charset=utf-8", "application/json;charset=utf-8"})


@dataclass(frozen=True, kw_only=True)
class Operation:
    """What the document says about a route."""

    method: str
    path: str  # as Flask writes it
    tag: str
    name: str
    summary: str
    description: str
    answer: Any  # the type of a JSON answer; str for text
    media_type: str
    body: type[BaseModel] | None
    query: type[BaseModel] | None
    problems: tuple[Code, ...]
    access: Access  # one of these scopes is needed; empty: none is
    body_type: str  # how the body is sent
    pages: Mapping[int, str]  # what else is answered in HTML, by status
    declared: bool  # somebody said so
    if_match: bool = False  # it may be asked to do nothing if what it is about has changed
    conditional: bool = False  # it answers 304 to whoever has the answer already


@dataclass(frozen=True)
class Subject:
    """A blueprint and the operations it holds.

    Every operation says who may call it: `scope=Scope.OPERATE`, several of which one is enough, `ANY_KEY` or `OPEN`.
    """

    name: str
    prefix: str
    max_json_depth: int
    operations: list[Operation] = field(default_factory=list)
    blueprint: Blueprint = field(init=False)

    def __post_init__(self) -> None:
        blueprint = Blueprint(self.name, __name__, url_prefix=self.prefix or None)
        object.__setattr__(self, "blueprint", blueprint)

    def get(self, path: str, **about: Any) -> Callable[[Handler], Handler]:
        return self._route("GET", path, **about)

    def post(self, path: str, **about: Any) -> Callable[[Handler], Handler]:
        return self._route("POST", path, **about)

    def patch(self, path: str, **about: Any) -> Callable[[Handler], Handler]:
        return self._route("PATCH", path, **about)

    def delete(self, path: str, **about: Any) -> Callable[[Handler], Handler]:
        return self._route("DELETE", path, **about)

    def _route(  # noqa: PLR0913 - all that can be said of a route
        self,
        method: str,
        path: str,
        *,
        answer: Any,
        media_type: str = JSON,
        body: type[BaseModel] | None = None,
        query: type[BaseModel] | None = None,
        problems: Sequence[Code] = (),
        scope: Scope | Access | None = None,
        form: type[BaseModel] | None = None,
        pages: Mapping[int, str] | None = None,
        if_match: bool = False,
        largest: int | None = None,
    ) -> Callable[[Handler], Handler]:
        """`form`: a body as a page's form sends it, instead of JSON; its fields are texts. `pages`: other statuses that
        are answered in HTML, and when. `largest`: how many bytes its body may have, where that is not the usual."""
        access = (scope,) if isinstance(scope, Scope) else _FORGOTTEN if scope is None else scope
        sent = _form if form is not None else _body
        body = form or body
        refusals = _refusals(method, access)
        conditional = method == "GET" and media_type == JSON and self.prefix.startswith("/api/")

        def bind(handler: Handler) -> Handler:
            summary, _, description = (handler.__doc__ or "").partition("\n")
            self.operations.append(
                Operation(
                    method=method,
                    path=self.prefix + path,
                    tag=self.name,
                    name=handler.__name__,
                    summary=summary.strip().rstrip("."),
                    description=" ".join(description.split()),
                    answer=answer,
                    media_type=media_type,
                    body=body,
                    query=query,
                    problems=(*self._own_problems(body, query), *refusals, *problems),
                    body_type=FORM if form is not None else JSON,
                    pages=pages or ({303: "To /login, and back."} if media_type == HTML and access else {}),
                    access=access,
                    declared=scope is not None,
                    if_match=if_match,
                    conditional=conditional,
                )
            )
            view = _admitted(
                access, self._view(handler, sent, body, query, media_type, conditional), method, media_type
            )
            if largest is not None:
                view = _of_size(largest, view)
            self.blueprint.add_url_rule(path, handler.__name__, view, methods=[method])
            return handler

        return bind

    @staticmethod
    def _own_problems(body: type[BaseModel] | None, query: type[BaseModel] | None) -> Iterable[Code]:
        if body is not None:
            return (Code.INVALID_JSON, Code.INVALID_REQUEST, Code.BODY_TOO_LARGE, Code.UNSUPPORTED_MEDIA_TYPE)
        return (Code.INVALID_REQUEST,) if query is not None else ()

    def _view(
        self,
        handler: Callable[..., Any],
        sent: Callable[[type[BaseModel], int], BaseModel],
        body: type[BaseModel] | None,
        query: type[BaseModel] | None,
        media_type: str,
        conditional: bool,
    ) -> Callable[..., Response]:
        answered = _text_response(media_type)
        if media_type == JSON:
            answered = _tagged_response if conditional else _json_response
        if body is not None and query is not None:
            return lambda **path: answered(handler(sent(body, self.max_json_depth), _query(query), **path))
        if body is not None:
            return lambda **path: answered(handler(sent(body, self.max_json_depth), **path))
        if query is not None:
            return lambda **path: answered(handler(_query(query), **path))
        return lambda **path: answered(handler(**path))


def _of_size(largest: int, view: Callable[..., Response]) -> Callable[..., Response]:
    def sized(**path: Any) -> Response:
        request.max_content_length = largest
        return view(**path)

    return sized


def _admitted(access: Access, view: Callable[..., Response], method: str, media_type: str) -> Callable[..., Response]:
    """Whoever may not is told so before anything else; what he changes is written down as his."""
    page = media_type == HTML
    if method == "GET":

        def read(**path: Any) -> Response:
            admit(access, page=page)
            return view(**path)

        return read

    def change(**path: Any) -> Response:
        actor = admit(access, page=page)
        if actor is None:
            return view(**path)
        with acting(actor.act((request.endpoint or "").rpartition(".")[2], request.environ[REQUEST_ID])):
            return view(**path)

    return change


def _refusals(method: str, access: Access) -> tuple[Code, ...]:
    """How somebody may be told that he may not."""
    elsewhere = (Code.CROSS_SITE,) if method != "GET" else ()
    if access == OPEN:
        return elsewhere
    return (
        Code.KEY_REQUIRED, Code.KEY_INVALID, Code.SCOPE_MISSING, *elsewhere, Code.HOST_REFUSED, Code.TOO_MANY_TRIES,
        Code.DATABASE_UNAVAILABLE,
    )  # fmt: skip


def _form(model: type[BaseModel], _: int) -> BaseModel:
    if request.mimetype != FORM:
        raise UnsupportedMediaType(f"send the form as {FORM}")
    return _flat(model, request.form, but=TOKEN_FIELD)


def _body(model: type[BaseModel], max_depth: int) -> BaseModel:
    """The validated body. All faults are told together, each with its field."""
    _must_be_json()
    return valid(model, _sent(), max_depth)


def valid(model: type[Model], sent: bytes, max_depth: int) -> Model:
    """What was sent, as the model has it. Raises NotJson, InvalidRequest."""
    reading = read(sent, max_depth=max_depth)
    if not reading.faults and not isinstance(reading.value, dict):
        raise InvalidRequest([FieldFault("body", "is no JSON object; send one, as in {}")])
    try:
        found = model.model_validate(reading.value)
    except ValidationError as error:
        raise InvalidRequest([*reading.faults, *_further(faults_of(error), reading.faults)]) from None
    if reading.faults:
        raise InvalidRequest(reading.faults)
    return found


def _must_be_json() -> None:
    sent = request.environ.get("CONTENT_TYPE", "")
    if sent not in PLAIN_JSON:
        charset = request.mimetype_params.get("charset", "utf-8").lower()
        if request.mimetype != JSON or charset not in ("utf-8", "utf8"):
            raise UnsupportedMediaType(Code.UNSUPPORTED_MEDIA_TYPE.meaning)
    if request.environ.get("HTTP_CONTENT_ENCODING", "identity") != "identity":
        raise UnsupportedMediaType(Code.UNSUPPORTED_MEDIA_TYPE.meaning)


def _sent() -> bytes:
    data = request.get_data(cache=False)
    # A chunked body is cut off at the limit without a word; that something is left over shows that it was longer.
    full = len(data) == request.max_content_length and request.content_length is None
    if full and request.environ["wsgi.input"].read(1):
        raise RequestEntityTooLarge
    return data


def _further(faults: Iterable[FieldFault], known: Sequence[FieldFault]) -> Iterable[FieldFault]:
    """What validation found besides: a field that could not even be read is told once."""
    fields = {_top(fault.field) for fault in known}
    return [fault for fault in faults if "body" not in fields and _top(fault.field) not in fields]


def _top(path: str) -> str:
    return path.partition(".")[0].partition("[")[0]


def _query(model: type[BaseModel]) -> BaseModel:
    return _flat(model, request.args)


def _flat(model: type[BaseModel], told: MultiDict[str, str], *, but: str = "") -> BaseModel:
    """Names with a text each, as an address and a form have them."""
    faults = [FieldFault(name, "comes twice; send it once") for name, values in told.lists() if len(values) > 1]
    faults += [
        FieldFault(name, "holds the character NUL, which PostgreSQL cannot keep")
        for name, value in told.items()
        if "\0" in value
    ]
    if faults:
        raise InvalidRequest(faults)
    try:
        return model.model_validate({name: value for name, value in told.items() if name != but})
    except ValidationError as error:
        raise InvalidRequest(faults_of(error)) from None


def _json_response(answer: Any) -> Response:
    if isinstance(answer, Versioned):
        return tagged(json_text(answer.answer), JSON, answer.version)
    return answer if isinstance(answer, Response) else Response(json_text(answer), content_type=JSON)


def _tagged_response(answer: Any) -> Response:
    if isinstance(answer, Response | Versioned):
        return _json_response(answer)
    return tagged(json_text(answer), JSON)


def _text_response(media_type: str) -> Callable[[Any], Response]:
    content_type = f"{media_type}; charset=utf-8"
    return lambda text: text if isinstance(text, Response) else Response(text, content_type=content_type)
