"""What all places share: PostgreSQL servers with passwords, and wheels in environments of their own."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg2
from psycopg2.extensions import ISOLATION_LEVEL_AUTOCOMMIT, make_dsn
from psycopg2.sql import SQL, Composable, Identifier, Literal

from dataloader.app.postgres import EmbeddedServer
from dataloader.app.postgres.binaries import Choice
from dataloader.app.postgres.cluster import PORT
from dataloader.app.postgres.server import exclusive
from tests.field.debian_python import debian_python
from tests.field.deployment import Access, Deployment, as_ordinary_account, copy_project
from tests.field.places import Unavailable, needs_program
from tests.support.processes import ROOT, clean_environment

FORMER_RELEASE = "c6cb74f"  # 0.2.0
PASSWORD = "a-password"
INSTALL_TIMEOUT_SEC = 300


@dataclass(frozen=True)
class Server:
    """A real PostgreSQL with its shipped settings, which asks for passwords on TCP."""

    superuser_dsn: str
    address: str
    port: int = PORT

    def execute(self, statement: str | Composable, *, database: str = "postgres") -> list[tuple[Any, ...]]:
        with closing(psycopg2.connect(make_dsn(self.superuser_dsn, dbname=database))) as connection:
            connection.set_isolation_level(ISOLATION_LEVEL_AUTOCOMMIT)
            with connection.cursor() as cursor:
                cursor.execute(statement)
                return cursor.fetchall() if cursor.description else []

    @property
    def major(self) -> int:
        return int(self.execute("SHOW server_version_num")[0][0]) // 10_000

    def create_role(self, name: str, *, password: str = PASSWORD, options: str = "") -> str:
        self.execute(SQL("CREATE ROLE {} LOGIN PASSWORD {} " + options).format(Identifier(name), Literal(password)))
        return name

    def create_database(self, name: str, owner: str, options: str = "") -> str:
        self.execute(SQL("CREATE DATABASE {} OWNER {} " + options).format(Identifier(name), Identifier(owner)))
        return name

    def url(self, role: str, database: str, *, password: str = PASSWORD) -> str:
        """A connection string as people write it."""
        return f"postgresql://{role}:{quote(password, safe='')}@{self.address}:{self.port}/{database}"

    def observer_dsn(self, database: str) -> str:
        return str(make_dsn(self.superuser_dsn, dbname=database))


@contextmanager
def running_server(folder: Path, binaries: Choice, **settings: str) -> Iterator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="field-server-", dir=folder))
    folder.chmod(0o755)
    # An embedded server listens on one port only, and Linux has more addresses than one on the loopback.
    address = f"127.{random.randrange(1, 250)}.{random.randrange(250)}.{random.randrange(1, 250)}"
    options = {"listen_addresses": address, "max_connections": "200", **settings}
    with EmbeddedServer(folder, binaries=binaries, settings=options) as embedded:
        hba = folder / "cluster" / "pg_hba.conf"
        hba.write_text("local all all trust\nhost all all all scram-sha-256\n", encoding="utf-8")
        server = Server(embedded.dsn, address)
        server.execute("SELECT pg_reload_conf()")
        yield server
    shutil.rmtree(folder, ignore_errors=True)


class Wheels:
    """Wheels of this release and of the former one, each installed once for a Python version."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "field-wheels"
        self.folder.mkdir(exist_ok=True)
        self.folder.chmod(0o755)

    def current(self, version: str = "") -> Path:
        """Return the folder of the programs of an environment that holds this checkout's wheel and what it needs."""
        return self._installed("current", ROOT, version)

    def former(self, version: str = "") -> Path:
        with exclusive(self.folder / "former.lock", timeout_sec=INSTALL_TIMEOUT_SEC):
            sources = self.folder / "former-sources"
            if not sources.exists():
                _extract_commit(FORMER_RELEASE, sources)
        return self._installed("former", sources, version)

    def _installed(self, name: str, sources: Path, version: str) -> Path:
        interpreter = find_interpreter(version or ".".join(map(str, sys.version_info[:2])), self.folder)
        environment = self.folder / f"{name}-{version}"
        with exclusive(self.folder / f"{name}-{version}.lock", timeout_sec=INSTALL_TIMEOUT_SEC):
            if not (environment / "ready").exists():
                shutil.rmtree(environment, ignore_errors=True)
                wheel = self._built(name, sources)
                _run(uv(), "venv", "--quiet", "--python", interpreter, environment)
                constraint = ROOT / "requirements.lock"
                python = environment / "bin" / "python"
                _run(
                    uv(), "pip", "install", "--quiet", "--compile-bytecode", "--python", python, "-c", constraint, wheel
                )
                (environment / "ready").touch()
        return environment / "bin"

    def _built(self, name: str, sources: Path) -> Path:
        folder = self.folder / f"{name}-wheel"
        with exclusive(self.folder / f"{name}-wheel.lock", timeout_sec=INSTALL_TIMEOUT_SEC):
            if not folder.exists():
                staging = folder.with_suffix(".new")
                build = (sys.executable, "-m", "hatchling", "build", "--target", "wheel")
                _run(*build, "--directory", staging, cwd=sources)
                staging.rename(folder)
        return next(folder.glob("*.whl"))


def find_interpreter(version: str, folder: Path) -> Path:
    """Return a Python of this version that every account can run: the system's, a copy of another one, or Debian's."""
    candidates = [
        Path(f"/usr/bin/python{version}"),
        Path(f"/usr/local/bin/python{version}"),
        *sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python{version}")),
        *sorted(Path("~/.local/share/uv/python").expanduser().glob(f"cpython-{version}.*/bin/python{version}")),
        Path(sys.base_prefix) / "bin" / f"python{version}",
    ]
    for candidate in candidates:
        if candidate.exists() and _is_usable(candidate):
            return candidate if _is_open_to_all(candidate) else _copied(candidate, folder / f"python-{version}")
    with exclusive(folder / f"python-{version}.lock", timeout_sec=INSTALL_TIMEOUT_SEC):
        installed = folder / f"debian-python-{version}"
        if not installed.exists():
            debian_python(version, installed)
        return installed / "usr/bin" / f"python{version}"


def _is_usable(python: Path) -> bool:
    return subprocess.run([python, "-c", "import ssl, venv"], capture_output=True, check=False).returncode == 0


def _is_open_to_all(path: Path) -> bool:
    return all(parent.stat().st_mode & 0o001 for parent in (path.resolve(), *path.resolve().parents))


def _copied(python: Path, folder: Path) -> Path:
    """Copy the installation of an interpreter without its tests: no one but root may enter root's home."""
    with exclusive(folder.with_suffix(".lock"), timeout_sec=INSTALL_TIMEOUT_SEC):
        if not folder.exists():
            staging = folder.with_suffix(".new")
            without = shutil.ignore_patterns("test", "tests", "__pycache__", "*.a", "site-packages", "share")
            shutil.copytree(python.resolve().parents[1], staging, symlinks=True, ignore=without)
            # One with a shared library looks for it where it was installed.
            patchelf = needs_program(shutil.which("patchelf"), "patchelf")
            _run(patchelf, "--set-rpath", "$ORIGIN/../lib", (staging / "bin" / python.name).resolve())
            staging.chmod(0o755)
            staging.rename(folder)
    return folder / "bin" / python.name


def _extract_commit(commit: str, folder: Path) -> None:
    known = subprocess.run(
        ["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=ROOT, capture_output=True, check=False
    )
    if known.returncode != 0:
        raise Unavailable(f"the commit {commit} of release 0.2.0 is not in this clone: git fetch --unshallow")
    staging = folder.with_suffix(".new")
    staging.mkdir()
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", staging], input=archive, check=True)
    staging.rename(folder)


def uv() -> Path:
    return Path(sys.executable).with_name("uv")


def _run(*words: str | Path, cwd: Path = ROOT) -> None:
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd, env=clean_environment(), capture_output=True, text=True, timeout=INSTALL_TIMEOUT_SEC, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


class Ground:
    """The servers and wheels of a run, and how an ordinary place is made of them."""

    def __init__(self, folder: Path) -> None:
        self._stack = ExitStack()
        self._servers: dict[str, Server] = {}
        self._numbers = itertools.count()
        self.run_folder = folder
        self.wheels = Wheels(folder)

    def server(self, binaries: Choice = "auto") -> Server:
        """Return the run's server: that of this machine, or that of the wheel."""
        if binaries not in self._servers:
            self._servers[binaries] = self._stack.enter_context(running_server(self.run_folder, binaries))
        return self._servers[binaries]

    def name(self, prefix: str) -> str:
        """A name of a role, database or folder that is not taken."""
        return f"{prefix}_{os.getpid()}_{next(self._numbers)}"

    def owned_database(self, server: Server | None = None, *, role: str = "", options: str = "") -> Access:
        """An ordinary account without any right but to own its database, by which all is done."""
        server = server or self.server()
        role = role or server.create_role(self.name("etl"))
        database = server.create_database(self.name("etl"), role, options)
        dsn = server.url(role, database)
        settings = {"DL_DB_DSN": dsn}
        return Access(settings, settings, dsn, server.observer_dsn(database), owner_dsn=dsn, owner_role=role)

    def folder(self, base: Path | None = None) -> Path:
        """An empty folder of a place, which holds the user's project only."""
        folder = Path(tempfile.mkdtemp(prefix="field-", dir=base or self.run_folder))
        return copy_project(folder)

    def deployment(self, access: Access, upgrade_access: Access | None = None, *, version: str = "") -> Deployment:
        """The wheel in an empty folder, run by an ordinary account."""
        programs, folder = self.wheels.current(version), self.folder()
        return Deployment(
            [programs / "dataloader"], programs / "python", folder, access, upgrade_access,
            prefix=as_ordinary_account(folder),
        )  # fmt: skip

    def close(self) -> None:
        self._stack.close()
