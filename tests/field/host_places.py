"""Places that differ in the host: the interpreter, the account, what it may read, write and open.

They work on a database that an ordinary account owns.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tests.field.deployment import SHORT_TIMES, Access, Deployment, as_ordinary_account
from tests.field.ground import Ground
from tests.field.places import Unavailable, needs_root, place
from tests.support.processes import ROOT

SMALL_FILE_LIMIT = 128
# In a mount namespace of its own, which needs root; what follows is run in it.
IN_NAMESPACE = ("unshare", "--mount", "sh", "-c")


@place("python-3.12", "Python 3.12")
def python_3_12(ground: Ground) -> Iterator[Deployment]:
    yield ground.deployment(ground.owned_database(), ground.owned_database(), version="3.12")


@place("python-3.13", "Python 3.13")
def python_3_13(ground: Ground) -> Iterator[Deployment]:
    yield ground.deployment(ground.owned_database(), ground.owned_database(), version="3.13")


@place("python-3.14", "Python 3.14")
def python_3_14(ground: Ground) -> Iterator[Deployment]:
    yield ground.deployment(ground.owned_database(), ground.owned_database(), version="3.14")


@place("empty-folder", "the wheel in an empty folder, with the embedded PostgreSQL")
def wheel_in_empty_folder(ground: Ground) -> Iterator[Deployment]:
    deployment = ground.deployment(Access({}, {}, "", ""))
    first = _embedded(deployment.folder / ".data")
    second = _embedded(deployment.folder / "upgraded", DL_DATA_DIR=str(deployment.folder / "upgraded"))
    deployment = replace(deployment, access=first, upgrade_access=second)
    # The server ends with its last user: this one lets the test look at the tables when the service has ended.
    with _looking_on(deployment, first), _looking_on(deployment, second):
        yield deployment


def _embedded(data_folder: Path, **settings: str) -> Access:
    dsn = f"host={data_folder}/postgres/run port=5432 user=dataloader dbname=postgres"
    return Access(settings, settings, dsn, dsn, owner_role="dataloader")


def _looking_on(deployment: Deployment, access: Access):
    return deployment.with_access(access).start("psql", "--command", "SELECT pg_sleep(3600)")


@place("root", "root")
def root(ground: Ground) -> Iterator[Deployment]:
    needs_root("be root")
    yield replace(ground.deployment(ground.owned_database(), ground.owned_database()), prefix=())


@place("read-only-checkout", "a checkout on a read-only file system, without the wheel")
def read_only_checkout(ground: Ground) -> Iterator[Deployment]:
    needs_root("mount the checkout read-only")
    deployment = ground.deployment(ground.owned_database(), ground.owned_database())
    read_only = f'mount --bind {ROOT} {ROOT} && mount -o remount,ro,bind {ROOT} && exec "$@"'
    python = ground.wheels.current() / "python"  # for its packages: PYTHONPATH has the checkout before them
    folder = deployment.folder
    yield replace(
        deployment,
        command=[python, "-m", "app"],
        prefix=[*IN_NAMESPACE, read_only, "sh", *as_ordinary_account(folder)],
        settings={**SHORT_TIMES, "PYTHONPATH": f"{ROOT}:{folder}"},
    )


@place("no-home", "HOME unset, and an account that has none")
def home_unset(ground: Ground) -> Iterator[Deployment]:
    yield _with_prefix(ground, ["env", "-u", "HOME"])


@place("no-run-user", "/run/user forbidden, as by ProtectHome")
def run_user_forbidden(ground: Ground) -> Iterator[Deployment]:
    needs_root("forbid /run/user")
    yield _in_namespace(ground, "mount -t tmpfs -o mode=000 tmpfs /run/user")


@place("no-shm", "no /dev/shm")
def no_shared_memory(ground: Ground) -> Iterator[Deployment]:
    needs_root("take /dev/shm away")
    devices = " ".join(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty"))
    # A folder that is mounted cannot be removed: a /dev without it takes the place of the host's.
    new_dev = (
        'new=$(mktemp -d) && mount -t tmpfs tmpfs "$new" && '
        f"for device in {devices}; do "
        'file="$new/${device#/dev/}"; touch "$file"; mount --bind $device "$file"; done; '
        'ln -s /proc/self/fd "$new/fd"; mount --rbind "$new" /dev; test ! -e /dev/shm'
    )
    with tempfile.TemporaryDirectory(prefix="field-", dir="/var/tmp") as outside:
        Path(outside).chmod(0o755)
        installed = (ground.wheels.current(), ground.wheels.former())
        programs, former = (_copied_environment(each, Path(outside)) for each in installed)
        folder = ground.folder(Path(outside))
        deployment = Deployment(
            [programs / "python", programs / "dataloader"], programs / "python", folder,
            ground.owned_database(), ground.owned_database(),
            prefix=[*IN_NAMESPACE, f'{new_dev} && exec "$@"', "sh", *as_ordinary_account(folder)], former=former,
        )  # fmt: skip
        yield deployment


@place("few-files", f"`ulimit -n {SMALL_FILE_LIMIT}`")
def few_files(ground: Ground) -> Iterator[Deployment]:
    if shutil.which("prlimit") is None:
        raise Unavailable("needs prlimit of util-linux")
    yield _with_prefix(ground, ["prlimit", f"--nofile={SMALL_FILE_LIMIT}:{SMALL_FILE_LIMIT}"])


def _with_prefix(ground: Ground, words: Sequence[str]) -> Deployment:
    deployment = ground.deployment(ground.owned_database(), ground.owned_database())
    return replace(deployment, prefix=[*words, *deployment.prefix])


def _in_namespace(ground: Ground, preparation: str) -> Deployment:
    return _with_prefix(ground, [*IN_NAMESPACE, f'{preparation} && exec "$@"', "sh"])


def _copied_environment(programs: Path, folder: Path) -> Path:
    """Copy the environment of a wheel out of /dev/shm, where the folders of a run are."""
    target = folder / programs.parent.name
    shutil.copytree(programs.parent, target, symlinks=True)
    return target / "bin"
