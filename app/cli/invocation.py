"""The command that starts this program again, so that a suggested command can be pasted as it is printed."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path


def dataloader_command() -> str:
    """`dataloader` where the shell finds this installation under that name, else its path, else `… -m app`."""
    script = Path(sys.executable).parent / "dataloader"
    if os.access(script, os.X_OK):
        return _format_command(script, "dataloader")
    return f"{python_command()} -m dataloader"


def python_command() -> str:
    """The interpreter that runs this program, as a shell in this folder finds it."""
    return _format_command(Path(sys.executable), "python")


def _format_command(program: Path, name: str) -> str:
    on_path = shutil.which(name)
    if on_path is not None and Path(on_path).absolute() == program.absolute():
        return name
    try:
        return shlex.quote(str(program.absolute().relative_to(Path.cwd())))
    except (OSError, ValueError):  # it is elsewhere, or the folder was removed
        return shlex.quote(str(program))
