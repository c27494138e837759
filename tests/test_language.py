"""Names, comments, docstrings, messages, pages and templates use the words that CONTRIBUTING.md asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.language import CODE_FOLDERS, files, refused_names, refused_words


@pytest.mark.parametrize("folder", [*CODE_FOLDERS, "."])
def test_prose_has_no_refused_word(folder: str):
    assert [
        str(place) for path in _files_of(folder, ".py", ".sql", ".md", ".html") for place in refused_words(path)
    ] == []


@pytest.mark.parametrize("folder", CODE_FOLDERS)
def test_names_have_no_refused_word(folder: str):
    assert [str(place) for path in _files_of(folder, ".py") for place in refused_names(path)] == []


def test_refused_words_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tests.support.language.ROOT", tmp_path)
    module, page, template = tmp_path / "a.py", tmp_path / "a.md", tmp_path / "a.html"
    module.write_text(
        '"""Whoever calls this is told."""\n\n\ndef tell_all(row, what_he_said=1):\n    """At most one."""\n'
    )
    page.write_text("# Being told\n\n`told` is an old field.\n\n```\nhe said\n```\n")
    template.write_text("<p class='told'>Nobody {{ told }}</p>")

    assert [place.word for place in refused_words(module)] == ["whoever", "told"]
    assert [place.word for place in refused_names(module)] == ["tell_all", "what_he_said"]
    assert [(place.line, place.word) for place in refused_words(page)] == [(1, "told")]
    assert [place.word for place in refused_words(template)] == ["nobody"]


def _files_of(folder: str, *suffixes: str) -> list[Path]:
    inside = {path for name in CODE_FOLDERS for path in _under(name, *suffixes)}
    return [path for path in files(*suffixes) if path not in inside] if folder == "." else _under(folder, *suffixes)


def _under(folder: str, *suffixes: str) -> list[Path]:
    root = Path(__file__).parents[1]
    return [path for path in files(*suffixes) if path.is_relative_to(root / folder)]
