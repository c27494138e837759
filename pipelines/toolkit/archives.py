"""Extracts zip and tar archives; no file can land outside the given folder.

for path in extract(archive, folder, bounds=Bounds(expanded_bytes=10**9)):
    ...
"""

from __future__ import annotations

import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from dataloader.pipelines.toolkit.deprecation import renamed_attributes, renamed_keywords
from dataloader.pipelines.toolkit.errors import BrokenArchive, ExpandsTooMuch, ToolkitError, UnsafePath
from dataloader.pipelines.toolkit.paths import inside
from dataloader.pipelines.toolkit.safepoint import NoSafePoints, SafePoint
from dataloader.pipelines.toolkit.unpack import PIECE_BYTES, Bounds, check_bounds

if not TYPE_CHECKING:
    __getattr__ = renamed_attributes(__name__, extracted="extract")

MAX_MEMBERS = 10_000
_DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError)


@renamed_keywords(most="max_members")
def extract(
    archive: Path,
    folder: Path,
    *,
    bounds: Bounds | None = None,
    max_members: int = MAX_MEMBERS,
    ctx: SafePoint | None = None,
) -> Iterator[Path]:
    """Write the archive's files below the folder, and yield each when it is whole.

    Refused are names that lead elsewhere (absolute, with `..`, of devices), links and special files, a name that comes
    twice or is both a file and a folder, more than `max_members` members, and more bytes than Bounds allow.
    """
    bounds, ctx = bounds or Bounds(), ctx or NoSafePoints()
    packed, written = archive.stat().st_size, 0
    try:
        for number, (name, is_folder, stream) in enumerate(_members(archive), 1):
            if number > max_members:
                raise ExpandsTooMuch(f"the archive has more than the {max_members} members allowed")
            if is_folder:
                continue
            if stream is None:
                raise UnsafePath(f"{name[:80]!r} in the archive is no plain file: links and devices are not made")
            path = _target_path(folder, name)
            with path.open("xb") as file, stream:
                while piece := stream.read(PIECE_BYTES):
                    ctx.check()
                    written += len(piece)
                    check_bounds(written, packed, bounds)
                    file.write(piece)
            yield path
    except ToolkitError:
        raise
    except _DAMAGED as error:
        raise BrokenArchive(f"the archive is damaged, is none, or is packed in a way unknown here: {error}") from error


def _target_path(folder: Path, name: str) -> Path:
    path = inside(folder, *name.split("/"))
    folder.mkdir(parents=True, exist_ok=True)  # if the caller's own folder is a file, that is no fault of the archive
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UnsafePath(f"{name[:80]!r} in the archive lies below a name that is a file already") from None
    if os.path.lexists(path):
        raise UnsafePath(f"{name[:80]!r} is there already, or comes twice in the archive")
    return path


def _members(archive: Path) -> Iterator[tuple[str, bool, IO[bytes] | None]]:
    """Yield each member's name, whether it is a folder, and the content of a plain file."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                plain = not info.is_dir() and stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG)
                yield info.filename, info.is_dir(), packed.open(info) if plain else None
    else:
        with tarfile.open(archive) as tar:
            for entry in tar:
                plain = entry.isreg() and not entry.issparse()
                yield entry.name, entry.isdir(), tar.extractfile(entry) if plain else None
