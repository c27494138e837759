from __future__ import annotations

import os
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import dataloader.app.postgres.cluster
import dataloader.app.postgres.server
from dataloader.app.errors import EmbeddedServerError
from dataloader.app.postgres.binaries import Binaries, Choice, ServerAccount, choose_binaries
from dataloader.app.postgres.cluster import SOCKET, Cluster, last_lines
from tests.support import PrivateServer, eventually


@pytest.fixture
def cluster(folder: Path) -> Cluster:
    """Not made yet, and no one's but ours."""
    return Cluster(folder / "cluster", ServerAccount("me", os.geteuid(), os.getegid()))


@pytest.fixture
def programs(folder: Path, postgres_binaries: Choice) -> Binaries:
    account = ServerAccount("me", os.geteuid(), os.getegid())
    return choose_binaries(postgres_binaries, account=account, data_folder=folder, major=None)


@contextmanager
def listener(folder: Path, reply: bytes) -> Iterator[None]:
    """Something on the socket that answers the first message with these bytes, and hangs up."""
    with socket.socket(socket.AF_UNIX) as line:
        line.bind(str(folder / SOCKET))
        line.listen()

        def serve() -> None:
            peer, _ = line.accept()
            with peer:
                peer.recv(1000)
                peer.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join(10)


def refusal(code: bytes) -> bytes:
    body = b"SFATAL\0C" + code + b"\0Mtold in a sentence\0\0"
    return b"E" + struct.pack("!I", len(body) + 4) + body


@pytest.mark.parametrize(
    ("reply", "works"),
    [(refusal(b"57P03"), False), (refusal(b"53300"), True), (b"", False), (b"R", False)],
    ids=["starting up", "too many connections", "hangs up", "hangs up in the middle"],
)
def test_a_server_works_when_it_speaks_to_us(programs, folder, reply, works):
    with listener(folder, reply):
        assert dataloader.app.postgres.server._accepts_connections(programs, folder) is works


def test_a_socket_without_a_listener_does_not_work(programs, folder):
    with socket.socket(socket.AF_UNIX) as line:
        line.bind(str(folder / SOCKET))

    assert dataloader.app.postgres.server._accepts_connections(programs, folder) is False
    assert dataloader.app.postgres.server._accepts_connections(programs, Path()) is False


def test_a_folder_that_is_no_cluster_is_left_alone(cluster):
    cluster.folder.mkdir()

    with pytest.raises(EmbeddedServerError, match="is no PostgreSQL data folder .*; move it away"):
        _ = cluster.major


def test_a_version_that_cannot_be_read_is_shown(cluster):
    cluster.folder.mkdir()
    (cluster.folder / "PG_VERSION").write_text("twelve")

    with pytest.raises(EmbeddedServerError, match="holds no version .*twelve"):
        _ = cluster.major


def test_failed_initdb_leaves_nothing_and_shows_its_error(cluster, folder):
    programs = folder / "bin"
    programs.mkdir()
    (programs / "initdb").write_text("#!/bin/sh\necho 'no space left on device' >&2\nexit 1\n")
    (programs / "initdb").chmod(0o755)

    with pytest.raises(EmbeddedServerError, match="(?s)initdb of PostgreSQL 16.1 .* failed .*no space left"):
        cluster.create(Binaries(programs, "local", "16.1", cluster.account), sync=True)

    assert list(folder.iterdir()) == [programs]


def test_what_an_interrupted_initdb_left_is_cleared_away(folder, postgres_binaries):
    account = ServerAccount.choose(folder / "cluster")
    left_behind = folder / "cluster.new-interrupted"
    left_behind.mkdir()
    made = Cluster(folder / "cluster", account)

    made.create(choose_binaries(postgres_binaries, account=account, data_folder=folder, major=None), sync=False)

    assert not left_behind.exists()
    assert made.major is not None
    assert made.postmaster() is None


@pytest.mark.parametrize("content", ["", "no number\n", "1\n"])
def test_a_pid_file_proves_nothing_by_itself(cluster, content):
    cluster.folder.mkdir()
    (cluster.folder / "postmaster.pid").write_text(content)

    assert cluster.postmaster() is None


def test_locks_of_a_pid_that_is_nobodys_are_left_to_postgresql(cluster, folder):
    gone = subprocess.Popen(["true"])
    gone.wait()
    cluster.folder.mkdir()
    pid_file = cluster.folder / "postmaster.pid"
    pid_file.write_text(f"{gone.pid}\n")

    cluster.clear_leftovers(folder)
    assert pid_file.exists()

    pid_file.write_text("1\n")
    cluster.clear_leftovers(folder)
    assert not pid_file.exists()


def test_where_even_root_may_not_look_the_servers_account_does(server: PrivateServer, monkeypatch):
    def forbidden(path: Path) -> str:
        raise PermissionError(path)

    pid = server.pid
    owner = Path(f"/proc/{pid}").stat()
    account = ServerAccount("owner", owner.st_uid, owner.st_gid)
    monkeypatch.setattr(os, "readlink", forbidden)

    found = Cluster(Path(server.dsn.split()[0].removeprefix("host=")).parent / "cluster", account).postmaster()

    assert (found and found.pid) == (pid if account.borrowed else None)


def test_without_proc_the_name_of_the_process_has_to_do(server: PrivateServer, monkeypatch, tmp_path):
    pid = server.pid
    monkeypatch.setattr(dataloader.app.postgres.cluster, "PROC", tmp_path)

    assert server.embedded.pid == pid

    monkeypatch.undo()
    server.kill()
    monkeypatch.setattr(dataloader.app.postgres.cluster, "PROC", tmp_path)
    server.start()
    eventually(lambda: server.embedded.pid, message="the server runs again")


def test_program_without_output_is_reported():
    assert last_lines("") == "  (no output)"
    assert last_lines("\n".join("abcdefghij")).split() == list("cdefghij")
