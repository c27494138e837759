"""A web server on the loopback that does at each path what a test wants of it."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Site:
    """A server that does at each path what the test wants of it."""

    port: int
    paths: dict[str, Callable[[BaseHTTPRequestHandler], object]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)  # ends whatever still stalls

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def at(self, path: str) -> Callable[[Callable[[BaseHTTPRequestHandler], object]], None]:
        return lambda act: self.paths.update({path: act})


@contextmanager
def serving() -> Iterator[Site]:
    site: Site

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def act(self):
            site.requests.append(f"{self.command} {self.path}")
            site.paths[self.path.partition("?")[0]](self)

        do_GET = do_POST = do_HEAD = act

        def log_message(self, *_):
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_):
            pass  # clients of these tests hang up

    with Server(("127.0.0.1", 0), Handler) as server:
        site = Site(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, args=[0.02])
        thread.start()
        try:
            yield site
        finally:
            site.over.set()
            server.shutdown()
            thread.join()


def answer(handler, body=b"", status=200, length=None, **headers):
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(body) if length is None else length))
    handler.end_headers()
    handler.wfile.write(body)


def hang_up(handler):
    handler.close_connection = True
    handler.wfile.flush()
    handler.connection.shutdown(socket.SHUT_RDWR)
