"""Takes submissions from anyone: nothing gets outside, no links, no bombs, all or nothing."""

import lzma
import shutil
import tarfile
import zipfile
import zlib

from common.errors import UserError
from grading.hand_in.files import MIB, walk, why_junk
from grading.hand_in.members import PACKED, UNPACKED, Limit, Refused, place, read_tar, read_zip
from grading.hand_in.safe_text import line, shown_name

SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz")
TASKS = ("task1", "task2a", "task2b", "task3", "task4")
MARKS = ("grading.yaml", "run_glue.py")
DEEPEST = 3  # levels that are looked at: a zip's folder, and one in it
FIX = "make it anew with `python -m grading pack`"
BROKEN = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError),
    *(NotImplementedError, UnicodeError, OverflowError, ValueError, RuntimeError, MemoryError),
)


def suffix_of(path):
    """The suffix of an archive's name that `unpack` knows, or ""."""
    name = path.name.lower()
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")


def unpack(archive, destination):
    """Unpack an archive into `destination`, a folder that is not there yet; returns it.

    Raises UserError for an archive that is broken, encrypted, too large or holds more than files
    and folders with names inside of it; then `destination` is not there.
    """
    name, suffix = line(shown_name(archive)), suffix_of(archive)
    if not suffix:
        raise UserError(f"{name} is no {', '.join(SUFFIXES)}: {FIX}")
    if destination.exists():
        raise UserError(f"{line(destination)} is there already: give a new folder's name")
    part = destination.with_name(destination.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(mode=0o700, parents=True)
    try:
        size = archive.stat().st_size
        if size > PACKED:
            raise Refused(f"it has {size / MIB:.0f} MB, and {PACKED // MIB} MB is the most")
        (read_zip if suffix == ".zip" else read_tar)(archive, suffix, part, Limit(size))
        part.rename(destination)
    except Refused as error:
        raise UserError(f"{name} is refused: {error}; {FIX}") from None
    except BROKEN as error:
        raise UserError(
            f"{name} is broken ({line(error) or type(error).__name__}); {FIX}"
        ) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return destination


def fetch(source, destination):
    """Take a submission, an archive or a folder, to `destination`; returns where its root lies.

    Of a folder, what `pack` leaves out is left out; an archive alone in a folder is unpacked.
    """
    if source.is_symlink() or not (source.is_dir() or source.is_file()):
        raise UserError(f"{line(shown_name(source))} is a link or a device: put the folder there")
    if source.is_dir():
        packed = [path for path in sorted(source.iterdir()) if suffix_of(path)]
        found = [path for path in packed if path.is_file() and not path.is_symlink()]
        if len(found) != 1 or not is_bare(source):
            copy(source, destination)
            return submission_root(destination)
        source = found[0]
    return submission_root(unpack(source, destination))


def is_bare(folder):
    """Whether no submission lies in a folder, however deep."""
    try:
        return not submission_root(folder)
    except UserError:
        return True


def copy(folder, destination):
    """Copy a folder's files, and no links, junk or large ones."""
    limit = Limit(UNPACKED)
    try:
        for path in walk(folder)[0]:
            with (folder / path).open("rb") as data:
                place(destination, str(path), False, (folder / path).stat().st_mode, data, limit)
        destination.mkdir(exist_ok=True)
    except Refused as error:
        raise UserError(f"{line(shown_name(folder))}: {error}; {FIX}") from None


def submission_root(folder):
    """The folder that holds task1/, task2a/ ..., grading.yaml or run_glue.py, however nested."""
    level = [folder]
    for _ in range(DEEPEST):
        found = [each for each in level if is_root(each)]
        if len({each.parent for each in found}) > 1 or sum(map(is_whole, found)) > 1:
            names = ", ".join(line(each.relative_to(folder)) for each in found[:5])
            raise UserError(f"{len(found)} submissions in one: {names}; hand in one of them")
        if found:  # scripts in folders side by side are one submission, of a layout of its own
            return found[0] if len(found) == 1 else found[0].parent
        level = [path for each in level for path in inner_folders(each)]
    held = ", ".join(line(path.name, 40) for path in sorted(folder.iterdir())[:8]) or "nothing"
    raise UserError(
        f"no {', '.join(f'{task}/' for task in TASKS)}, {' or '.join(MARKS)} in it; it holds "
        f"{held}: hand in the folder that has them, with `python -m grading pack`"
    )


def is_whole(folder):
    """Whether a folder is a submission for sure, and not one of its scripts' folders."""
    return (folder / MARKS[0]).is_file() or any((folder / task).is_dir() for task in TASKS)


def is_root(folder):
    """Whether a folder is a submission's root, or holds one of its scripts."""
    return is_whole(folder) or (folder / MARKS[1]).is_file()


def inner_folders(folder):
    """The folders in a folder, but for links and junk."""
    inner = sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    return [path for path in inner if not why_junk(path.name)]
