"""File names, and names within addresses, from arguments that somebody else wrote."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

from pipelines.toolkit.errors import UnsafePath

_UNSAFE = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|]')
_NO_SEGMENT = re.compile(r"[\x00-\x1f\x7f]")
_SLASH = re.compile(r"[/\\]")
_DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_LONGEST_SEGMENT = 1_000  # bytes of a name in an address, before it is quoted
_LONGEST = 200  # bytes; file systems stop at 255, and a suffix such as .part must still fit


def safe_name(name: str) -> str:
    """The name itself, if it can only ever be one file in the folder it is put in; else `UnsafePath`."""
    if not name or name.startswith((".", "-", " ")) or name.endswith((".", " ")):
        raise UnsafePath(f"{name!r} cannot name a file: it is empty, or begins or ends with a dot, dash or blank")
    if unsafe := _UNSAFE.search(name):
        raise UnsafePath(f"{name!r} cannot name a file: it holds {unsafe.group()!r}; give a name without a folder")
    if _DEVICE.fullmatch(name):
        raise UnsafePath(f"{name!r} cannot name a file: some systems take it for a device")
    try:
        length = len(name.encode())
    except UnicodeEncodeError as error:
        raise UnsafePath(f"{name!r} cannot name a file: it is not proper Unicode") from error
    if length > _LONGEST:
        raise UnsafePath(
            f"{name[:40]!r}… cannot name a file: it has {length} bytes, and at most {_LONGEST} are allowed"
        )
    return name


def inside(folder: Path, *names: str) -> Path:
    """A path below `folder`, from names that must each be safe; symbolic links may not lead out of it either."""
    path = folder.joinpath(*map(safe_name, names))
    if not path.resolve().is_relative_to(folder.resolve()):
        raise UnsafePath(f"{path} leads out of {folder} by a symbolic link")
    return path


def segment(name: str) -> str:
    """The name, quoted to be one step of an address's path and no more; else `UnsafePath`.

    Dots alone would lead upwards, for no quoting hides them; between slashes too, since some servers take a quoted
    slash for a slash.
    """
    try:
        length = len(name.encode())
    except UnicodeEncodeError as error:
        raise UnsafePath(f"{name[:40]!r} cannot stand in an address: it is not proper Unicode") from error
    if not all(step.strip(". ") for step in _SLASH.split(name)):
        raise UnsafePath(f"{name[:40]!r} cannot stand in an address: it would lead elsewhere; give an id")
    if unsafe := _NO_SEGMENT.search(name):
        raise UnsafePath(f"{name[:40]!r} cannot stand in an address: it holds {unsafe.group()!r}")
    if length > _LONGEST_SEGMENT:
        raise UnsafePath(f"{name[:40]!r}… cannot stand in an address: it has {length} bytes")
    return quote(name, safe="")
