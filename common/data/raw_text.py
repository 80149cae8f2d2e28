"""Documents in plain text files, read in order, a few megabytes at a time."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from common.errors import UserError

BLOCK_BYTES = 4 << 20  # read at a time
LONGEST_BYTES = 1 << 20  # a longer document is cut, at a line's end if there is one
BLANK_LINE = re.compile(rb"\n[ \t\r\f\v]*\n")


class Position(NamedTuple):
    """A place in the texts: the number of a file, and a byte in it."""

    file: int = 0
    byte: int = 0


def find_texts(paths: list[str]) -> list[Path]:
    """The files that are meant by some files and folders; hidden ones in folders are left out.

    A folder's files come in the order of their names. Raises UserError for what is not there.
    """
    files = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = [file for file in path.rglob("*") if file.is_file()]
            names = sorted(file.relative_to(path).as_posix() for file in inside)
            files += [path / name for name in names if not re.search(r"(^|/)\.", name)]
        elif path.is_file():
            files.append(path)
        else:
            raise UserError(f"--corpus {path}: no such file or folder")
    if not files:
        raise UserError(f"--corpus {' '.join(paths)}: holds no files; give files of plain text")
    return files


def digest_of(files: list[Path], update) -> str:
    """The SHA-256 of all files' bytes and borders; `update` is called with the bytes read."""
    sha = hashlib.sha256()
    for path in files:
        sha.update(f"{path.stat().st_size};".encode())
        with opened(path) as file:
            while block := file.read(BLOCK_BYTES):
                sha.update(block)
                update(len(block))
    return sha.hexdigest()


def read_documents(
    files: list[Path], start: Position, block_bytes: int
) -> Iterator[tuple[str, Position]]:
    """Yield (text of one or more whole documents, where the next begins), from `start` on.

    A blank line, or a file's end, ends a document. Where the reading starts again does not change
    what is read. Raises UserError, with file and byte, for text that is not UTF-8.
    """
    for number in range(start.file, len(files)):
        begin = start.byte if number == start.file else 0
        with opened(files[number]) as file:
            while data := whole_documents(file, begin, block_bytes):
                text = decoded(data, files[number], begin)
                begin += len(data)
                yield text, Position(number, begin)


def whole_documents(file, begin, block_bytes):
    """About so many bytes from `begin` on: whole documents, unless one is too long; b"" at the end.

    A blank line that the block ends in is part of the next block: it is no document.
    """
    size = block_bytes
    while True:
        file.seek(begin)
        data = file.read(size)
        if len(data) < size:
            return data
        *_, last = [0, *(border.end() for border in BLANK_LINE.finditer(data))]
        if last:
            return data[:last]
        if size >= LONGEST_BYTES:
            return data[: line_end(data)]
        size *= 2


def line_end(data):
    """Where the last whole line of some bytes ends, or else the last whole word or character."""
    for separator in (b"\n", b" "):
        if at := data.rfind(separator) + 1:
            return at
    end = len(data) - 1
    while data[end] & 0xC0 == 0x80:  # within a character
        end -= 1
    return end


def decoded(data, path, begin):
    """Bytes as text; `begin` is where they are in the file."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}, byte {begin + error.start}: 0x{data[error.start]:02x} is not UTF-8; convert "
            "the file (`iconv -f ISO-8859-1 -t UTF-8`), or leave it out if it is not text"
        ) from None


def opened(path):
    """A file opened for reading; raises UserError where it cannot be."""
    try:
        return path.open("rb")
    except OSError as error:
        raise UserError(f"--corpus {path}: {error.strerror}") from None
