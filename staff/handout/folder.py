"""Writes the handout as a folder, in place of nothing but an unedited earlier one."""

import hashlib
from pathlib import Path

from common.errors import UserError
from grading.hand_in.handed_out import SEAL, digest_of, sealed


def write_folder(files: dict[str, bytes], dest: Path, force: bool = False) -> None:
    """Write a handout's files, path -> content; an unedited earlier handout is replaced.

    Raises UserError where something else is in the way; with `force`, overwrites it.
    """
    if dest.exists() and not dest.is_dir():
        raise UserError(f"{dest} is a file; name a folder that does not exist yet")
    before = sealed(dest)
    if dest.exists() and any(dest.iterdir()) and not force:
        edited = [path for path, digest in before.items() if digest_of(dest / path) != digest]
        if not before:
            raise UserError(
                f"{dest} is not empty and not a handout; name another folder, or add --force"
            )
        if edited:
            raise UserError(
                f"{dest}: {edited[0]} is not as it was handed out; name another folder, or add "
                "--force to lose what was changed there"
            )
    for path in before.keys() - files.keys():
        (dest / path).unlink(missing_ok=True)
    for path, data in files.items():
        target = dest / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        target.chmod(0o755 if is_executable(path) else 0o644)
    seal = "".join(f"{hashlib.sha256(data).hexdigest()}  {path}\n" for path, data in files.items())
    (dest / SEAL).write_text(seal)


def is_executable(path: str) -> bool:
    """Whether a file is one to run: whatever mode it happens to have in this checkout."""
    return path.endswith(".sh")
