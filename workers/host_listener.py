"""One LISTEN connection for all worker processes of a host: one process listens and relays, the others receive.

Who listens is decided by an flock on a file in the runtime folder, which the kernel frees when its holder dies: the
next process takes it, listens, and has all look for jobs. Each process receives on a Unix datagram socket of its own in
that folder. Processes of one database and schema belong together; what does not share the folder is another host.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from app import log
from app.db.connection import Session
from workers.listener import Listener, ListenMode, ListenState, NoListener, Notifications
from workers.pool_options import PoolOptions
from workers.process_identity import find_runtime_folder
from workers.threads import BackgroundThread, WakeupPipe, clock

_log = log.get(__name__)
_ELECTION_INTERVAL_SEC = 0.5
_RELAY_INTERVAL_SEC = 1.0  # at least so often the sockets of new processes are looked for
_RETRY_INTERVAL_SEC = 0.05  # for a process whose socket is full
_MAX_PART_BYTES = 32_768  # of the names or commands of a message; one that is longer, up to 48 kB, is sent alone
_MAX_MESSAGE_BYTES = 1_048_576
_MISSED_MESSAGES = 2.5
_QUEUES_SUFFIX = ".json"  # of the file next to a socket with the queues that its process serves


class HostGroup:
    """The files that the processes of one host and database share. They are made when they are first needed."""

    def __init__(
        self, dsn: str, schema: str, worker_id: UUID, queues: Iterable[str] = (), *, folder: Path | None = None
    ) -> None:
        key = hashlib.blake2b(f"{dsn}\0{schema}".encode(), digest_size=6).hexdigest()
        self._prefix = f"listen-{key}"
        self._worker_id, self._queues, self._given_folder = worker_id, sorted(queues), folder
        self._folder: Path | None = None
        self._has_socket = False  # set by the dispatcher, read by the relay
        self._lock: int | None = None  # the descriptor, while this process is the one that listens

    @property
    def folder(self) -> Path | None:
        if self._folder is None:
            self._folder = self._given_folder or find_runtime_folder()
        return self._folder

    @property
    def own_path(self) -> Path:
        assert self.folder is not None  # noqa: S101 - for the types
        return self.folder / f"{self._prefix}-{self._worker_id.hex[:16]}.sock"

    def open_socket(self) -> socket.socket | None:
        """Return the socket of this process; None where the folder has no room for one."""
        if self.folder is None:
            return None
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            # Before the socket: who finds that may read what its process serves.
            self.own_path.with_suffix(_QUEUES_SUFFIX).write_text(json.dumps(self._queues), encoding="utf-8")
            receiver.bind(str(self.own_path))
            self.own_path.chmod(0o600)  # whatever the umask is
        except OSError:  # also: its path is too long
            receiver.close()
            return None
        self._has_socket = True
        return receiver

    def elect(self) -> bool:
        """Return whether this process is the one that listens; become it if no other is, and it can receive."""
        if self._lock is not None or self.folder is None or not self._has_socket:
            return self._lock is not None
        try:
            path, flags = self.folder / f"{self._prefix}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(path, flags, 0o600)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self._lock = descriptor
        return True

    def resign(self) -> None:
        descriptor, self._lock = self._lock, None
        if descriptor is not None:
            os.close(descriptor)

    def peers(self) -> set[str]:
        """The paths of the sockets of all processes."""
        return set() if self.folder is None else {str(path) for path in self.folder.glob(f"{self._prefix}-*.sock")}

    def remove_socket(self) -> None:
        if self._folder is not None:
            remove_files(str(self.own_path))


def remove_files(path: str) -> None:
    """Remove the socket of a process that is gone, and the list of what it served."""
    for file in (Path(path), Path(path).with_suffix(_QUEUES_SUFFIX)):
        with suppress(OSError):
            file.unlink()


def read_queues(path: str) -> frozenset[str] | None:
    """Return the queues that the process of this socket serves; None: that is not known."""
    try:
        return frozenset(json.loads(Path(path).with_suffix(_QUEUES_SUFFIX).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


@dataclass(frozen=True)
class _Message:
    state: ListenState
    notifications: Notifications = field(default_factory=Notifications)

    def concerns(self, queues: frozenset[str] | None) -> bool:
        """Whether a process that serves these queues needs it."""
        found = self.notifications
        return (
            not found.queues  # it reports the state
            or bool(found.commands)
            or found.reconnected
            or queues is None
            or not queues.isdisjoint(found.queues)
        )

    def encode(self) -> bytes:
        found = self.notifications
        fields = (self.state, sorted(found.queues), found.commands, found.reconnected)
        return json.dumps(fields).encode("utf-8", "surrogatepass")

    @classmethod
    def decode(cls, data: bytes) -> _Message | None:
        try:
            state, queues, commands, reconnected = json.loads(data)
            return cls(ListenState(state), Notifications(frozenset(queues), tuple(commands), bool(reconnected)))
        except (ValueError, TypeError):
            return None


class HostListener:
    """Receives what one process of the host relays. Used by the leader of the dispatcher alone, as a Listener is.

    Where there is no folder for it, the process listens by itself.
    """

    def __init__(
        self,
        group: HostGroup,
        own: Listener,
        *,
        message_interval_sec: float,
        on_state_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._group, self._own = group, own
        self._max_silence_sec = _MISSED_MESSAGES * message_interval_sec + _RELAY_INTERVAL_SEC
        self._on_state_change = on_state_change
        self._socket: socket.socket | None = None
        self._listens_itself = False
        self._state = ListenState.DISCONNECTED
        self._last_message_at: float | None = None

    @property
    def state(self) -> ListenState:
        return self._own.state if self._listens_itself else self._state

    @property
    def last_self_test_at(self) -> float | None:
        return self._own.last_self_test_at if self._listens_itself else self._last_message_at

    def listen(self, timeout: float, wakeup: WakeupPipe) -> Notifications:
        if self._socket is None and not self._listens_itself:
            self._socket = self._group.open_socket()
            if self._socket is None:
                self._listens_itself = True
                _log.warning("listener.host_unavailable", detail="no runtime folder has room for a socket")
        if self._socket is None:
            return self._own.listen(timeout, wakeup)
        silence_ends_at = (self._last_message_at or clock()) + self._max_silence_sec
        wakeup.wait(max(0.0, min(timeout, silence_ends_at - clock())), self._socket.fileno())
        found = self._receive(self._socket)
        if self._last_message_at is not None and clock() - self._last_message_at > self._max_silence_sec:
            self._change_state(ListenState.DISCONNECTED)
        return found

    def _receive(self, receiver: socket.socket) -> Notifications:
        queues: set[str] = set()
        commands: list[str] = []
        reconnected = False
        for message in _read_all(receiver):
            if message.state is ListenState.LISTENING:
                self._last_message_at = clock()
                self._change_state(ListenState.RELAYED)
            else:
                self._change_state(ListenState.DISCONNECTED)
            queues |= message.notifications.queues
            commands += message.notifications.commands
            reconnected = reconnected or message.notifications.reconnected
        return Notifications(frozenset(queues), tuple(commands), reconnected)

    def _change_state(self, state: ListenState) -> None:
        if state is self._state:
            return
        self._state = state
        if state is ListenState.RELAYED:
            _log.info("listener.connected", by="another connection of this host")
        else:
            _log.warning(
                "listener.disconnected", state=state.value, error="no process of this host relays notifications"
            )
        self._on_state_change()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._group.remove_socket()


def _read_all(receiver: socket.socket) -> Iterator[_Message]:
    while True:
        try:
            data = receiver.recv(_MAX_MESSAGE_BYTES)
        except BlockingIOError:
            return
        message = _Message.decode(data)
        if message is not None:
            yield message


class HostRelay:
    """Listens for the host if this process is elected, and relays to the sockets of all processes, also its own."""

    def __init__(
        self, group: HostGroup, listener: Listener, *, message_interval_sec: float, on_crash: Callable[[str], None]
    ) -> None:
        self._group, self._listener, self._message_interval_sec = group, listener, message_interval_sec
        self._sender: socket.socket | None = None
        self._wakeup = WakeupPipe()
        self._known: dict[str, frozenset[str] | None] = {}  # sockets that have had a message, with what they serve
        self._pending: dict[str, list[_Message]] = {}  # for sockets that were full
        self._sent_state: ListenState | None = None
        self._next_message_at = 0.0
        self.is_elected = False  # read by any thread
        self.thread = BackgroundThread("host-listener", self.run_once, on_crash=on_crash)

    def run_once(self) -> float:
        if not self._group.elect():
            return _ELECTION_INTERVAL_SEC
        if not self.is_elected:
            self.is_elected = True
            _log.info("listener.elected")
        timeout_sec = _RETRY_INTERVAL_SEC if self._pending else _RELAY_INTERVAL_SEC
        self.relay(self._listener.listen(timeout_sec, self._wakeup))
        return 0.0

    def relay(self, found: Notifications) -> None:
        """Send what was received to all, and the state to those that have not had it."""
        state, now, peers = self._listener.state, clock(), self._group.peers()
        messages = list(_split(state, found))
        is_message_due = state is not self._sent_state or now >= self._next_message_at
        self._sent_state = state
        if is_message_due:
            self._next_message_at = now + self._message_interval_sec
        for path in peers:
            # A process that has just begun to receive may have missed something.
            if path in self._known:
                own = [message for message in messages if message.concerns(self._known[path])]
                if is_message_due and not own:
                    own = [_Message(state)]
            else:
                own = [_Message(state, Notifications(reconnected=True))]
            self._send(path, [*self._pending.pop(path, ()), *own])
        self._known = {path: self._known[path] if path in self._known else read_queues(path) for path in peers}
        self._pending = {path: left for path, left in self._pending.items() if path in peers}

    def _send(self, path: str, messages: list[_Message]) -> None:
        if self._sender is None:
            self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        for n, message in enumerate(messages):
            try:
                self._sender.sendto(message.encode(), path)
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.ENOBUFS):
                    self._pending[path] = _merge(messages[n:])
                elif error.errno == errno.ECONNREFUSED:  # its process is gone
                    remove_files(path)
                return

    def wake(self) -> None:
        self._wakeup.set()

    def close(self) -> None:
        self._group.resign()
        self._wakeup.close()
        if self._sender is not None:
            self._sender.close()


def _split(state: ListenState, found: Notifications) -> Iterator[_Message]:
    """The system refuses a datagram above some size."""
    if found.reconnected:
        yield _Message(state, Notifications(reconnected=True))
    for queues in _parts(sorted(found.queues)):
        yield _Message(state, Notifications(frozenset(queues)))
    for commands in _parts(found.commands):
        yield _Message(state, Notifications(commands=tuple(commands)))


def _parts(texts: Iterable[str]) -> Iterator[list[str]]:
    part: list[str] = []
    size = 0
    for text in texts:
        length = len(json.dumps(text))
        if part and size + length > _MAX_PART_BYTES:
            yield part
            part, size = [], 0
        part.append(text)
        size += length
    if part:
        yield part


def _merge(messages: list[_Message]) -> list[_Message]:
    """What waits for a full socket: each name once."""
    found = [message.notifications for message in messages]
    queues = frozenset(name for part in found for name in part.queues)
    commands = tuple(dict.fromkeys(command for part in found for command in part.commands))
    merged = Notifications(queues, commands, any(part.reconnected for part in found))
    return list(_split(messages[-1].state, merged)) or [messages[-1]]


def make_listener(
    session: Session,
    options: PoolOptions,
    worker_id: UUID,
    *,
    on_state_change: Callable[[], None],
    on_crash: Callable[[str], None],
) -> tuple[Listener | HostListener | NoListener, HostRelay | None]:
    """Make what the dispatcher waits with, by DL_LISTEN."""
    interval_sec = options.heartbeat_sec
    own = Listener(session, heartbeat_sec=interval_sec, on_state_change=on_state_change)
    if options.listen is ListenMode.OFF:
        return NoListener(), None
    if options.listen is ListenMode.PROCESS:
        return own, None
    group = HostGroup(options.dsn, options.schema, worker_id, options.queues)
    relay = HostRelay(group, own, message_interval_sec=interval_sec, on_crash=on_crash)
    return HostListener(group, own, message_interval_sec=interval_sec, on_state_change=on_state_change), relay
