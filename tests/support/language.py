"""Finds words that this project does not use, in names, comments, docstrings, messages, pages and templates.

The list and its reasons are in CONTRIBUTING.md. `python -m tests.support.language [PATH…]` prints every place.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE_FOLDERS = ("app", "workers", "pipelines", "dataloader", "benchmarks", "docs")
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
_REFUSED = re.compile(
    r"\b(told|tells?|telling|said|whoever|whosoever|nobody|somebody|anybody|hears?|heard|anew|besides?|in the midst"
    r"|goes on|stands|he|him|his|patience|most)\b",
    re.IGNORECASE,
)
# "Most" as a superlative or a majority, rather than as the name of a limit.
_ALLOWED = re.compile(
    r"\b(at most|most of|most (recent|common|likely|often|important|specific)\w*|(for )?the most( part)?"
    r"|stands? for|stands? in for)\b",
    re.IGNORECASE,
)
_REFUSED_IN_NAMES = frozenset(
    [
        "told",
        "tell",
        "tells",
        "telling",
        "said",
        "whoever",
        "whosoever",
        "nobody",
        "somebody",
        "anybody",
        "hear",
        "hears",
        "heard",
        "anew",
        "beside",
        "besides",
        "stands",
        "he",
        "him",
        "his",
        "most",
        "patience",
    ]
)
_WORD = re.compile(r"[A-Za-z][A-Za-z'’-]*")
_NAME_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_DIRECTIVE = re.compile(r"#\s*(noqa|type:|fmt:|ruff:|pragma)")
_QUOTED = re.compile(r"`[^`]*`|\]\([^)]*\)|<[^>]*>")


@dataclass(frozen=True)
class Place:
    path: str
    line: int
    word: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.word}"


def refused_words(path: Path) -> Iterator[Place]:
    """Yield the refused words in a file's prose."""
    for line, text in _prose(path, may_skip=lambda comment: not _REFUSED.search(_plain(comment))):
        plain = _plain(text)
        for match in _REFUSED.finditer(plain):
            yield Place(_relative(path), line + plain.count("\n", 0, match.start()), match.group().lower())


def _plain(text: str) -> str:
    """Return the text without what is quoted and without the uses of a word that are allowed."""
    return _ALLOWED.sub(" ", _QUOTED.sub(" ", text))


def refused_names(path: Path) -> Iterator[Place]:
    """Yield the names that a file binds and that contain a refused word."""
    for line, name in _bound_names(path):
        if _REFUSED_IN_NAMES & {part.lower() for part in _NAME_PART.findall(name)}:
            yield Place(_relative(path), line, name)


@cache
def files(*suffixes: str) -> list[Path]:
    """Return the product's files, its pages and its templates with these suffixes."""
    found = [
        path
        for folder in CODE_FOLDERS
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in suffixes and not {"vendor", "__pycache__", "_made"} & set(path.parts)
    ]
    names = ("schema.sql", "wsgi.py", "gunicorn.conf.py", *PAGES)
    return [*found, *(ROOT / name for name in names if (ROOT / name).suffix in suffixes)]


def word_count(path: Path) -> int:
    return sum(len(_WORD.findall(text)) for _, text in _prose(path))


def _prose(path: Path, may_skip: Callable[[str], bool] = lambda comment: False) -> Iterator[tuple[int, str]]:
    text = path.read_text(encoding="utf-8")
    match path.suffix:
        case ".py":
            # The tokenizer takes longer than all else: it reads no text of which each comment may be skipped.
            if not all(map(may_skip, _comment_candidates(text))):
                yield from _comments(text)
            yield from _python_strings(text)
        case ".sql":
            for match in re.finditer(r"--([^\n]*)|/\*(.*?)\*/", text, re.DOTALL):
                yield text.count("\n", 0, match.start()) + 1, match.group(1) or match.group(2) or ""
        case ".md":
            yield from _markdown_prose(text)
        case ".html":
            markup = re.compile(r"\{[{%#].*?[}%#]\}|<script.*?</script>|<[^>]*>", re.DOTALL)
            yield from enumerate(markup.sub(lambda m: " " + "\n" * m.group().count("\n"), text).splitlines(), 1)


def _comment_candidates(text: str) -> Iterator[str]:
    """Yield each rest of a line that is a comment, unless its "#" is in a string."""
    for line in text.split("\n"):
        for start in re.finditer("#", line):
            yield line[start.start() :]


def _comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not _DIRECTIVE.match(token.string):
            yield token.start[0], token.string.lstrip("# ")


def _python_strings(text: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)):
        # Docstrings, messages and help; single words are names or values.
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(_WORD.findall(node.value)) > 2:
            yield node.lineno, node.value


def _markdown_prose(text: str) -> Iterator[tuple[int, str]]:
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith(("```", "~~~")):
            is_code = not is_code
        elif not is_code:
            yield number, line


def _bound_names(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def _relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def main(arguments: list[str]) -> None:
    chosen = [Path(argument).resolve() for argument in arguments]
    words = count = 0
    for path in files(".py", ".sql", ".md", ".html"):
        if chosen and not any(path.is_relative_to(folder) for folder in chosen):
            continue
        words += word_count(path)
        places = [*refused_words(path), *(refused_names(path) if path.suffix == ".py" else ())]
        count += len(places)
        sys.stdout.writelines(f"{place}\n" for place in places)
    sys.stdout.write(f"{count} in {words} words: {1000 * count / max(words, 1):.1f} per 1,000\n")


if __name__ == "__main__":
    main(sys.argv[1:])
