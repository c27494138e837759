"""A server that answers HTTPS with a certificate of a CA as some clusters have it: without a key usage."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

_EXTENSIONS = """
[req]
distinguished_name = name
[name]
[ca]
basicConstraints = critical, CA:TRUE
subjectKeyIdentifier = hash
[leaf]
subjectAltName = IP:127.0.0.1
authorityKeyIdentifier = keyid
"""


def make_certificates(folder: Path) -> Path:
    """Write `ca.crt`, `leaf.pem` (with its key), and return the path of the first."""
    if shutil.which("openssl") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("openssl is not installed: apt-get install openssl")
        pytest.skip("needs openssl")
    (folder / "extensions").write_text(_EXTENSIONS)
    config = ["-config", "extensions", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    openssl("req", "-x509", *config, "-extensions", "ca", "-subj", "/CN=cluster", "-keyout", "ca.key", "-out", "ca.crt")
    openssl("req", *config, "-subj", "/CN=api", "-keyout", "leaf.key", "-out", "leaf.csr")
    signed = ["-CA", "ca.crt", "-CAkey", "ca.key", "-extfile", "extensions", "-extensions", "leaf", "-out", "leaf.crt"]
    openssl("x509", "-req", "-in", "leaf.csr", "-CAcreateserial", *signed)
    (folder / "leaf.pem").write_bytes((folder / "leaf.crt").read_bytes() + (folder / "leaf.key").read_bytes())
    return folder / "ca.crt"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def do_PATCH(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *_: object) -> None: ...


@contextmanager
def https_server(folder: Path) -> Iterator[str]:
    """The address of a server with `leaf.pem`; it answers each GET and PATCH with `{}`."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "leaf.pem")
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"https://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
