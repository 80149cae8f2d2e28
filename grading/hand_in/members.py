"""Reads the members of an archive from anyone; `grading.hand_in.archive.unpack` is the way in."""

import gzip
import lzma
import stat
import tarfile
import tempfile
import zipfile
from pathlib import PureWindowsPath

from grading.hand_in.files import MIB
from grading.hand_in.safe_text import line

FILES = 5000
PACKED, UNPACKED = 50 * MIB, 200 * MIB  # bytes
RATIO, RATIO_FROM = 100, 20 * MIB  # unpacked over packed, once so much is unpacked
XZ_MEMORY = 128 * MIB
CHUNK = 2**16


class Refused(Exception):
    """Why an archive is refused."""


class Limit:
    """Counts what comes out of an archive of so many bytes, and refuses what is too much."""

    def __init__(self, packed):
        self.packed, self.unpacked, self.files = packed, 0, 0

    def file(self):
        self.files += 1
        if self.files > FILES:
            raise Refused(f"it holds more than {FILES} files")

    def copy(self, source, target):
        """Copy a stream, counting what is read and not what a header says."""
        while chunk := source.read(CHUNK):
            self.unpacked += len(chunk)
            if self.unpacked > UNPACKED:
                raise Refused(f"it holds more than {UNPACKED // MIB} MB")
            if self.unpacked > RATIO_FROM and self.unpacked > RATIO * self.packed:
                raise Refused(f"it unpacks to more than {RATIO} times its size: a bomb")
            target.write(chunk)


def read_zip(archive, _suffix, folder, limit):
    """Unpack a zip into a folder."""
    if archive.read_bytes().count(b"PK\1\2") > 2 * FILES:  # before an index of millions is read
        raise Refused(f"it holds more than {FILES} files")
    with zipfile.ZipFile(archive) as bundle:
        for member in bundle.infolist():
            name, mode = member.orig_filename, member.external_attr >> 16
            if member.flag_bits & 1:
                raise Refused(f"{line(name)!r} in it is encrypted")
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise Refused(f"{line(name)!r} in it is a link or a device")
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise Refused(f"{line(name)!r} in it is packed in an unusual way")
            with bundle.open(member) as data:
                place(folder, name, member.is_dir(), mode, data, limit)


def read_tar(archive, suffix, folder, limit):
    """Unpack a tar into a folder; it is decompressed whole first, so that its end can be seen."""
    with tempfile.TemporaryFile() as whole:
        with archive.open("rb") as packed:
            limit.copy(DECOMPRESS[suffix](packed), whole)
        limit.unpacked = 0
        whole.seek(0)
        with tarfile.open(fileobj=whole, mode="r:") as bundle:
            for member in iter(bundle.next, None):
                if not (member.isdir() or member.isreg()) or member.issparse():
                    raise Refused(f"{line(member.name)!r} in it is a link or a device")
                data = None if member.isdir() else bundle.extractfile(member)
                place(folder, member.name, member.isdir(), member.mode, data, limit)
            whole.seek(bundle.offset)  # a header that is none ends the members, too
            ending = whole.read(2 * tarfile.BLOCKSIZE)
        if not ending or ending.strip(b"\0"):
            raise tarfile.ReadError("it is cut off or damaged")


class Xz:
    """Reads an .xz file without ever taking more memory than it should."""

    def __init__(self, file):
        self.file = file
        self.decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY)

    def read(self, size):
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


def place(folder, name, is_folder, mode, data, limit):
    """Make a member's file or folder, if its name is one inside."""
    limit.file()
    path = PureWindowsPath(name)  # knows drives and both kinds of slashes
    if path.anchor or ".." in path.parts or "\0" in name:
        raise Refused(f"{line(name)!r} in it leads outside")
    target = folder.joinpath(*path.parts)
    (target if is_folder else target.parent).mkdir(mode=0o755, parents=True, exist_ok=True)
    if not is_folder:
        with target.open("wb") as file:
            limit.copy(data, file)
        target.chmod(0o755 if mode & stat.S_IXUSR else 0o644)
