from pathlib import Path

import pytest

from dataloader.pipelines.toolkit.errors import UnsafePath
from dataloader.pipelines.toolkit.paths import inside, safe_name


@pytest.mark.parametrize("name", ["rates.xml", "выгрузка 2024-01-31.zst", "a..b", "ё" * 100])
def test_an_ordinary_name_is_kept_as_it_is(name):
    assert safe_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../etc/passwd", "/etc/passwd", "a/b", "a\\b", "a\0b", "a\nb", ".bashrc", "-rf", "C:x", "nul.txt",
     "trailing.", "trailing ", " leading", "\ud800", "x" * 201],
)  # fmt: skip
def test_a_name_that_could_be_something_else_is_refused(name):
    with pytest.raises(UnsafePath) as refused:
        safe_name(name)

    assert "cannot name a file" in str(refused.value)


def test_a_path_stays_inside_its_folder(tmp_path):
    assert inside(tmp_path, "2024", "rates.xml") == tmp_path / "2024" / "rates.xml"


def test_a_symbolic_link_does_not_lead_out_of_the_folder(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "elsewhere").symlink_to(Path("/"))

    with pytest.raises(UnsafePath, match="symbolic link"):
        inside(folder, "elsewhere", "etc")
