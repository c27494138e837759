"""The page of where a running job is, which the job's page shows as a part of its own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from flask import Response

from dataloader.app.features.where.routes import make_where_reader
from dataloader.app.features.where.where import StackFrame
from dataloader.app.http.problems import ProblemCode
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.schemas import parse_job_id
from dataloader.app.http.site import Site
from dataloader.app.ui.base import PageRenderer

_OWNERS = {"standard": "of Python's library", "library": "of packages", "dataloader": "of dataloader", "task": ""}


def create_where_page(site: Site) -> ApiBlueprint:
    pages = PageRenderer("where_page", site.options)
    reader = site.shared(make_where_reader)

    @pages.page(
        "/jobs/<job:job_id>/where", standby=False, problems=(ProblemCode.JOB_NOT_FOUND, ProblemCode.TOO_MANY_WAITING)
    )
    def show_where(job_id: str) -> Response:
        """Show where a running job is, and who blocks its statements."""
        found = reader.read(parse_job_id(job_id))
        servers = [server for server in found.servers if server.sessions or server.problem]
        return pages.render("where.html", where=found, servers=servers, fold=fold_frames, owners=_OWNERS)

    return pages.blueprint


def fold_frames(frames: Sequence[StackFrame]) -> list[tuple[str, list[StackFrame]]]:
    """The frames in their order, those of one owner in a row together: those of the task are shown, others folded."""
    return [(kind, list(group)) for kind, group in groupby(frames, key=lambda frame: frame.kind)]
