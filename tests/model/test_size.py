"""The model stays small enough to be read as the text of the protocol."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

MAX_CODE_LINES = 800
MODEL = ("rows", "rules", "state", "actions", "leases", "surroundings")
_LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(text: str) -> int:
    """Lines that have code: no blank ones, no comments, no docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def test_model_is_short():
    counts = {name: code_lines(Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")) for name in MODEL}

    assert sum(counts.values()) <= MAX_CODE_LINES, counts


def test_lines_of_code_are_counted():
    assert (
        code_lines(
            '"""A docstring\nof two lines."""\n\n# a comment\nx = """\ntwo"""  # more\n\n\ndef f():\n    "Text."\n'
        )
        == 3
    )
