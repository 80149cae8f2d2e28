"""The reports of a class, each kept with a stamp of everything that it depends on."""

import contextlib
import hashlib
import json
import stat
import sys
from collections.abc import Collection, Iterable
from importlib import metadata
from pathlib import Path

from common.errors import UserError
from common.files import write_whole
from grading.hand_in.archive import suffix_of
from grading.hand_in.files import MIB, walk
from grading.hand_in.members import PACKED
from grading.hand_in.safe_text import file_name
from grading.results import Report

import yaml

ROOT = Path(__file__).resolve().parents[2]
KIT = (
    "grading/**/*.*",
    "common/**/*.*",
    "cluster/*.py",
    "staff/reference.py",
    "task*/*.py",
    "sample_data/RTE/*.tsv",
)
RUBRIC = "grading/rubric.yaml"
CHUNK = 2**20


class ReportStore:
    """The reports in a folder, by the submissions' names."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, name: str, stamp: str) -> Report | None:
        """The report of a submission, if it was made with exactly this stamp."""
        try:
            text = self.path(name).read_text(encoding="utf-8")
            made = self.path(name).with_suffix(".stamp").read_text(encoding="utf-8")
            return Report.from_json(text) if made == stamp_text(stamp, text) else None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def last(self, name: str) -> Report | None:
        """The last report of a submission, whatever has changed since."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            return Report.from_json(self.path(name).read_text(encoding="utf-8"))
        return None

    def save(self, name: str, stamp: str, report: Report) -> None:
        """Keep a report; its stamp is written last, so that a damaged report never has one."""
        text = report.to_json()
        write_whole(self.path(name), text)
        write_whole(self.path(name).with_suffix(".stamp"), stamp_text(stamp, text))

    def path(self, name: str) -> Path:
        """The file of a submission's report."""
        return self.folder / f"{file_name(name)}.json"


def stamp_text(stamp: str, text: str) -> str:
    """The content of a stamp's file, for a report of that text."""
    return f"{stamp}\n{hashlib.sha256(text.encode()).hexdigest()}\n"


def digest(files: Iterable[tuple[str, Path]]) -> str:
    """sha256 over (name, path) pairs: names and bytes, as hexadecimal text."""
    total = hashlib.sha256()
    for name, path in files:
        found = hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                found.update(chunk)
        encoded = name.encode("utf-8", "surrogateescape")
        total.update(f"{len(encoded)} ".encode() + encoded + found.digest())
    return total.hexdigest()


def content_digest(path: Path) -> str:
    """The digest of everything in a submission that is graded.

    Raises UserError for what is neither a folder nor a file, or too large to be graded.
    """
    facts = path.lstat()
    if stat.S_ISLNK(facts.st_mode) or not (path.is_dir() or path.is_file()):
        raise UserError("it is a link or a device; put the folder or archive itself there")
    if not path.is_dir():
        if facts.st_size > PACKED:
            size = f"{facts.st_size / MIB:.0f} MB; the limit is {PACKED // MIB} MB"
            raise UserError(f"it has {size}: ask for it without data and weights")
        return digest([("", path)])
    packed = [each for each in sorted(path.iterdir()) if suffix_of(each) and each.is_file()]
    inner = [(str(each), path / each) for each in walk(path)[0]]
    return digest(inner + [(each.name, each) for each in packed])


def kit_digest(tasks: Collection[str] | None, mapping: Path | None) -> str:
    """The digest of all else that a report depends on: the kit, the rubric, torch, the options."""
    paths = [path for pattern in KIT for path in sorted(ROOT.glob(pattern))]
    files = [
        (str(path.relative_to(ROOT)), path)
        for path in paths
        if path.is_file() and path.suffix != ".pyc" and path != ROOT / RUBRIC
    ]
    options = f"{metadata.version('torch')} {sys.version} {sorted(tasks or [])}"
    if mapping and mapping.is_file():
        files.append(("mapping", mapping))
    return f"{digest(files)} {checks_digest()} {options} {mapping.name if mapping else ''}"


def checks_digest() -> str:
    """The digest of the rubric without its manual items, which no report depends on."""
    text = (ROOT / RUBRIC).read_text(encoding="utf-8")
    with contextlib.suppress(yaml.YAMLError, AttributeError, TypeError):
        facts = yaml.safe_load(text)
        text = json.dumps({name: facts[name] for name in facts if name not in ("manual", "total")})
    return hashlib.sha256(text.encode()).hexdigest()
