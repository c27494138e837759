"""A Python of Debian's testing suite, in a folder of its own next to the host's libraries."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.field.places import Unavailable, needs_program

SUITE = "testing"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
LIBRARIES = Path("usr/lib/x86_64-linux-gnu")


def debian_python(version: str, folder: Path) -> Path:
    """Install this Python with the libraries it needs, the C library included, below the folder; return the program."""
    if not KEYRING.exists():
        raise Unavailable(f"needs Debian's packages, to take Python {version} from its {SUITE} suite")
    patchelf = needs_program(shutil.which("patchelf"), "patchelf")
    staging = folder.with_suffix(".new")
    shutil.rmtree(staging, ignore_errors=True)
    state = staging / "apt"
    for name in ("lists/partial", "cache/archives/partial"):
        (state / name).mkdir(parents=True)
    (state / "status").touch()  # nothing is installed: apt names all that is needed
    (state / "sources.list").write_text(f"deb [signed-by={KEYRING}] {_mirror()} {SUITE} main\n", encoding="utf-8")
    options = {
        "Dir::Etc::SourceList": state / "sources.list", "Dir::Etc::SourceParts": "-",
        "Dir::State::Lists": state / "lists", "Dir::State::status": state / "status",
        "Dir::Cache": state / "cache", "APT::Sandbox::User": "root",
    }  # fmt: skip
    apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    _run([*apt, "update"])
    _run([*apt, "-y", "--no-install-recommends", "--download-only", "install", f"python{version}-venv"])
    for package in (state / "cache/archives").glob("*.deb"):
        _run(["dpkg-deb", "--extract", package, staging])
    shutil.rmtree(state)
    python = Path("usr/bin") / f"python{version}"
    loader = folder / LIBRARIES / "ld-linux-x86-64.so.2"
    # As an rpath it holds for what the program's own libraries need, too.
    _run([patchelf, "--set-interpreter", loader, "--force-rpath", "--set-rpath", folder / LIBRARIES, staging / python])
    staging.chmod(0o755)
    staging.rename(folder)
    return folder / python


def _mirror() -> str:
    """The address from which this host takes Debian's packages."""
    words = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    addresses = subprocess.run(words, capture_output=True, check=True, text=True).stdout.split()
    mirrors = sorted(address for address in addresses if address.rstrip("/").endswith("/debian"))
    if not mirrors:
        raise Unavailable("needs a host that takes its packages from Debian")
    return mirrors[0]


def _run(words: Sequence[str | Path]) -> None:
    done = subprocess.run(words, capture_output=True, check=False, text=True)
    if done.returncode != 0:
        raise Unavailable(f"{words[0]} failed: {done.stderr.strip()[-300:]}")
