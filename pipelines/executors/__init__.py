"""The engines of this process by name: executors that ship with dataloader, and those of other packages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from dataloader._distribution import NAME
from dataloader.pipelines.offload import Executor, UnknownEngine

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "dataloader.executors"
PROCESS = "process"
_OURS = {
    "process": "dataloader.pipelines.executors.process:ProcessExecutor",
    "ray": "dataloader.pipelines.executors.ray:RayExecutor",
    "kubernetes": "dataloader.pipelines.executors.kubernetes:KubernetesExecutor",
    "dask": "dataloader.pipelines.executors.dask:DaskExecutor",
}
_SECRET_KEY = "$secret"  # noqa: S105 - marks a reference


class Engines:
    """Makes executors when they are first used. Used by any thread."""

    def __init__(
        self,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        read_secret: Callable[[str], str] | None = None,
        executors: Mapping[str, Executor] | None = None,
    ) -> None:
        self._settings = {PROCESS: {}, **(settings or {})}
        self._read_secret = read_secret
        self._executors: dict[str, Executor] = dict(executors or {})  # under the lock
        self._lock = threading.Lock()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted({*self._settings, *self._executors}))

    @property
    def remote_names(self) -> tuple[str, ...]:
        """Those of the settings."""
        return tuple(name for name in self.names if name != PROCESS)

    def get(self, name: str) -> Executor:
        """Raises UnknownEngine."""
        with self._lock:
            executor = self._executors.get(name)
            if executor is None:
                executor = self._executors[name] = self._create(name)
            return executor

    def resolved_settings(self) -> dict[str, Any]:
        """The settings with their secrets, for a process that cannot read these."""
        return {name: self._resolve(values) for name, values in self._settings.items() if name != PROCESS}

    def problems(self) -> dict[str, str]:
        """Why an engine of the settings cannot be used here, by its name; empty if it can. Asks no engine."""
        return {name: self._problem(name) for name in self.remote_names}

    def _problem(self, name: str) -> str:
        try:
            factory, settings, kind = self._find(name)
            if kind in _OURS:  # another package's may ask its engine
                missing = [module for module in getattr(factory, "modules", ()) if find_spec(module) is None]
                if missing:
                    return f"it needs {NAME}[{kind}]: there is no module {', '.join(missing)}"
                factory(settings)
        except Exception as error:  # another package's module may raise anything
            return str(error) or type(error).__name__
        return ""

    def _create(self, name: str) -> Executor:
        factory, settings, _ = self._find(name)
        executor: Executor = factory(dict(self._resolve(settings)))
        return executor

    def _find(self, name: str) -> tuple[Callable[[dict[str, Any]], Any], dict[str, Any], str]:
        """What makes the executor, its settings without `kind`, and the kind."""
        if name not in self._settings:
            known = ", ".join(self.names)
            raise UnknownEngine(f"no engine {name!r} is known among {known}; name it in DL_EXECUTORS")
        settings = dict(self._settings[name])
        kind = str(settings.pop("kind", name))
        factory = find_factory(kind)
        if factory is None:
            kinds = ", ".join(sorted({*_OURS, *(point.name for point in _entry_points())}))
            raise UnknownEngine(f"the engine {name!r} is of kind {kind!r}, which is none of {kinds}")
        return factory, settings, kind

    def _resolve(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            if set(value) == {_SECRET_KEY} and self._read_secret is not None:
                return self._read_secret(str(value[_SECRET_KEY]))
            return {key: self._resolve(item) for key, item in value.items()}
        return value


def find_factory(kind: str) -> Callable[[dict[str, Any]], Any] | None:
    """What makes executors of a kind: ours, or another package's entry point."""
    if kind in _OURS:
        module, _, name = _OURS[kind].partition(":")
        factory: Callable[[dict[str, Any]], Any] = getattr(import_module(module), name)
        return factory
    for point in _entry_points():
        if point.name == kind:
            loaded: Callable[[dict[str, Any]], Any] = point.load()
            return loaded
    return None


def _entry_points() -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow, and seldom needed

    return entry_points(group=GROUP)


def check_settings(name: str, settings: Mapping[str, Any], *, required: str = "", known: tuple[str, ...] = ()) -> None:
    """Raises ValueError for keys of an engine's object that its executor does not know."""
    unknown = sorted(set(settings) - {required, *known} - {""})
    if unknown:
        raise ValueError(f"DL_EXECUTORS: an engine of kind {name!r} has no {', '.join(unknown)}; it has {known}")
    if required and not settings.get(required):
        raise ValueError(f"DL_EXECUTORS: an engine of kind {name!r} needs {required!r}")
