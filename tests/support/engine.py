"""A Docker engine for tests, and the blocks of docs/deploying.md that they run. DOCKER_HOST may name the engine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.processes import ROOT

IMAGE = "dataloader:local"


def docker(*words: str | Path, check: bool = True) -> str:
    done = subprocess.run(
        ["docker", *map(str, words)],
        env={**os.environ, "DOCKER_BUILDKIT": "0"}, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0 or not check, f"docker {' '.join(map(str, words))}:\n{done.stdout[-4000:]}{done.stderr}"
    return done.stdout + done.stderr


def require_engine(*images: str) -> None:
    """Skip where there is no engine, or an image is neither there nor to be had: machines of CI reach no registry."""
    if shutil.which("docker") is None or "Server Version" not in docker("info", check=False):
        pytest.skip("needs a Docker engine; DOCKER_HOST may name one")
    for image in images:
        if not docker("images", "--quiet", image).strip() and "Error" in docker("pull", image, check=False):
            pytest.skip(f"needs the image {image}, and reaches no registry")


def base_image() -> str:
    """The image that Dockerfile starts from."""
    (image,) = re.findall(r"^ARG PYTHON_IMAGE=(\S+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    return str(image)


def build_image() -> str:
    docker("build", "--network=host", f"--tag={IMAGE}", ROOT)
    return IMAGE


def code_block(language: str, heading: str) -> str:
    """The first block of the language after the text in docs/deploying.md."""
    page = (ROOT / "docs/deploying.md").read_text(encoding="utf-8")
    before, _, after = page.partition(heading)
    assert after, f"docs/deploying.md has no {heading!r} after {before[-40:]!r}"
    return after.partition(f"```{language}\n")[2].partition("```")[0]


def yaml_blocks(heading: str) -> Sequence[str]:
    """The blocks of YAML after the text in docs/deploying.md, up to the next heading."""
    page = (ROOT / "docs/deploying.md").read_text(encoding="utf-8")
    return re.findall(
        r"^```yaml\n(.*?)^```", page.partition(heading)[2].partition("\n## ")[0], re.DOTALL | re.MULTILINE
    )
