"""An environment for each peer, outside the project: a virtual environment, or a folder of npm's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.known import Peer

INSTALL_SEC = 600
OLDEST_NODE = 18


class NotToBeHad(Exception):
    """This peer cannot be tried here; the message says why."""


@dataclass(frozen=True)
class Home:
    program: str  # what runs its driver
    folder: Path | None = None  # None: the project's own environment

    def versions(self, peer: Peer) -> str:
        """What was installed of the package that gives the peer its name."""
        if self.folder is None:
            return ""
        name = peer.needs[0].lstrip("@").split("@")[0].split("[")[0].split(">")[0].split("<")[0]
        if peer.on_node:
            told = json.loads((self.folder / "node_modules" / name / "package.json").read_text(encoding="utf-8"))
            return str(told["version"])
        return _said(self.program, "-c", f"from importlib.metadata import version; print(version({name!r}))")


def settle(peer: Peer, workdir: Path) -> Home:
    """Install what the peer needs, unless an earlier run has. Raises NotToBeHad."""
    if not peer.needs:
        return Home(sys.executable)
    folder = workdir / peer.path.stem
    stamp = folder / "needs.txt"
    wanted = "\n".join((*peer.needs, str(peer.oldest_python)))
    try:
        if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            (_install_for_node if peer.on_node else _install_for_python)(peer, folder)
            stamp.write_text(wanted, encoding="utf-8")
    except subprocess.CalledProcessError as error:
        last = (error.stderr or error.stdout or "").strip().splitlines()[-1:]
        raise NotToBeHad(f"could not be installed: {' '.join(last) or error}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotToBeHad(f"could not be installed: {error}") from error
    return Home(_node() if peer.on_node else str(folder / "bin" / "python"), folder)


def _install_for_python(peer: Peer, folder: Path) -> None:
    python = _python(peer.oldest_python)
    uv = shutil.which("uv", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))))
    if uv:
        _run([uv, "venv", "--quiet", "--clear", "--python", python, str(folder)])
        _run([uv, "pip", "install", "--quiet", "--python", str(folder / "bin" / "python"), *peer.needs])
    else:
        _run([python, "-m", "venv", str(folder)])
        _run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *peer.needs])


def _python(oldest: tuple[int, int]) -> str:
    tried = []
    for python in _pythons():
        found = _said(python, "-c", "import sys; print(*sys.version_info[:2])")
        version = tuple(map(int, found.split())) if found else (0, 0)
        if version >= oldest:
            return python
        tried.append(f"{python} ({'.'.join(map(str, version))})" if found else f"{python} (does not run)")
    raise NotToBeHad(f"needs Python {oldest[0]}.{oldest[1]} or newer; there are {', '.join(tried)}")


def _pythons() -> Iterator[str]:
    """Our own first, for that is what the others are compared with; then whatever else is here."""
    yield sys.executable
    for minor in range(14, 10, -1):
        if found := shutil.which(f"python3.{minor}"):
            yield found
    yield from sorted(map(str, Path("~/.pyenv/versions").expanduser().glob("3.1*/bin/python")))
    yield from sorted(map(str, Path("~/.local/share/uv/python").expanduser().glob("cpython-3.1*/bin/python3")))


def _install_for_node(peer: Peer, folder: Path) -> None:
    _node()
    if not shutil.which("npm"):
        raise NotToBeHad("npm is not installed")
    (folder / "package.json").write_text('{"private": true}', encoding="utf-8")
    _run(["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", *peer.needs], folder)


def _node() -> str:
    node = shutil.which("node")
    found = _said(node, "--version") if node else ""
    if not node or not found or int(found.lstrip("v").split(".")[0]) < OLDEST_NODE:
        raise NotToBeHad(f"needs Node.js {OLDEST_NODE} or newer; there is {found or 'none'}")
    return node


def _said(*command: str) -> str:
    """What the command says; nothing if it cannot."""
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return ""
    return told.stdout.strip() if told.returncode == 0 else ""


def _run(command: Sequence[str], folder: Path | None = None) -> None:
    subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=INSTALL_SEC)
