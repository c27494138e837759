"""TLS to PostgreSQL by libpq's own settings: a server is known by its certificate, an impostor is not spoken to."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import randrange

import pytest
from psycopg2.extensions import make_dsn, parse_dsn

from dataloader.app.db.pool import Pool
from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.postgres import EmbeddedServer
from dataloader.app.postgres.binaries import Choice
from dataloader.app.postgres.cluster import PORT
from tests.support.certificates import make_certificates
from tests.support.private_server import copy_data_dir

pytestmark = pytest.mark.skipif(
    (shutil.which("openssl") is None and os.environ.get("CI") != "true") or sys.platform != "linux",  # the check has it
    reason="makes its certificates with openssl, and takes an address of the loopback that only Linux gives",
)


@pytest.fixture
def tls_dsn(run_folder: Path, ready_made: Path, postgres_binaries: Choice) -> Iterator[tuple[str, Path]]:
    """A server that takes TCP over TLS alone, and the folder with the certificates."""
    folder = copy_data_dir(ready_made, Path(tempfile.mkdtemp(prefix="tls-", dir=run_folder)))
    make_certificates(folder)
    account = (folder / "cluster").stat()
    (folder / "server.key").chmod(0o600)
    os.chown(folder / "server.key", account.st_uid, account.st_gid)
    hba = folder / "cluster" / "pg_hba.conf"
    hba.write_text("hostnossl all all all reject\nhostssl all all 127.0.0.0/8 trust\n" + hba.read_text())
    address = (
        f"127.{randrange(1, 250)}.{randrange(250)}.{randrange(1, 250)}"  # a server of the test's own has no own port
    )
    settings = {
        "listen_addresses": address, "ssl": "on",
        "ssl_cert_file": str(folder / "server.crt"), "ssl_key_file": str(folder / "server.key"),
    }  # fmt: skip
    with EmbeddedServer(folder, binaries=postgres_binaries, settings=settings) as server:
        known = parse_dsn(server.dsn)
        yield (
            make_dsn("", host="localhost", hostaddr=address, port=PORT, dbname=known["dbname"], user=known["user"]),
            folder,
        )
    shutil.rmtree(folder, ignore_errors=True)


def ping(dsn: str, **tls: str) -> list[tuple[object, ...]]:
    pool = Pool(make_dsn(dsn, **tls), size=1, overflow=0)
    try:
        return pool.execute("ping")
    finally:
        pool.close()


def test_service_refuses_a_server_with_a_foreign_certificate(tls_dsn):
    dsn, folder = tls_dsn

    assert ping(dsn, sslmode="verify-full", sslrootcert=str(folder / "ca.crt"))
    with pytest.raises(DatabaseUnavailable, match="certificate verify failed"):
        ping(dsn, sslmode="verify-full", sslrootcert=str(folder / "other.crt"))
    with pytest.raises(DatabaseUnavailable, match="does not match host name"):
        ping(dsn, sslmode="verify-full", sslrootcert=str(folder / "ca.crt"), host="elsewhere")
    with pytest.raises(DatabaseUnavailable, match=r"rejects connection.*no encryption"):
        ping(dsn, sslmode="disable")
