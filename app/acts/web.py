"""Routes and forms of acts: both validate by the same model, call the same function and write the same audit line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, get_args

from flask import Response
from pydantic import BaseModel, Field, create_model

from dataloader.app.acts.act import Act, Call, parameters_of
from dataloader.app.acts.known_names import NameCheck
from dataloader.app.db.statements import Executor
from dataloader.app.errors import NameNotFound
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.auth.guard import current_actor
from dataloader.app.http.json_io import FieldError
from dataloader.app.http.middleware import audit_action
from dataloader.app.http.problems import InvalidRequest, ProblemCode
from dataloader.app.http.routing import ApiBlueprint, if_match_version
from dataloader.app.http.schemas import StrictQuery
from dataloader.app.ui.base import FormModel, FormText, InvalidForm, PageRenderer, parse_choice, redirect_to
from dataloader.app.ui.forms import parse_duration, parse_number, validate_form
from dataloader.pipelines.contract import Pipelines


class ActRunner:
    """Performs acts in the request that is being handled."""

    def __init__(self, executor: Executor, pipelines: Pipelines) -> None:
        self._executor, self._pipelines, self._names = executor, pipelines, NameCheck(executor, pipelines)

    def perform(
        self,
        act: Act,
        path: Mapping[str, Any],
        body: BaseModel | None = None,
        *,
        strict: bool = False,
        if_version: str | None = None,
    ) -> Any:
        call = Call(self._executor, current_actor().name, self._names, self._pipelines, strict, if_version)
        result = act.perform(call, **path, **({} if body is None else {"body": body}))
        audit_action(act.name, **(act.audit_fields(path, body) | call.audited))
        return result


def add_routes(blueprint: ApiBlueprint, acts: Iterable[Act], runner: ActRunner) -> None:
    for act in acts:
        problems = (*act.problems, ProblemCode.NAME_NOT_FOUND) if act.may_name_unknown else act.problems
        query = StrictQuery if act.may_name_unknown else None
        add = blueprint.route(
            act.method, act.path, body=act.body, query=query, response=act.response, problems=problems,
            scope=Scope.OPERATE, if_match=act.if_match,
        )  # fmt: skip
        add(_handler(act, runner))


def _handler(act: Act, runner: ActRunner) -> Any:
    @wraps(act.perform)
    def handle(*models: Any, **path: Any) -> Any:
        body = next((model for model in models if isinstance(model, act.body)), None) if act.body is not None else None
        strict = any(isinstance(model, StrictQuery) and model.strict for model in models)
        if_version = if_match_version() if act.if_match else None
        result = runner.perform(act, path, body, strict=strict, if_version=if_version)
        return result.to_dict() if hasattr(result, "to_dict") else result

    return handle


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
    """An act that a form can perform, and the fields of its body that the choice itself sets."""

    act: Act
    preset: Mapping[str, Any] = field(default_factory=dict)


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
) -> None:
    """Add the form `name`, whose field `action` chooses the act; its other fields are those of the acts."""
    first = next(iter(choices.values())).act

    in_path = parameters_of(path)

    def submit(form: Any, **path_values: Any) -> None:
        choice = choices[parse_choice("action", form.action, tuple(choices))]
        act = choice.act
        path_values |= {name: getattr(form, name) for name in act.parameters if name not in in_path}
        body = None if act.body is None else _parse_body(act.body, form, choice.preset)
        try:
            runner.perform(act, path_values, body, strict=form.create != "yes")
        except NameNotFound as error:
            raise InvalidForm.from_errors(FieldError(*item) for item in error.fields.items()) from None
        except InvalidRequest as error:
            raise InvalidForm.from_errors(error.errors) from None

    submit.__name__, submit.__doc__ = name, first.perform.__doc__
    pages.action(path, form=_form_model(choices.values(), default, in_path), page_url=page_url, page=page)(submit)


def _form_model(choices: Iterable[Choice], default: str | None, in_path: Sequence[str]) -> type[FormModel]:
    """The texts of a form: the acts' parameters that are not in its path, and the fields of their bodies."""
    fields: dict[str, Any] = {}
    for choice in choices:
        asked = (parameter for parameter in choice.act.parameters if parameter not in in_path)
        fields |= {parameter: (FormText, Field(min_length=1)) for parameter in asked}
        of_body = {} if choice.act.body is None else choice.act.body.model_fields
        fields |= {
            field_name: (FormText, Field("", description=info.description))
            for field_name, info in of_body.items()
            if field_name not in choice.preset
        }
    fields["action"] = (FormText, Field(... if default is None else default, description="What to do."))
    fields["create"] = (FormText, Field("", description="yes: accept the name of a queue or task that is not known."))
    return create_model("ActForm", __base__=FormModel, **fields)


def _parse_body(model: type[BaseModel], form: FormModel, preset: Mapping[str, Any]) -> BaseModel:
    """Parse the texts of a form as the model's types: numbers, durations (`…_sec`) or texts. Raises InvalidForm."""
    values: dict[str, Any] = dict(preset)
    for field_name, info in model.model_fields.items():
        raw = getattr(form, field_name, "")
        if field_name in preset:
            continue
        if field_name.endswith("_sec"):
            seconds = parse_duration(field_name, raw)
            values[field_name] = int(seconds) if seconds is not None and seconds.is_integer() else seconds
        else:
            values[field_name] = parse_number(raw) if _is_number(info.annotation) else raw or None
    return validate_form(model, values)


def _is_number(annotation: Any) -> bool:
    return annotation in (int, float) or any(_is_number(part) for part in get_args(annotation) if part is not None)
