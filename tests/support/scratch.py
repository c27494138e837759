"""A copy of the checkout to which a test adds something, and in which it runs programs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.processes import ROOT, clean_environment

FOLDERS = ("app", "dataloader", "pipelines", "workers", "tests", "docs")


def copy_sources(source: Path, target: Path) -> None:
    """Copy a folder with its compiled modules, which hold as long as a copy is as it was; not those of pytest."""
    shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("*-pytest-*.pyc", "*.pyc.*"))


class Scratch:
    """A copy of the checkout, which counts the places that are edited."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.places = folder, 0
        for name in FOLDERS:
            copy_sources(ROOT / name, folder / name)
        for name in ("schema.sql", "pyproject.toml", "gunicorn.conf.py"):
            shutil.copy(ROOT / name, folder / name)

    def insert_before(self, path: str, line: str, text: str) -> None:
        content = (self.folder / path).read_text(encoding="utf-8")
        assert content.count(line) == 1, f"{path} has {line!r} once"
        (self.folder / path).write_text(content.replace(line, text + line), encoding="utf-8")
        self.places += 1

    def replace(self, path: str, old: str, new: str, *, is_regex: bool = False) -> None:
        content = (self.folder / path).read_text(encoding="utf-8")
        changed, count = re.subn(old if is_regex else re.escape(old), lambda _: new, content, flags=re.MULTILINE)
        assert count == 1, f"{path} has {old!r} {count} times"
        (self.folder / path).write_text(changed, encoding="utf-8")
        self.places += 1

    def create(self, path: str, text: str) -> None:
        (self.folder / path).write_text(text, encoding="utf-8")
        self.places += 1

    def python(self, *arguments: str) -> str:
        environment = {**clean_environment(), "PYTHONPATH": str(self.folder)}
        done = subprocess.run(
            [sys.executable, *arguments],
            check=False,
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def describe_api(self) -> str:
        """Generate what follows from the routes: the document of the API, which is returned, and the commands."""
        document = self.python("-m", "dataloader.app.http")
        (self.folder / "docs/openapi.json").write_text(document, encoding="utf-8")
        self.python("-m", "docs.commands")
        return document
