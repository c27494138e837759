"""The tutorial with files, from the wheel alone: in an environment and a folder that have nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from dataloader._distribution import NAME
from tests.support import Process, free_port
from tests.support.checkout import python_blocks, shell_blocks
from tests.support.processes import ROOT, clean_environment

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

UV = Path(sys.executable).with_name("uv")
TUTORIAL = (ROOT / "docs/tutorial-file.md").read_text(encoding="utf-8")


def without_checkout(block: str) -> str:
    """As the tutorial says: with the package installed, these two are other words."""
    return block.replace("make run", "dataloader serve").replace(".venv/bin/dataloader", "dataloader")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Any account may look into it: root starts the server as another one."""
    with TemporaryDirectory(prefix="dl-ten-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def run(argv: list[str], folder: Path, env: Mapping[str, str]) -> str:
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{argv}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_tutorial_works_with_the_wheel_alone(wheel_path: Path, folder: Path):
    environment, work = folder / "environment", folder / "work"
    work.mkdir()
    env = clean_environment() | {"PATH": f"{environment}/bin:{os.environ['PATH']}", "HOME": str(folder)}
    run([str(UV), "venv", "--python", sys.executable, str(environment)], folder, env)
    run([str(UV), "pip", "install", "--python", f"{environment}/bin/python", f"{wheel_path}[embedded]"], folder, env)
    port = free_port()
    env |= {"APP_PORT": str(port), "DL_URL": f"http://127.0.0.1:{port}"}
    (task,) = python_blocks(TUTORIAL)
    prepare, start, *blocks = map(without_checkout, shell_blocks(TUTORIAL))

    run(["sh", "-euc", prepare], work, env)
    (work / "my_etl/orders.py").write_text(task, encoding="utf-8")
    with Process(["sh", "-c", f"exec env {start}"], output=folder / "output", env=env, cwd=work) as service:
        service.wait_for_line("is ready at", 120)
        one_day, three_days, wrong, corrected, daily = [run(["sh", "-euc", block], work, env) for block in blocks]
        os.killpg(service.pid, signal.SIGINT)
        assert service.wait(60) == 0

    assert "orders" in one_day
    assert "2 of 3 slices" in three_days
    assert "could not convert string to float: 'seven'" in wrong
    assert "succeeded" in corrected
    assert "load.shop_orders is on; next " in daily
    assert {path.name for path in work.iterdir()} == {"my_etl", "orders", ".data"}


def test_pipx_runs_the_command_of_the_wheel(wheel_path: Path, folder: Path):
    """By the name of the distribution, as its console script is called."""
    env = clean_environment() | {"HOME": str(folder), "PIPX_HOME": str(folder / "pipx"), "PATH": os.environ["PATH"]}
    pipx = [str(UV), "tool", "run", "--python", sys.executable, "pipx"]

    assert "dataloader" in run([*pipx, "run", "--spec", str(wheel_path), NAME, "--version"], folder, env)
