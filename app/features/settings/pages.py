"""The pages of settings: what is in force in this process, the database, retention, and the findings of doctor."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import Literal

from flask import Response
from pydantic import Field

from dataloader.app.features.retention.rows import Retention
from dataloader.app.features.settings.server import server_facts
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.problems import ProblemCode, RequestRejected
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.site import Site
from dataloader.app.log import redact_text
from dataloader.app.ui.base import FormModel, PageRenderer

_MAX_COUNTED = 5_000  # jobs that the preview of retention counts


class SettingsPageQuery(FormModel):
    preview: Literal["", "retention"] = Field("", description="retention: count what it would delete now.")


def create_settings_page(site: Site) -> ApiBlueprint:
    source, options = site.executor, site.options
    pages = PageRenderer("settings_page", options)

    @pages.page("/settings", query=SettingsPageQuery, scope=Scope.ADMIN, standby=False)
    def show_settings(query: SettingsPageQuery) -> Response:
        """Show the settings of this process with their sources, the database, and what retention would delete."""
        retention = None if options.retention is None else Retention(source, options.retention)
        preview = partitions = None
        if retention is not None and query.preview:
            preview = retention.prune(limit=_MAX_COUNTED, dry_run=True)
            partitions = retention.drop_partitions(dry_run=True)
        return pages.render(
            "settings.html",
            groups=[(group, list(found)) for group, found in groupby(options.settings, key=attrgetter("group"))],
            changed=[setting for setting in options.settings if setting.source != "default"],
            server=server_facts(source),
            is_paused=retention is not None and retention.is_paused,
            preview=preview,
            partitions=partitions,
            has_doctor=options.examine is not None,
            redact=redact_text,
        )

    @pages.page("/settings/doctor", scope=Scope.ADMIN, problems=(ProblemCode.NOT_FOUND,), standby=False)
    def show_doctor() -> Response:
        """Examine the server, the tables and the queue, and show what was found, the worst first."""
        if options.examine is None:
            raise RequestRejected(
                ProblemCode.NOT_FOUND, "this process cannot examine the database; run dataloader doctor"
            )
        findings = sorted(options.examine(), key=attrgetter("severity"), reverse=True)
        bad = [finding for finding in findings if finding.severity.word in ("error", "warning")]
        return pages.render("doctor.html", findings=findings, bad=bad, redact=redact_text)

    return pages.blueprint
