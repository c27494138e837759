"""The log of a child process: whole lines, in pieces, however long they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from dataloader.pipelines.executors.process_log import MAX_LINE_BYTES, read_lines


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def read_all(log: Path, after: str = "") -> list[str]:
    """As the last reader does: until there are no more lines."""
    lines: list[str] = []
    while True:
        piece, after = read_lines(log, after, is_over=True)
        if not piece:
            return lines
        lines += piece


def append(log: Path, content: bytes) -> None:
    with log.open("ab") as file:
        file.write(content)


def test_begun_line_is_left_until_it_has_ended(log: Path):
    append(log, b"one\n\ntw")

    lines, position = read_lines(log, "", is_over=False)

    assert lines == ["one", ""]
    append(log, b"o\rb\nthree")
    assert read_all(log, position) == ["two\rb", "three"]


def test_long_line_is_cut_with_a_note(log: Path):
    append(log, b"a\n" + b"x" * (2 * MAX_LINE_BYTES) + b"\nb\n")

    first, cut, last = read_all(log)

    assert (first, last) == ("a", "b")
    assert cut.startswith("x" * MAX_LINE_BYTES)
    assert cut.endswith("this line has more than 256,000 bytes; the rest is left out …")


def test_long_line_that_grows_is_one_line(log: Path):
    append(log, b"x" * MAX_LINE_BYTES)
    (cut,), position = read_lines(log, "", is_over=False)
    assert "is left out" in cut

    for _ in range(2):
        append(log, b"y" * 10)
        lines, position = read_lines(log, position, is_over=False)
        assert lines == []
    append(log, b"y\nb\n")

    assert read_lines(log, position, is_over=False)[0] == ["b"]
    assert read_all(log, position) == ["b"]


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_line_of_about_the_limit_is_not_lost(log: Path, extra: int):
    text = "é" * ((MAX_LINE_BYTES + 2 * extra) // 2)
    append(log, f"{text}\nb".encode())

    lines = read_all(log)

    assert lines[0].startswith(text[: MAX_LINE_BYTES // 2])
    assert lines[1:] == ["b"]
    assert ("left out" in lines[0]) == (extra >= 0)


def test_pieces_have_a_limited_number_of_lines(log: Path):
    append(log, b"".join(b"%d\n" % n for n in range(2_500)))

    lines, position = read_lines(log, "", is_over=True)

    assert len(lines) == 1_000
    assert read_all(log, position)[0] == "1000"
