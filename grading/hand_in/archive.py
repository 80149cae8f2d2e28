"""Unpacks untrusted submissions: inside one folder, without links or bombs, whole or not at all."""

import lzma
import tarfile
import zipfile
import zlib
from pathlib import Path

from common.errors import UserError
from common.tasks import FOLDERS
from grading.hand_in.files import MIB, walk, why_excluded
from grading.hand_in.members import (
    PACKED,
    UNPACKED,
    Limit,
    RefusedError,
    extract,
    read_tar,
    read_zip,
)
from grading.hand_in.safe_text import line, shown_name
from grading.sandbox.temporary import remove

SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz")
MAPPING = "grading.yaml"  # says how to run a submission's scripts
SCRIPT = "run_glue.py"
LEVELS = 3  # that are searched: a zip's folder, and one in it
FIX = "recreate it with `python -m grading pack`"
BROKEN = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    NotImplementedError,
    UnicodeError,
    OverflowError,
    ValueError,
    RuntimeError,
    MemoryError,
)


def suffix_of(path: Path) -> str:
    """The suffix of an archive's name that `unpack` knows, or ""."""
    name = path.name.lower()
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")


def unpack(archive: Path, destination: Path) -> Path:
    """Unpack an archive into `destination`, a folder that does not exist yet; returns it.

    Raises UserError for an archive that is broken, encrypted, too large or holds more than files
    and folders with names inside of it; then `destination` does not exist.
    """
    name, suffix = line(shown_name(archive)), suffix_of(archive)
    if not suffix:
        raise UserError(f"{name} is not a {', '.join(SUFFIXES)}: {FIX}")
    if destination.exists():
        raise UserError(f"{line(destination)} already exists; choose another folder")
    part = destination.with_name(destination.name + ".part")
    remove(part)
    part.mkdir(mode=0o700, parents=True)
    try:
        read(archive, suffix, part)
        part.rename(destination)
    except RefusedError as error:
        raise UserError(f"{name} is refused: {error}; {FIX}") from None
    except BROKEN as error:
        why = line(error) or type(error).__name__
        raise UserError(f"{name} is broken ({why}); {FIX}") from None
    finally:
        remove(part)
    return destination


def read(archive: Path, suffix: str, folder: Path) -> None:
    """Unpack an archive into a folder; RefusedError, or an error in BROKEN, if that fails."""
    size = archive.stat().st_size
    if size > PACKED:
        raise RefusedError(f"it has {size / MIB:.0f} MB; the limit is {PACKED // MIB} MB")
    if suffix == ".zip":
        read_zip(archive, folder, Limit(size))
    else:
        read_tar(archive, suffix, folder, Limit(size))


def fetch(source: Path, destination: Path, any_script: bool = False) -> Path:
    """Copy or unpack a submission, an archive or a folder, to `destination`; returns its root.

    What `pack` leaves out of a folder is left out; an archive alone in a folder is unpacked. With
    `any_script` its scripts may have any names, and lie in any folder.
    """
    if source.is_symlink() or not (source.is_dir() or source.is_file()):
        raise UserError(
            f"{line(shown_name(source))} is a link or a device; put the folder itself there"
        )
    if source.is_dir():
        archives = [path for path in sorted(source.iterdir()) if suffix_of(path)]
        archives = [path for path in archives if path.is_file() and not path.is_symlink()]
        if len(archives) != 1 or holds_submission(source, any_script):
            copy(source, destination)
            return submission_root(destination, any_script)
        source = archives[0]
    return submission_root(unpack(source, destination), any_script)


def holds_submission(folder: Path, any_script: bool) -> bool:
    """Whether a folder holds a submission that is not packed, at any level."""
    try:
        submission_root(folder, any_script)
    except UserError:
        return False
    return True


def copy(folder: Path, destination: Path) -> None:
    """Copy a folder's files, without links, what `pack` excludes, and large files."""
    limit = Limit(UNPACKED)
    try:
        for path in walk(folder)[0]:
            with (folder / path).open("rb") as data:
                extract(destination, str(path), (folder / path).stat().st_mode, data, limit)
        destination.mkdir(exist_ok=True)
    except RefusedError as error:
        raise UserError(f"{line(shown_name(folder))}: {error}; {FIX}") from None


def submission_root(folder: Path, any_script: bool = False) -> Path:
    """The folder that holds task1/, task2a/ ..., grading.yaml or run_glue.py, however nested.

    With `any_script` a folder that has none of these, but another script, will do.
    """
    level = [folder]
    for _ in range(LEVELS):
        found = [each for each in level if is_root(each)]
        if len({each.parent for each in found}) > 1 or sum(map(is_whole, found)) > 1:
            names = ", ".join(line(each.relative_to(folder)) for each in found[:5])
            raise UserError(f"{len(found)} submissions in one: {names}; hand in one of them")
        if found:  # folders side by side that hold a script each are one submission
            alone = len(found) == 1 and not (any_script and has_sibling(found[0], folder))
            return found[0] if alone else found[0].parent
        level = [path for each in level for path in inner_folders(each)]
    script = next((path for path in walk(folder)[0] if path.suffix == ".py"), None)
    if script and any_script:
        return without_wrappers(folder)
    held = ", ".join(line(path.name, 40) for path in sorted(folder.iterdir())[:8]) or "nothing"
    named = f"; scripts like {line(script)} need a {MAPPING}, or --mapping auto" if script else ""
    raise UserError(
        f"no {', '.join(f'{task}/' for task in FOLDERS)}, {MAPPING} or {SCRIPT} in it; it holds "
        f"{held}: hand in the folder that has them, with `python -m grading pack`{named}"
    )


def has_sibling(script_folder: Path, folder: Path) -> bool:
    """Whether other folders beside the folder of one script hold scripts of other names."""
    if script_folder == folder or is_whole(script_folder):
        return False
    others = set(inner_folders(script_folder.parent)) - {script_folder}
    return any(any(other.glob("*.py")) for other in others)


def without_wrappers(folder: Path) -> Path:
    """A folder of scripts, without the outer ones that hold a single folder and no script."""
    for _ in range(LEVELS):
        inner = inner_folders(folder)
        if len(inner) != 1 or any(any(each.glob("*.py")) for each in (folder, *inner)):
            break
        folder = inner[0]
    return folder


def is_whole(folder: Path) -> bool:
    """Whether a folder is certainly a submission, and not the folder of one of its scripts."""
    return (folder / MAPPING).is_file() or any((folder / task).is_dir() for task in FOLDERS)


def is_root(folder: Path) -> bool:
    """Whether a folder is a submission's root, or holds one of its scripts."""
    return is_whole(folder) or (folder / SCRIPT).is_file()


def inner_folders(folder: Path) -> list[Path]:
    """The folders in a folder, without links and what `pack` excludes."""
    inner = sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    return [path for path in inner if not why_excluded(path.name)]
