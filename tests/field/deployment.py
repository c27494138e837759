"""An installed dataloader in a folder of its own, run by an account with settings: what the first hour works with."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.support.processes import Process, clean_environment, free_port

PROJECT = Path(__file__).parent / "project"
# Short times, so that the first hour takes seconds. All else is as it is shipped.
SHORT_TIMES = {
    "DL_HEARTBEAT_SEC": "0.5",
    "DL_REAPER_PERIOD_SEC": "0.5",
    "DL_STOP_STEP_SEC": "1",
    "DL_SHUTDOWN_GRACE_SEC": "1",
}
TASKS = {
    "field.call": {"call": "legacy:multiply"},
    "field.command": {"command": ["{python}", "legacy.py", "{one}", "{other}"]},
    "field.interpreter": {"call": "legacy:multiply", "python": "{python}", "cwd": "{folder}"},
}


@dataclass(frozen=True)
class Access:
    """The way to an empty database: as the owner of the tables, as the service, and as one who sees all sessions."""

    owner: Mapping[str, str]  # settings of `migrate`
    service: Mapping[str, str]  # settings of all else
    job_dsn: str  # by which a job's own code connects
    observer_dsn: str
    schema: str = "public"
    owner_role: str = ""
    granted_role: str = ""  # the account of the service, which has the rights of `migrate --roles` and no others
    owner_dsn: str = ""  # with it, for psql


@dataclass(frozen=True)
class Deployment:
    """Where `dataloader` is run. A place that starts it by other means (a unit, a container) has its own `start`."""

    command: Sequence[str | Path]
    interpreter: Path
    folder: Path
    access: Access
    upgrade_access: Access | None = None  # to a second empty database, which gets the tables of the former release
    prefix: Sequence[str | Path] = ()  # a program that runs the command as another account, or with less
    settings: Mapping[str, str] = field(default_factory=SHORT_TIMES.copy)
    api_has_workers: bool = True
    refusal: str = ""  # why `dataloader migrate` refuses the database; "": it does not
    former: Path | None = None  # the programs of the former release; None: where they were installed
    port: int = field(default_factory=free_port)
    numbers: itertools.count = field(default_factory=itertools.count)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def environment(self, *, owner: bool = False) -> dict[str, str]:
        access = self.access.owner if owner else self.access.service
        tasks = json.dumps(TASKS).replace("{python}", str(self.interpreter)).replace("{folder}", str(self.folder))
        return {
            "HOME": str(self.folder),
            "APP_PORT": str(self.port),
            "DL_URL": self.url,
            "DL_PIPELINES": "dataloader.pipelines,field_etl",
            "DL_TASKS": tasks,
            "WORKERS_JSON": '[{"queue":"etl.default","concurrency":3}]',
            "FIELD_DSN": self.access.job_dsn,
            "PYTHONPATH": str(self.folder),
            **access,
            **self.settings,
        }

    def run(
        self, *arguments: str, owner: bool = False, codes: Sequence[int] = (0,), env: Mapping[str, str] | None = None
    ) -> str:
        """Run a command of `dataloader` to its end, and return what it printed on standard output."""
        done = subprocess.run(
            [str(word) for word in (*self.prefix, *self.command, *arguments)],
            cwd=self.folder,
            env={**clean_environment(), **self.environment(owner=owner), **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        words = " ".join(arguments)
        assert done.returncode in codes, (
            f"`dataloader {words}` ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
        return done.stdout

    def run_json(self, *arguments: str, codes: Sequence[int] = (0,)) -> Any:
        return json.loads(self.run(*arguments, "--json", codes=codes))

    def start(self, *arguments: str) -> Process:
        """Start a command of `dataloader` that runs until it is stopped."""
        output = self.folder.with_name(f"{self.folder.name}-{arguments[0]}-{next(self.numbers)}.log")
        return Process(
            [*self.prefix, *self.command, *arguments], output=output, env=self.environment(), cwd=self.folder
        )

    def with_access(self, access: Access) -> Deployment:
        return replace(self, access=access)


def copy_project(folder: Path) -> Path:
    """Put the user's project into a folder that any account may read, and return it."""
    shutil.copytree(PROJECT, folder, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


def as_ordinary_account(folder: Path) -> list[str]:
    """The beginning of a command that runs it as `nobody` when the tests run as root; the folder becomes its own."""
    if os.getuid() != 0:
        return []
    for path in (folder, *folder.rglob("*")):
        shutil.chown(path, "nobody", "nogroup")
    return ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
