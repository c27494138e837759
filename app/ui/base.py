"""What all pages share: rendering of templates, form actions, formatting of times and sizes."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import wraps
from http import HTTPStatus
from typing import Annotated, Any, TypeVar
from zoneinfo import ZoneInfo

from flask import Response, g, request
from pydantic import BaseModel, ConfigDict, Field

from dataloader.app.errors import BulkNotFound, DatabaseUnavailable, DataloaderError, JobNotFound, SchemaError
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.auth.guard import AUTHENTICATOR, CSRF_FIELD, REQUEST_ID, Authenticator, current_actor
from dataloader.app.http.json_io import FieldError, InvalidJson, parse
from dataloader.app.http.links import current_url, render_html
from dataloader.app.http.options import WebOptions
from dataloader.app.http.problems import InvalidRequest
from dataloader.app.http.routing import HTML, ApiBlueprint, Handler
from dataloader.app.http.standby_reads import data_age_sec
from dataloader.app.queue.job import Status
from dataloader.app.ui.formatter import Formatter
from dataloader.app.ui.shell import formatter_of_request
from dataloader.app.wording import parse_amount

ACT_COOKIE, _ACT_COOKIE_SEC = "dl_act", 60  # the request of the last act, until a page has shown it
SEEN_HEADER, VERSION_HEADER = "X-Seen", "X-Version"  # of the live part that the browser has, and of the response
ACTION_RESPONSES = {303: "Redirect to the changed resource; without a session to /login.", 409: "Why it failed."}
REFUSED_FORM_RESPONSES = ACTION_RESPONSES | {422: "The page of the form, with a message at each refused field."}
_Choice = TypeVar("_Choice", bound=str)
FormText = Annotated[str, Field(max_length=1000)]
# Ages, and durations so far: the texts of <time> and of the macro `counting`.
_COUNTING = re.compile(r"(<time\b[^>]*>|<span data-counting>)[^<]*")
_COUNTING_PERIOD_SEC = 10.0  # in which a page whose data does not change is sent again for its ages
_FRAGMENT_HEADER = "HX-Request"
UNAVAILABLE_ERRORS = (DatabaseUnavailable, SchemaError)
_RETRY_AFTER_SEC = 2


class FormModel(BaseModel):
    """The fields of a page's form or address: texts, which the page parses itself to show its errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class InvalidForm(ValueError):
    """A field of a form or an address holds no valid value. `errors` names the fields, where they are known."""

    def __init__(self, message: str, *, errors: Iterable[FieldError] = ()) -> None:
        super().__init__(message)
        self.errors = tuple(errors)

    @classmethod
    def from_errors(cls, errors: Iterable[FieldError]) -> InvalidForm:
        known = tuple(errors)
        return cls("; ".join(f"{error.field}: {error.message}" for error in known), errors=known)

    @classmethod
    def at_field(cls, field: str, message: str) -> InvalidForm:
        return cls.from_errors([FieldError(field, message)])


@dataclass(frozen=True)
class FormState:
    """What a form shows: nothing at first; after a refusal what the user entered, and the message of each field."""

    action: str  # the name of its operation
    is_refused: bool = False
    values: Mapping[str, str] = field(default_factory=dict)
    errors: Sequence[FieldError] = ()
    reason: str = ""  # of the whole form
    ticked: Mapping[str, Sequence[str]] = field(default_factory=dict)  # the boxes of each field

    def value(self, name: str, default: Any = "") -> Any:
        """What the user entered, or the default before a refusal."""
        return self.values.get(name, "" if self.is_refused else default)

    def is_ticked(self, name: str, item: str, default: Iterable[str] = ()) -> bool:
        """Whether the user ticked the box of an item; before a refusal, whether it is one of the default."""
        return item in (self.ticked.get(name, ()) if self.is_refused else default)

    def field_id(self, name: str) -> str:
        return f"{self.action}-{name}"

    def error(self, name: str) -> str:
        """The message of a field; the path within the field goes before it."""
        found = (error for error in self.errors if _form_field(error.field) == name)
        return "; ".join(
            f"{error.field[len(name) :].lstrip('.')} {error.message}" if error.field != name else error.message
            for error in found
        )

    @property
    def invalid_fields(self) -> list[str]:
        """The fields of the form that have a message, in the order of the form."""
        with_errors = {_form_field(error.field) for error in self.errors}
        return [name for name in self.values if name in with_errors]

    @property
    def general_errors(self) -> list[str]:
        """What is wrong with no field of the form."""
        found = [
            f"{error.field}: {error.message}" for error in self.errors if _form_field(error.field) not in self.values
        ]
        return [*found, self.reason] if self.reason else found


class PageRenderer:
    """The routes of one subject. They render the whole page, or only its live part when the page refreshes."""

    def __init__(self, name: str, options: WebOptions) -> None:
        self.blueprint = ApiBlueprint(name, "")
        self.options = options

    @property
    def formatter(self) -> Formatter:
        """Of the zone that the browser of this request has chosen."""
        return formatter_of_request(self.options)

    def page(
        self, path: str, *, scope: Scope = Scope.READ, standby: bool = True, **options: Any
    ) -> Callable[[Handler], Handler]:
        """Register a page; without a database it answers with a page that reloads.

        `standby`: what it shows may be as old as a standby's data.
        """

        def register(handler: Handler) -> Handler:
            @wraps(handler)
            def show(*args: Any, **kwargs: Any) -> Response:
                try:
                    response: Response = handler(*args, **kwargs)
                except UNAVAILABLE_ERRORS as error:
                    reason = f"The database cannot be read now ({type(error).__name__})."
                    response = self.render("unavailable.html", status=HTTPStatus.SERVICE_UNAVAILABLE, reason=reason)
                    response.headers["Retry-After"] = str(_RETRY_AFTER_SEC)
                return response

            self.blueprint.get(path, response=str, media_type=HTML, scope=scope, standby=standby, **options)(show)
            return handler

        return register

    def action(
        self,
        path: str,
        *,
        page_url: str,
        page: Callable[..., Response] | None = None,
        scope: Scope = Scope.OPERATE,
        **options: Any,
    ) -> Callable[[Handler], Handler]:
        """Register a form action: it changes something and redirects to its page, or answers why it failed.

        `page` is the page of the form: after a refusal it is rendered with what the user entered and the message at
        each field (`form_of` in its template), as 422, or as 409 where no field is at fault. It is called with the
        arguments of the path. A caller who may act and not read gets the reason alone.
        """

        def register(handler: Handler) -> Handler:
            def refuse(path_args: Mapping[str, Any], error: Exception) -> Response:
                if page is None or isinstance(error, UNAVAILABLE_ERRORS) or not _can_read():
                    return self.render_failure(error, back_url=g.page_path)
                return self._render_refusal(page, path_args, error, action=handler.__name__)

            @wraps(handler)
            def act(*args: Any, **kwargs: Any) -> Response:
                try:
                    response: Response | None = handler(*args, **kwargs)
                except (JobNotFound, BulkNotFound):
                    raise
                except (DataloaderError, InvalidForm) as error:
                    return refuse(kwargs, error)
                return _remember_act(response or redirect_to(g.page_path))

            post = self.blueprint.post(
                path,
                response=str,
                media_type=HTML,
                html_responses=ACTION_RESPONSES if page is None else REFUSED_FORM_RESPONSES,
                scope=scope,
                refuse_form=None if page is None else refuse,
                page_url=page_url,
                **options,
            )
            post(act)
            return handler

        return register

    @staticmethod
    def _render_refusal(
        page: Callable[..., Response], path_args: Mapping[str, Any], error: Exception, *, action: str
    ) -> Response:
        """Render the page of a form that was refused."""
        errors = getattr(error, "errors", ())
        values = {name: value for name, value in request.form.items() if name != CSRF_FIELD}
        ticked = dict(request.form.lists())
        g.refused_form = FormState(action, True, values, errors, "" if errors else str(error), ticked)
        response = page(**path_args)
        is_invalid = isinstance(error, InvalidForm | InvalidRequest)
        response.status_code = HTTPStatus.UNPROCESSABLE_ENTITY if is_invalid else HTTPStatus.CONFLICT
        return response

    def render(self, template: str, *, status: HTTPStatus = HTTPStatus.OK, **values: Any) -> Response:
        is_fragment = request.headers.get(_FRAGMENT_HEADER) == "true"
        text = render_html(
            template,
            base="fragment.html" if is_fragment else "layout.html",
            current_url=g.get("page_path") or current_url(),
            form_of=_form_of,
            refused_form=g.get("refused_form"),
            can_operate=can_operate(),
            data_age_sec=data_age_sec(),
            Status=Status,
            **values,
        )
        version = _version_of(text)
        if is_fragment and request.headers.get(SEEN_HEADER) == version:
            return Response(status=HTTPStatus.NO_CONTENT)
        response = Response(text, status=status, content_type="text/html; charset=utf-8")
        response.headers[VERSION_HEADER] = version
        if g.get("is_act_shown"):
            response.delete_cookie(ACT_COOKIE)
        return response

    def render_failure(self, error: Exception, *, back_url: str) -> Response:
        """Answer a form action that failed, with the reason and a link back."""
        status = HTTPStatus.SERVICE_UNAVAILABLE if isinstance(error, UNAVAILABLE_ERRORS) else HTTPStatus.CONFLICT
        return self.render("action_failed.html", status=status, reason=str(error), back_url=back_url)


def _version_of(text: str) -> str:
    """Identify what a page shows. Texts that count on with the clock change it only every `_COUNTING_PERIOD_SEC`."""
    lasting, count = _COUNTING.subn(r"\1", text)
    period = int(time.time() / _COUNTING_PERIOD_SEC) if count else 0
    return hashlib.blake2b(f"{period}\n{lasting}".encode(), digest_size=8).hexdigest()


def _form_of(action: str) -> FormState:
    """The state of the form of an action, in the template of its page."""
    refused: FormState | None = g.get("refused_form")
    return refused if refused is not None and refused.action == action else FormState(action)


def _form_field(path: str) -> str:
    """The field of a form that holds this path."""
    return path.partition(".")[0].partition("[")[0]


def redirect_to(path: str) -> Response:
    """Redirect to a page by GET after an action, so that reloading repeats nothing."""
    return Response(status=HTTPStatus.SEE_OTHER, headers={"Location": path}, content_type="text/html; charset=utf-8")


def _remember_act(response: Response) -> Response:
    """Let the next page of the browser show the act, which its request identifies in the audit."""
    if response.status_code == HTTPStatus.SEE_OTHER and can_operate():
        authenticator: Authenticator = request.environ[AUTHENTICATOR]
        response.set_cookie(
            ACT_COOKIE, request.environ[REQUEST_ID], max_age=_ACT_COOKIE_SEC, httponly=True, samesite="Lax",
            secure=authenticator.is_https(request.environ),
        )  # fmt: skip
    return response


def safe_path(path: str) -> str:
    """Return a path of this service; anything that some browser takes for another site becomes the overview."""
    is_safe = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() and "\\" not in path
    return path if is_safe else "/"


def _can_read() -> bool:
    return current_actor().has_scope((Scope.READ,))


def can_operate() -> bool:
    return current_actor().has_scope((Scope.OPERATE,))


def parse_choice(name: str, raw: str, choices: Iterable[_Choice]) -> _Choice:
    for choice in choices:
        if choice == raw:
            return choice
    raise InvalidForm(f"Unknown {name} {raw!r}; expected one of: {', '.join(choices)}.")


def parse_fields(parsers: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Parse the fields of a form, each with its function, and report all errors together. Raises InvalidForm."""
    values: dict[str, Any] = {}
    errors: list[FieldError] = []
    for name, parse_field in parsers.items():
        try:
            values[name] = parse_field()
        except InvalidForm as error:
            errors += error.errors or [FieldError(name, str(error))]
    if errors:
        raise InvalidForm.from_errors(errors)
    return values


def parse_priority(raw: str) -> int | None:
    """Parse a priority; None: the field is empty."""
    if not raw.strip():
        return None
    if not raw.strip().isdecimal() or int(raw) > 2**31 - 1:
        raise InvalidForm.at_field("priority", f"{raw!r} is not a whole number from 0 to 2147483647")
    return int(raw)


def parse_time(name: str, raw: str, zone: str) -> datetime | None:
    """Parse a time; without an offset it is in the zone of the pages. None: the field is empty."""
    if not raw.strip():
        return None
    try:
        moment = datetime.fromisoformat(raw.strip())
    except ValueError:
        raise InvalidForm.at_field(name, f"{raw!r} is not a time such as 2026-11-21 or 2026-11-21T18:30") from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=ZoneInfo(zone))
    try:
        moment.astimezone(UTC)
    except OverflowError:
        raise InvalidForm.at_field(name, f"{raw!r} is before the year 1 or after the year 9999 in UTC") from None
    return moment


def parse_json(name: str, text: str, max_depth: int) -> tuple[Any, list[FieldError]]:
    """Parse the JSON of a form field; return the value with the errors."""
    try:
        parsed = parse(text.encode("utf-8", "replace"), max_depth=max_depth)
    except InvalidJson as error:
        return None, [FieldError(name, str(error).replace("the body", "it"))]
    return parsed.value, [FieldError(name, error.message) for error in parsed.errors]


def parse_json_object(name: str, text: str, max_depth: int) -> tuple[dict[str, Any], list[FieldError]]:
    value, errors = parse_json(name, text, max_depth)
    if isinstance(value, dict):
        return value, errors
    return {}, errors or [FieldError(name, "is not a JSON object such as {}")]


def progress_summary(
    progress: Any,
    started_at: datetime | None,
    *,
    finished_at: datetime | None = None,
    stalled_sec: float | None = None,
) -> dict[str, Any] | None:
    """Return the values of a progress bar, or None when the progress holds no count of what is done.

    Rate and remaining time are by the mean since the start; a page that reads the history of the progress replaces
    them. `stalled_sec` is the time since the last change when that is long; then the remaining time is unknown.
    """
    amount = parse_amount(progress)
    if amount is None:
        return None
    done, total, unit = amount
    elapsed_sec = ((finished_at or datetime.now(UTC)) - started_at).total_seconds() if started_at else 0.0
    rate = done / elapsed_sec if elapsed_sec > 0 and done > 0 else None
    can_estimate = total and rate and total >= done and not finished_at and stalled_sec is None
    return {
        "done": done,
        "total": total,
        "fraction": min(1.0, done / total) if total else None,
        "rate": rate,
        "remaining_sec": (total - done) / rate if can_estimate and total and rate else None,
        "stalled_sec": stalled_sec,
        "unit": unit,
    }
