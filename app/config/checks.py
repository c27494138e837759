"""What no single field can see: settings that contradict each other, and names that are nearly ours."""

from __future__ import annotations

import difflib
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from app.config import dsn
from app.errors import Fault

if TYPE_CHECKING:
    from app.config.settings import Settings

_LONGEST_SHOWN = 80
_OURS = "DL_"
# Other parts of the project read these; the service itself does not.
_ELSEWHERE = ("DL_TEST_", "DL_URL", "DL_API_KEY", "DL_SECRET_")
_NEAR_OURS, _NEAR = 0.7, 0.85

Among = frozenset[str]


def shown(text: str, *, secret: bool) -> str:
    """A faulty value as it may be told to anybody."""
    if secret:
        return f"a text of {len(text)} characters (hidden)"
    return repr(text) if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]!r}… ({len(text)} characters)"


def contradictions(settings: Settings, given: Mapping[str, str]) -> Iterator[tuple[Among, Fault]]:
    """Faults between settings, each with the variables it is among."""
    yield from _unreadable_dsn(settings)
    yield from _workers_elsewhere(settings)
    yield from _server_without_host(settings, given)
    yield from _short_lease(settings)
    yield from _no_folders(settings)
    yield from _one_file_for_two(settings)


def _unreadable_dsn(settings: Settings) -> Iterator[tuple[Among, Fault]]:
    for variable, given in (("DL_DB_DSN", settings.db_dsn), ("DL_WORKER_DSN", settings.worker_dsn)):
        if given is None:
            continue
        secret = given.get_secret_value()
        try:
            dsn.parse(secret)
        except ValueError as error:
            remedy = f"{error}; postgresql://user:password@host:5432/database would do"
            yield frozenset({variable}), Fault(variable, shown(secret, secret=True), remedy)


def _workers_elsewhere(settings: Settings) -> Iterator[tuple[Among, Fault]]:
    # Workers would find an empty database of somebody else's, and the API an embedded one.
    if settings.worker_dsn is not None and settings.dsn is None:
        remedy = "the same database as the API reaches it, or remove DL_WORKER_DSN"
        among = frozenset({"DL_DB_DSN", "PG_HOST"})
        yield among, Fault("DL_DB_DSN", "nothing, although DL_WORKER_DSN is given", remedy)


def _server_without_host(settings: Settings, given: Mapping[str, str]) -> Iterator[tuple[Among, Fault]]:
    # Otherwise jobs would quietly go into the embedded server instead of the one that was meant.
    parts = [name for name in ("PG_PORT", "PG_USER", "PG_PASSWORD", "PG_DATABASE") if name in given]
    if parts and settings.dsn is None:
        remedy = "name the server, such as localhost, or remove them all to use the embedded one"
        among = frozenset({"PG_HOST", "DL_DB_DSN"})
        yield among, Fault("PG_HOST", f"nothing, although {', '.join(parts)} is given", remedy)


def _short_lease(settings: Settings) -> Iterator[tuple[Among, Fault]]:
    lease, heartbeat = settings.default_lease_ttl_sec, settings.heartbeat_sec
    if lease < 2 * heartbeat:
        among = frozenset({"DL_DEFAULT_LEASE_TTL_SEC", "DL_HEARTBEAT_SEC"})
        remedy = f"a lease of at least two heartbeats ({2 * heartbeat:g}) or a shorter heartbeat would do"
        yield among, Fault("DL_DEFAULT_LEASE_TTL_SEC", f"{lease} with DL_HEARTBEAT_SEC={heartbeat:g}", remedy)


def _no_folders(settings: Settings) -> Iterator[tuple[Among, Fault]]:
    folders = {
        "DL_DATA_DIR": settings.data_dir,
        "LOG_PATH": settings.log_path,
        "METRIC_PATH": settings.metric_path,
        "AUDIT_LOG_PATH": settings.audit_log_path,
    }
    for variable, folder in folders.items():
        if folder is not None and _is_a_file(folder):
            yield frozenset({variable}), Fault(variable, f"{str(folder)!r}, which is not a folder", "a folder would do")


def _is_a_file(path: Path) -> bool:
    try:
        return path.exists() and not path.is_dir()
    except OSError:  # may not be looked at, or too long a name: told when it is used
        return False


def shared_name(settings: Settings, processes: int) -> list[Fault]:
    """What is wrong with a worker name in a service of several worker processes."""
    if settings.worker_name is None or processes <= 1 or not settings.workers:
        return []
    found = f"{settings.worker_name!r} for {processes} worker processes of one service"
    return [Fault("DL_WORKER_NAME", found, "a name is for one process: one worker process, or no name, would do")]


def _one_file_for_two(settings: Settings) -> Iterator[tuple[Among, Fault]]:
    files = [
        ("LOG_PATH", "LOG_FILE_NAME", settings.log_path, settings.log_file_name),
        ("METRIC_PATH", "METRIC_FILE_NAME", settings.metric_path, settings.metric_file_name),
        ("AUDIT_LOG_PATH", "AUDIT_LOG_FILE_NAME", settings.audit_log_path, settings.audit_log_file_name),
    ]
    taken: dict[Path, tuple[str, str]] = {}
    for folder_variable, name_variable, folder, name in files:
        if folder is None:
            continue
        variables = (folder_variable, name_variable)
        other = taken.setdefault((folder / name).absolute(), variables)
        if other != variables:
            found = f"{name!r}, the file that {other[1]} names already"
            yield frozenset({*variables, *other}), Fault(name_variable, found, "a name of its own would do")


def unimportable(packages: Iterable[str]) -> Iterator[Fault]:
    """Packages and modules that are nowhere. None is imported: an import may begin anything."""
    for name in packages:
        if not _is_there(name):
            remedy = f"a package on the path of Python, or in {str(Path.cwd())!r}, would do"
            yield Fault("DL_PIPELINES", f"{name!r}, which cannot be imported: there is no such module", remedy)


def _is_there(name: str) -> bool:
    top, *below = name.split(".")
    full, path = top, [*sys.path, str(Path.cwd())]
    try:
        spec = importlib.util.find_spec(top) or PathFinder.find_spec(top, path)
        for part in below:
            full = f"{full}.{part}"
            places = None if spec is None else spec.submodule_search_locations
            spec = None if places is None else PathFinder.find_spec(full, list(places))
    except (ImportError, ValueError):
        return full in sys.modules
    return spec is not None


def misspelt(given: Iterable[str], known: Iterable[str]) -> tuple[list[Fault], list[str]]:
    """Variables that are nearly ours: faults when they carry our prefix, warnings when they may be others'.

    Their values are never told: a misspelt password is still a password.
    """
    names, faults, warnings = list(known), [], []
    for variable in sorted(set(given) - set(names)):
        ours = variable.upper().startswith(_OURS)
        if variable.upper().startswith(_ELSEWHERE) or _belongs_to_libpq(variable):
            continue
        near = difflib.get_close_matches(variable.upper(), names, n=1, cutoff=_NEAR_OURS if ours else _NEAR)
        if near and ours:
            faults.append(Fault(variable, "a variable that dataloader does not know", f"did you mean {near[0]}?"))
        elif near:
            warnings.append(f"{variable} is not a setting of dataloader; did you mean {near[0]}?")
        elif ours:
            warnings.append(f"{variable} is not a setting of dataloader; it has no effect")
    return faults, warnings


def _belongs_to_libpq(variable: str) -> bool:
    return variable.startswith("PG") and not variable.startswith("PG_")


def overruled(settings: Settings) -> Iterator[str]:
    if settings.db_dsn is not None and settings.pg_host is not None:
        yield "DL_DB_DSN and PG_HOST are both given; DL_DB_DSN wins, and PG_HOST, PG_PORT, PG_USER, … have no effect"
