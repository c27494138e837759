"""The releases of a rehearsal, as folders with the contents of wheels: this checkout, and a stand-in for the next one.

The stand-in is this checkout with what a next release may have: a new column of `dl_jobs` (a job's field, so a new
parameter of `dl_enqueue`), a changed function and a changed statement. `same_tables` has the changed statement alone.
"""

from __future__ import annotations

import re
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dataloader.app.db.schema import SCHEMA_VERSION
from tests.support.processes import ROOT
from tests.support.scratch import Scratch
from tests.support.wheel import build_wheel

NEXT_VERSION, SAME_TABLES_VERSION = "0.3.1+rehearsal", "0.3.1+same.tables"
_FIELD = """
    cost_center: Annotated[str | None, _field(
        Kind.TEXT, "Who pays for the job", "the default one", is_copied=True)]
"""
MIGRATION = """-- Jobs have a cost center.
ALTER TABLE dl_jobs ADD COLUMN cost_center text;
"""


@dataclass(frozen=True)
class Release:
    """An unpacked wheel: its folder is the first on the path of its processes, and their working directory."""

    name: str
    folder: Path

    @property
    def gunicorn(self) -> tuple[str, ...]:
        return ("gunicorn", "--config", "python:dataloader.gunicorn_conf", "dataloader.wsgi:app")


def build_releases(folder: Path) -> Mapping[str, Release]:
    """Build `this`, `next` and `same_tables` below the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    sources = {"this": None, "same_tables": _same_tables(folder), "next": _next(folder)}
    return {name: _unpack(name, folder, source) for name, source in sources.items()}


def _unpack(name: str, folder: Path, source: Path | None) -> Release:
    built = folder / f"{name}-wheel"
    built.mkdir()
    wheel = build_wheel(built) if source is None else build_wheel(built, source)
    zipfile.ZipFile(wheel).extractall(folder / name)
    return Release(name, folder / name)


def _same_tables(folder: Path) -> Path:
    scratch = _copy(folder / "same_tables-sources", SAME_TABLES_VERSION)
    _change_statement(scratch)
    return scratch.folder


def _next(folder: Path) -> Path:
    scratch = _copy(folder / "next-sources", NEXT_VERSION)
    _change_statement(scratch)
    scratch.insert_before("dataloader/_job_fields.py", "    debounce: Annotated[", _FIELD.lstrip("\n"))
    scratch.insert_before("app/queue/schema.sql", "    CONSTRAINT dl_jobs_chk_positive", "    cost_center text,\n")
    # In dl_settle, which processes of both releases call.
    scratch.insert_before(
        "app/queue/schema.sql", "expires_at = CASE WHEN owned.final_status <> 'queued' THEN j.expires_at",
        "cost_center = coalesce(j.cost_center, 'none'), ",
    )  # fmt: skip
    scratch.create(f"app/db/migrations/{SCHEMA_VERSION + 1:04}.sql", MIGRATION)
    scratch.replace("app/db/schema.py", r"COMPATIBLE_FROM = \d+", f"COMPATIBLE_FROM = {SCHEMA_VERSION}", is_regex=True)
    scratch.python("-m", "dataloader.app.db.make_schema")
    scratch.python("-m", "dataloader.app.features.doctor")
    return scratch.folder


def _copy(folder: Path, version: str) -> Scratch:
    folder.mkdir()
    scratch = Scratch(folder)
    for file in ("README.md", "LICENSE", "NOTICE", "requirements.txt", "sbom.cdx.json", "wsgi.py"):
        shutil.copy(ROOT / file, folder / file)
    scratch.replace("pyproject.toml", r'^version = ".*"$', f'version = "{version}"', is_regex=True)
    return scratch


def _change_statement(scratch: Scratch) -> None:
    """So that both releases have prepared statements of one name and two texts on the same tables."""
    scratch.replace("app/queue/jobs.sql", "coalesce(j.cancel_requested, false), short.is_short",
                    "coalesce(j.cancel_requested OR false, false), short.is_short")  # fmt: skip


def version_of(release: Release) -> str:
    (metadata,) = release.folder.glob("*.dist-info/METADATA")
    found = re.search(r"^Version: (.*)$", metadata.read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return found[1]
