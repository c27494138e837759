"""What the forms of backfills and slices share: fields, and how a refused request becomes a message at a field."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import Field, ValidationError

from dataloader.app.errors import BackfillEnded
from dataloader.app.features.backfills.changes import NewBackfill
from dataloader.app.features.backfills.rows import Backfill
from dataloader.app.http.json_io import MAX_JSON_DEPTH, FieldError
from dataloader.app.http.problems import InvalidRequest, RequestRejected
from dataloader.app.http.schemas import field_errors
from dataloader.app.ui.base import FormModel, FormText, InvalidForm, parse_json_object

_MAX_CONCURRENCY = 10_000
_ENDED = ("succeeded", "failed", "canceled", "lost")
_FORM_FIELDS = {"slices.from": "first", "slices.to": "last", "slices.unit": "unit", "slices.zone": "zone"}
_NUMBERS = ("concurrency", "priority", "max_attempts", "stop_after_failures")


class NewBackfillForm(FormModel):
    """A backfill, as a form has it; also the address of a preview that creates nothing."""

    task: FormText = Field("", description="The task.")
    first: FormText = Field("", description="The first slice, such as 2026-01-01 or 2026-01.")
    last: FormText = Field("", description="The last slice, which is loaded too.")
    keys: str = Field("", description="Keys of slices instead, one a line.")
    unit: FormText = Field("", description="hour, day, week or month; empty: as the task declares.")
    zone: FormText = Field("", description="The IANA time zone; empty: as the task declares.")
    mode: FormText = Field("unfinished", description="Which slices: missing, failed, unfinished or all.")
    newest_first: FormText = Field("", description="yes: begin with the last slice.")
    concurrency: FormText = Field("2", description="How many of its jobs run at a time.")
    priority: FormText = Field("200", description="Smaller runs first.")
    max_attempts: FormText = Field("5", description="The attempts of each job.")
    stop_after_failures: FormText = Field("", description="Pause when so many slices in a row ended badly.")
    queue: FormText = Field("", description="The queue; empty: the task's.")
    lock_key: FormText = Field("", description="May have placeholders; empty: the task's, or one for each slice.")
    args: str = Field("", description="A JSON object with placeholders; empty: those of the task's schedule.")
    note: FormText = Field("", description="A reason, shown with it.")

    def to_request(self, *, dry_run: bool) -> NewBackfill:
        """Raises InvalidForm."""
        errors: list[FieldError] = []
        values: dict[str, Any] = {"task": self.task.strip(), "mode": self.mode, "dry_run": dry_run}
        values["newest_first"] = self.newest_first == "yes"
        values["slices"] = _slices(self)
        for name in ("queue", "lock_key", "note"):
            values |= {name: text} if (text := getattr(self, name).strip()) else {}
        for name in _NUMBERS:
            text = getattr(self, name).strip()
            if text and not (text.isascii() and text.isdecimal() and len(text) < 12):  # noqa: PLR2004 - digits
                errors.append(FieldError(name, f"{text!r} is not a whole number"))
            elif text:
                values[name] = int(text)
        if self.args.strip():
            values["args"], args_errors = parse_json_object("args", self.args, MAX_JSON_DEPTH)
            errors += args_errors
        if errors:
            raise InvalidForm.from_errors(errors)
        with shown_errors(slices_field="keys" if self.keys.strip() else "first"):
            return NewBackfill.model_validate(values)


def _slices(form: NewBackfillForm) -> dict[str, Any]:
    keys = [key.strip() for key in form.keys.replace(",", "\n").splitlines() if key.strip()]
    if keys:
        return {"list": keys}
    values = {"from": form.first, "to": form.last, "unit": form.unit, "zone": form.zone}
    return {name: text.strip() for name, text in values.items() if text.strip()}


@contextmanager
def shown_errors(*, slices_field: str = "slices") -> Iterator[None]:
    """Turn what refuses a request into an InvalidForm, with the errors at their fields."""
    try:
        yield
    except ValidationError as error:
        raise InvalidForm.from_errors(_at_fields(field_errors(error), slices_field)) from None
    except InvalidRequest as error:
        raise InvalidForm.from_errors(_at_fields(error.errors, slices_field)) from None
    except InvalidForm:
        raise
    except (RequestRejected, BackfillEnded, ValueError) as error:
        raise InvalidForm(str(error)) from None


def _at_fields(errors: Any, slices_field: str) -> list[FieldError]:
    def form_field(path: str) -> str:
        if path in _FORM_FIELDS:
            return _FORM_FIELDS[path]
        return slices_field if path.startswith("slices") else path

    return [FieldError(form_field(error.field), error.message) for error in errors]


def parse_concurrency(raw: str) -> int:
    if not raw.isascii() or not raw.isdigit() or not 1 <= int(raw[:6]) <= _MAX_CONCURRENCY:
        raise InvalidForm.at_field("concurrency", f"is a whole number from 1 to {_MAX_CONCURRENCY:,}")
    return int(raw)


def ended_count(backfill: Backfill) -> int:
    """Slices whose last job has ended, and those that were left out."""
    return backfill.skipped + sum(backfill.by_state.get(state, 0) for state in _ENDED)


def extent(backfill: Backfill) -> str:
    """Its slices in words: from the first to the last."""
    slices = backfill.slices
    match slices.get("list"):
        case [key]:
            return str(key)
        case [first, *_, last]:
            return f"{first} … {last}"
    return f"{slices.get('start', '?')} to {slices.get('end', '?')}"
