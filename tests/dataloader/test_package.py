"""The package as another project imports it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dataloader
from dataloader._job_fields import REQUEST_FIELDS, TriggerOptions
from tests.support.processes import ROOT, clean_environment


def test_every_public_name_can_be_imported():
    assert all(getattr(dataloader, name) is not None for name in dataloader.__all__)
    with pytest.raises(AttributeError, match="nothing_else"):
        _ = dataloader.nothing_else  # type: ignore[attr-defined]


def test_enqueue_is_a_function_after_its_module_was_imported():
    code = "import dataloader.client\nfrom dataloader import enqueue\nassert callable(enqueue), enqueue"

    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


def test_trigger_options_are_those_of_the_api():
    document = json.loads((ROOT / "docs/openapi.json").read_text(encoding="utf-8"))
    fields = document["components"]["schemas"]["TriggerRequest"]["properties"].keys()

    assert {*TriggerOptions.__annotations__, "task", "args"} == REQUEST_FIELDS.keys() == fields


def test_enqueue_and_register_need_the_standard_library_alone(tmp_path: Path):
    shutil.copytree(ROOT / "dataloader", tmp_path / "dataloader")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import dataloader\n"
        "from dataloader import Context, JobOptions, NotFound, enqueue, register\n"
        "try:\n    dataloader.Client\nexcept ImportError as error:\n    print(error.name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], cwd=tmp_path, check=True, timeout=60, capture_output=True, text=True
    )

    assert done.stdout.split() == ["requests"]


def test_client_works_with_foreign_packages_of_our_names(tmp_path: Path):
    for name in ("app", "workers", "pipelines"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("IS_FOREIGN = True\n", encoding="utf-8")
    code = (
        "import app, workers, pipelines\n"
        "assert app.IS_FOREIGN and workers.IS_FOREIGN and pipelines.IS_FOREIGN\n"
        "from dataloader import Client, ServiceUnavailable, enqueue\n"
        "Client('http://127.0.0.1:1', key='dlk_x')\n"
    )
    environment = {**clean_environment(), "PYTHONPATH": f"{tmp_path}:{ROOT}"}

    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True, timeout=60)
