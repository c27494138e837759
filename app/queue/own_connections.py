"""Connections that a task's code opens by itself, with psycopg2 or psycopg 3, also through SQLAlchemy or pandas.

`wrap_drivers` replaces `connect` of the drivers in a worker process. Outside attempts it does what it did. Within one
the session gets the attempt's application name, by which it is ended when its worker dies, and the server's check of
its client; a stop cancels what it executes. A connection in a pool belongs to the attempt that used it last.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache, wraps
from importlib.machinery import ModuleSpec
from typing import Any, Protocol

import psycopg2
from psycopg2 import extensions as ext

MAX_NAME_BYTES = 63  # what a server keeps of an application name
CLIENT_CHECK_INTERVAL = "500ms"  # shorter than the search for dead workers, for servers that no setting names
_KEEPALIVES = "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3"
_CHECKS = f"{_KEEPALIVES}; SET client_connection_check_interval = '{CLIENT_CHECK_INTERVAL}'"
_OUR_NAMES = "dataloader"  # how the application names of our own connections begin
_ReplicationConnection: type[Any] = psycopg2._psycopg.ReplicationConnection
_PARAMETERS_OF_PSYCOPG = frozenset({"autocommit", "prepare_threshold", "context", "row_factory", "cursor_factory"})


class Owner(Protocol):
    """An attempt whose code opens connections."""

    def own_application_name(self) -> str | None:
        """The name for a session that is about to be opened; None: leave it alone. Raises when none may be opened."""

    def adopt(self, session: OwnSession) -> None:
        """Stop the session with the attempt from now on."""

    def drop(self, session: OwnSession) -> None:
        """Another attempt uses the session now."""

    def report_unchecked(self, target: str, error: str) -> None:
        """A server refuses the check of its client."""


_CURRENT: ContextVar[Owner | None] = ContextVar("owner of new connections", default=None)
_INHERITED = "_dataloader_owner"  # of a thread: a weak reference to the owner that was current where it was started


@contextmanager
def owned_by(owner: Owner) -> Iterator[None]:
    """Give the connections that this thread opens in the block, and the threads that it starts, to the owner."""
    token = _CURRENT.set(owner)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current_owner() -> Owner | None:
    owner = _CURRENT.get()
    if owner is None and (inherited := getattr(threading.current_thread(), _INHERITED, None)) is not None:
        owner = inherited()
    return owner


class OwnSession:
    """A session of a task's own connection, which stays the task's to close."""

    def __init__(self, owner: Owner, connection: Any, dsn: str, name: str, rename: Callable[[Any, str], None]) -> None:
        self.dsn = dsn
        self.owner: Owner | None = owner  # who used it last; None when that attempt has ended
        self.is_broken = False  # its connection was lost: a statement may still run
        self._suffix = name[len(own_name(name)) :]
        self._connection, self._rename = weakref.ref(connection), rename

    @property
    def target(self) -> str:
        """The server, for reports."""
        parsed = ext.parse_dsn(self.dsn)
        return parsed.get("host") or parsed.get("hostaddr") or "its address"

    @property
    def is_closed(self) -> bool:
        connection = self._connection()
        return connection is None or bool(connection.closed)

    @property
    def is_executing(self) -> bool:
        connection = self._connection()
        if connection is None or connection.closed:
            return False
        return bool(connection.info.transaction_status == ext.TRANSACTION_STATUS_ACTIVE)

    @property
    def may_execute(self) -> bool:
        """Whether the server may be executing a statement whose client is gone, or which a thread still awaits."""
        connection = self._connection()
        is_lost = connection is not None and (connection.closed > 1 or getattr(connection, "broken", False))
        return self.is_broken or is_lost or self.is_executing

    def cancel(self) -> bool:
        """Cancel the statement that it executes. May wait for the server."""
        connection = self._connection()
        if connection is None or not self.is_executing:
            return False
        try:
            connection.cancel()
        except Exception:  # of either driver: the server does not answer, or the connection has just been closed
            return False
        return True

    def use(self, connection: Any) -> None:
        """Move to the attempt that uses it now, such as one that got it from a pool."""
        owner = current_owner()
        if owner is None or owner is self.owner:
            return
        name = owner.own_application_name()
        if name is None:
            return
        if self.owner is not None:
            self.owner.drop(self)
        self.owner = owner
        owner.adopt(self)
        self._rename(connection, (name + self._suffix)[:MAX_NAME_BYTES])


def own_name(name: str) -> str:
    """The attempt's part of a name: dataloader, the job's id and the start of the run's."""
    return ":".join(name.split(":")[:3])


def _session_name(own: str, given: str | None) -> str:
    """The attempt's name, and the start of the user's, as much as a server keeps."""
    return own if not given or given.startswith(_OUR_NAMES) else f"{own}:{given}"[:MAX_NAME_BYTES]


def _owner_and_name(given: str | None) -> tuple[Owner, str] | None:
    """Who opens the connection, and the name for it; None: leave it alone."""
    owner = current_owner()
    if owner is None or (given or "").startswith(_OUR_NAMES):
        return None
    own = owner.own_application_name()
    return None if own is None else (owner, _session_name(own, given))


def _dsn_of_host(dsn: str, info: Any) -> str:
    """The DSN of the one host that the connection has reached."""
    if "," in ext.parse_dsn(dsn).get("host", ""):
        return str(ext.make_dsn(dsn, host=info.host, port=info.port, hostaddr=None))
    return dsn


# ── psycopg2 ────────────────────────────────────────────────────────────────────────────────────────────────────


@cache
def _owned_class(base: type[Any]) -> type[Any]:
    """The class of connections that moves to the attempt that uses them, and remembers that they broke."""

    class OwnConnection(base):  # type: ignore[misc]
        own_session: OwnSession | None = None

        def cursor(self, *args: Any, **options: Any) -> Any:
            if self.own_session is not None:
                self.own_session.use(self)
            return super().cursor(*args, **options)

        def close(self) -> None:
            self._note_loss()
            super().close()

        def __del__(self) -> None:
            self._note_loss()

        def _note_loss(self) -> None:
            if self.own_session is not None and self.closed > 1:
                self.own_session.is_broken = True

    OwnConnection.__name__, OwnConnection.__qualname__ = base.__name__, base.__qualname__
    return OwnConnection


def _wrap_psycopg2(module: Any) -> None:
    original = module.connect

    @wraps(original)
    def connect(
        dsn: str | None = None, connection_factory: Any = None, cursor_factory: Any = None, **options: Any
    ) -> Any:
        given = options.get("application_name") or _parse(ext.parse_dsn, dsn).get("application_name")
        owned = _owner_and_name(given)
        factory = connection_factory or ext.connection
        is_class = isinstance(factory, type) and issubclass(factory, ext.connection)
        is_plain = is_class and not options.get("async") and not options.get("async_")
        if owned is None or not is_plain or issubclass(factory, _ReplicationConnection):
            if owned is not None:
                options["application_name"] = owned[1]
            return original(dsn, connection_factory, cursor_factory, **options)
        owner, name = owned
        options["application_name"] = name
        connection = original(dsn, _owned_class(factory), cursor_factory, **options)
        full_dsn = _dsn_of_host(ext.make_dsn(dsn, **options), connection.info)
        session = connection.own_session = OwnSession(owner, connection, full_dsn, name, _rename_psycopg2)
        _start(owner, session, connection, lambda text: _execute_psycopg2(connection, text))
        return connection

    module.connect = connect


def _execute_psycopg2(connection: Any, text: str) -> None:
    """Execute it in a transaction of its own. Raises psycopg2.Error."""
    was_autocommit = connection.autocommit
    ext.connection.autocommit.__set__(connection, True)  # type: ignore[attr-defined]  # a property in C
    try:
        with ext.connection.cursor(connection, cursor_factory=ext.cursor) as cursor:
            cursor.execute(text)
    finally:
        if not connection.closed:
            ext.connection.autocommit.__set__(connection, was_autocommit)  # type: ignore[attr-defined]


def _rename_psycopg2(connection: Any, name: str) -> None:
    if connection.info.transaction_status == ext.TRANSACTION_STATUS_IDLE:
        with suppress(psycopg2.Error):  # the user's next statement meets it too
            _execute_psycopg2(connection, f"SET application_name = {_literal(name)}")


# ── psycopg 3 ───────────────────────────────────────────────────────────────────────────────────────────────────


def _wrap_psycopg(module: Any) -> None:
    for kind in (module.Connection, module.AsyncConnection):
        _wrap_cursor(kind)
    connection_class, async_class = module.Connection, module.AsyncConnection
    original, async_original = connection_class.connect.__func__, async_class.connect.__func__

    @wraps(original)
    def connect(cls: Any, conninfo: str = "", **options: Any) -> Any:
        prepared = _prepare_psycopg(module, conninfo, options)
        connection = original(cls, conninfo, **options)
        return connection if prepared is None else _adopt_psycopg(module, connection, conninfo, options, *prepared)

    @wraps(async_original)
    async def connect_async(cls: Any, conninfo: str = "", **options: Any) -> Any:
        prepared = _prepare_psycopg(module, conninfo, options)
        connection = await async_original(cls, conninfo, **options)
        return connection if prepared is None else _adopt_psycopg(module, connection, conninfo, options, *prepared)

    wrapped: Any
    for kind, wrapped in ((connection_class, connect), (async_class, connect_async)):
        kind.connect = classmethod(wrapped)
    module.connect = connection_class.connect


def _wrap_cursor(kind: Any) -> None:
    original = kind.cursor

    @wraps(original)
    def cursor(self: Any, *args: Any, **options: Any) -> Any:
        session = self.__dict__.get("own_session")
        if session is not None:
            session.use(self)
        return original(self, *args, **options)

    kind.cursor = cursor


def _prepare_psycopg(module: Any, conninfo: str, options: dict[str, Any]) -> tuple[Owner, str] | None:
    """Put the name into the options."""
    given = options.get("application_name") or _parse(module.conninfo.conninfo_to_dict, conninfo).get(
        "application_name"
    )
    owned = _owner_and_name(given)
    if owned is not None:
        options["application_name"] = owned[1]
    return owned


def _adopt_psycopg(
    module: Any, connection: Any, conninfo: str, options: Mapping[str, Any], owner: Owner, name: str
) -> Any:
    of_server = {key: value for key, value in options.items() if key not in _PARAMETERS_OF_PSYCOPG}
    dsn = _dsn_of_host(module.conninfo.make_conninfo(conninfo, **of_server), connection.info)
    session = connection.own_session = OwnSession(owner, connection, dsn, name, _rename_psycopg)
    _start(owner, session, connection, lambda text: _execute_psycopg(connection, text))
    return connection


def _execute_psycopg(connection: Any, text: str) -> None:
    """Execute it by libpq itself: neither a transaction nor a cursor of the driver is involved. Raises an error."""
    result = connection.pgconn.exec_(text.encode())
    if result.error_message:
        raise psycopg2.OperationalError(result.error_message.decode(errors="replace").strip())


def _rename_psycopg(connection: Any, name: str) -> None:
    is_idle = connection.info.transaction_status == ext.TRANSACTION_STATUS_IDLE
    if is_idle and not connection.pgconn.pipeline_status:
        with suppress(Exception):  # the user's next statement meets it too
            _execute_psycopg(connection, f"SET application_name = {_literal(name)}")


# ── both ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _parse(parse: Callable[[str], Mapping[str, Any]], dsn: str | None) -> Mapping[str, Any]:
    """The parts of a connection string; none of one that the driver will refuse."""
    with suppress(Exception):
        return parse(dsn or "")
    return {}


def _literal(name: str) -> str:
    """A name that we have made as a literal: whatever the user's part of it holds."""
    return "'" + "".join(c for c in name if c.isprintable() and c not in "'\\") + "'"


def _start(owner: Owner, session: OwnSession, connection: Any, execute: Callable[[str], None]) -> None:
    """Give the session to its owner, and have the server check its client."""
    try:
        owner.adopt(session)
    except BaseException:  # stopped meanwhile
        connection.close()
        raise
    try:
        execute(_CHECKS)
    except Exception as error:  # of either driver
        with suppress(Exception):
            execute(_KEEPALIVES)
        owner.report_unchecked(session.target, str(error).strip())


# ── installation ────────────────────────────────────────────────────────────────────────────────────────────────


class _WrapOnImport(importlib.abc.MetaPathFinder):
    """Wraps psycopg 3 when it is imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "psycopg":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                _wrap_psycopg(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


@cache
def wrap_drivers() -> None:
    """Replace `connect` of the drivers, once a process, before the modules of tasks are imported: one that has imported
    the function itself keeps the former one."""
    _wrap_psycopg2(psycopg2)
    if (module := sys.modules.get("psycopg")) is not None:
        _wrap_psycopg(module)
    else:
        sys.meta_path.insert(0, _WrapOnImport())
    start = threading.Thread.start

    @wraps(start)
    def start_with_owner(thread: threading.Thread) -> None:
        if (owner := current_owner()) is not None:
            setattr(thread, _INHERITED, weakref.ref(owner))
        start(thread)

    threading.Thread.start = start_with_owner  # type: ignore[assignment,method-assign]
