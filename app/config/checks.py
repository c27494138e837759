"""Checks across settings: contradictions, packages that do not exist, misspelt variables."""

from __future__ import annotations

import difflib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from dataloader._distribution import install_command
from dataloader.app.errors import SettingError

if TYPE_CHECKING:
    from dataloader.app.config.settings import Settings

_PREFIX = "DL_"
# Read by other parts of the project, not by the service.
_OTHER_PREFIXES = ("DL_TEST_", "DL_URL", "DL_API_KEY", "DL_SECRET_")
_MIN_SIMILARITY_WITH_PREFIX, _MIN_SIMILARITY = 0.7, 0.85

Variables = frozenset[str]


def find_contradictions(settings: Settings, environment: Mapping[str, str]) -> Iterator[tuple[Variables, SettingError]]:
    """Yield contradictions between settings, each with the variables that are involved."""
    # Otherwise the API would use an embedded server, and the workers another database.
    if settings.worker_dsn is not None and settings.dsn is None:
        remedy = "the same database as the API reaches it, or remove DL_WORKER_DSN"
        error = SettingError("DL_DB_DSN", "nothing, although DL_WORKER_DSN is given", remedy)
        yield frozenset({"DL_DB_DSN", "PG_HOST"}), error
    if settings.read_dsn is not None and settings.dsn is None:
        remedy = "the primary of this standby, or remove DL_READ_DSN"
        error = SettingError("DL_DB_DSN", "nothing, although DL_READ_DSN is given", remedy)
        yield frozenset({"DL_DB_DSN", "PG_HOST"}), error
    # Otherwise jobs would go into the embedded server instead of the intended one, without a message.
    parts = [name for name in ("PG_PORT", "PG_USER", "PG_PASSWORD", "PG_DATABASE") if name in environment]
    if parts and settings.dsn is None:
        remedy = "name the server, such as localhost, or remove them all to use the embedded one"
        error = SettingError("PG_HOST", f"nothing, although {', '.join(parts)} is given", remedy)
        yield frozenset({"PG_HOST", "DL_DB_DSN"}), error
    lease, heartbeat = settings.default_lease_ttl_sec, settings.heartbeat_sec
    if lease < 2 * heartbeat:
        remedy = f"a lease of at least two heartbeats ({2 * heartbeat:g}) or a shorter heartbeat would do"
        error = SettingError("DL_DEFAULT_LEASE_TTL_SEC", f"{lease} with DL_HEARTBEAT_SEC={heartbeat:g}", remedy)
        yield frozenset({"DL_DEFAULT_LEASE_TTL_SEC", "DL_HEARTBEAT_SEC"}), error
    if settings.worker_name is not None and not settings.reaper:
        # A process with a name takes over from the former one, which is what DL_REAPER turns off.
        remedy = "true, or no DL_WORKER_NAME, would do"
        yield frozenset({"DL_REAPER", "DL_WORKER_NAME"}), SettingError("DL_REAPER", "false with DL_WORKER_NAME", remedy)
    if settings.lineage is not None and not _module_exists("openlineage.client"):
        problem = "a receiver, and openlineage-python is not installed"
        error = SettingError("DL_LINEAGE", problem, install_command("lineage"))
        yield frozenset({"DL_LINEAGE"}), error
    yield from _check_folders(settings)


def _check_folders(settings: Settings) -> Iterator[tuple[Variables, SettingError]]:
    """Yield folders that are files, and log files that two settings name."""
    folders = [
        ("DL_DATA_DIR", settings.data_dir, "", ""),
        ("LOG_PATH", settings.log_path, "LOG_FILE_NAME", settings.log_file_name),
        ("METRIC_PATH", settings.metric_path, "METRIC_FILE_NAME", settings.metric_file_name),
        ("AUDIT_LOG_PATH", settings.audit_log_path, "AUDIT_LOG_FILE_NAME", settings.audit_log_file_name),
    ]
    taken: dict[Path, tuple[str, str]] = {}
    for variable, folder, name_variable, name in folders:
        if folder is None:
            continue
        # What cannot be looked at, for want of permission or as its name is too long, is reported when it is used.
        if os.path.exists(folder) and not os.path.isdir(folder):
            error = SettingError(variable, f"{str(folder)!r}, which is not a folder", "a folder would do")
            yield frozenset({variable}), error
        other = taken.setdefault((folder / name).absolute(), (variable, name_variable))
        if name and other[0] != variable:
            problem = f"{name!r}, the file that {other[1]} names already"
            error = SettingError(name_variable, problem, "a name of its own would do")
            yield frozenset({variable, name_variable, *other}), error


def check_worker_name(settings: Settings, process_count: int) -> list[SettingError]:
    """Return the error of a worker name that several worker processes would share."""
    if settings.worker_name is None or process_count <= 1 or not settings.workers:
        return []
    value = f"{settings.worker_name!r} for {process_count} worker processes of one service"
    remedy = "a name is for one process: one worker process, or no name, would do"
    return [SettingError("DL_WORKER_NAME", value, remedy)]


def check_packages(packages: Iterable[str]) -> Iterator[SettingError]:
    """Yield an error for each package or module that does not exist. Nothing is imported, as that may have effects."""
    for name in packages:
        if not _module_exists(name):
            here = "".join(f", or in {folder!r}" for folder in working_folder())
            remedy = f"a package on the path of Python{here}, would do"
            yield SettingError("DL_PIPELINES", f"{name!r}, which cannot be imported: there is no such module", remedy)


def working_folder() -> list[str]:
    """Return the working directory; nothing where it was removed or may not be looked into."""
    try:
        return [os.getcwd()]
    except OSError:
        return []


def _module_exists(name: str) -> bool:
    top, *below = name.split(".")
    full, path = top, [*sys.path, *working_folder()]
    try:
        spec = PathFinder.find_spec(top, path) or importlib.util.find_spec(top)
        for part in below:
            full = f"{full}.{part}"
            places = None if spec is None else spec.submodule_search_locations
            spec = None if places is None else PathFinder.find_spec(full, list(places))
    except (ImportError, ValueError):
        return full in sys.modules
    return spec is not None


def unknown_variables(environment: Iterable[str], known: Iterable[str]) -> tuple[list[SettingError], list[str]]:
    """Find variables whose names are nearly those of settings: errors with our prefix, else warnings.

    Messages never have their values: a misspelt password is still a password.
    """
    names, errors, warnings = list(known), [], []
    for variable in sorted(set(environment) - set(names)):
        ours, is_of_libpq = variable.upper().startswith(_PREFIX), variable.startswith("PG") and variable[2:3] != "_"
        if is_of_libpq or variable.upper().startswith(_OTHER_PREFIXES):
            continue
        near = difflib.get_close_matches(
            variable.upper(), names, n=1, cutoff=_MIN_SIMILARITY_WITH_PREFIX if ours else _MIN_SIMILARITY
        )
        if near and ours:
            remedy = f"did you mean {near[0]}?"
            errors.append(SettingError(variable, "a variable that dataloader does not know", remedy))
        elif near:
            warnings.append(f"{variable} is not a setting of dataloader; did you mean {near[0]}?")
        elif ours:
            warnings.append(f"{variable} is not a setting of dataloader; it has no effect")
    return errors, warnings


def overridden(settings: Settings) -> Iterator[str]:
    """Yield a warning for settings that others override."""
    if settings.db_dsn is not None and settings.pg_host is not None:
        yield "DL_DB_DSN and PG_HOST are both given; DL_DB_DSN wins, and PG_HOST, PG_PORT, PG_USER, … have no effect"
