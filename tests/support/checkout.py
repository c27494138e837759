"""A newcomer's checkout: a folder of an ordinary user, in which what the documentation prints is run as printed."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from psycopg2.extensions import parse_dsn

from tests.support.processes import ROOT, Process, clean_environment, free_port

_NAMES = ("app", "dataloader", "pipelines", "workers", "Makefile", "pyproject.toml", "requirements.lock", "schema.sql")
ADDRESS = "http://127.0.0.1:8081"  # of the texts; the tests have a port of their own


def shell_blocks(text: str) -> list[str]:
    return _blocks(text, "sh")


def python_blocks(text: str) -> list[str]:
    return _blocks(text, "python")


def _blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


_CURL = """
import argparse, urllib.request
words = argparse.ArgumentParser()
words.add_argument("-s", action="store_true")
words.add_argument("-X")
words.add_argument("-H", default="Accept: */*")
words.add_argument("-d")
words.add_argument("url")
given = words.parse_args()
name, _, value = given.H.partition(": ")
body = None if given.d is None else given.d.encode()
request = urllib.request.Request(given.url, body, {name: value}, method=given.X)
print(urllib.request.urlopen(request, timeout=30).read().decode(), end="")
"""


class Checkout:
    """The folder, and commands in it. Its `.venv` is that of this checkout, so `make run` installs nothing."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self.folder, self._dsn, self._port = folder / "dataloader", dsn, free_port()
        self._runs = 0
        self.folder.mkdir()
        for name in _NAMES:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, self.folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(ROOT / name, self.folder / name)
        (self.folder / ".venv").symlink_to(ROOT / ".venv")
        curl = folder / "curl"  # where there is none: a few lines with the options of the texts
        curl.write_text(f"#!{sys.executable}\n{_CURL}", encoding="utf-8")
        curl.chmod(0o755)
        self._user = ordinary_user() if os.geteuid() == 0 else None
        if self._user is not None:
            if (host := parse_dsn(dsn).get("host", "")).startswith("/"):
                Path(host).chmod(0o711)  # of the server's socket, which that user must reach
            for path in (folder, self.folder, *self.folder.rglob("*")):
                os.chown(path, self._user, -1, follow_symlinks=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @contextmanager
    def running(self, command: str, environment: Mapping[str, str] | None = None) -> Iterator[Process]:
        """Run a line such as `make run` in a first terminal, until Ctrl-C."""
        env = {"DL_DB_DSN": self._dsn, "APP_PORT": str(self._port), **(environment or {})}
        self._runs += 1
        output = self.folder.parent / f"output-{self._runs}"  # of its own: each run says that it is ready
        with Process(["sh", "-c", command], output=output, env=env, cwd=self.folder, user=self._user) as service:
            service.wait_for_line("is ready at", 120)
            yield service
            os.killpg(service.pid, signal.SIGINT)  # as a terminal does
            service.wait()

    def shell(self, script: str) -> str:
        """Run a block in a second terminal; return what it prints."""
        env = clean_environment() | {"DL_URL": self.url, "PATH": f"{os.environ['PATH']}:{self.folder.parent}"}
        done = subprocess.run(
            ["sh", "-euc", script.replace(ADDRESS, self.url)], capture_output=True, text=True, timeout=120, check=False,
            env=env, cwd=self.folder, user=self._user, extra_groups=[] if self._user is not None else None,
        )  # fmt: skip
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def ordinary_user() -> int | None:
    """The user for what root would run; None where that user cannot read this checkout, or the interpreter of root."""
    venv = ROOT / ".venv"
    folders = {venv, *venv.resolve().parents, *(venv / "bin/python").resolve().parents}
    return pwd.getpwnam("nobody").pw_uid if all(folder.stat().st_mode & 0o001 for folder in folders) else None


@contextmanager
def open_checkout(dsn: str) -> Iterator[Checkout]:
    """Make one for a test. Skips where `make run` would install: the tests of the Makefile do that."""
    if subprocess.run(["make", "-q", ".venv/.installed"], cwd=ROOT, check=False).returncode != 0:
        pytest.skip("needs the .venv that `make run` or `make test` installs")
    with TemporaryDirectory() as folder:  # pytest's own folders are root's alone
        yield Checkout(Path(folder), dsn)
