"""Reads the members of an untrusted archive; call `grading.hand_in.archive.unpack`."""

import gzip
import lzma
import stat
import tarfile
import tempfile
import zipfile
from pathlib import Path, PureWindowsPath
from typing import BinaryIO, Protocol

from grading.hand_in.files import DEEPEST, MIB
from grading.hand_in.safe_text import line

FILES = 5000
PACKED = 50 * MIB  # bytes
UNPACKED = 200 * MIB  # bytes
RATIO = 100  # unpacked over packed size, which is checked
RATIO_FROM = 20 * MIB  # once this much is unpacked
XZ_MEMORY = 128 * MIB
CHUNK = 2**16


class RefusedError(Exception):
    """Why an archive is refused."""


class Readable(Protocol):
    """What bytes can be read from."""

    def read(self, size: int, /) -> bytes: ...


class Limit:
    """Counts what is unpacked from an archive of `packed` bytes, and refuses too much."""

    def __init__(self, packed: int):
        self.packed = packed
        self.unpacked = 0
        self.files = 0

    def count_file(self) -> None:
        """Count a file or folder; RefusedError for one too many."""
        self.files += 1
        if self.files > FILES:
            raise RefusedError(f"it holds more than {FILES} files")

    def copy(self, source: Readable, target: BinaryIO) -> None:
        """Copy a stream; counts what is read and not what a header claims."""
        while chunk := source.read(CHUNK):
            self.unpacked += len(chunk)
            if self.unpacked > UNPACKED:
                raise RefusedError(f"it holds more than {UNPACKED // MIB} MB")
            if self.unpacked > RATIO_FROM and self.unpacked > RATIO * self.packed:
                raise RefusedError(f"it unpacks to more than {RATIO} times its size: a bomb")
            target.write(chunk)


def read_zip(archive: Path, folder: Path, limit: Limit) -> None:
    """Unpack a zip into a folder."""
    if archive.read_bytes().count(b"PK\1\2") > 2 * FILES:  # before an index of millions is read
        raise RefusedError(f"it holds more than {FILES} files")
    with zipfile.ZipFile(archive) as bundle:
        for member in bundle.infolist():
            name, mode = member.orig_filename, member.external_attr >> 16
            if member.flag_bits & 1:
                raise RefusedError(f"{line(name)!r} in it is encrypted")
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise RefusedError(f"{line(name)!r} in it is a link or a device")
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise RefusedError(f"{line(name)!r} in it uses an unsupported compression")
            with bundle.open(member) as data:
                extract(folder, name, mode, None if member.is_dir() else data, limit)


def read_tar(archive: Path, suffix: str, folder: Path, limit: Limit) -> None:
    """Unpack a tar into a folder; it is decompressed whole first, so that its end can be seen."""
    with tempfile.TemporaryFile() as whole:
        with archive.open("rb") as packed:
            limit.copy(DECOMPRESS[suffix](packed), whole)
        limit.unpacked = 0
        whole.seek(0)
        with tarfile.open(fileobj=whole, mode="r:") as bundle:
            for member in iter(bundle.next, None):
                if not (member.isdir() or member.isreg()) or member.issparse():
                    raise RefusedError(f"{line(member.name)!r} in it is a link or a device")
                data = None if member.isdir() else bundle.extractfile(member)
                extract(folder, member.name, member.mode, data, limit)
            whole.seek(bundle.offset)  # an invalid header also ends the members
            ending = whole.read(2 * tarfile.BLOCKSIZE)
        if not ending or ending.strip(b"\0"):
            raise tarfile.ReadError("it is cut off or damaged")


class Xz:
    """Reads an .xz file within a limit on memory."""

    def __init__(self, file: BinaryIO):
        self.file = file
        self.decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY)

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes of what is packed; b"" at the end."""
        while not self.decompressor.eof:
            packed = self.file.read(CHUNK) if self.decompressor.needs_input else b""
            if self.decompressor.needs_input and not packed:
                raise EOFError("it is cut off")
            if found := self.decompressor.decompress(packed, size):
                return found
        return b""


DECOMPRESS = {
    ".tar": lambda file: file,
    ".tar.gz": lambda file: gzip.GzipFile(fileobj=file),
    ".tgz": lambda file: gzip.GzipFile(fileobj=file),
    ".tar.xz": Xz,
}


def extract(folder: Path, name: str, mode: int, data: Readable | None, limit: Limit) -> None:
    """Write a member's file, or make its folder where `data` is None, if its name is inside."""
    limit.count_file()
    path = PureWindowsPath(name)  # knows drives and both kinds of slashes
    if path.anchor or ".." in path.parts or "\0" in name:
        raise RefusedError(f"{line(name)!r} in it leads outside")
    if len(path.parts) > DEEPEST:
        raise RefusedError(f"{line(name, 40)!r} in it is more than {DEEPEST} folders deep")
    target = folder.joinpath(*path.parts)
    (target if data is None else target.parent).mkdir(mode=0o755, parents=True, exist_ok=True)
    if data is not None:
        with target.open("wb") as file:
            limit.copy(data, file)
        target.chmod(0o755 if mode & stat.S_IXUSR else 0o644)
