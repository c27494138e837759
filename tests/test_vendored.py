"""What others have written and we bring along is, byte for byte, what the manifest next to it says it is."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = [ROOT / "app/ui/static/vendor", ROOT / "tests/browser/vendor"]


def result(folder: Path) -> list[dict[str, Any]]:
    manifest: list[dict[str, Any]] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return manifest


def named(folder: Path) -> dict[str, str]:
    """Every file that the manifest names, with its hash."""
    return {
        it["file"]: it["sha256"] for brought in result(folder) for it in [brought["licence_text"], *brought["files"]]
    }


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.relative_to(ROOT).as_posix())
def test_vendored_files_are_those_of_the_manifest_and_no_others(folder: Path):
    there = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }

    assert there == named(folder)


def test_nothing_is_vendored_elsewhere():
    minified = {path.parent for room in ("app", "docs", "tests") for path in (ROOT / room).rglob("*.min.*")}

    assert minified <= set(FOLDERS)


def test_notice_lists_version_and_licence_of_each():
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    brought = [one for folder in FOLDERS for one in result(folder)]

    assert len(brought) == 5
    for one in brought:
        line = f"  {one['name']} {one['version']} ({one['licence']}): {one['licence_text']['file']}\n"
        assert line in notice, line


@pytest.mark.parametrize(("file", "version"), [("pico.min.css", "v2.1.1"), ("uplot.min.js", "(v1.6.32)")])
def test_the_files_themselves_say_the_version_of_the_manifest(file: str, version: str):
    assert version in (FOLDERS[0] / file).read_text(encoding="utf-8")[:400]
