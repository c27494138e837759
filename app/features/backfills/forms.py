"""What the forms of backfills and slices share: the fields of a new one, and words for what is shown."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from pydantic import Field, create_model

from dataloader.app.acts.web import refusing_form
from dataloader.app.features.backfills.plan import NewBackfill, SliceRange
from dataloader.app.features.backfills.rows import Backfill
from dataloader.app.ui.base import FormModel
from dataloader.app.ui.forms import parse_texts, text_fields

_ENDED = ("succeeded", "failed", "canceled", "lost")
_NOT_IN_FORM = ("slices", "idempotency_key", "dry_run")
_OPTIONS = [name for name in NewBackfill.model_fields if name not in _NOT_IN_FORM]
_RANGE_NAMES = {"first": "from", "last": "to", "unit": "unit", "zone": "zone"}  # of the request, by that of the form


class BackfillFields(FormModel):
    """A backfill, as a form has it; also the address of a preview that creates nothing."""

    if TYPE_CHECKING:  # of the fields of a new backfill and its slices, those that the pages read by name
        task: str = ""
        first: str = ""
        keys: str = ""

    def to_request(self, *, dry_run: bool) -> NewBackfill:
        """Raises InvalidForm."""
        values = parse_texts(NewBackfill, {name: getattr(self, name) for name in _OPTIONS}, "UTC")
        slices = parse_texts(SliceRange, {name: getattr(self, name) for name in SliceRange.model_fields}, "UTC")
        if "keys" in slices:
            slices = {"list": slices["keys"]}
        else:
            slices = {_RANGE_NAMES[name]: value for name, value in slices.items()}
        with refusing_form(self.form_field):
            return NewBackfill.model_validate({"task": "", **values, "slices": slices, "dry_run": dry_run})

    def form_field(self, path: str) -> str:
        """The field of the form that holds this field of the request."""
        for name, requested in _RANGE_NAMES.items():
            if path == f"slices.{requested}":
                return name
        if path.startswith("slices"):
            return "keys" if self.keys.strip() else "first"
        return path


def _default_text(name: str) -> str:
    """What the form of a new backfill shows at first."""
    default = NewBackfill.model_fields[name].default
    if isinstance(default, Enum):
        return str(default.value)
    return str(default) if isinstance(default, int) and not isinstance(default, bool) else ""


def _new_backfill_texts() -> dict[str, Any]:
    options = {name: text for name, text in text_fields(NewBackfill).items() if name in _OPTIONS}
    shown = {
        name: (kind, Field(_default_text(name), description=about.description))
        for name, (kind, about) in options.items()
    }
    return {**shown, **text_fields(SliceRange)}


if TYPE_CHECKING:
    NewBackfillForm = BackfillFields
else:
    NewBackfillForm = create_model("NewBackfillForm", __base__=BackfillFields, **_new_backfill_texts())


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
