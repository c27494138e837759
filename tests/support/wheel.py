"""The wheel and the source distribution of this checkout, and virtual environments with the wheel."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

from tests.support.processes import ROOT


def build_wheel(folder: Path, source: Path = ROOT) -> Path:
    """Build the wheel of this checkout, or of an unpacked source distribution, into the folder; return its path."""
    return _build("wheel", folder, source)


def made_once(folder: Path, make: Callable[[Path], Path]) -> Path:
    """Return what `make` makes in this folder, which all processes of a run share: the first of them makes it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    note = folder.with_suffix(".path")
    with folder.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not note.exists():
            note.write_text(str(make(folder)), encoding="utf-8")
        return Path(note.read_text(encoding="utf-8"))


def build_source_distribution(folder: Path) -> Path:
    """Build the .tar.gz of this checkout into the folder; return its path."""
    return _build("sdist", folder, ROOT)


def _build(target: str, folder: Path, source: Path) -> Path:
    argv = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    done = subprocess.run(argv, cwd=source, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = folder.iterdir()
    return built


def make_environment(folder: Path, wheel: Path | None = None) -> Path:
    """Make a virtual environment with the wheel; return its interpreter.

    What the wheel requires is that of the running environment, which comes after it on the path.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    python = folder / "bin/python"
    if wheel is not None:
        run_pip(python, "install", "--no-deps", "--no-index", str(wheel))
    (packages,) = (folder / "lib").glob("python3*/site-packages")
    # A line of a .pth file adds a folder, not what the .pth files in it add: the checkout is not on the path.
    (packages / "requirements.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return python


def run_pip(python: Path, *argv: str) -> None:
    """Run pip on the environment of this interpreter."""
    command = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "--quiet", *argv]
    subprocess.run(command, check=True, timeout=100)
