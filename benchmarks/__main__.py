"""The benchmarks by name, with what each tells and how long it takes."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

HERE = Path(__file__).parent


def commands() -> dict[str, str]:
    """Every module that can be run, with its docstring. None of them is imported for it."""
    found = {}
    for path in sorted([*HERE.glob("*.py"), *(init.parent for init in HERE.glob("*/__main__.py"))]):
        source = path / "__main__.py" if path.is_dir() else path
        tree = ast.parse(source.read_text(encoding="utf-8"))
        if path.stem != "__main__" and any(
            isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body
        ):
            found[path.stem] = inspect.cleandoc(ast.get_docstring(tree) or "")
    return found


def main() -> None:
    print("Each is a command of its own: python -m benchmarks.NAME [--help]\n")
    for name, doc in commands().items():
        takes = re.search(r"^Takes (.+?)\.$", doc, re.MULTILINE)
        print(f"{name:12}{doc.partition(chr(10))[0]}")
        print(f"{'':12}takes {takes[1] if takes else 'minutes'}")


if __name__ == "__main__":
    main()
