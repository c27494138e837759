"""What a release consists of: its files, and the name by which it is installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.utils import canonicalize_name

from dataloader._distribution import NAME
from docs import dist, sbom
from tests.support import free_port
from tests.support.processes import clean_environment
from tests.test_packaging import locked, project

ROOT = Path(__file__).parents[1]
# A command, with options and other packages before it.
_INSTALL = re.compile(
    r"\b(pip|pipx|uv|uvx) (tool )?(install|add|run)( [\w'\".\[\],=<>/-]+)*? ['\"]?dataloader(\[|['\"`\s]|$)"
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By the end of their names."""
    version = project()["project"]["version"]
    built = dist.build(tmp_path_factory.mktemp("release") / "dist")
    return {path.name.removeprefix(f"pg_dataloader-{version}"): path for path in built}


def test_release_has_three_files(files):
    assert set(files) == {".tar.gz", "-container.tar.gz", "-py3-none-any.whl"}


def test_bill_of_materials_is_current():
    assert sbom.FILE.read_text(encoding="utf-8") == sbom.text(), "run python -m docs.sbom"


def test_wheel_has_its_bill_of_materials(files):
    (name,) = [it for it in zipfile.ZipFile(files["-py3-none-any.whl"]).namelist() if ".dist-info/sboms/" in it]
    bill: dict[str, Any] = json.loads(zipfile.ZipFile(files["-py3-none-any.whl"]).read(name))

    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["purl"] == f"pkg:pypi/{NAME}@{project()['project']['version']}"
    packages = {it["name"]: it["version"] for it in bill["components"] if it["purl"].startswith("pkg:pypi/")}
    assert {canonicalize_name(package): version for package, version in packages.items()} == locked("requirements.lock")
    assert {it["name"] for it in bill["components"]} >= {"htmx.org", "@picocss/pico", "uplot"}
    references = [it["bom-ref"] for it in bill["components"]]
    assert len(references) == len({*references})
    assert set(bill["dependencies"][0]["dependsOn"]) <= {*references}
    assert len(bill["dependencies"][0]["dependsOn"]) >= len(project()["project"]["dependencies"])


def test_container_context_has_what_the_dockerfile_copies(files, tmp_path):
    with tarfile.open(files["-container.tar.gz"]) as archive:
        archive.extractall(tmp_path, filter="data")
    lines = re.findall(r"^COPY (?!--from)(.*) \S+$", (tmp_path / "Dockerfile").read_text(), re.MULTILINE)
    copied = " ".join(lines).split()

    assert len(copied) > 8
    assert [name for name in copied if not (tmp_path / name).exists()] == []
    assert (tmp_path / "dataloader/app").resolve() == tmp_path / "app"  # a link, as in the checkout
    assert list(tmp_path.rglob("__pycache__")) == []
    tracked = subprocess.run(["git", "ls-files", *copied], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [name for name in tracked.splitlines() if not (tmp_path / name).exists()] == []


def test_container_context_has_the_same_bytes_again(files, tmp_path):
    assert dist.build_container_context(tmp_path).read_bytes() == files["-container.tar.gz"].read_bytes()


def test_nothing_tells_to_install_another_project():
    """`dataloader` on the public index is not ours."""
    kinds = ("*.md", "*.py", "*.html", "*.toml", "*.sql", "*.yaml", "Dockerfile", "Makefile")
    argv = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *kinds]
    names = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    found = [
        (name, line)
        for name in names
        if (ROOT / name).exists() and not (ROOT / name).is_symlink()
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines()
        if _INSTALL.search(line)
    ]

    assert len(names) > 1000
    assert found == []


@pytest.mark.full
@pytest.mark.timeout(400)
def test_demo_runs_from_the_wheel_alone(files, tmp_path):
    """In an empty folder, with what the public index has: `uvx --from FILE pg-dataloader demo`."""
    uv = Path(sys.executable).with_name("uv")
    wheel = f"{files['-py3-none-any.whl']}[embedded]"
    argv = [str(uv), "tool", "run", "--python", sys.executable, "--from", wheel, NAME]
    env = {**clean_environment(), "UV_CACHE_DIR": str(tmp_path / "cache"), "HOME": str(tmp_path)}

    done = subprocess.run(
        [*argv, "demo", "--minutes", "0.01", "--no-browser", "--port", str(free_port())],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=380, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert "dataloader demo is ready at http://127.0.0.1:" in done.stdout
