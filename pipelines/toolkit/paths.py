"""Safe file names and URL path segments from untrusted arguments."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

from dataloader.pipelines.toolkit.errors import UnsafePath

_UNSAFE_CHARACTERS = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|]')
_UNSAFE_IN_SEGMENT = re.compile(r"[\x00-\x1f\x7f]")
_SLASH = re.compile(r"[/\\]")
_DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_MAX_SEGMENT_LENGTH = 1_000  # bytes of a name in an address, before it is quoted
_MAX_NAME_BYTES = 200  # bytes; file systems stop at 255, and a suffix such as .part must still fit


def safe_name(name: str) -> str:
    """Return the name if it is a plain file name on every system. Raises `UnsafePath`."""
    if not name or name.startswith((".", "-", " ")) or name.endswith((".", " ")):
        raise UnsafePath(f"{name!r} cannot name a file: it is empty, or begins or ends with a dot, dash or blank")
    if unsafe := _UNSAFE_CHARACTERS.search(name):
        raise UnsafePath(f"{name!r} cannot name a file: it holds {unsafe.group()!r}; give a name without a folder")
    if _DEVICE.fullmatch(name):
        raise UnsafePath(f"{name!r} cannot name a file: some systems take it for a device")
    try:
        length = len(name.encode())
    except UnicodeEncodeError as error:
        raise UnsafePath(f"{name!r} cannot name a file: it is not proper Unicode") from error
    if length > _MAX_NAME_BYTES:
        raise UnsafePath(
            f"{name[:40]!r}… cannot name a file: it has {length} bytes, and at most {_MAX_NAME_BYTES} are allowed"
        )
    return name


def inside(folder: Path, *names: str) -> Path:
    """Return a path below `folder` of safe names. Raises `UnsafePath`, also if a symbolic link leads out of it."""
    path = folder.joinpath(*map(safe_name, names))
    if not path.resolve().is_relative_to(folder.resolve()):
        raise UnsafePath(f"{path} leads out of {folder} by a symbolic link")
    return path


def segment(name: str) -> str:
    """Return the name quoted as one segment of a URL path. Raises `UnsafePath`.

    Dots alone lead upwards and cannot be quoted; the same between slashes, since some servers decode a quoted slash.
    """
    try:
        length = len(name.encode())
    except UnicodeEncodeError as error:
        raise UnsafePath(f"{name[:40]!r} cannot stand in an address: it is not proper Unicode") from error
    if not all(step.strip(". ") for step in _SLASH.split(name)):
        raise UnsafePath(f"{name[:40]!r} cannot stand in an address: it would lead elsewhere; give an id")
    if unsafe := _UNSAFE_IN_SEGMENT.search(name):
        raise UnsafePath(f"{name[:40]!r} cannot stand in an address: it holds {unsafe.group()!r}")
    if length > _MAX_SEGMENT_LENGTH:
        raise UnsafePath(f"{name[:40]!r}… cannot stand in an address: it has {length} bytes")
    return quote(name, safe="")
