"""Files out of a zip or tar archive, none of which can land outside the folder they are to land in.

for path in extracted(archive, folder, bounds=Bounds(expanded_bytes=10**9)):
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
from typing import IO, cast

from pipelines.toolkit.errors import BrokenArchive, ExpandsTooMuch, UnsafePath
from pipelines.toolkit.paths import inside
from pipelines.toolkit.safepoint import SafePoint, Unattended
from pipelines.toolkit.unpack import PIECE, Bounds

MOST_MEMBERS = 10_000
_MANY_TIMES = 64 * 1024**2  # below that no ratio is too much, as in unpack
_DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError)


@dataclass(frozen=True)
class _Member:
    name: str
    size: int  # as the archive says, which need not be so
    plain: bool  # a file and nothing else
    folder: bool
    stream: IO[bytes] | None


def extracted(
    archive: Path,
    folder: Path,
    *,
    bounds: Bounds | None = None,
    most: int = MOST_MEMBERS,
    ctx: SafePoint | None = None,
) -> Iterator[Path]:
    """Write the archive's files below the folder, and yield each when it is whole.

    Refused are names that lead elsewhere (absolute, with `..`, of devices), links and special files, a name that comes
    twice or is both a file and a folder, more than `most` members, and more bytes than Bounds allow, counted as they
    come.
    """
    bounds, ctx = bounds or Bounds(), ctx or Unattended()
    packed, written = archive.stat().st_size, 0
    for number, member in enumerate(_members(archive), 1):
        if number > most:
            raise ExpandsTooMuch(f"the archive has more than the {most} members allowed")
        if member.folder:
            continue
        path = _place(folder, member)
        with path.open("xb") as file:
            for piece in _pieces(member):
                ctx.check()
                written += len(piece)
                _bound(written, packed, bounds)
                file.write(piece)
        yield path


def _place(folder: Path, member: _Member) -> Path:
    if not member.plain or member.stream is None:
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


def _bound(written: int, packed: int, bounds: Bounds) -> None:
    if written > bounds.expanded_bytes:
        raise ExpandsTooMuch(f"the archive holds more than the {bounds.expanded_bytes} bytes that Bounds allow")
    if written > _MANY_TIMES and written > packed * bounds.ratio:
        raise ExpandsTooMuch(f"{packed} packed bytes became {written} already: more than {bounds.ratio} to 1")


def _pieces(member: _Member) -> Iterator[bytes]:
    with _told_as_damaged(), cast(IO[bytes], member.stream) as stream:
        while piece := stream.read(PIECE):
            yield piece


def _members(archive: Path) -> Iterator[_Member]:
    with _told_as_damaged():
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as packed:
                yield from (_of_zip(packed, info) for info in packed.infolist())
        else:
            with tarfile.open(archive) as tar:
                yield from (_of_tar(tar, found) for found in tar)


def _of_zip(packed: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Member:
    mode = info.external_attr >> 16
    plain = stat.S_IFMT(mode) in (0, stat.S_IFREG)
    folder = info.is_dir()
    stream = packed.open(info) if plain and not folder else None
    return _Member(info.filename, info.file_size, plain and not folder, folder, stream)


def _of_tar(tar: tarfile.TarFile, found: tarfile.TarInfo) -> _Member:
    plain = found.isreg() and not found.issparse()
    return _Member(found.name, found.size, plain, found.isdir(), tar.extractfile(found) if plain else None)


@contextmanager
def _told_as_damaged() -> Iterator[None]:
    try:
        yield
    except (UnsafePath, ExpandsTooMuch):
        raise
    except _DAMAGED as error:
        raise BrokenArchive(f"the archive is damaged, is none, or is packed in a way unknown here: {error}") from error
