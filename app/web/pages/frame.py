"""What all pages share."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode
from uuid import UUID
from zoneinfo import ZoneInfo

from flask import Response, redirect, render_template, request
from pydantic import BaseModel, ConfigDict

from app.errors import DatabaseUnavailable, DataloaderError, SchemaError
from app.log.masking import MASK, conceal
from app.queue.job import Status
from app.queue.keys import Scope
from app.web.jobs import NoSuchId
from app.web.operations import HTML, Handler, Subject
from app.web.options import WebOptions
from app.wording import counted

SEEN, VERSION = "X-Seen", "X-Version"  # what the reader has of a part, and what it is sent
ACTED = {303: "To the page of what was changed; without a session to /login.", 409: "Why it was not done."}
_FRAGMENT = "HX-Request"
Unreadable = (DatabaseUnavailable, SchemaError)  # why a page has nothing to show; it will come back
_RETRY_AFTER_SEC = 2
_UTC = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC")
# What turns the direction of the text that follows it: in JSON it is written as an escape.
_TURNING = {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
_MOST = 1e15
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))
_BYTES = ("B", "KB", "MB", "GB", "TB")


def acting(subject: Subject, path: str, **about: Any) -> Callable[[Handler], Handler]:
    """A route behind a page's form: it changes something, and leads to the page of it or says why not."""
    return subject.post(path, answer=str, media_type=HTML, pages=ACTED, scope=Scope.OPERATE, **about)


class FormModel(BaseModel):
    """What a page's form sends: texts, which the page itself makes sense of, so that it can show what is wrong."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Words:
    """Times, lengths and sizes as people read them."""

    def __init__(self, zone: str) -> None:
        self._zone = ZoneInfo(zone)
        self.zone = zone

    def now(self) -> str:
        return f"{datetime.now(self._zone):%H:%M}"

    def offset(self) -> str:
        """How far the zone is from UTC now: `+03:00`."""
        told = f"{datetime.now(self._zone):%z}"
        return f"{told[:3]}:{told[3:5]}"

    def time(self, moment: datetime | None) -> str:
        return "" if moment is None else moment.astimezone(self._zone).strftime("%Y-%m-%d %H:%M:%S")

    def clock(self, moment: datetime | None) -> str:
        """The time of day, with the day before it unless that is today."""
        if moment is None:
            return ""
        local = moment.astimezone(self._zone)
        today = datetime.now(self._zone).date()
        return local.strftime("%H:%M:%S" if local.date() == today else "%d %b %H:%M:%S")

    def utc(self, moment: datetime | None) -> str:
        """The same moment for those who are elsewhere."""
        return "" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"

    def zoned(self, sentence: str) -> str:
        """A sentence of the queue, which tells times in UTC, as readers of this page tell them."""
        return _UTC.sub(lambda found: self.clock(datetime.fromisoformat(found[0].replace(" UTC", "+00:00"))), sentence)

    def ago(self, moment: datetime | None) -> str:
        if moment is None:
            return ""
        gone = (datetime.now(UTC) - moment).total_seconds()
        return f"{self.took(gone)} ago" if gone >= 0 else f"in {self.took(-gone)}"

    def took(self, seconds: float | timedelta | None) -> str:
        """Two units at most: `3 h 20 min`."""
        if seconds is None:
            return ""
        left = seconds.total_seconds() if isinstance(seconds, timedelta) else float(seconds)
        if left < 1:
            return f"{left * 1000:.0f} ms"
        if left < 10:  # noqa: PLR2004 - seconds; below that the tenth counts
            return f"{left:.1f} s"
        whole, told = round(left), []
        for size, name in _UNITS:
            if whole >= size:
                told.append(f"{whole // size} {name}")
                whole %= size
        if whole and len(told) < 2:  # noqa: PLR2004
            told.append(f"{whole} s")
        return " ".join(told[:2])

    def brief(self, seconds: float | None) -> str:
        """One unit, where there is little room: `3.3 h`."""
        if seconds is None:
            return ""
        for size, name in _UNITS:
            if seconds >= size:
                return f"{seconds / size:.1f} {name}"
        return self.took(seconds)

    @staticmethod
    def rate(a_second: float) -> str:
        """How many in a second, or in a minute or an hour where it is less than one."""
        for length, name in ((1, "s"), (60, "min"), (3_600, "h")):
            if a_second * length >= 1 or name == "h":
                many = a_second * length
                break
        return f"{many:,.0f}/{name}".replace(",", " ") if many >= 10 else f"{many:.1f}/{name}"  # noqa: PLR2004

    def between(self, start: datetime | None, end: datetime | None) -> str:
        return "" if start is None else self.took((end or datetime.now(UTC)) - start)

    @staticmethod
    def number(value: float | None) -> str:
        return "" if value is None else f"{value:,.0f}".replace(",", " ")

    @staticmethod
    def counted(count: int, noun: str) -> str:
        return counted(count, noun).replace(",", " ")

    @staticmethod
    def share(value: float | None) -> str:
        return "" if value is None else f"{value * 100:.1f} %" if 0 < value < 0.1 else f"{value * 100:.0f} %"  # noqa: PLR2004

    @staticmethod
    def size(value: float | None) -> str:
        if value is None:
            return ""
        step = 0
        while value >= 1024 and step < len(_BYTES) - 1:  # noqa: PLR2004
            value, step = value / 1024, step + 1
        return f"{value:.0f} {_BYTES[step]}" if step == 0 or value >= 10 else f"{value:.1f} {_BYTES[step]}"  # noqa: PLR2004

    @staticmethod
    def json(value: Any) -> str:
        return json.dumps(value, indent=2, ensure_ascii=False, default=str).translate(_TURNING)

    @staticmethod
    def line(text: str | None, most: int = 160) -> str:
        first = (text or "").strip().partition("\n")[0]
        return first if len(first) <= most else first[: most - 1] + "…"


class Frame:
    """Shows templates: whole, or only the live part of one when the page refreshes itself."""

    def __init__(self, options: WebOptions) -> None:
        self.options = options
        self.words = Words(options.timezone)

    def show(self, template: str, *, status: HTTPStatus = HTTPStatus.OK, **values: Any) -> Response:
        part = request.headers.get(_FRAGMENT) == "true"
        text = render_template(
            f"pages/{template}",
            base="part.html" if part else "layout.html",
            here=request.full_path.rstrip("?"),
            words=self.words,
            options=self.options,
            Status=Status,
            **values,
        )
        version = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        if part and request.headers.get(SEEN) == version:
            return Response(status=HTTPStatus.NO_CONTENT)
        return Response(text, status=status, content_type="text/html; charset=utf-8", headers={VERSION: version})

    def away(self, what: str, error: Exception) -> Response:
        """The tables cannot be read: that is said, and the page comes back by itself."""
        why = f"{what} cannot be read now ({type(error).__name__})."
        response = self.show("away.html", status=HTTPStatus.SERVICE_UNAVAILABLE, why=why)
        response.headers["Retry-After"] = str(_RETRY_AFTER_SEC)
        return response

    def refused(self, error: DataloaderError | ValueError, *, back: str) -> Response:
        """An act that could not be done: why, and the way back."""
        status = HTTPStatus.SERVICE_UNAVAILABLE if isinstance(error, Unreadable) else HTTPStatus.CONFLICT
        return self.show("refused.html", status=status, why=str(error), back=back)


def go(path: str, **query: str | None) -> Response:
    """After an act: to a page, by GET, so that reloading it does nothing again."""
    wanted = {name: value for name, value in query.items() if value}
    answer = redirect(f"{path}?{urlencode(wanted)}" if wanted else path, code=HTTPStatus.SEE_OTHER)
    assert isinstance(answer, Response)  # noqa: S101 - for the types: Flask's own is one
    return answer


def given(model: BaseModel) -> dict[str, Any]:
    """The fields of a form or an address that hold something."""
    return {name: value for name, value in model.model_dump().items() if value not in (None, "")}


def progress_of(
    told: Mapping[str, Any], started: datetime | None, *, ended: datetime | None = None, still: float | None = None
) -> dict[str, Any] | None:
    """What a progress bar shows: done and total, the rate, and when it may end. None: it tells no such numbers.

    `still`: since how many seconds it has not changed, if that is long; then there is no telling when it may end.
    """
    done, total = _count(told.get("processed")), _count(told.get("total")) or None
    if done is None:
        return None
    ran = ((ended or datetime.now(UTC)) - started).total_seconds() if started else 0.0
    rate = done / ran if ran > 0 and done > 0 else None
    unit = told.get("unit")
    return {
        "done": done,
        "total": total,
        "share": min(1.0, done / total) if total else None,
        "rate": rate,
        "left": (total - done) / rate if total and rate and total >= done and not ended and still is None else None,
        "still": still,
        "unit": unit if isinstance(unit, str) else "",
    }


def _count(told: Any) -> float | None:
    """A number that may be how many of something; what pipelines tell may be anything."""
    if isinstance(told, bool) or not isinstance(told, int | float) or not 0 <= told <= _MOST:
        return None
    return told


def job_id_of(told: str) -> UUID:
    """Raises NoSuchId, which is told as any job that is not there."""
    try:
        if len(told) == len(str(UUID(int=0))):
            return UUID(told)
    except ValueError:
        pass
    raise NoSuchId(told)


def masked(value: Any) -> Any:
    """As readers may see it: secrets by the names of their fields are hidden."""
    return conceal(value)


def restored(edited: Any, before: Any) -> Any:
    """What somebody edited, with what was masked for him as it was before."""
    if edited == MASK and before is not None:
        return before
    if isinstance(edited, dict) and isinstance(before, dict):
        return {name: restored(value, before.get(name)) for name, value in edited.items()}
    if isinstance(edited, list) and isinstance(before, list) and len(edited) == len(before):
        return [restored(value, old) for value, old in zip(edited, before, strict=True)]
    return edited
