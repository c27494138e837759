"""Sessions of connections that a task's code opens by itself, and the attempt to which each belongs.

The owner of what a thread opens and executes is the attempt whose function it runs; in a thread that the function
started, the same one; in a thread of a pool, the attempt that submitted the work item. After the end of its attempt
such a thread opens and uses no connection.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, Token
from functools import partial, wraps
from inspect import iscoroutinefunction
from typing import Any, Protocol

from psycopg2 import extensions as ext

from dataloader.app.errors import SessionsRefused

MAX_NAME_BYTES = 63  # what a server keeps of an application name
_THREAD_POOL_METHODS = (
    *("apply_async", "map", "map_async", "starmap", "starmap_async", "imap", "imap_unordered"),
)  # `apply` calls the first


class Owner(Protocol):
    """An attempt whose code opens connections."""

    @property
    def owner_id(self) -> str:
        """The id of its job."""

    def own_application_name(self) -> str:
        """The name for a session that is about to be opened or used. Raises when none may be, as after its end."""

    def adopt(self, session: OwnSession) -> None:
        """Stop the session with the attempt from now on."""

    def drop(self, session: OwnSession) -> None:
        """Another attempt uses the session now."""

    def report_unchecked(self, target: str, error: str) -> None:
        """A server refuses the check of its client."""


class _LibraryPool:
    """Owns what the threads of psycopg_pool open, which outlive attempts, until an attempt uses it."""

    owner_id = "of a library's pool"

    def own_application_name(self) -> str:
        return "dataloader:pool:idle"

    def adopt(self, session: OwnSession) -> None: ...

    def drop(self, session: OwnSession) -> None: ...

    def report_unchecked(self, target: str, error: str) -> None: ...


class _Origin(weakref.ref[Owner]):
    """The owner of a thread or a work item. It keeps nothing of an attempt alive."""

    __slots__ = ("owner_id",)
    owner_id: str

    def owner(self) -> Owner:
        if (owner := self()) is None:
            raise SessionsRefused(self.owner_id)
        return owner


def _origin_of(owner: Owner) -> _Origin:
    origin = _Origin(owner)
    origin.owner_id = owner.owner_id
    return origin


_UNSET: Any = object()
# None: no attempt. Not set: what the thread has.
_CURRENT: ContextVar[_Origin | None] = ContextVar("origin of connections", default=_UNSET)
_current = _CURRENT.get
_THREAD_ORIGIN = "_dataloader_origin"  # of a thread: that of its starter, or of the last work item that it ran
_LIBRARY_POOL = _LibraryPool()
_POOL_ORIGIN = _origin_of(_LIBRARY_POOL)


def set_owner(owner: Owner | None) -> Token[_Origin | None]:
    """Give the connections that this thread opens from now on, and the threads that it starts, to the owner."""
    return _CURRENT.set(None if owner is None else _origin_of(owner))


def reset_owner(token: Token[_Origin | None]) -> None:
    _CURRENT.reset(token)


def _current_origin() -> _Origin | None:
    origin = _current()
    return getattr(threading.current_thread(), _THREAD_ORIGIN, None) if origin is _UNSET else origin


def current_owner() -> Owner | None:
    """Raises SessionsRefused if the thread's attempt has ended, and is not even in memory any more."""
    origin = _current_origin()
    return None if origin is None else origin.owner()


# ── threads ─────────────────────────────────────────────────────────────────────────────────────────────────────


def follow_threads() -> None:
    """Hand the owner on to threads that are started, and to work items of pools while they run."""
    start = threading.Thread.start

    @wraps(start)
    def start_with_owner(thread: threading.Thread) -> None:
        if (origin := _current_origin()) is not None:
            target = getattr(thread, "_target", None)
            is_of_pool = (getattr(target, "__module__", None) or "").startswith("psycopg_pool")
            setattr(thread, _THREAD_ORIGIN, _POOL_ORIGIN if is_of_pool else origin)
        start(thread)

    threading.Thread.start = start_with_owner  # type: ignore[assignment,method-assign]
    # Also of `map`, asyncio.to_thread and run_in_executor
    ThreadPoolExecutor.submit = _with_owner(ThreadPoolExecutor.submit, "fn")  # type: ignore[method-assign]


def follow_thread_pool(module: Any) -> None:
    """The same for `multiprocessing.pool`."""
    for name in _THREAD_POOL_METHODS:
        setattr(module.ThreadPool, name, _with_owner(getattr(module.ThreadPool, name), "func"))


def _with_owner(submit: Callable[..., Any], keyword: str) -> Callable[..., Any]:
    """A method that takes the call first, or by the keyword."""

    @wraps(submit)
    def submit_with_owner(pool: Any, *args: Any, **options: Any) -> Any:
        if args:
            args = (partial(_run_as, _current_origin(), args[0]), *args[1:])
        elif keyword in options:
            options[keyword] = partial(_run_as, _current_origin(), options[keyword])
        return submit(pool, *args, **options)

    return submit_with_owner


def _run_as(origin: _Origin | None, call: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
    # It stays until the next item: the callbacks of a future run after its item.
    setattr(threading.current_thread(), _THREAD_ORIGIN, origin)
    token = _CURRENT.set(origin)
    try:
        return call(*args, **options)
    finally:
        _CURRENT.reset(token)


# ── sessions ────────────────────────────────────────────────────────────────────────────────────────────────────


def own_name(name: str) -> str:
    """The attempt's part of a name: dataloader, the job's id and the start of the run's."""
    return ":".join(name.split(":")[:3])


class OwnSession:
    """A session of a task's own connection, which stays the task's to close."""

    __slots__ = ("_connection", "_rename", "_suffix", "dsn", "is_broken", "is_called", "origin", "owner")

    def __init__(self, owner: Owner, connection: Any, dsn: str, name: str, rename: Callable[[Any, str], None]) -> None:
        self.dsn = dsn
        # Who used it last, and that one's origin; None when that attempt has ended. Written by the threads that use the
        # connection, and by the one that ends the attempt.
        self.owner: Owner | None = owner
        self.origin = _current_origin()
        # Whether a call is about to execute something or does: by the threads that use the connection, read by the one
        # that ends the attempt. Of two calls at once the first to return clears it; the other waits for the connection.
        self.is_called = False
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
        return self.is_broken or is_lost or self.is_called or self.is_executing

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

    def use(self) -> None:
        """Move to the attempt that uses it now, such as one that got it from a pool. Raises if that has ended."""
        origin = _current_origin()
        if origin is None or origin is self.origin:
            return
        owner = origin.owner()
        name = owner.own_application_name()
        if self.owner is not None:
            self.owner.drop(self)
        self.owner, self.origin = owner, origin
        try:
            owner.adopt(self)
        except BaseException:  # it has ended meanwhile
            self.disown()
            raise
        if (connection := self._connection()) is not None:
            self._rename(connection, (name + self._suffix)[:MAX_NAME_BYTES])

    def disown(self) -> None:
        """Its attempt has ended: the next use moves it, or is refused."""
        self.origin = self.owner = None


# ── guards of the methods that execute something ────────────────────────────────────────────────────────────────

# Each moves the session to the attempt that calls it, and raises after that one's end. The mark is set before the
# origin is read: the end of an attempt sees the mark, or the call sees the end.


def guard(original: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a connection or a cursor that has an `own_session`."""

    @wraps(original)
    def guarded(subject: Any, *args: Any, **options: Any) -> Any:
        session = subject.own_session
        if session is None:
            return original(subject, *args, **options)
        session.is_called = True
        try:
            if _current() is not session.origin:
                session.use()
            return original(subject, *args, **options)
        finally:
            session.is_called = False

    if not iscoroutinefunction(original):
        return guarded

    @wraps(original)
    async def guarded_coroutine(subject: Any, *args: Any, **options: Any) -> Any:
        return await guarded(subject, *args, **options)

    return guarded_coroutine  # libraries ask whether it is one


def guard_psycopg2_execute(original: Callable[..., Any]) -> Callable[..., Any]:
    """With the parameters of the driver's `execute`: to pass on any other ones would double the cost."""

    @wraps(original)
    def execute(cursor: Any, query: Any, vars: Any = None) -> Any:
        session = cursor.own_session
        if session is None:
            return original(cursor, query, vars)
        session.is_called = True
        try:
            if _current() is not session.origin:
                session.use()
            return original(cursor, query, vars)
        finally:
            session.is_called = False

    return execute


def guard_psycopg_execute(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def execute(cursor: Any, query: Any, params: Any = None, *, prepare: Any = None, binary: Any = None) -> Any:
        session = cursor.connection.own_session
        if session is None:
            return original(cursor, query, params, prepare=prepare, binary=binary)
        session.is_called = True
        try:
            if _current() is not session.origin:
                session.use()
            return original(cursor, query, params, prepare=prepare, binary=binary)
        finally:
            session.is_called = False

    return execute
