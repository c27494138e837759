"""Builds what a release consists of: `python -m docs.dist` fills dist/ and prints the files with their sizes.

The container context is what the Dockerfile needs, so that an image is built without a checkout:
`docker build - < dist/pg_dataloader-…-container.tar.gz`.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"


def build(folder: Path) -> list[Path]:
    """Build all files into the folder, which is emptied first; return them."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for target in ("wheel", "sdist"):
        argv = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
        subprocess.run(argv, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    build_container_context(folder)
    return sorted(folder.iterdir())


def build_container_context(folder: Path) -> Path:
    """The Dockerfile and what .dockerignore lets through, always with the same bytes."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    context = folder / f"pg_dataloader-{version}-container.tar.gz"
    with gzip.GzipFile(context, "wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w|") as archive:
        for name in container_files():
            entry = archive.gettarinfo(str(ROOT / name), arcname=name)
            entry.uid = entry.gid = entry.mtime = 0
            entry.uname = entry.gname = ""
            if entry.isreg():
                with (ROOT / name).open("rb") as file:
                    archive.addfile(entry, file)
            else:
                archive.addfile(entry)
    return context


def container_files() -> list[str]:
    """Their names, relative to the checkout."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    names = ["Dockerfile"]
    for top in [line[1:] for line in lines if line.startswith("!")]:
        names.append(top)
        for parent, folders, files in os.walk(ROOT / top):
            folders[:] = sorted(folder for folder in folders if folder != "__pycache__")
            inside = [*folders, *sorted(name for name in files if not name.endswith(".pyc"))]
            names += [str(Path(parent, name).relative_to(ROOT)) for name in inside]
    return sorted(set(names))


if __name__ == "__main__":
    for path in build(DIST):
        print(f"{path.stat().st_size / 1000:8,.0f} kB  {path.relative_to(ROOT)}")  # noqa: T201
