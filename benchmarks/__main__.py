"""Lists the benchmarks: name, what each measures, and how long it takes. With a name, runs that one."""

from __future__ import annotations

import ast
import inspect
import re
import runpy
import sys
from pathlib import Path

HERE = Path(__file__).parent


def commands() -> dict[str, str]:
    """Return the docstring of each runnable benchmark by name, without importing any."""
    docs = {}
    for path in sorted([*HERE.glob("*.py"), *(init.parent for init in HERE.glob("*/__main__.py"))]):
        source = path / "__main__.py" if path.is_dir() else path
        tree = ast.parse(source.read_text(encoding="utf-8"))
        if path.stem != "__main__" and any(
            isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body
        ):
            docs[path.stem] = inspect.cleandoc(ast.get_docstring(tree) or "")
    return docs


def main() -> None:
    print("Run one with: python -m benchmarks.NAME [--help]\n")
    for name, doc in commands().items():
        duration = re.search(r"^Takes (.+?)\.$", doc, re.MULTILINE)
        print(f"{name:12}{doc.partition(chr(10))[0]}")
        print(f"{'':12}takes {duration[1] if duration else 'minutes'}")


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in commands():
        sys.argv[:2] = [f"{sys.argv[0]} {sys.argv[1]}"]
        runpy.run_module(f"benchmarks.{sys.argv[0].rpartition(' ')[2]}", run_name="__main__", alter_sys=False)
    else:
        main()
