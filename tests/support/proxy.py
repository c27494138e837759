"""A TCP port in front of a server's Unix socket, which can fall silent: connections stay, and nothing comes through."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading

from psycopg2.extensions import make_dsn, parse_dsn


class SilentProxy:
    """`dsn` leads through it; `silence()` lets it swallow everything; a context manager."""

    def __init__(self, dsn: str) -> None:
        self._target = parse_dsn(dsn)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.dsn: str = make_dsn(**{**self._target, "host": "127.0.0.1", "port": self.port})
        self._silent = threading.Event()  # set by the test, read by the threads of connections
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def silence(self) -> None:
        self._silent.set()

    def resume(self) -> None:
        self._silent.clear()

    def _connect_server(self) -> socket.socket:
        host, port = self._target.get("host", "/tmp"), self._target.get("port", "5432")
        if not host.startswith("/"):
            return socket.create_connection((host, int(port)))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = self._connect_server()
                self._sockets += [client, server]
                threading.Thread(target=self._forward, args=(client, server), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        others = {client: server, server: client}
        # ValueError: they were cut before they were registered.
        with contextlib.suppress(OSError, ValueError), selectors.DefaultSelector() as ready:
            for end in others:
                ready.register(end, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select():
                    came_by = next(end for end in others if end is key.fileobj)
                    result = came_by.recv(65536)
                    if not result:
                        raise OSError("the other end has gone")
                    if not self._silent.is_set():
                        others[came_by].sendall(result)
        for end in others:
            end.close()

    def __enter__(self) -> SilentProxy:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for end in [self._listener, *self._sockets]:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class HangUpServer:
    """A TCP port that takes connections and ends them without a word; `before(dsn)` puts it first among the hosts."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.accepted_count = 0  # by its thread alone
        threading.Thread(target=self._accept, daemon=True).start()

    def dsn_before(self, dsn: str) -> str:
        """This port, and then where the DSN leads."""
        target = parse_dsn(dsn)
        hosts = f"127.0.0.1,{target.get('host', '/tmp')}"
        return str(make_dsn(**{**target, "host": hosts, "port": f"{self.port},{target.get('port', '5432')}"}))

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.accepted_count += 1
                client.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def __enter__(self) -> HangUpServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
