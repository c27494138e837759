"""A real PgBouncer in front of a server, in transaction mode."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from psycopg2.extensions import make_dsn, parse_dsn

from tests.support.processes import Process, free_port

_CONFIGURATION = """
[databases]
* = {target}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {pool_size}
query_wait_timeout = {query_wait_timeout}
max_client_conn = 200
logfile =
pidfile =
"""


def find_pgbouncer() -> str:
    """Where PgBouncer is. Without one a laptop skips; the check fails, for there it must be."""
    found = shutil.which("pgbouncer", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail("PgBouncer is not installed: apt-get install pgbouncer")
        pytest.skip("needs PgBouncer: apt-get install pgbouncer")
    return found


@contextmanager
def running_pgbouncer(
    dsn: str, folder: Path, mode: str = "transaction", *, pool_size: int = 4, query_wait_timeout: int = 120
) -> Iterator[str]:
    """The DSN by which a PgBouncer of this test's own leads to the server of `dsn`; it ends with the block."""
    path, port, given = find_pgbouncer(), free_port(), parse_dsn(dsn)
    target = " ".join(f"{key}={given[key]}" for key in ("host", "port", "user", "password") if key in given)
    place = Path(tempfile.mkdtemp(prefix="bouncer-", dir=folder))
    place.chmod(0o755)
    file = place / "pgbouncer.ini"
    values = {"port": port, "mode": mode, "pool_size": pool_size, "query_wait_timeout": query_wait_timeout}
    file.write_text(_CONFIGURATION.format(target=target, **values), encoding="utf-8")
    command = [path, str(file)]
    with Process(command, output=place / "output.log", user=_server_account(given.get("host", ""))) as process:
        process.wait_for_port(port)
        yield make_dsn(host="127.0.0.1", port=port, user="anybody", dbname=given["dbname"])
        process.signal(signal.SIGINT)  # do not wait for clients
        process.wait(20)


def _server_account(host: str) -> int | str | None:
    """Whose it is: it refuses to be root's, and an embedded server's socket is for the server's account alone."""
    if os.getuid() != 0:
        return None
    return Path(host).stat().st_uid if host.startswith("/") else "nobody"
