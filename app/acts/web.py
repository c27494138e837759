"""Routes and forms of acts: both validate by the same model, call the same function and write the same audit line."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from flask import Response
from pydantic import BaseModel, Field, ValidationError, create_model

from dataloader.app.acts.act import Act, Call, parameters_of
from dataloader.app.acts.known_names import NameCheck
from dataloader.app.db.statements import Executor
from dataloader.app.errors import NameNotFound
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.auth.guard import current_actor
from dataloader.app.http.json_io import FieldError
from dataloader.app.http.middleware import audit_action
from dataloader.app.http.options import WebOptions
from dataloader.app.http.problems import InvalidRequest, ProblemCode, RequestRejected
from dataloader.app.http.routing import ApiBlueprint, VersionedResponse, if_match_version
from dataloader.app.http.schemas import StrictQuery, field_errors
from dataloader.app.ui.base import FormModel, FormText, InvalidForm, PageRenderer, parse_choice, redirect_to
from dataloader.app.ui.forms import parse_form, text_fields
from dataloader.pipelines.contract import Pipelines


class ActRunner:
    """Performs acts in the request that is being handled."""

    def __init__(self, executor: Executor, pipelines: Pipelines, options: WebOptions) -> None:
        self._executor, self._pipelines, self._options = executor, pipelines, options
        self._names = NameCheck(executor, pipelines)

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
    for act in acts:
        problems = (*act.problems, ProblemCode.NAME_NOT_FOUND) if act.may_name_unknown else act.problems
        query = StrictQuery if act.may_name_unknown else act.query
        add = blueprint.route(
            act.method, act.path, body=act.body, query=query, response=act.response, problems=problems,
            scope=Scope.OPERATE, if_match=act.if_match,
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


def add_button(
    pages: PageRenderer,
    path: str,
    name: str,
    act: Act,
    runner: ActRunner,
    *,
    page_url: str,
    page: Callable[..., Response],
    next_url: str | None = None,
    problems: Sequence[ProblemCode] = (),
) -> None:
    """Add a form without fields, whose path is that of the act's parameters; then its page is shown, or another."""

    def submit(**path_values: Any) -> Response | None:
        runner.perform(act, path_values)
        return None if next_url is None else redirect_to(next_url)

    submit.__name__, submit.__doc__ = name, act.perform.__doc__
    pages.action(path, page_url=page_url, page=page, problems=problems)(submit)


@dataclass(frozen=True)
class Choice:
    """An act that a form can perform, and the fields of its request that the choice itself sets."""

    act: Act
    preset: Mapping[str, Any] = field(default_factory=dict)
    next_url: Callable[[Any], str] | None = None  # the page that follows, from the result; None: that of the form
    confirm: str = ""  # what the form says until its box `confirmed` is ticked

    @property
    def models(self) -> list[type[BaseModel]]:
        return [model for model in (self.act.body, self.act.query) if model is not None]


def add_form(
    pages: PageRenderer,
    path: str,
    name: str,
    choices: Mapping[str, Choice],
    runner: ActRunner,
    *,
    page_url: str,
    page: Callable[..., Response],
    default: str | None = None,
    problems: Sequence[ProblemCode] = (),
    summary: str = "",
) -> None:
    """Add the form `name`, whose field `action` chooses the act; its other fields are those of the acts.

    `summary` is what it does, by default that of its first act.
    """
    first = next(iter(choices.values())).act
    in_path = parameters_of(path)

    def submit(form: Any, **path_values: Any) -> Response | None:
        choice = choices[parse_choice("action", form.action, tuple(choices))]
        if choice.confirm and form.confirmed != "yes":
            raise InvalidForm.at_field("confirmed", choice.confirm)
        act = choice.act
        path_values |= {name: getattr(form, name) for name in act.parameters if name not in in_path}
        body, query = (parse_form(model, form, choice.preset, pages.formatter.zone) for model in (act.body, act.query))
        with refusing_form():
            strict = act.may_name_unknown and form.create != "yes"
            result = runner.perform(act, path_values, body, query=query, strict=strict)
        return None if choice.next_url is None else redirect_to(choice.next_url(result))

    submit.__name__, submit.__doc__ = name, summary or first.perform.__doc__
    form_model = _form_model(choices.values(), default, in_path)
    pages.action(path, form=form_model, page_url=page_url, page=page, problems=problems)(submit)


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
    except RequestRejected as error:
        raise InvalidForm(str(error) or error.code.description) from None


def _form_model(choices: Collection[Choice], default: str | None, in_path: Sequence[str]) -> type[FormModel]:
    """The texts of a form: the acts' parameters that are not in its path, and the fields of their requests."""
    fields: dict[str, Any] = {}
    for choice in choices:
        asked = (parameter for parameter in choice.act.parameters if parameter not in in_path)
        fields |= {parameter: (FormText, Field(min_length=1)) for parameter in asked}
        for model in choice.models:
            fields |= {name: text for name, text in text_fields(model).items() if name not in choice.preset}
    fields["action"] = (FormText, Field(... if default is None else default, description="What to do."))
    if any(choice.confirm for choice in choices):
        fields["confirmed"] = (FormText, Field("", description="yes: do what cannot be undone."))
    if any(choice.act.may_name_unknown for choice in choices):
        create = "yes: accept the name of a queue or task that is not known."
        fields["create"] = (FormText, Field("", description=create))
    return create_model("ActForm", __base__=FormModel, **fields)
