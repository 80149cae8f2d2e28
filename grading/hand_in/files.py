"""What of a student's folder is no part of a submission, and the walk that leaves it out."""

import os
import stat
from fnmatch import fnmatchcase
from pathlib import Path

MIB = 2**20
LARGEST = 5 * MIB  # bytes of a file
# Pattern of a file's or folder's name -> why it is left out.
JUNK = {
    ".git": "the history",
    ".venv": "an environment",
    "venv": "an environment",
    "*.egg-info": "made by the set-up",
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
    "runs": "what runs leave",
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


def why_junk(name):
    """Why a file or folder of that name is left out; "" if it is not."""
    return next((why for pattern, why in JUNK.items() if fnmatchcase(name, pattern)), "")


def walk(folder, junk=why_junk):
    """(files, left out) below a folder: sorted paths relative to it, and (path, why) pairs.

    Links are never followed, and neither they nor devices, sockets or pipes are files here.
    """
    files, left_out = [], []
    for here, folders, names in os.walk(folder):
        inner = Path(here).relative_to(folder)
        kept = []
        for name in sorted(folders):
            why = "a link" if (Path(here) / name).is_symlink() else junk(name)
            (left_out.append((inner / name, why)) if why else kept.append(name))
        folders[:] = kept
        for name in sorted(names):
            path = Path(here) / name
            why = junk(name) or why_no_file(path.lstat())
            (left_out.append((inner / name, why)) if why else files.append(inner / name))
    return sorted(files), sorted(left_out)


def why_no_file(facts):
    """Why what is at a path is no file to hand in, by its lstat; "" if it is one."""
    if stat.S_ISLNK(facts.st_mode):
        return "a link"
    if not stat.S_ISREG(facts.st_mode):
        return "no file"
    return f"{facts.st_size / MIB:.1f} MB: over 5 MB" if facts.st_size > LARGEST else ""
