"""The submissions in a class's folder, and what else lies there."""

import difflib
import os
import stat
from collections import Counter
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from common.errors import UserError
from grading.hand_in.archive import is_root, suffix_of
from grading.hand_in.safe_text import for_csv, line, shown_name

NOT_SUBMISSIONS = (  # patterns of file names that platforms and editors leave beside submissions
    ".*",
    "__macosx",
    "thumbs.db",
    "desktop.ini",
    *(f"*.{suffix}" for suffix in ("csv", "tsv", "txt", "md", "log", "json", "yml", "yaml")),
    *(f"*.{suffix}" for suffix in ("html", "htm", "xlsx", "xls", "ods", "pdf")),
    *(f"*.{suffix}" for suffix in ("png", "jpg", "jpeg", "gif", "svg", "webp", "heic")),
)


def entries(folder: Path, out: Path) -> dict[str, Path]:
    """The submissions in a folder, name -> path; UserError if there are none."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give the folder that holds the submissions")
    if is_root(folder):
        raise UserError(f"{folder} is a submission; give the folder that holds the submissions")
    output = os.path.realpath(out)
    paths = [
        path
        for path in sorted(folder.iterdir())
        if not is_metadata(path) and os.path.realpath(path) != output
    ]
    if not paths:
        raise UserError(f"no submission in {folder}: put folders or archives there")
    short = {path: path.name[: len(path.name) - len(suffix_of(path))] for path in paths}
    times = Counter(short.values())
    return {short[path] if times[short[path]] == 1 else path.name: path for path in paths}


def is_metadata(path: Path) -> bool:
    """Whether a class folder's entry is a file about the class, and nobody's submission."""
    name = path.name.lower()
    pattern = next((each for each in NOT_SUBMISSIONS if fnmatchcase(name, each)), "")
    beside = bool(pattern) and kind_of(path) != stat.S_IFDIR
    return beside or pattern.startswith((".", "_"))


def kind_of(path: Path) -> int:
    """The kind of a file, as in its mode (stat.S_IFREG ...); 0 if it cannot be seen."""
    try:
        return stat.S_IFMT(path.lstat().st_mode)
    except OSError:
        return 0


def shown(name: str) -> str:
    """A submission's name as text."""
    return shown_name(Path(name))


def aliases(names: Collection[str], pseudonyms: Mapping[str, str]) -> dict[str, str]:
    """What instructors may write for a submission -> its name: also as tables show it."""
    found = {}
    for name in names:
        written = {name, shown(name), line(shown(name)), str(for_csv(shown(name)))}
        found |= dict.fromkeys(written, name)
    found |= {pseudonym: name for name, pseudonym in pseudonyms.items() if name in names}
    return found | {name: name for name in names}


def nearest(word: str, words: Collection[str]) -> str:
    """The end of a message about an unknown word: which known one it may be."""
    close = difflib.get_close_matches(word, words, 1)
    if close:
        return f"did you mean {line(close[0])!r}?"
    some = ", ".join(line(each, 60) for each in list(words)[:5])
    return f"choose from {some}{' ...' if len(words) > 5 else ''}"
