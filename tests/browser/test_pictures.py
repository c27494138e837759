"""The pictures of the documentation are taken from the demo by docs/pictures.py, which `make pictures` runs."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from docs import pictures, webp
from docs.film import Frame, encode, open_film
from tests.support.processes import ROOT

pytestmark = [pytest.mark.browser, pytest.mark.full]


def uint24(data: bytes) -> int:
    return int.from_bytes(data, "little")


def frame_times(file: bytes) -> list[int]:
    """Milliseconds of each frame of an animated WebP file."""
    return [uint24(data[12:15]) for name, data in webp.chunks(file) if name == b"ANMF"]


def test_kept_pictures_are_those_that_pages_show():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    text = "".join(path.read_text(encoding="utf-8") for path in pages)

    assert [path.name for path in pictures.IMAGES.iterdir() if f"images/{path.name}" not in text] == []
    film = (pictures.IMAGES / pictures.FILM).read_bytes()
    assert len(film) <= 2_000_000
    assert 15_000 < sum(frame_times(film)) < 60_000


@pytest.mark.timeout(400)
def test_pictures_can_be_taken_from_the_demo(browser: Browser, tmp_path: Path):
    with pictures.running_demo() as demo:
        pictures.take_pictures(browser, demo, tmp_path)

    kept = {path.name for path in pictures.IMAGES.iterdir() if path.suffix != ".svg"}
    assert {path.name for path in tmp_path.iterdir()} == kept
    assert len(frame_times((tmp_path / pictures.FILM).read_bytes())) > 15


def test_encoded_frames_have_their_differences(browser: Browser):
    film = open_film(browser)
    for left in (10, 10, 401):
        film.page.set_content(
            f"<div style='position:absolute;left:{left}px;top:51px;width:9px;height:9px;background:red'>"
        )
        film.take(700)
    frames = [*film.frames, Frame(film.frames[-1].png, 300, "its line")]

    file = encode(browser, frames)

    assert file[:4] == b"RIFF"
    assert struct.unpack("<I", file[4:8]) == (len(file) - 8,)
    assert frame_times(file) == [1400, 700, 300], "an equal frame prolongs the one before"
    parts = [data for name, data in webp.chunks(file) if name == b"ANMF"]
    assert [2 * uint24(data[:3]) for data in parts] == [0, 10, 18]
    assert uint24(parts[1][6:9]) + 1 == 401 + 9 - 10
