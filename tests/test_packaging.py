"""What is installed where: ranges, locks, the wheel, and the Makefile's search for a Python."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.processes import clean_environment
from tests.support.wheel import build_source_distribution, build_wheel

ROOT = Path(__file__).parents[1]
LOCKS = ("requirements.lock", "requirements-dev.lock")


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def extra(name: str) -> list[Requirement]:
    return [Requirement(line) for line in project()["project"]["optional-dependencies"][name]]


def runtime() -> list[Requirement]:
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def locked(name: str) -> dict[str, str]:
    """The packages of a lock with their versions."""
    pins = re.findall(r"^([\w.-]+)(?:\[[\w,-]+\])?==([^\s;]+)", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
    return {canonicalize_name(package): version for package, version in pins}


def test_requirements_txt_and_pyproject_say_the_same():
    assert [str(r) for r in runtime()] == [str(Requirement(line)) for line in project()["project"]["dependencies"]]


@pytest.mark.parametrize("package", ["flask", "gunicorn", "psycopg2-binary", "psycopg2-pool"])
def test_the_fixed_packages_are_required(package):
    assert package in {requirement.name for requirement in runtime()}


def test_no_package_brings_a_second_psycopg2():
    assert not {"psycopg2", "psycopg"} & set(locked("requirements.lock"))
    assert "psycopg2" not in locked("requirements-dev.lock")


def test_the_lock_holds_what_runs_within_the_ranges():
    pins = locked("requirements.lock")

    for requirement in [*runtime(), *extra("embedded")]:
        version = pins.get(canonicalize_name(requirement.name), "nothing")
        assert version != "nothing", f"{requirement} is not locked; run `make lock`"
        assert requirement.specifier.contains(version), f"{requirement} is locked at {version}; run `make lock`"


def test_development_lock_only_adds_to_the_lock():
    pins = locked("requirements-dev.lock")

    assert locked("requirements.lock").items() <= pins.items()
    for requirement in [r for r in [*extra("test"), *extra("dev")] if r.name != "pg-dataloader"]:
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement


def test_the_embedded_server_is_pinned_exactly():
    assert [str(requirement.specifier)[:2] for requirement in extra("embedded")] == ["=="]


def test_development_lock_names_required_extras():
    """pip before 23.3 takes the newest `a[b]` where a lock pins only `a`, and then refuses it for want of a hash."""
    lines = (ROOT / "requirements-dev.lock").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line.split(";")[0].rstrip(" \\")) for line in lines if re.match(r"[\w.-]+(\[|==)", line)]
    extras = {canonicalize_name(pin.name): pin.extras for pin in pins}
    needs = [Requirement(line) for name in extras for line in requires_of(name)]
    active = [need for need in needs if need.extras and (need.marker is None or need.marker.evaluate({"extra": ""}))]

    assert any(need.name == "coverage" for need in active)
    assert not [str(need) for need in active if not need.extras <= extras[canonicalize_name(need.name)]]


def requires_of(package: str) -> list[str]:
    try:
        return metadata.requires(package) or []
    except metadata.PackageNotFoundError:  # of another system
        return []


@pytest.mark.parametrize("lock", LOCKS)
def test_every_package_of_a_lock_has_its_hashes(lock):
    entries = re.split(r"\n(?=[\w.-]+(?:\[[\w,-]+\])?==)", (ROOT / lock).read_text(encoding="utf-8"))[1:]

    assert len(entries) > 20
    assert [entry.splitlines()[0] for entry in entries if "--hash=sha256:" not in entry] == []


@pytest.mark.parametrize("name", [*LOCKS, "requirements.txt", "Makefile"])
def test_no_registry_is_named(name):
    text = (ROOT / name).read_text(encoding="utf-8").replace("http://127.0.0.1", "")

    # Those of the Makefile that keep addresses out are welcome.
    assert re.findall(r"https?://|file:|(?<!no-emit)-index-url|(?<!no-emit)-find-links", text) == []


def test_wheel_has_one_top_level_package(wheel_path):
    version = project()["project"]["version"]

    assert {name.partition("/")[0] for name in zipfile.ZipFile(wheel_path).namelist()} == {
        "dataloader", f"pg_dataloader-{version}.dist-info",
    }  # fmt: skip


def test_wheel_has_all_files_of_the_package(wheel_path):
    names = {name for name in zipfile.ZipFile(wheel_path).namelist() if name.startswith("dataloader/")}
    files = {
        str(Path(parent, name).relative_to(ROOT))
        for parent, _, found in os.walk(ROOT / "dataloader", followlinks=True)
        for name in found
        if not name.endswith(".pyc")
    }

    assert names == files
    assert names >= {
        "dataloader/py.typed", "dataloader/schema.sql", "dataloader/wsgi.py", "dataloader/gunicorn_conf.py",
        "dataloader/app/queue/jobs.sql", "dataloader/app/ui/templates/layout.html",
        "dataloader/app/ui/static/dashboard.css", "dataloader/app/db/migrations/0003.sql",
        "dataloader/app/features/doctor/catalogue.json", "dataloader/workers/pool.py",
        "dataloader/pipelines/tenera/tables.sql",
    }  # fmt: skip


def test_wheel_has_all_licences(wheel_path):
    names = zipfile.ZipFile(wheel_path).namelist()

    assert {re.sub(r".*/licenses/", "", name) for name in names if "/licenses/" in name} == {
        "LICENSE",
        "NOTICE",
        *(f"dataloader/app/ui/static/vendor/{one}.LICENSE" for one in ("dagre", "htmx", "pico", "uplot")),
    }


def test_wheel_of_source_distribution_is_the_same(wheel_path, tmp_path):
    shutil.unpack_archive(build_source_distribution(tmp_path / "sdist"), tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()

    assert contents(build_wheel(tmp_path / "wheel", source)) == contents(wheel_path)


def contents(wheel: Path) -> dict[str, int]:
    return {entry.filename: entry.CRC for entry in zipfile.ZipFile(wheel).infolist()}


def test_links_of_checkout_lead_to_the_top_level():
    package = ROOT / "dataloader"

    assert {path.name: os.readlink(path) for path in package.iterdir() if path.is_symlink()} == {
        "app": "../app",
        "gunicorn_conf.py": "../gunicorn.conf.py",
        "pipelines": "../pipelines",
        "schema.sql": "../schema.sql",
        "workers": "../workers",
    }
    assert all((package / name / "__init__.py").samefile(ROOT / name / "__init__.py") for name in ("app", "workers"))


def test_make_names_missing_links(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "dataloader").mkdir()
    (tmp_path / "dataloader/app").write_text("../app")  # as git does where core.symlinks is false

    done = subprocess.run(
        ["make", "--no-print-directory", ".venv/bin/python"],
        cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip

    assert done.returncode != 0
    assert done.stderr.startswith("dataloader/app does not lead to the folder app")
    assert "core.symlinks=true" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_an_installed_wheel_runs_without_the_checkout(wheel_path, tmp_path):
    with zipfile.ZipFile(wheel_path) as archive:
        archive.extractall(tmp_path / "site")
    code = (
        "from dataloader.app import cli; from dataloader.app.db.schema import schema_text; "
        "print(cli.__file__, len(schema_text()))"
    )
    env = {**clean_environment(), "PYTHONPATH": str(tmp_path / "site")}

    def result(*argv: str) -> str:
        done = subprocess.run(
            [sys.executable, *argv], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert result("-c", code).startswith(str(tmp_path / "site"))
    assert "serve" in result("-m", "dataloader", "--help")


def put_python(folder: Path, name: str, script: str) -> str:
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


def make_venv(folder: Path, *pythons: str) -> subprocess.CompletedProcess[str]:
    venv = folder / "venv"
    argv = ["make", "--no-print-directory", f"VENV={venv}", f"PYTHONS={' '.join(pythons)}", f"{venv}/bin/python"]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)


def test_make_passes_by_a_python_that_only_seems_to_be_there(tmp_path):
    shim = put_python(tmp_path, "python3.13", "echo 'pyenv: python3.13: command not found' >&2; exit 127")
    right = put_python(
        tmp_path,
        "python3.12",
        f'case "$*" in *"-m venv"*) mkdir -p {tmp_path}/venv/bin; touch {tmp_path}/venv/bin/python;; '
        '--version) echo "Python 3.12.9";; esac',
    )

    done = make_venv(tmp_path, "no-such-python", shim, right)

    assert done.returncode == 0, done.stderr
    assert done.stdout == f"Making {tmp_path}/venv with Python 3.12.9…\n"


def make_installed(folder: Path, body: str) -> subprocess.CompletedProcess[str]:
    """`make .venv/.installed` where `python -m pip` is a program of the test's."""
    venv = folder / "venv"
    (venv / "bin").mkdir(parents=True)
    put_python(venv / "bin", "python", body)
    argv = ["make", "--no-print-directory", f"VENV={venv}", f"{venv}/.installed"]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)


def test_make_hides_pip_warnings_when_install_succeeds(tmp_path):
    done = make_installed(tmp_path, "echo 'Collecting flask'; echo 'WARNING: Location is ignored' >&2")

    assert done.returncode == 0, done.stderr
    assert done.stdout == "Installing requirements.lock: this takes a minute or two, once…\n"
    assert done.stderr == ""


def test_make_shows_all_pip_output_when_install_fails(tmp_path):
    done = make_installed(tmp_path, "echo 'Collecting flask'; echo 'ERROR: no matching distribution' >&2; exit 3")

    assert done.returncode != 0
    for line in ("Collecting flask", "ERROR: no matching distribution", "pip failed with exit code 3"):
        assert line in done.stderr
    assert not (tmp_path / "venv" / ".installed").exists()


def test_make_says_what_it_found_when_no_python_will_do(tmp_path):
    old = put_python(tmp_path, "python3", 'case "$*" in *version_info*) exit 1;; --version) echo "Python 3.9.2";; esac')

    done = make_venv(tmp_path, "no-such-python", old)

    assert done.returncode != 0
    assert f"{old}: Python 3.9.2" in done.stderr
    assert "no-such-python:" not in done.stderr
    assert "make run PYTHON=/path/to/python3" in done.stderr
