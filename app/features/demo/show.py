"""Starts the demo, fills it, waits for its end, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

import requests

import dataloader
from dataloader import Client
from dataloader.app.config import Settings, load_settings
from dataloader.app.config.loading import inherited_environment
from dataloader.app.errors import DataloaderError
from dataloader.app.features.demo import company
from dataloader.app.features.demo.history import DAYS, write_history
from dataloader.app.features.demo.history_accounts import PRICES
from dataloader.app.features.demo.running import begin_work
from dataloader.app.runtime.database import Database
from dataloader.app.wording import format_count

_DEFAULT_PORT = 8081
_HOST = "127.0.0.1"
_START_SEC, _STOP_SEC = 120.0, 40.0
_PACKAGE = "dataloader.app.features.demo"
_VARIABLES = {
    "DL_PIPELINES": "acme",
    "DL_SHUTDOWN_GRACE_SEC": "2",
    "DL_STOP_STEP_SEC": "1",  # a cancel is looked at
    "WORKERS_JSON": '[{"queue":"etl.default","concurrency":8},{"queue":"report.default","concurrency":6},'
    '{"queue":"export.default","concurrency":2}]',
    "TIMEZONE": "UTC",
    "ENVIRONMENT": "demo",
    "DL_PRICES": json.dumps(PRICES),
}
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class DemoFailed(DataloaderError):
    """The demo cannot be shown. The message says why, and what would do."""


def show(*, minutes: float | None, port: int | None, opens_browser: bool, report: Callable[[str], None]) -> int:
    """Return the exit code: 0 at its end by a signal or the time, 1 if the service ended by itself."""
    stopping = threading.Event()
    with _stop_by_signal(stopping), _temporary_folder() as folder:
        port = _choose_port(port)
        url = f"http://{_HOST}:{port}"
        environment = {**_VARIABLES, "DL_DATA_DIR": str(folder / "data"), "APP_PORT": str(port), "APP_HOST": _HOST}
        report("Starting PostgreSQL and the service in a temporary folder…")
        started_at = time.monotonic()
        with _service(folder, port, environment) as service:
            _wait_until_ready(service, url, folder, stopping)
            settings = load_settings(environment, dotenv=None)
            if not stopping.is_set():
                jobs = _fill(settings, url)
                report(f"dataloader demo is ready at {url}  ({time.monotonic() - started_at:.0f} s)")
                report(f"  {format_count(jobs, 'job')} of the last {DAYS} days; some run now, wait, or have failed")
                report("  Try: cancel a job that runs, ask why one waits, retry what failed")
                report("Ctrl-C ends it, and removes all of it.")
                if opens_browser:
                    open_browser(url, report)
            code = _wait_for_end(service, stopping, None if minutes is None else 60 * minutes)
            if code is not None:
                report(f"The service has ended by itself:\n{_last_lines(folder)}")
                return 1
            report("Ending…")
    return 0


@contextmanager
def _stop_by_signal(stopping: threading.Event) -> Iterator[None]:
    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopping.set()

    former = {one: signal.signal(one, stop) for one in _STOP_SIGNALS}
    try:
        yield
    finally:
        for one, handler in former.items():
            signal.signal(one, handler)


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    try:
        folder = Path(tempfile.mkdtemp(prefix="dataloader-demo-"))
    except OSError as error:
        raise DemoFailed(f"no folder for the demo can be made: {error}; name one by TMPDIR") from error
    folder.chmod(0o755)  # root starts the server as another account
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _choose_port(port: int | None) -> int:
    """This one, or 8081, or one that is free."""
    for candidate in (_DEFAULT_PORT, 0) if port is None else (port,):
        with closing(socket.socket()) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((_HOST, candidate))
            except OSError as error:
                problem = error
                continue
            chosen: int = listener.getsockname()[1]
            return chosen
    raise DemoFailed(f"port {port} cannot be used: {problem.strerror}; leave out --port, or name another one")


@contextmanager
def _service(folder: Path, port: int, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-m", f"{_PACKAGE}.service", str(folder), str(port)]
    _copy_package(folder / "acme")
    with (folder / "service.log").open("wb") as log:
        service = subprocess.Popen(
            argv, cwd=folder, env=_without_settings(environment, folder), stdin=subprocess.PIPE, stdout=log, stderr=log,
            start_new_session=True,  # Ctrl-C is for this process
        )  # fmt: skip
    try:
        yield service
    finally:
        assert service.stdin is not None  # noqa: S101 - a pipe
        with suppress(OSError):
            service.stdin.close()
        try:
            service.wait(_STOP_SEC)
        except subprocess.TimeoutExpired:
            service.kill()
            service.wait()
        _end_server(folder, environment)


def _copy_package(folder: Path) -> None:
    """A package of its own, as that of a user is: stacks show its lines as the task's."""
    folder.mkdir()
    (folder / "__init__.py").touch()
    shutil.copy(company.__file__, folder / "loads.py")


def _without_settings(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """This process's environment without the settings of another service, and with the paths of this one's modules."""
    ours = {info.variable for info in Settings().describe()}
    inherited = {
        name: value
        for name, value in inherited_environment({}).items()
        if name not in ours and not name.startswith(("DL_", "PG", "WORKERS_JSON"))
    }
    root = str(Path(dataloader.__file__).parents[1])
    paths = [root, str(folder), *filter(None, [inherited.get("PYTHONPATH")])]
    return {**inherited, "PYTHONPATH": os.pathsep.join(paths), **environment}


def _end_server(folder: Path, environment: Mapping[str, str]) -> None:
    """End a server that is left behind, because the service was killed."""
    if any((folder / "data").glob("**/postmaster.pid")):
        with suppress(DataloaderError), closing(Database(load_settings(environment, dotenv=None))) as database:
            database.dsn()  # joins it; closing ends it


def _wait_until_ready(service: subprocess.Popen[bytes], url: str, folder: Path, stopping: threading.Event) -> None:
    deadline = time.monotonic() + _START_SEC
    while not stopping.wait(0.1):
        if service.poll() is not None:
            raise DemoFailed(f"the service did not start:\n{_last_lines(folder)}")
        with suppress(requests.RequestException):
            if requests.get(f"{url}/health/ready", timeout=5).ok:
                return
        if time.monotonic() > deadline:
            raise DemoFailed(f"the service is not ready after {_START_SEC:.0f} s:\n{_last_lines(folder)}")


def _fill(settings: Settings, url: str) -> int:
    with closing(Database(settings)) as database, database.pool("dataloader-demo") as pool:
        jobs = write_history(pool, datetime.now(UTC))
        begin_work(Client(url), pool)
    return jobs


def open_browser(url: str, report: Callable[[str], None]) -> None:
    """In a window of its own; a browser for terminals would take this one."""
    has_screen = sys.platform in ("darwin", "win32") or any(
        map(inherited_environment({}).get, ("DISPLAY", "WAYLAND_DISPLAY"))
    )
    if not has_screen or not webbrowser.open(url):
        report("  (no browser was found here; open the address in yours)")


def _wait_for_end(service: subprocess.Popen[bytes], stopping: threading.Event, sec: float | None) -> int | None:
    """Return the exit code of a service that ends by itself."""
    deadline = None if sec is None else time.monotonic() + sec
    while not stopping.wait(0.5):
        if service.poll() is not None:
            return service.returncode
        if deadline is not None and time.monotonic() > deadline:
            return None
    return None


def _last_lines(folder: Path) -> str:
    with suppress(OSError):
        return "\n".join((folder / "service.log").read_text(errors="replace").splitlines()[-15:])
    return ""
