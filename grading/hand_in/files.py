"""Which of a student's files belong to a submission, and the walk that leaves out the rest."""

import os
import stat
from fnmatch import fnmatchcase
from pathlib import Path

MIB = 2**20
LARGEST = 5 * MIB  # bytes of a file
DEEPEST = 32  # folders in each other
# Pattern of a file's or folder's name -> why it is left out.
EXCLUDED = {
    ".git": "the history",
    ".venv": "an environment",
    "venv": "an environment",
    "*.egg-info": "made by the setup",
    "__pycache__": "made by Python",
    "*.pyc": "made by Python",
    ".pytest_cache": "made by pytest",
    ".ruff_cache": "made by ruff",
    ".ipynb_checkpoints": "made by Jupyter",
    ".idea": "an editor's settings",
    ".vscode": "an editor's settings",
    ".DS_Store": "made by macOS",
    "._*": "made by macOS",
    "__MACOSX": "made by macOS",
    "runs": "what runs write",
    "cached_*": "cached features",
    "glue_data": "the data set",
    "*.safetensors": "weights",
    "*.pt": "weights",
    "*.pth": "weights",
    "*.bin": "weights",
    "*.part": "an unfinished file",
    "*.zip": "an archive",
    "*.tar": "an archive",
    "*.tar.gz": "an archive",
    "*.tgz": "an archive",
    "*.tar.xz": "an archive",
}


def why_excluded(name: str) -> str:
    """Why a file or folder of that name is left out; "" if it is not."""
    return next((why for pattern, why in EXCLUDED.items() if fnmatchcase(name, pattern)), "")


def walk(folder: Path) -> tuple[list[Path], list[tuple[Path, str]]]:
    """(files, left out) below a folder: sorted paths relative to it, and (path, why) pairs.

    Links are not followed; they, devices, sockets, pipes and folders too deep are left out.
    """
    files: list[Path] = []
    left_out: list[tuple[Path, str]] = []
    waiting = [Path()]
    while waiting:
        inner = waiting.pop()
        for path in (inner / name for name in os.listdir(folder / inner)):
            facts = (folder / path).lstat()
            is_folder = stat.S_ISDIR(facts.st_mode)
            why = why_excluded(path.name) or ("" if is_folder else why_not_packed(facts))
            if is_folder and len(path.parts) >= DEEPEST:
                why = f"more than {DEEPEST} folders deep"
            if why:
                left_out.append((path, why))
            else:
                (waiting if is_folder else files).append(path)
    return sorted(files), sorted(left_out)


def why_not_packed(facts: os.stat_result) -> str:
    """Why what has this lstat cannot be handed in; "" if it can."""
    if stat.S_ISLNK(facts.st_mode):
        return "a link"
    if not stat.S_ISREG(facts.st_mode):
        return "not a regular file"
    return f"{facts.st_size / MIB:.1f} MB: over 5 MB" if facts.st_size > LARGEST else ""
