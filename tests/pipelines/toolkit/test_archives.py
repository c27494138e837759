"""Archives of many files: each lands in its folder, or the archive is refused."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path
from typing import Literal

import pytest

from dataloader.pipelines.contract import Stop
from dataloader.pipelines.toolkit.archives import extract
from dataloader.pipelines.toolkit.errors import BrokenArchive, ExpandsTooMuch, UnsafePath
from dataloader.pipelines.toolkit.unpack import Bounds

CONTENT = {"a.csv": b"1;2", "below/b.csv": b"3;4" * 50_000, "below/deeper/c.csv": b""}
ELSEWHERE = ["../a", "/etc/passwd", "below/../../a", "C:\\a", "..\\a", "below//a", "./a", "nul", "a\x01b", ".hidden"]


def as_zip(path: Path, content: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.mkdir("below") if len(content) > 1 else None
        for name, data in content.items():
            packed.writestr(name, data)
    return path


def as_tar(path: Path, content: dict[str, bytes], mode: Literal["w:gz", "w:bz2", "w:xz", "w:"] = "w:gz") -> Path:
    with tarfile.open(path, mode) as packed:
        for name, data in content.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            packed.addfile(info, io.BytesIO(data))
    return path


@pytest.mark.parametrize("pack", [as_zip, as_tar])
def test_every_file_lands_where_its_name_says_below_the_folder(tmp_path, pack):
    folder = tmp_path / "out"

    paths = list(extract(pack(tmp_path / "a", CONTENT), folder))

    assert {str(path.relative_to(folder)): path.read_bytes() for path in paths} == CONTENT


@pytest.mark.parametrize("pack", [as_zip, as_tar])
@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_name_that_leads_elsewhere_is_refused(tmp_path, pack, name):
    folder = tmp_path / "out"
    folder.mkdir()

    with pytest.raises(UnsafePath):
        list(extract(pack(tmp_path / "a", {name: b"x"}), folder))

    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("pack", [as_zip, as_tar])
@pytest.mark.parametrize("names", [("a", "a/b"), ("a", "a/b/c"), ("a/b", "a"), ("a/b", "a/b/c/d")], ids=" then ".join)
def test_name_that_is_file_and_folder_is_refused(tmp_path, pack, names):
    archive = pack(tmp_path / "packed", dict.fromkeys(names, b"x"))

    with pytest.raises(UnsafePath, match="already"):
        list(extract(archive, tmp_path / "out"))


def test_folder_of_the_caller_that_is_a_file_is_no_unsafe_path(tmp_path):
    (tmp_path / "out").touch()

    with pytest.raises(FileExistsError):
        list(extract(as_zip(tmp_path / "packed", {"a": b"x"}), tmp_path / "out"))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_of_a_tar_are_refused(tmp_path, kind):
    with tarfile.open(tmp_path / "a", "w") as packed:
        info = tarfile.TarInfo("link")
        info.type, info.linkname = kind, "/etc/passwd"
        packed.addfile(info)

    with pytest.raises(UnsafePath, match="no plain file"):
        list(extract(tmp_path / "a", tmp_path / "out"))


def test_a_link_of_a_zip_is_refused(tmp_path):
    info = zipfile.ZipInfo("link")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a", "w") as packed:
        packed.writestr(info, "/etc/passwd")

    with pytest.raises(UnsafePath, match="no plain file"):
        list(extract(tmp_path / "a", tmp_path / "out"))


def test_a_file_is_not_written_through_a_link_that_is_there(tmp_path):
    folder, secret = tmp_path / "out", tmp_path / "secret"
    folder.mkdir()
    secret.write_text("kept")
    (folder / "a.csv").symlink_to(secret)

    with pytest.raises(UnsafePath):
        list(extract(as_zip(tmp_path / "a", {"a.csv": b"x"}), folder))

    assert secret.read_text() == "kept"


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_comes_twice_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a", "w") as packed:
        packed.writestr("a", "1")
        packed.writestr("a", "2")

    with pytest.raises(UnsafePath, match="comes twice"):
        list(extract(tmp_path / "a", tmp_path / "out"))


def test_bomb_is_refused_by_bytes_ratio_and_member_count(tmp_path):
    bomb = as_zip(tmp_path / "bomb", {"zeros": bytes(100_000_000)})
    many = as_tar(tmp_path / "many", {f"f{n}": b"" for n in range(20)})

    with pytest.raises(ExpandsTooMuch, match="more than the 1000000 bytes"):
        list(extract(bomb, tmp_path / "one", bounds=Bounds(expanded_bytes=1_000_000)))
    with pytest.raises(ExpandsTooMuch, match="more than the 100 to 1"):
        list(extract(bomb, tmp_path / "two", bounds=Bounds(ratio=100)))
    with pytest.raises(ExpandsTooMuch, match="more than the 10 members"):
        list(extract(many, tmp_path / "three", max_members=10))


@pytest.mark.parametrize("damage", ["cut", "none", "flipped"])
def test_damaged_archive_is_reported(tmp_path, damage):
    data = bytearray(as_zip(tmp_path / "a", {"a": bytes(range(256)) * 1000}).read_bytes())
    if damage == "flipped":
        data[60] ^= 0xFF
    (tmp_path / "a").write_bytes({"cut": data[:200], "none": b"no archive", "flipped": bytes(data)}[damage])

    with pytest.raises(BrokenArchive):
        list(extract(tmp_path / "a", tmp_path / "out"))


def test_stop_arrives_between_pieces(tmp_path, fake_context):
    with pytest.raises(Stop):
        list(extract(as_zip(tmp_path / "a", {"a": bytes(10_000_000)}), tmp_path / "out", ctx=fake_context(stop_at=3)))
