"""Routes and forms of acts: both validate by the same model, call the same function and write the same audit line."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, wraps
from typing import Any

from flask import Response
from pydantic import BaseModel, Field, ValidationError, create_model

from dataloader.app.acts.act import Act, Call, Undo, parameters_of
from dataloader.app.acts.known_names import NameCheck
from dataloader.app.db.statements import Executor
from dataloader.app.errors import NameNotFound, QueueDraining
from dataloader.app.http.auth.guard import current_actor
from dataloader.app.http.jobs.job_maker import JobMaker
from dataloader.app.http.json_io import FieldError
from dataloader.app.http.middleware import audit_action
from dataloader.app.http.options import WebOptions
from dataloader.app.http.problems import InvalidRequest, ProblemCode, RequestRejected
from dataloader.app.http.routing import ApiBlueprint, VersionedResponse, if_match_version
from dataloader.app.http.schemas import StrictQuery, field_errors
from dataloader.app.ui.base import FormModel, FormText, InvalidForm, PageRenderer, parse_choice
from dataloader.app.ui.forms import parse_form, text_fields
from dataloader.pipelines.contract import Pipelines


class ActRunner:
    """Performs acts in the request that is being handled."""

    def __init__(self, executor: Executor, pipelines: Pipelines, options: WebOptions, jobs: JobMaker) -> None:
        self._executor, self._pipelines, self._options, self._jobs = executor, pipelines, options, jobs
        self._names = NameCheck(executor, pipelines)
        self.undos: list[type[Undo]] = []  # those of the acts that have a route

    def perform(
        self,
        act: Act,
        path: Mapping[str, Any],
        body: BaseModel | None = None,
        *,
        query: BaseModel | None = None,
        strict: bool = False,
        if_version: str | None = None,
    ) -> Any:
        call = Call(
            executor=self._executor,
            actor=current_actor().name,
            names=self._names,
            pipelines=self._pipelines,
            options=self._options,
            jobs=self._jobs,
            undos=self.undos,
            event=act.name,
            strict=strict,
            if_version=if_version,
        )
        models = {name: model for name, model in (("body", body), ("query", query)) if model is not None}
        result = act.perform(call, **path, **models)
        if call.event is not None:
            audit_action(call.event, **(act.audit_fields(path, body, query) | call.audited))
        return result


def add_routes(blueprint: ApiBlueprint, acts: Iterable[Act], runner: ActRunner) -> None:
    """Add the routes of those acts that have one."""
    for act in (act for act in acts if act.method):
        if act.undo is not None and act.undo not in runner.undos:
            runner.undos.append(act.undo)
        problems = (*act.problems, ProblemCode.NAME_NOT_FOUND) if act.may_name_unknown else act.problems
        query = StrictQuery if act.may_name_unknown else act.query
        add = blueprint.route(
            act.method, act.path, body=act.body, query=query, response=act.response, problems=problems,
            scope=act.scope, if_match=act.if_match,
        )  # fmt: skip
        add(_handler(act, runner))


def _handler(act: Act, runner: ActRunner) -> Any:
    @wraps(act.perform)
    def handle(*models: Any, **path: Any) -> Any:
        body, query = (_of_type(model, models) for model in (act.body, act.query))
        strict = any(isinstance(model, StrictQuery) and model.strict for model in models)
        if_version = if_match_version() if act.if_match else None
        result = runner.perform(act, path, body, query=query, strict=strict, if_version=if_version)
        if act.has_version:
            return VersionedResponse(result, str(result.version))
        return result.to_dict() if hasattr(result, "to_dict") else result

    return handle


def _of_type(model: type[BaseModel] | None, parsed: Iterable[BaseModel]) -> BaseModel | None:
    return None if model is None else next((found for found in parsed if isinstance(found, model)), None)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """An act that a form can perform, and what the form does otherwise than by the types of the request's fields."""

    act: Act
    preset: Mapping[str, Any] = field(default_factory=dict)  # fields of the request that the choice itself sets
    boxes: Collection[str] = ()  # lists of which the form has a box for each item
    parse: Callable[..., Mapping[str, Any]] | None = None  # fields by hand, from the form and the values of its path
    respond: Callable[[Any], Response] | None = None  # the answer, from the result; None: the page of the form
    confirm: str = ""  # what the form says until its box `confirmed` is ticked
    is_strict: bool = False  # the form refuses an unknown name, of which a request only warns

    @property
    def refuses_names(self) -> bool:
        return self.act.may_name_unknown or self.is_strict

    @property
    def models(self) -> list[type[BaseModel]]:
        return [model for model in (self.act.body, self.act.query) if model is not None]

    def parse_requests(self, form: Any, path: Mapping[str, Any], zone: str) -> list[BaseModel | None]:
        """Make the body and the query of a form. Raises InvalidForm."""
        values = {**self.preset, **{name: getattr(form, name) or None for name in self.boxes}}
        values |= {} if self.parse is None else self.parse(form, path)
        return [parse_form(model, form, values, zone) for model in (self.act.body, self.act.query)]


@dataclass(frozen=True, kw_only=True)
class ActForms:
    """Adds the forms of a page: after an act the page is shown, after a refusal too, with the form and its errors."""

    pages: PageRenderer
    runner: ActRunner
    page_url: str
    page: Callable[..., Response] | None = None  # None: after a refusal only the reason is shown
    problems: Sequence[ProblemCode] = ()

    def add_button(self, path: str, name: str, act: Act, *, respond: Callable[[Any], Response] | None = None) -> None:
        """Add a form without fields, whose path has the act's parameters."""

        def submit(**path_values: Any) -> Response | None:
            result = self.runner.perform(act, path_values)
            return None if respond is None else respond(result)

        self._register(path, name, act, submit)

    def add(
        self,
        path: str,
        name: str,
        choices: Choice | Mapping[str, Choice],
        *,
        default: str | None = None,
        summary: str = "",
    ) -> None:
        """Add the form `name` with the fields of its act; of several acts its field `action` chooses one.

        `summary` is what it does, by default that of its first act.
        """
        by_action = {"": choices} if isinstance(choices, Choice) else choices
        in_path = parameters_of(path)

        def submit(form: Any, **path_values: Any) -> Response | None:
            action = parse_choice("action", getattr(form, "action", ""), tuple(by_action))
            return self._perform(by_action[action], form, path_values)

        first = next(iter(by_action.values())).act
        form_model = _form_model(by_action.values(), default, in_path)
        if {choice.act.scope for choice in by_action.values()} != {first.scope}:
            raise ValueError(f"the acts of {name} need different scopes")
        self._register(path, name, first, submit, summary, form=form_model)

    def _register(
        self, path: str, name: str, act: Act, submit: Callable[..., Any], summary: str = "", **options: Any
    ) -> None:
        submit.__name__, submit.__doc__ = name, summary or act.perform.__doc__
        register = self.pages.action(
            path, page_url=self.page_url, page=self.page, scope=act.scope, problems=self.problems, **options
        )
        register(submit)

    def _perform(self, choice: Choice, form: Any, path: dict[str, Any]) -> Response | None:
        if choice.confirm and form.confirmed != "yes":
            raise InvalidForm.at_field("confirmed", choice.confirm)
        path |= {name: getattr(form, name) for name in choice.act.parameters if name not in path}
        body, query = choice.parse_requests(form, path, self.pages.formatter.zone)
        with refusing_form():
            strict = choice.refuses_names and form.create != "yes"
            version = (form.version or None) if choice.act.if_match else None
            result = self.runner.perform(choice.act, path, body, query=query, strict=strict, if_version=version)
        return None if choice.respond is None else choice.respond(result)


@contextmanager
def refusing_form(form_field: Callable[[str], str] = str) -> Iterator[None]:
    """Turn what refuses a request into an InvalidForm, with the errors at their fields.

    `form_field` gives the field of the form by that of the request, where they differ.
    """
    try:
        yield
    except NameNotFound as error:
        raise InvalidForm.from_errors(FieldError(*item) for item in error.fields.items()) from None
    except (InvalidRequest, ValidationError) as error:
        errors = error.errors if isinstance(error, InvalidRequest) else field_errors(error)
        raise InvalidForm.from_errors(FieldError(form_field(each.field), each.message) for each in errors) from None
    except QueueDraining as error:
        raise InvalidForm.at_field("queue", str(error)) from None
    except RequestRejected as error:
        raise InvalidForm(str(error) or error.code.description) from None


def _form_model(choices: Collection[Choice], default: str | None, in_path: Sequence[str]) -> type[FormModel]:
    """The texts of a form: the acts' parameters that are not in its path, and the fields of their requests."""
    return _make_form_model(
        tuple(
            (
                tuple(parameter for parameter in choice.act.parameters if parameter not in in_path),
                tuple(choice.models),
                frozenset(choice.preset),
                tuple(choice.boxes),
            )
            for choice in choices
        ),
        default,
        has_version=any(choice.act.if_match for choice in choices),
        has_confirmation=any(choice.confirm for choice in choices),
        refuses_names=any(choice.refuses_names for choice in choices),
    )


# The parameters of an act, the models of its requests, their fields that are preset, and the lists with boxes.
_FormFields = tuple[tuple[str, ...], tuple[type[BaseModel], ...], frozenset[str], tuple[str, ...]]


@cache  # a model is costly to make and to free, and each app of a process has the same
def _make_form_model(
    choices: tuple[_FormFields, ...],
    default: str | None,
    *,
    has_version: bool,
    has_confirmation: bool,
    refuses_names: bool,
) -> type[FormModel]:
    fields: dict[str, Any] = {}
    for parameters, models, preset, boxes in choices:
        fields |= {parameter: (FormText, Field(min_length=1)) for parameter in parameters}
        for model in models:
            fields |= {name: text for name, text in text_fields(model).items() if name not in preset}
        fields |= {name: (list[FormText], Field([], description="The ticked boxes.")) for name in boxes}
    if len(choices) > 1:
        fields["action"] = (FormText, Field(... if default is None else default, description="What to do."))
    if has_version:
        fields["version"] = (FormText, Field("", description="The version that the form shows."))
    if has_confirmation:
        fields["confirmed"] = (FormText, Field("", description="yes: do what cannot be undone."))
    if refuses_names:
        create = "yes: accept the name of a queue or task that is not known."
        fields["create"] = (FormText, Field("", description=create))
    return create_model("ActForm", __base__=FormModel, **fields)
