"""Extracts zip and tar archives; no file can land outside the given folder.

for path in extract(archive, folder, bounds=Bounds(expanded_bytes=10**9)):
    ...
"""

from __future__ import annotations

import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from pipelines.toolkit.deprecation import renamed_attributes, renamed_keywords
from pipelines.toolkit.errors import BrokenArchive, ExpandsTooMuch, UnsafePath
from pipelines.toolkit.paths import inside
from pipelines.toolkit.safepoint import NoSafePoints, SafePoint
from pipelines.toolkit.unpack import PIECE_BYTES, Bounds, check_bounds

if not TYPE_CHECKING:
    __getattr__ = renamed_attributes(__name__, extracted="extract")

MAX_MEMBERS = 10_000
_DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError)


@dataclass(frozen=True)
class _Member:
    name: str
    is_folder: bool
    stream: IO[bytes] | None  # of a plain file


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
    twice or is both a file and a folder, more than `max_members` members, and more bytes than Bounds allow, counted as they
    come.
    """
    bounds, ctx = bounds or Bounds(), ctx or NoSafePoints()
    packed, written = archive.stat().st_size, 0
    for number, member in enumerate(_members(archive), 1):
        if number > max_members:
            raise ExpandsTooMuch(f"the archive has more than the {max_members} members allowed")
        if member.is_folder:
            continue
        path = _target_path(folder, member)
        with path.open("xb") as file:
            for piece in _read_pieces(member):
                ctx.check()
                written += len(piece)
                check_bounds(written, packed, bounds)
                file.write(piece)
        yield path


def _target_path(folder: Path, member: _Member) -> Path:
    if member.stream is None:
        raise UnsafePath(f"{member.name[:80]!r} in the archive is no plain file: links and devices are not made")
    path = inside(folder, *member.name.split("/"))
    folder.mkdir(parents=True, exist_ok=True)  # if the caller's own folder is a file, that is no fault of the archive
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UnsafePath(f"{member.name[:80]!r} in the archive lies below a name that is a file already") from None
    if path.exists() or path.is_symlink():
        raise UnsafePath(f"{member.name[:80]!r} is there already, or comes twice in the archive")
    return path


def _read_pieces(member: _Member) -> Iterator[bytes]:
    with _damage_as_broken_archive(), cast(IO[bytes], member.stream) as stream:
        while piece := stream.read(PIECE_BYTES):
            yield piece


def _members(archive: Path) -> Iterator[_Member]:
    with _damage_as_broken_archive():
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as packed:
                yield from (_zip_member(packed, info) for info in packed.infolist())
        else:
            with tarfile.open(archive) as tar:
                yield from (_tar_member(tar, info) for info in tar)


def _zip_member(packed: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Member:
    mode = info.external_attr >> 16
    plain = stat.S_IFMT(mode) in (0, stat.S_IFREG)
    folder = info.is_dir()
    stream = packed.open(info) if plain and not folder else None
    return _Member(info.filename, folder, stream)


def _tar_member(tar: tarfile.TarFile, info: tarfile.TarInfo) -> _Member:
    plain = info.isreg() and not info.issparse()
    return _Member(info.name, info.isdir(), tar.extractfile(info) if plain else None)


@contextmanager
def _damage_as_broken_archive() -> Iterator[None]:
    try:
        yield
    except (UnsafePath, ExpandsTooMuch):
        raise
    except _DAMAGED as error:
        raise BrokenArchive(f"the archive is damaged, is none, or is packed in a way unknown here: {error}") from error
