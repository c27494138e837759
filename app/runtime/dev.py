"""`dataloader dev`: runs `serve`, and starts it again when a file of a task package changes."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

import dataloader
from dataloader.app.config import Settings
from dataloader.app.config.loading import inherited_environment
from dataloader.app.errors import ConfigError
from dataloader.app.runtime.database import Database

_POLL_INTERVAL_SEC = 0.5
_SETTLE_SEC = 0.2  # without a further change: an editor or a checkout writes several files
_SUFFIXES = (".py", ".sql", ".json", ".toml")
_ROOT = str(Path(dataloader.__file__).parents[1])
_DOTENV = Path(".env")
# Jobs that run are asked to stop at once. Bytecode files do not distinguish two edits of the same size within a second.
_SERVE_VARIABLES = {"PYTHONDONTWRITEBYTECODE": "1"}
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

FileVersions = Mapping[Path, tuple[int, int]]  # time of the last change, size


def develop(load: Callable[[], Settings], arguments: Sequence[str], *, report: Callable[[str], None]) -> int:
    """Run until a stop signal; return the exit code. Raises errors of the settings before anything starts."""
    settings = load()
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # as in the process that imports the packages
    with _hold_embedded_server(settings), _Supervisor(arguments, grace_given=settings.is_grace_given) as service:
        files, broken = scan(settings), frozenset[Path]()
        service.start()
        report(f"Restarts when a file of {', '.join(watched_packages(settings))} changes, or .env.")
        while not service.stopping.wait(_POLL_INTERVAL_SEC):
            code = service.take_exit_code()
            if code is not None:
                report(f"The service has ended with exit code {code}; it starts again after the next change.")
            if scan(settings) == files:
                continue
            before, files = files, _wait_until_quiet(settings)
            changed = [path for path in {*before, *files} if before.get(path) != files.get(path)]
            errors = find_syntax_errors({*changed, *broken} & files.keys())
            broken = frozenset(errors)
            try:
                settings = load()
            except ConfigError as error:
                errors[_DOTENV] = f"{error}\n"
            if errors:
                report("".join(errors.values()) + "The service continues without this change; mend it.")
                continue
            report(f"{_describe_change(changed)} changed; restarting.")
            service.stop()
            service.start()
        return service.stop()


def watched_packages(settings: Settings) -> list[str]:
    """Return the top-level packages and modules of the tasks, and `dataloader.pipelines`. Tasks with an interpreter of
    their own have none: it imports their modules for each job."""
    names = list(settings.pipelines)
    for task in settings.tasks.values():
        path = task if isinstance(task, str) else "" if "python" in task else str(task.get("call", ""))
        names.append(path.partition(":")[0])
    return list(dict.fromkeys(_package_of(name) for name in names if name))


def _package_of(module: str) -> str:
    top, *below = module.split(".")
    return f"{top}.{below[0]}" if top == "dataloader" and below else top


def scan(settings: Settings) -> dict[Path, tuple[int, int]]:
    """Return the versions of all files whose change restarts the service. Imports nothing."""
    importlib.invalidate_caches()
    versions = {}
    for path in [_DOTENV, *_files_of(watched_packages(settings))]:
        with suppress(OSError):  # it was removed just now
            stat = path.stat()
            versions[path] = (stat.st_mtime_ns, stat.st_size)
    return versions


def _files_of(packages: Iterable[str]) -> Iterator[Path]:
    for name in packages:
        spec = None
        with suppress(ImportError, ValueError):  # a module that was made by hand has none
            spec = find_spec(name)
        if spec is None:
            continue
        folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
        if not folders and spec.origin is not None:
            yield Path(spec.origin)
        for folder in folders:
            for parent, names, files in os.walk(folder):
                names[:] = [name for name in names if not name.startswith((".", "__pycache__"))]
                yield from (Path(parent, file) for file in files if file.endswith(_SUFFIXES))


def find_syntax_errors(paths: Iterable[Path]) -> dict[Path, str]:
    """Return the error of each Python file that cannot be compiled."""
    errors = {}
    for path in sorted(paths):
        if path.suffix == ".py":
            try:
                compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
            except (SyntaxError, ValueError) as error:
                errors[path] = "".join(traceback.format_exception_only(error))
            except OSError:
                continue
    return errors


def _wait_until_quiet(settings: Settings) -> dict[Path, tuple[int, int]]:
    before = scan(settings)
    pause = threading.Event()
    while True:
        pause.wait(_SETTLE_SEC)
        after = scan(settings)
        if after == before:
            return after
        before = after


def _describe_change(paths: Sequence[Path]) -> str:
    first, here = min(paths), Path.cwd()
    name = first.relative_to(here) if first.is_relative_to(here) else first
    return str(name) if len(paths) == 1 else f"{name} and {len(paths) - 1} more"


@contextmanager
def _hold_embedded_server(settings: Settings) -> Iterator[None]:
    """Keep the embedded server, if it is used, while the service is restarted."""
    database = Database(settings)
    with closing(database) if database.is_embedded else nullcontext():
        if database.is_embedded:
            database.dsn()
        yield


class _Supervisor:
    """Runs `serve` as a child process, and passes stop signals on to it."""

    def __init__(self, arguments: Sequence[str], *, grace_given: bool) -> None:
        self.stopping = threading.Event()
        self._arguments = arguments
        self._variables = _SERVE_VARIABLES | ({} if grace_given else {"DL_SHUTDOWN_GRACE_SEC": "0"})
        self._child: subprocess.Popen[bytes] | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> _Supervisor:
        self._before = {number: signal.signal(number, self._on_signal) for number in _STOP_SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # as it was returned

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.stopping.set()
        # Ctrl-C reaches all processes of the terminal's group; a second one would stop the service at once.
        if self._child is not None and not (number == signal.SIGINT and _is_in_foreground()):
            self._child.send_signal(number)

    def start(self) -> None:
        if self.stopping.is_set():
            return
        code = f"import sys; sys.path.insert(0, {_ROOT!r}); from dataloader.app.__main__ import main; main()"
        self._child = subprocess.Popen(
            [sys.executable, "-c", code, "serve", *self._arguments], env=inherited_environment(self._variables)
        )

    def take_exit_code(self) -> int | None:
        """Return the exit code if the service has ended by itself, once."""
        if self._child is None or self._child.poll() is None:
            return None
        code, self._child = self._child.returncode, None
        return code

    def stop(self) -> int:
        """Stop the service; return its exit code."""
        child = self._child
        if child is None:
            return 0
        if not self.stopping.is_set():
            child.terminate()
        code = child.wait()
        self._child = None
        return code


def _is_in_foreground() -> bool:
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False
