"""Connections that a task's code opens by itself, with psycopg2 or psycopg 3, also through SQLAlchemy or pandas.

`wrap_drivers` replaces `connect` of the drivers in a worker process. Outside attempts it does what it did. Within one
the session gets the attempt's application name, by which it is ended when its worker dies, and the server's check of
its client; a stop cancels what it executes. A connection in a pool belongs to the attempt that used it last: every
method that executes something looks whose thread calls it.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import operator
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial, wraps
from importlib.machinery import ModuleSpec
from typing import Any

import psycopg2
from psycopg2 import extensions as ext

from dataloader.workers.connections.own_sessions import (
    MAX_NAME_BYTES,
    Owner,
    OwnSession,
    current_owner,
    follow_thread_pool,
    follow_threads,
    guard,
    guard_psycopg2_execute,
    guard_psycopg_execute,
)

CLIENT_CHECK_INTERVAL = "500ms"  # shorter than the search for dead workers, for servers that no setting names
_KEEPALIVES = "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3"
_CHECKS = f"{_KEEPALIVES}; SET client_connection_check_interval = '{CLIENT_CHECK_INTERVAL}'"
_OUR_NAMES = "dataloader"  # how the application names of our own connections begin
_ReplicationConnection: type[Any] = psycopg2._psycopg.ReplicationConnection
# Those that execute something; `fetch…` of named cursors reads only.
_CURSOR_METHODS = frozenset(
    {
        *("execute", "executemany", "callproc", "copy_expert", "copy_from", "copy_to"),  # of psycopg2
        *("stream", "copy"),  # of psycopg 3, which has the first two, too
    }
)
_PARAMETERS_OF_PSYCOPG = frozenset({"autocommit", "prepare_threshold", "context", "row_factory", "cursor_factory"})


def _session_name(own: str, given: str | None) -> str:
    """The attempt's name, and the start of the user's, as much as a server keeps."""
    return own if not given or given.startswith(_OUR_NAMES) else f"{own}:{given}"[:MAX_NAME_BYTES]


def _owner_and_name(given: str | None) -> tuple[Owner, str] | None:
    """Who opens the connection, and the name for it; None: leave it alone."""
    if (given or "").startswith(_OUR_NAMES) or (owner := current_owner()) is None:
        return None
    return owner, _session_name(owner.own_application_name(), given)


def _dsn_of_host(dsn: str, info: Any) -> str:
    """The DSN of the one host that the connection has reached."""
    if "," in ext.parse_dsn(dsn).get("host", ""):
        return str(ext.make_dsn(dsn, host=info.host, port=info.port, hostaddr=None))
    return dsn


# ── psycopg2 ────────────────────────────────────────────────────────────────────────────────────────────────────


def _is_subclass(factory: Any, base: type[Any]) -> bool:
    return isinstance(factory, type) and issubclass(factory, base)


class _OwnCursors(ext.connection):
    """The last base class of own connections: the cursors are guarded, whatever class the others have chosen."""

    own_session: OwnSession | None = None  # set once, by the thread that opened it

    def cursor(
        self, name: Any = None, cursor_factory: Any = None, withhold: bool = False, scrollable: bool | None = None
    ) -> Any:
        own_factory: Any = self.cursor_factory
        factory: Any = cursor_factory or own_factory or ext.cursor
        is_class = _is_subclass(factory, ext.cursor)
        if is_class:
            factory = _guarded_cursor_class(factory)
        elif self.own_session is not None:  # a function's cursor cannot be guarded
            self.own_session.use()
        cursor = super().cursor(name, cursor_factory=factory, withhold=withhold, scrollable=scrollable)
        if is_class:
            cursor.own_session = self.own_session
        return cursor


@cache
def _guarded_cursor_class(base: Any) -> type[Any]:
    guards = {name: guard(getattr(base, name)) for name in _CURSOR_METHODS if hasattr(base, name)}
    if base.execute is ext.cursor.execute:
        guards["execute"] = guard_psycopg2_execute(base.execute)
    names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    return type(base.__name__, (base,), names | {"own_session": None} | guards)


@cache
def _owned_class(base: Any) -> type[Any]:
    """The class of connections that moves to the attempt that uses them, and remembers that they broke."""
    bases = (_OwnCursors,) if base is ext.connection else (base, _OwnCursors)

    class OwnConnection(*bases):  # type: ignore[misc]
        commit, tpc_commit = guard(base.commit), guard(base.tpc_commit)

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
        if owned is None:
            return original(dsn, connection_factory, cursor_factory, **options)
        options["application_name"] = owned[1]
        factory: Any = connection_factory or ext.connection
        if _is_subclass(factory, ext.connection):
            if issubclass(factory, _ReplicationConnection):
                return original(dsn, connection_factory, cursor_factory, **options)
            factory = _owned_class(factory)
        connection = original(dsn, factory, cursor_factory, **options)
        of_server = {key: value for key, value in options.items() if key not in ("async", "async_")}
        _adopt_psycopg2(connection, ext.make_dsn(dsn, **of_server), *owned)
        return connection

    module.connect = connect


def _adopt_psycopg2(connection: Any, dsn: str, owner: Owner, name: str) -> None:
    """Also one that a function has made: where its class cannot be changed, it stays its opener's."""
    if not isinstance(connection, ext.connection):
        return
    kind: Any = type(connection)
    if not issubclass(kind, _OwnCursors | _ReplicationConnection):
        with suppress(TypeError):
            connection.__class__ = _owned_class(kind)
    session = OwnSession(owner, connection, _dsn_of_host(dsn, connection.info), name, _rename_psycopg2)
    if isinstance(connection, _OwnCursors):
        connection.own_session = session
    # An asynchronous connection executes nothing before its user has polled it.
    _start(owner, session, connection, None if connection.async_ else partial(_execute_psycopg2, connection))


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
    if connection.info.transaction_status == ext.TRANSACTION_STATUS_IDLE and not connection.async_:
        with suppress(psycopg2.Error):  # the user's next statement meets it too
            _execute_psycopg2(connection, f"SET application_name = {_literal(name)}")


# ── psycopg 3 ───────────────────────────────────────────────────────────────────────────────────────────────────


def _wrap_psycopg(module: Any) -> None:
    connection_class, async_class = module.Connection, module.AsyncConnection
    _guard_psycopg(module)
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


def _guard_psycopg(module: Any) -> None:
    """Of coroutines and generators the call is guarded, not what they do later."""
    for kind in (module.Connection, module.AsyncConnection):
        kind.own_session = None
        for name in ("commit", "tpc_commit"):
            setattr(kind, name, guard(getattr(kind, name)))
    for kind in (module.Cursor, module.AsyncCursor, module.ServerCursor, module.AsyncServerCursor):
        kind.own_session = property(operator.attrgetter("connection.own_session"))
        for name in _CURSOR_METHODS & vars(kind).keys():
            original = getattr(kind, name)
            is_plain = name == "execute" and kind is module.Cursor
            setattr(kind, name, guard_psycopg_execute(original) if is_plain else guard(original))
    _guard_transactions(module)


def _guard_transactions(module: Any) -> None:
    """The commit at the end of a block: it rolls back instead, and raises, in a thread whose attempt has ended."""
    leave, leave_async = module.Transaction.__exit__, module.AsyncTransaction.__aexit__

    @wraps(leave)
    def leave_as_owner(block: Any, kind: Any, error: Any, traceback: Any) -> Any:
        if kind is None and (refusal := _refusal(block.connection)) is not None:
            leave(block, type(refusal), refusal, None)
            raise refusal
        return leave(block, kind, error, traceback)

    @wraps(leave_async)
    async def leave_async_as_owner(block: Any, kind: Any, error: Any, traceback: Any) -> Any:
        if kind is None and (refusal := _refusal(block.connection)) is not None:
            await leave_async(block, type(refusal), refusal, None)
            raise refusal
        return await leave_async(block, kind, error, traceback)

    module.Transaction.__exit__, module.AsyncTransaction.__aexit__ = leave_as_owner, leave_async_as_owner


def _refusal(connection: Any) -> BaseException | None:
    try:
        if connection.own_session is not None:
            connection.own_session.use()
    except BaseException as error:
        return error
    return None


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
    _start(owner, session, connection, partial(_execute_psycopg, connection))
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


def _start(owner: Owner, session: OwnSession, connection: Any, execute: Callable[[str], None] | None) -> None:
    """Give the session to its owner, and have the server check its client."""
    try:
        owner.adopt(session)
    except BaseException:  # stopped meanwhile
        connection.close()
        raise
    if execute is None:
        return
    try:
        execute(_CHECKS)
    except Exception as error:  # of either driver
        with suppress(Exception):
            execute(_KEEPALIVES)
        owner.report_unchecked(session.target, str(error).strip())


# ── installation ────────────────────────────────────────────────────────────────────────────────────────────────


class _WrapOnImport(importlib.abc.MetaPathFinder):
    """Changes modules when they are imported."""

    def __init__(self, changes: dict[str, Callable[[Any], None]]) -> None:
        self._changes = changes  # any importing thread takes one out

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if (change := self._changes.pop(name, None)) is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                change(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


@cache
def wrap_drivers() -> None:
    """Replace `connect` of the drivers, once a process, before the modules of tasks are imported: one that has imported
    the function itself keeps the former one."""
    if any(isinstance(finder, _WrapOnImport) for finder in sys.meta_path):
        return  # by the process that forked this one
    _wrap_psycopg2(psycopg2)
    follow_threads()
    changes: dict[str, Callable[[Any], None]] = {"psycopg": _wrap_psycopg, "multiprocessing.pool": follow_thread_pool}
    for name in changes.keys() & sys.modules.keys():
        changes.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, _WrapOnImport(changes))
