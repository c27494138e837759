"""Where a running job is, over HTTP."""

from __future__ import annotations

from dataloader.app.features.where.where import JobWhere, WhereReader
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.problems import DATABASE_PROBLEMS, ProblemCode
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.schemas import parse_job_id
from dataloader.app.http.site import Site


def make_where_reader(site: Site) -> WhereReader:
    """For `Site.shared`: one for the route and the page."""
    return WhereReader(site.queue, site.watcher, site.options.features.get("where"))


def create_where_blueprint(site: Site) -> ApiBlueprint:
    blueprint = ApiBlueprint("where", "/api/v1", problems=DATABASE_PROBLEMS)
    reader = site.shared(make_where_reader)

    @blueprint.get(
        "/jobs/<job:job_id>/where",
        response=JobWhere,
        problems=(ProblemCode.JOB_NOT_FOUND, ProblemCode.TOO_MANY_WAITING),
        scope=Scope.READ,
    )
    def locate_job(job_id: str) -> JobWhere:
        """Locate a running job: the stack of its task, its processes, its SQL, and who blocks that.

        Its worker process is asked now, for three seconds at most; targets are asked as well. Frames have names and
        lines, never values; statements have no text constants.
        """
        return reader.read(parse_job_id(job_id))

    return blueprint
