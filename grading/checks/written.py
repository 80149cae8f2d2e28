"""The text that a run wrote into files: untrusted, so limited, and without following links."""

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

PLUMBING = re.compile(r"(steps|trace)\.rank\d+\.jsonl?|run\.json")
MODEL = re.compile(r"(vocab|merges)\.txt|(tokenizer|config|special_tokens|added_tokens).*\.json")
TEXTS = (".txt", ".json", ".jsonl", ".csv", ".tsv", ".log", ".md", ".out")
MOST_FILES = 500
MOST_CHARACTERS = 2**20  # of all files
DEEPEST = 4  # folders


def find_texts(folder: Path) -> dict[str, tuple[int, int]]:
    """Path -> (time of writing, size) of the text files in a folder and its subfolders.

    What the handout's own plumbing records, whatever a student writes, and what is saved with a
    model are left out.
    """
    found = {}
    for path in walk(str(folder)):
        name = os.path.basename(path)
        if not name.endswith(TEXTS) or PLUMBING.fullmatch(name) or MODEL.fullmatch(name):
            continue
        facts = os.lstat(path)
        if stat.S_ISREG(facts.st_mode):
            found[path] = (facts.st_mtime_ns, facts.st_size)
        if len(found) == MOST_FILES:
            break
    return found


def walk(folder: str, depth: int = 0) -> Iterator[str]:
    """The paths of the files in a folder and its subfolders; folders that are links are left out.

    Raises nothing for folders that cannot be read.
    """
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if not entry.is_dir(follow_symlinks=False):
            yield entry.path
        elif depth < DEEPEST:
            yield from walk(entry.path, depth + 1)


def read_texts(folders: list[Path], before: dict[str, tuple[int, int]]) -> str:
    """The text of the files that were written since `before`, in the order of their writing."""
    found = {path: facts for folder in folders for path, facts in find_texts(folder).items()}
    new = [path for path, facts in found.items() if before.get(path) != facts]
    texts, room = [], MOST_CHARACTERS
    for path in sorted(new, key=found.__getitem__):
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), errors="replace") as file:
                texts.append(file.read(room))
        except OSError:
            continue
        room -= len(texts[-1])
    return "\n".join(texts)
