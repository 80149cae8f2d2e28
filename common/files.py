"""Files that are there whole or not at all, and archives whose bytes depend on content alone."""

import contextlib
import errno
import fcntl
import json
import os
import shutil
import zipfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO

from common.errors import UserError


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a path to write to; what is there at the end becomes `path`, in one move.

    After an exception it is removed, and `path` stays as it was.
    """
    part = path.with_name(path.name + ".part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that it is there whole or not at all, even after a power cut."""
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    with whole(path) as part, part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_zip(path: Path, contents: Mapping[str, bytes], executable: Collection[str] = ()) -> None:
    """Write an archive of name -> content, whole or not at all; equal contents, equal bytes."""
    with whole(path) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, content in sorted(contents.items()):
            member = zipfile.ZipInfo(name, (2000, 1, 1, 0, 0, 0))
            mode = 0o100755 if name in executable else 0o100644
            member.create_system, member.external_attr = 3, mode << 16
            bundle.writestr(member, content, zipfile.ZIP_DEFLATED, 6)


def flush(path: Path) -> None:
    """Write a file's content, or a folder's names, to the disk, to outlast a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def save_model(model, tokenizer, folder: Path, weights: dict | None = None) -> None:
    """`save_pretrained` into `folder`, each file whole or not at all.

    `weights` are the whole ones of a model that is sharded.
    """
    part = folder / "saving.part"
    shutil.rmtree(part, ignore_errors=True)
    try:
        model.save_pretrained(part, **({"state_dict": weights} if weights else {}))
        tokenizer.save_pretrained(part)
        mode = (part / "config.json").stat().st_mode  # by the umask; safetensors writes 0600
        for file in part.iterdir():
            file.chmod(mode)
            flush(file)
            file.replace(folder / file.name)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def disk_full(error: BaseException, folder: Path | str) -> str:
    """A line with path and space if a full disk caused `error`, in `folder` or a file; else ""."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    signs = ("No space left on device", "Disk quota exceeded")  # of libraries that are not Python
    if not full and not any(sign in str(error) for sign in signs):
        return ""
    path = getattr(error, "filename", None) or folder
    usage = shutil.disk_usage(folder)
    return (
        f"{path}: the disk is full ({usage.free / 1e6:.1f} MB free of {usage.total / 1e6:.0f} MB "
        "for this user); free some space, or choose a folder on another disk"
    )


def claim(folder: Path, rank: int) -> IO[str]:
    """Claim this rank's place in a run's folder, until the returned file is closed.

    The lock is on the rank's file of steps, and dies with its process. Raises UserError if another
    process holds it, with its host, number and start, which are in run.json.
    """
    file = (folder / f"steps.rank{rank}.jsonl").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise UserError(
            f"--output_dir {folder}: another run is writing there ({writer(folder)}); choose "
            "another folder, or end that run"
        ) from None
    except OSError:  # a file system without locks
        pass
    return file


def writer(folder: Path) -> str:
    """Which run writes in a folder, by its run.json."""
    try:
        facts = json.loads((folder / "run.json").read_text())
        return f"on {facts['host']}, process {facts['process']}, since {facts['start']}"
    except (OSError, ValueError, KeyError):
        return "it has just started"
