from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
from pathlib import Path

import psycopg2
import pytest

import dataloader.app.postgres.server
from dataloader.app.errors import EmbeddedServerError
from dataloader.app.postgres import EmbeddedServer
from dataloader.app.postgres.binaries import ServerAccount
from dataloader.app.postgres.server import UsageLock, exclusive
from tests.support import PrivateServer, Process, eventually
from tests.support.databases import query_value

QUICK = {"fsync": "off"}


def server_pid(sharer: Process) -> int:
    return int(sharer.wait_for_line("pid ").removeprefix("pid "))


def alive(pid: int) -> bool:
    """Whether it still works; one that ended and was not reaped by its parent yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def assert_gone(pid: int) -> None:
    """The server removes its pid file, for which `pg_ctl stop` waits, a moment before its process ends."""
    eventually(lambda: not alive(pid), message="the server is gone")


def test_what_was_written_is_found_again_at_the_next_start(quick):
    query_value(quick.start(), "CREATE TABLE kept AS SELECT 7 AS number")
    quick.stop()

    assert query_value(quick.start(), "SELECT number FROM kept") == "7"


def test_server_has_private_socket_and_durable_settings(made, postgres_binaries):
    with EmbeddedServer(made, binaries=postgres_binaries) as server:
        assert query_value(server.dsn, "SHOW listen_addresses") == ""
        assert query_value(server.dsn, "SHOW fsync") == "on"
        assert query_value(server.dsn, "SHOW server_encoding") == "UTF8"
        assert (made / "run").stat().st_mode & 0o777 == 0o700
        assert (made / "cluster").stat().st_mode & 0o777 == 0o700


def test_it_shows_what_runs_where(quick, folder):
    assert quick.describe() == f"embedded PostgreSQL, not started, data in {folder / 'data'}"

    quick.start()

    version = query_value(quick.dsn, "SHOW server_version").split()[0]
    assert quick.describe().startswith(f"PostgreSQL {version} (")
    assert str(folder / "data") in quick.describe()


def test_before_the_start_there_is_no_dsn(quick):
    with pytest.raises(EmbeddedServerError, match="call start"):
        _ = quick.dsn


def test_a_second_start_and_a_second_stop_change_nothing(quick):
    dsn = quick.start()
    pid = quick.pid

    assert quick.start() == dsn
    assert quick.pid == pid

    quick.stop()
    quick.stop()
    assert_gone(pid)


def test_server_runs_in_its_own_session(quick):
    quick.start()

    assert os.getsid(quick.pid) != os.getsid(0)


def test_the_last_sharer_stops_the_server(quick, share, folder):
    first = share(folder / "data")
    pid = server_pid(first)
    quick.start()

    assert quick.pid == pid

    first.signal(signal.SIGTERM)
    assert first.wait() == 0
    assert query_value(quick.dsn, "SELECT 1") == "1"

    quick.stop()
    assert_gone(pid)


def test_two_sharers_in_one_process_are_two(quick, made, postgres_binaries):
    with EmbeddedServer(made, binaries=postgres_binaries, settings=QUICK) as other:
        quick.start()
        quick.stop()

        assert query_value(other.dsn, "SELECT 1") == "1"


def test_exit_without_stop_leaves_no_server(share, made):
    only = share(made)
    pid = server_pid(only)

    only.signal(signal.SIGTERM)

    assert only.wait() == 0
    assert_gone(pid)


def test_starters_at_the_same_moment_share_one_server(share, folder):
    sharers = [share(folder / "data") for _ in range(3)]
    pids = {server_pid(sharer) for sharer in sharers}

    for sharer in sharers:
        sharer.signal(signal.SIGTERM)

    assert len(pids) == 1
    assert [sharer.wait() for sharer in sharers] == [0, 0, 0]
    assert_gone(pids.pop())


def test_the_server_of_a_killed_process_is_taken_over(quick, share, folder):
    killed = share(folder / "data")
    pid = server_pid(killed)
    killed.signal(signal.SIGKILL)
    killed.wait()
    assert alive(pid)

    quick.start()
    assert quick.pid == pid

    quick.stop()
    assert_gone(pid)


def test_a_killed_server_is_started_again_with_its_data(server: PrivateServer):
    query_value(server.dsn, "CREATE TABLE kept AS SELECT 7 AS number")
    killed = server.pid
    server.kill()

    server.start()

    assert server.pid != killed
    assert query_value(server.dsn, "SELECT number FROM kept") == "7"


def test_lock_with_reused_pid_delays_no_start(server: PrivateServer):
    server.kill()
    server.embedded.stop()
    data = Path(server.dsn.split()[0].removeprefix("host=")).parent
    account = ServerAccount.choose(data / "cluster")
    stranger = subprocess.Popen(["sleep", "60"], user=account.uid if account.borrowed else None, extra_groups=None)
    try:
        for lock in (data / "cluster" / "postmaster.pid", data / "run" / ".s.PGSQL.5432.lock"):
            _, *rest = lock.read_text().splitlines()
            lock.write_text("\n".join([str(stranger.pid), *rest, ""]))

        server.start()

        assert query_value(server.dsn, "SELECT 1") == "1"
    finally:
        stranger.kill()
        stranger.wait()


def test_processes_that_outlive_a_killed_server_are_named(server: PrivateServer, monkeypatch):
    monkeypatch.setattr(dataloader.app.postgres.server, "START_TIMEOUT_SEC", 0.2)
    busy = psycopg2.connect(server.dsn)
    backend = busy.info.backend_pid
    os.kill(backend, signal.SIGSTOP)
    try:
        server.kill()
        with pytest.raises(EmbeddedServerError, match=f"its processes .*{backend}.* still work"):
            server.start()
    finally:
        os.kill(backend, signal.SIGCONT)
        busy.close()
    monkeypatch.undo()

    server.start()

    assert query_value(server.dsn, "SELECT 1") == "1"


def test_server_that_does_not_answer_is_reported(quick, made, postgres_binaries, monkeypatch):
    with EmbeddedServer(made, binaries=postgres_binaries, settings=QUICK) as frozen:
        monkeypatch.setattr(dataloader.app.postgres.server, "START_TIMEOUT_SEC", 0.2)
        monkeypatch.setattr(dataloader.app.postgres.server, "PROBE_TIMEOUT_SEC", 1)
        pid = frozen.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(EmbeddedServerError, match=f"pid {pid} holds .* does not answer; stop it with"):
                quick.start()
        finally:
            os.kill(pid, signal.SIGCONT)
            monkeypatch.undo()


def test_a_stop_that_hangs_becomes_an_immediate_one(server: PrivateServer, monkeypatch):
    monkeypatch.setattr(dataloader.app.postgres.server, "STOP_TIMEOUT_SEC", 1)
    hanging = psycopg2.connect(server.dsn)
    pid = server.pid
    os.kill(hanging.info.backend_pid, signal.SIGSTOP)

    server.stop()

    assert_gone(pid)
    hanging.close()


def test_a_forked_child_does_not_stop_its_parents_server(made, tmp_path, postgres_binaries):
    code = f"""
import os, socket
from pathlib import Path
from dataloader.app.postgres import EmbeddedServer
def answers():
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(str(data / "run/.s.PGSQL.5432")) == 0
data = Path({str(made)!r})
with EmbeddedServer(data, binaries={postgres_binaries!r}, settings={QUICK!r}) as server:
    child = os.fork()
    if child == 0:
        server.stop()
        os._exit(0)
    os.waitpid(child, 0)
    print("still answers:", answers())
print("at the end:", answers())
"""
    with Process.python(code, output=tmp_path / "out") as process:
        assert process.wait() == 0
    assert process.lines == ["still answers: True", "at the end: False"]


@pytest.mark.parametrize("name", ["l" * 90, "with space, comma and ünlaut"])
def test_long_socket_path_gets_a_short_temp_folder(made, postgres_binaries, name):
    folder = made.rename(made.with_name(name))
    with EmbeddedServer(folder, binaries=postgres_binaries, settings=QUICK) as server:
        socket_folder = Path(server.dsn.split()[0].removeprefix("host="))

        assert socket_folder.name.startswith("dataloader-")
        assert socket_folder.stat().st_mode & 0o777 == 0o700
        assert query_value(server.dsn, "SELECT 1") == "1"

    assert not socket_folder.exists()


def test_a_socket_folder_that_is_a_strangers_is_refused(made, postgres_binaries):
    folder = made.rename(made.with_name("l" * 90))
    with EmbeddedServer(folder, binaries=postgres_binaries, settings=QUICK) as server:
        socket_folder = Path(server.dsn.split()[0].removeprefix("host="))
    socket_folder.symlink_to(folder)
    try:
        with pytest.raises(EmbeddedServerError, match="belongs to someone else"):
            EmbeddedServer(folder, binaries=postgres_binaries, settings=QUICK).start()
    finally:
        socket_folder.unlink()


def test_invalid_server_setting_shows_the_servers_error(made, postgres_binaries):
    wrong = EmbeddedServer(made, binaries=postgres_binaries, settings={**QUICK, "max_connections": "many"})
    with pytest.raises(EmbeddedServerError, match='(?s)did not start .* invalid value .*"max_connections"'):
        wrong.start()

    right = EmbeddedServer(made, binaries=postgres_binaries, settings=QUICK)
    right.start()
    pid = right.pid
    assert pid is not None
    right.stop()

    assert_gone(pid)  # the failed start has kept no share


def test_a_word_that_is_no_setting_is_refused(made, postgres_binaries):
    server = EmbeddedServer(made, binaries=postgres_binaries, settings={**QUICK, "a; b": "on"})

    with pytest.raises(EmbeddedServerError, match="a; b: no name of a PostgreSQL setting"):
        server.start()


def test_a_folder_that_cannot_be_made_is_named(folder, postgres_binaries):
    (folder / "file").touch()

    with pytest.raises(EmbeddedServerError, match="could not be started in .*file/data.*DL_DATA_DIR"):
        EmbeddedServer(folder / "file" / "data", binaries=postgres_binaries).start()


def test_a_log_that_grew_large_is_put_aside(server: PrivateServer, monkeypatch):
    monkeypatch.setattr(dataloader.app.postgres.server, "MAX_LOG_BYTES", 10)
    log = Path(server.dsn.split()[0].removeprefix("host=")).parent / "server.log"
    old = log.read_text()

    server.restart()

    aside = log.with_name("server.log.1").read_text()
    assert aside.startswith(old)
    assert "ready to accept connections" in log.read_text()


def test_a_data_folder_of_another_major_version_is_not_opened(server: PrivateServer):
    server.stop()
    version = Path(server.dsn.split()[0].removeprefix("host=")).parent / "cluster" / "PG_VERSION"
    right = version.read_text()
    version.write_text("99\n")
    try:
        with pytest.raises(EmbeddedServerError, match="made by PostgreSQL 99.*install PostgreSQL 99, or move"):
            server.start()
    finally:
        version.write_text(right)


def test_the_data_folder_decides_which_of_two_versions_opens_it(folder, postgres_binaries):
    with EmbeddedServer(folder / "data", binaries="wheel", settings=QUICK) as made:
        made_by = query_value(made.dsn, "SHOW server_version_num")[:2]

    with EmbeddedServer(folder / "data", binaries="auto", settings=QUICK) as opened:
        assert query_value(opened.dsn, "SHOW server_version_num")[:2] == made_by


def test_only_the_last_share_given_up_is_the_last(tmp_path):
    first, second, third = (UsageLock(tmp_path / "shares") for _ in range(3))

    assert [second.release(), first.release(), third.release()] == [False, False, True]


def test_a_share_can_be_taken_again_after_the_last(tmp_path):
    assert UsageLock(tmp_path / "shares").release()
    assert UsageLock(tmp_path / "shares").release()


def test_forked_child_leaves_its_parents_share(tmp_path):
    parent, other = UsageLock(tmp_path / "shares"), UsageLock(tmp_path / "shares")
    child = multiprocessing.get_context("fork").Process(target=parent.detach)

    child.start()
    child.join(20)
    assert child.exitcode == 0
    assert other.release() is False

    parent.detach()  # closes it, as the kernel does when it kills the parent
    assert UsageLock(tmp_path / "shares").release() is True


def test_lock_timeout_names_the_holder(tmp_path):
    lock = tmp_path / "turn"
    with (
        exclusive(lock, timeout_sec=1),
        pytest.raises(EmbeddedServerError, match=f"see who has {lock} open"),
        exclusive(lock, timeout_sec=0.05),
    ):
        pass

    with exclusive(lock, timeout_sec=0.05):
        pass
