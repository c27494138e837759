"""A real systemd: this machine's own files under a layer that is thrown away, booted by systemd-nspawn as pid 1.

It shares the network, so that a server of the tests answers on the loopback. Nothing of it reaches this machine.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from tests.support.processes import ROOT, Process, clean_environment
from tests.support.waiting import eventually

PYTHON, LIBRARIES, WHEELS = "/opt/python", "/opt/libraries", "/opt/wheels"
_BOOT = """
set -e
mkdir -p "$1/layer"
mount -t tmpfs tmpfs "$1/layer"
mkdir "$1/layer/upper" "$1/layer/work" "$1/layer/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/layer/upper,workdir=$1/layer/work" "$1/layer/root"
root=$1/layer/root
shift
rm -rf "$root/etc/machine-id" "$root/etc/fstab" "$root/opt"
exec systemd-nspawn --quiet --directory="$root" --register=no --keep-unit --link-journal=no "$@" \
  --boot systemd.unified_cgroup_hierarchy=1 systemd.unit=basic.target
"""


class Machine:
    """The booted machine. `run` runs a command in it as root."""

    def __init__(self, init: int) -> None:
        self._init = init

    def enter(self, folder: str | Path = "/") -> list[str]:
        """The beginning of a command that runs it in the machine, in this folder of it."""
        spaces = ["--mount", "--uts", "--ipc", "--pid", "--cgroup", "--root"]
        return ["nsenter", f"--target={self._init}", *spaces, f"--wdns={folder}"]

    def run(self, *command: str | Path, check: bool = True, text_input: str | None = None) -> str:
        """Return its standard output; AssertionError with the errors if it fails."""
        done = subprocess.run(
            [*self.enter(), *map(str, command)],
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"},
            input=text_input, stdin=subprocess.DEVNULL if text_input is None else None,
            capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        if check and done.returncode != 0:
            words = f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
            raise AssertionError(f"{words}\n{self.journal()}" if command[0] == "systemctl" else words)
        return done.stdout

    def write(self, path: str, text: str, mode: str = "644") -> None:
        self.run("install", "-D", "-m", mode, "/dev/stdin", path, text_input=text)

    def show(self, unit: str, name: str) -> str:
        return self.run("systemctl", "show", "--value", f"--property={name}", unit).strip()

    def journal(self, unit: str = "dataloader*") -> str:
        return self.run("journalctl", "--no-pager", "--output=cat", f"--unit={unit}")


def missing_for_machine() -> str:
    """What a machine needs and this one does not have; "" if nothing."""
    if os.getuid() != 0:
        return "needs root, to boot a machine"
    if shutil.which("systemd-nspawn") is None or not Path("/lib/systemd/systemd").exists():
        return "needs systemd-nspawn: apt-get install systemd-container"
    return ""


@contextmanager
def booted_machine(folder: Path, *, shared: Sequence[Path] = ()) -> Iterator[Machine]:
    """A machine with this Python, its packages and a wheel of the checkout, in PYTHON, LIBRARIES and WHEELS, and with
    the shared folders where they are."""
    wheels, libraries = folder / "wheels", Path(psutil.__file__).parents[1]
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(wheels)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, env=clean_environment())
    binds = [
        f"--bind-ro={sys.base_prefix}:{PYTHON}",
        f"--bind-ro={libraries}:{LIBRARIES}",
        f"--bind-ro={wheels}:{WHEELS}",
        *(f"--bind={path}" for path in shared),
    ]
    command: list[str | Path] = ["unshare", "--mount", "--propagation=private", "sh", "-c", _BOOT, "sh", folder, *binds]
    with Process(command, output=folder / "console.log") as nspawn:
        machine = Machine(eventually(lambda: _find_init(nspawn) or 0, 30, lambda: nspawn.text))
        eventually(lambda: _has_booted(machine, nspawn), 60, lambda: nspawn.text, interval_sec=0.1)
        # A Python that was built with a shared library looks for it where it was installed, and then finds Debian's.
        machine.write("/etc/ld.so.conf.d/python.conf", f"{PYTHON}/lib\n")
        machine.run("sh", "-c", "rm -f /usr/lib/*/libpython3*; ldconfig")
        yield machine


def _find_init(nspawn: Process) -> int | None:
    assert nspawn.exit_code is None, f"systemd-nspawn ended with {nspawn.exit_code}:\n{nspawn.text}"
    with suppress(psutil.NoSuchProcess):  # one ended meanwhile
        children = psutil.Process(nspawn.pid).children(recursive=True)
        return next((child.pid for child in children if child.name() == "systemd"), None)
    return None


def _has_booted(machine: Machine, nspawn: Process) -> bool:
    assert nspawn.exit_code is None, f"systemd-nspawn ended with {nspawn.exit_code}:\n{nspawn.text}"
    return machine.run("systemctl", "is-active", "basic.target", check=False).strip() == "active"


def install_units(machine: Machine, settings: Mapping[str, str]) -> None:
    """Do what docs/deploying.md says, with this wheel in place of a download."""
    for line in _documented_commands():
        match shlex.split(line):
            case ["python3", "-m", "venv", *_]:
                machine.run(f"{PYTHON}/bin/python3", "-m", "venv", "--without-pip", "/opt/dataloader")
                (packages,) = machine.run("sh", "-c", "echo /opt/dataloader/lib/python*/site-packages").split()
                machine.write(f"{packages}/libraries.pth", f"{LIBRARIES}\n")
                install = "-m pip --python /opt/dataloader/bin/python install --quiet --no-deps --no-index"
                machine.run("sh", "-c", f"PYTHONPATH={LIBRARIES} {PYTHON}/bin/python3 {install} {WHEELS}/*.whl")
            case ["install", *_, "/etc/dataloader/environment"]:
                lines = "".join(f"{name}={shlex.quote(value)}\n" for name, value in settings.items())
                machine.write("/etc/dataloader/environment", lines, "600")
            case ["install", *_]:
                for unit in (ROOT / "deploy/systemd").glob("*.service"):
                    machine.write(f"/etc/systemd/system/{unit.name}", unit.read_text(encoding="utf-8"))
            case words:
                machine.run(*words)


def _documented_commands() -> list[str]:
    page = (ROOT / "docs/deploying.md").read_text(encoding="utf-8")
    block = page.split("## systemd")[1].split("```sh\n")[1].split("```")[0]
    return [line.partition("#")[0].strip() for line in block.splitlines()]
