"""Installs each peer outside the project: in a virtual environment, or in a folder of npm."""

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


class PeerUnavailable(Exception):
    """This peer cannot run on this machine; the message has the reason."""


@dataclass(frozen=True)
class PeerEnvironment:
    program: str  # the interpreter of its driver
    folder: Path | None = None  # None: the project's own environment

    def versions(self, peer: Peer) -> str:
        """Return the installed version of the peer's main package."""
        if self.folder is None:
            return ""
        name = peer.requirements[0].lstrip("@").split("@")[0].split("[")[0].split(">")[0].split("<")[0]
        if peer.is_node:
            package = json.loads((self.folder / "node_modules" / name / "package.json").read_text(encoding="utf-8"))
            return str(package["version"])
        return _output_of(self.program, "-c", f"from importlib.metadata import version; print(version({name!r}))")


def install_peer(peer: Peer, workdir: Path) -> PeerEnvironment:
    """Install the peer unless an earlier run did; raise PeerUnavailable if that fails."""
    if not peer.requirements:
        return PeerEnvironment(sys.executable)
    folder = workdir / peer.path.stem
    stamp = folder / "needs.txt"
    wanted = "\n".join((*peer.requirements, str(peer.oldest_python)))
    try:
        if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            (_install_for_node if peer.is_node else _install_for_python)(peer, folder)
            stamp.write_text(wanted, encoding="utf-8")
    except subprocess.CalledProcessError as error:
        last = (error.stderr or error.stdout or "").strip().splitlines()[-1:]
        raise PeerUnavailable(f"could not be installed: {' '.join(last) or error}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerUnavailable(f"could not be installed: {error}") from error
    return PeerEnvironment(_find_node() if peer.is_node else str(folder / "bin" / "python"), folder)


def _install_for_python(peer: Peer, folder: Path) -> None:
    python = _find_python(peer.oldest_python)
    uv = shutil.which("uv", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))))
    if uv:
        _run([uv, "venv", "--quiet", "--clear", "--python", python, str(folder)])
        _run([uv, "pip", "install", "--quiet", "--python", str(folder / "bin" / "python"), *peer.requirements])
    else:
        _run([python, "-m", "venv", str(folder)])
        _run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *peer.requirements])


def _find_python(oldest: tuple[int, int]) -> str:
    tried = []
    for python in _python_candidates():
        found = _output_of(python, "-c", "import sys; print(*sys.version_info[:2])")
        version = tuple(map(int, found.split())) if found else (0, 0)
        if version >= oldest:
            return python
        tried.append(f"{python} ({'.'.join(map(str, version))})" if found else f"{python} (does not run)")
    raise PeerUnavailable(f"needs Python {oldest[0]}.{oldest[1]} or newer; found {', '.join(tried)}")


def _python_candidates() -> Iterator[str]:
    """Yield this interpreter first, so that all peers run on the same version if possible; then others."""
    yield sys.executable
    for minor in range(14, 10, -1):
        if found := shutil.which(f"python3.{minor}"):
            yield found
    yield from sorted(map(str, Path("~/.pyenv/versions").expanduser().glob("3.1*/bin/python")))
    yield from sorted(map(str, Path("~/.local/share/uv/python").expanduser().glob("cpython-3.1*/bin/python3")))


def _install_for_node(peer: Peer, folder: Path) -> None:
    _find_node()
    if not shutil.which("npm"):
        raise PeerUnavailable("npm is not installed")
    (folder / "package.json").write_text('{"private": true}', encoding="utf-8")
    _run(["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", *peer.requirements], folder)


def _find_node() -> str:
    node = shutil.which("node")
    found = _output_of(node, "--version") if node else ""
    if not node or not found or int(found.lstrip("v").split(".")[0]) < OLDEST_NODE:
        raise PeerUnavailable(f"needs Node.js {OLDEST_NODE} or newer; found {found or 'none'}")
    return node


def _output_of(*command: str) -> str:
    """Return the output of the command, or nothing if it fails."""
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return ""
    return completed.stdout.strip() if completed.returncode == 0 else ""


def _run(command: Sequence[str], folder: Path | None = None) -> None:
    subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=INSTALL_SEC)
