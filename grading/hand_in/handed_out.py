"""What was handed out: its digests are in the handout, to tell a student's own files from it."""

import hashlib
from pathlib import Path

SEAL = ".handout"  # in the folder: the digest of every file that was handed out there


def sealed(folder: Path) -> dict[str, str]:
    """Path -> digest of what was handed out there; empty where nothing was."""
    try:
        lines = (folder / SEAL).read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    pairs = (line.split("  ", 1) for line in lines if "  " in line)
    return {path: digest for digest, path in pairs if not {"..", "/"} & set(Path(path).parts)}


def digest_of(path: Path) -> str | None:
    """SHA-256 of a file, in hex; None if it does not exist."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
