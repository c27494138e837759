"""The first page: what this is, where to go, and the newest jobs."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from flask import render_template

from app.errors import DataloaderError
from app.queue.jobqueue import JobQueue
from app.queue.keys import Scope
from app.web.operations import HTML, Subject
from app.web.options import WebOptions

NEWEST = 20


def home(queue: JobQueue, options: WebOptions) -> Subject:
    subject = Subject("pages", "", options.max_json_depth)
    zone = ZoneInfo(options.timezone)

    @subject.get("/", answer=str, media_type=HTML, scope=Scope.READ)
    def front_page() -> str:
        """See the newest jobs, and where to go from here."""
        try:
            newest, away = queue.jobs(limit=NEWEST), None
        except DataloaderError as error:
            newest, away = [], type(error).__name__
        return render_template("home.html", jobs=newest, away=away, options=options, local=local)

    def local(moment: datetime | None) -> str:
        return "" if moment is None else moment.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S")

    return subject
