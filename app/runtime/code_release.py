"""Which release of the pipelines' code a process runs: what DL_RELEASE says, or the commit of their working copy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

_NONE = "none"
_COMMIT_LENGTH = 12
_OURS = "dataloader."


def find_release(setting: str | None, packages: Sequence[str]) -> str | None:
    if setting is not None:
        return None if setting == _NONE else setting
    commits = (_commit_of(package) for package in packages if not f"{package}.".startswith(_OURS))
    return next((commit for commit in commits if commit), None)


def _commit_of(package: str) -> str | None:
    """The commit that is checked out where the package is. git need not be installed, and nothing is executed."""
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    for folder in Path(spec.origin).resolve().parents:
        try:
            if os.path.exists(folder / ".git"):
                return _head(folder / ".git")
        except OSError:  # a folder that this account may not read
            return None
    return None


def _head(git: Path) -> str | None:
    if os.path.isfile(git):  # of a worktree or a submodule: `gitdir: PATH`
        git = (git.parent / git.read_text(encoding="utf-8").partition(":")[2].strip()).resolve()
    head = (git / "HEAD").read_text(encoding="utf-8").strip()
    if not head.startswith("ref: "):
        return head[:_COMMIT_LENGTH]
    reference = head.removeprefix("ref: ")
    common = git / "commondir"
    shared = (git / common.read_text(encoding="utf-8").strip()).resolve() if os.path.exists(common) else git
    for folder in (git, shared):
        if os.path.exists(folder / reference):
            return (folder / reference).read_text(encoding="utf-8").strip()[:_COMMIT_LENGTH]
    packed = shared / "packed-refs"
    lines = packed.read_text(encoding="utf-8").splitlines() if os.path.exists(packed) else []
    return next((line[:_COMMIT_LENGTH] for line in lines if line.endswith(f" {reference}")), None)
