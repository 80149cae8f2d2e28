"""Private temporary folders that do not outlive their owner: the next start removes them."""

import contextlib
import fcntl
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "grading-job-"  # of no folder that somebody else may have made


class PrivateFolder:
    """A new folder that only we can enter, locked as long as this process lives."""

    def __init__(self):
        self.path, self.descriptor = new_locked_folder()

    def remove(self) -> None:
        """Remove it with everything in it."""
        remove(self.path)
        os.close(self.descriptor)


def new_locked_folder() -> tuple[Path, int]:
    """A new folder and the descriptor that locks it; another start may remove it until then."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        with contextlib.suppress(FileNotFoundError, BlockingIOError):
            descriptor = os.open(path, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists():
                return path, descriptor


def remove_abandoned() -> int:
    """Remove the folders whose owner was killed; returns how many there were."""
    count = 0
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if path.lstat().st_uid != os.getuid():
                continue
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(path)
                count += 1
            finally:
                os.close(descriptor)
    return count


@contextlib.contextmanager
def inner_folder(parent: Path) -> Iterator[Path]:
    """A new folder in another one, which is removed at the end; others can pass through it."""
    path = Path(tempfile.mkdtemp(dir=parent, prefix="run-"))
    path.chmod(0o711)
    try:
        yield path
    finally:
        remove(path)


def remove(folder: Path) -> None:
    """Remove a folder, whatever modes its folders have and however deep they are nested."""
    for command in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
        subprocess.run([*command, "--", str(folder)], stderr=subprocess.DEVNULL, check=False)
