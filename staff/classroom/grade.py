"""Grades a folder of submissions, several at once, and takes up where it was stopped.

    python -m staff grade FOLDER_OF_SUBMISSIONS --jobs 2 --out grades

Each entry of the folder, a folder or an archive, is a submission. Leaves reports/NAME.json,
grades.csv, grades.json and matrix.html, a page of its own. A submission that is unchanged since its
report was written, as are the rubric and the kit, is not graded again.
"""

import argparse
import contextlib
import hashlib
import signal
import sys
import time
from collections import Counter, deque
from importlib import metadata
from pathlib import Path

from common.errors import UserError
from grading.hand_in.archive import TASKS, is_root, suffix_of
from grading.hand_in.files import walk
from grading.hand_in.safe_text import file_name, line, shown_name, visible, write_whole
from grading.results import Report
from staff.classroom.jobs import Job, next_news, stop
from staff.classroom.tables import Row, summary_text, write_tables

from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[2]
KIT = (
    "grading/**/*.*",
    "common/**/*.*",
    "staff/reference.py",
    "task*/*.py",
    "sample_data/RTE/*.tsv",
)
NO_ENTRIES = ("__MACOSX", "Thumbs.db")


def entries(folder, out):
    """The submissions in a folder, {name: path}; UserError if there are none."""
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder: give the one that holds the submissions")
    if is_root(folder):
        raise UserError(f"{folder} is a submission: give the folder that holds the submissions")
    paths = [
        path
        for path in sorted(folder.iterdir())
        if path.name not in NO_ENTRIES
        and not path.name.startswith(".")
        and path.resolve() != out.resolve()
    ]
    if not paths:
        raise UserError(f"no submission in {folder}: put folders or archives there")
    short = {path: path.name[: len(path.name) - len(suffix_of(path))] for path in paths}
    times = Counter(short.values())
    return {short[path] if times[short[path]] == 1 else path.name: path for path in paths}


def digest(files):
    """sha256 over (name, path) pairs: names and bytes, as hexadecimal text."""
    total = hashlib.sha256()
    for name, path in files:
        found = hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(2**20):
                found.update(chunk)
        total.update(f"{len(name.encode('utf-8', 'surrogateescape'))} ".encode())
        total.update(name.encode("utf-8", "surrogateescape") + found.digest())
    return total.hexdigest()


def content_digest(path):
    """The digest of what is graded of a submission."""
    if not path.is_dir():
        return digest([("", path)])
    packed = [each for each in sorted(path.iterdir()) if suffix_of(each) and each.is_file()]
    inner = [(str(each), path / each) for each in walk(path)[0]]
    return digest(inner + [(each.name, each) for each in packed])


def kit_digest(tasks, mapping):
    """The digest of all else that a report depends on: the kit, the rubric, torch, the options."""
    files = [
        (str(path.relative_to(ROOT)), path) for each in KIT for path in sorted(ROOT.glob(each))
    ]
    files = [(name, path) for name, path in files if path.is_file() and path.suffix != ".pyc"]
    options = f"{metadata.version('torch')} {sys.version} {sorted(tasks or [])}"
    return f"{digest(files + ([('mapping', mapping)] if mapping else []))} {options}"


class Shelf:
    """The reports of a class; a report's stamp says what it was made from."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def take(self, name, stamp):
        """The report of a submission, if it was made from just this."""
        try:
            text = self.path(name).read_text(encoding="utf-8")
            made = self.path(name).with_suffix(".stamp").read_text(encoding="utf-8")
            return Report.from_json(text) if made == self.stamped(stamp, text) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, name, stamp, report):
        """Keep a report; the stamp comes last, so that it is never a broken report's."""
        text = report.to_json()
        write_whole(self.path(name), text)
        write_whole(self.path(name).with_suffix(".stamp"), self.stamped(stamp, text))

    def path(self, name):
        return self.folder / f"{file_name(name)}.json"

    @staticmethod
    def stamped(stamp, text):
        return f"{stamp}\n{hashlib.sha256(text.encode()).hexdigest()}\n"


def grade_class(
    folder, out, jobs=1, tasks=None, mapping=None, again=False, grade=None, seconds=1800.0
):
    """Grade the submissions in a folder, write what `write_tables` writes; returns the rows.

    `seconds` are each submission's at most. Ctrl-C ends what is running and keeps the reports of
    what is finished.
    """
    found, shelf, kit = entries(folder, out), Shelf(out / "reports"), kit_digest(tasks, mapping)
    rows, stamps = {}, {}
    for name, path in found.items():
        try:
            stamps[name] = f"{content_digest(path)} {kit}"
        except OSError as error:
            rows[name] = Row(shown(name), error=f"it cannot be read: {error.strerror}")
        if report := None if again or name in rows else shelf.take(name, stamps[name]):
            rows[name] = Row(shown(name), report)
    if rows:
        print(f"{len(rows)} of {len(found)} are graded already: --again grades them anew")
    waiting = {name: path for name, path in found.items() if name not in rows}
    found_now = graded(waiting, jobs, tasks, mapping, grade, seconds)
    with (
        contextlib.closing(found_now),  # ends what is running
        tqdm(total=len(found), initial=len(rows), unit="submission", file=sys.stderr) as bar,
    ):
        for name, report, error in found_now:
            if report:
                report.submission = shown(name)
                shelf.put(name, stamps[name], report)
            rows[name] = Row(shown(name), report, error)
            bar.update()
            bar.write(rows[name].told)
    ordered = [rows[name] for name in found]
    for path in write_tables(out, ordered):
        print(f"written: {path}")
    return ordered


def graded(waiting, most, tasks, mapping, grade, seconds):
    """Grade submissions, so many at once; yields (name, report, "") or (name, None, why not)."""
    waiting, running = deque(waiting.items()), {}
    try:
        while waiting or running:
            while waiting and len(running) < most:
                name, path = waiting.popleft()
                running[Job(path, tasks, mapping, grade, seconds)] = name
            for job, (kind, told) in next_news(list(running)):
                if kind != "result":
                    if kind == "failed":
                        tqdm.write(f"{line(running[job])}: {visible(told)}", file=sys.stderr)
                    stop([job])
                    yield running.pop(job), *outcome(kind, told)
    finally:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C cuts nothing short
        stop(running)
        signal.signal(signal.SIGINT, before)


def outcome(kind, told):
    """(report, "") or (None, why there is none) from what a job told at its end."""
    if kind == "report":
        return Report.from_json(told), ""
    if kind in ("refused", "late"):
        return None, told
    return None, f"the grader failed: {told.strip().splitlines()[-1]}"


def shown(name):
    """A submission's name as text."""
    return shown_name(Path(name))


def parse(argv):
    """The command line's options; UserError for those that cannot be meant."""
    parser = argparse.ArgumentParser(
        prog="python -m staff grade", description=__doc__.splitlines()[0]
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="of submissions")
    parser.add_argument("--jobs", type=int, default=1, help="submissions at once (default: 1)")
    parser.add_argument("--out", type=Path, default=Path("grades"), help="folder (default: grades)")
    parser.add_argument("--tasks", help="only these, such as task2a,task2b")
    parser.add_argument("--mapping", type=Path, help="grading.yaml for those that bring none")
    parser.add_argument("--minutes", type=float, default=30, help="for each at most (default: 30)")
    parser.add_argument("--again", action="store_true", help="grade what is graded already, too")
    args = parser.parse_args(argv)
    if args.jobs < 1:
        raise UserError(f"--jobs {args.jobs}: give 1 or more")
    if not args.minutes > 0:
        raise UserError(f"--minutes {args.minutes:g}: give more than 0")
    args.tasks = args.tasks.split(",") if args.tasks else None
    if wrong := set(args.tasks or []) - set(TASKS):
        raise UserError(f"--tasks {','.join(sorted(wrong))}: there are {','.join(TASKS)}")
    if args.mapping and not args.mapping.is_file():
        raise UserError(f"--mapping {args.mapping}: there is no such file")
    return args


def main(argv=None):
    """Grade a class; returns the exit code: 1 if a submission could not be graded."""
    args, began = parse(argv), time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    args.out.mkdir(parents=True, exist_ok=True)
    mapping = args.mapping.resolve() if args.mapping else None
    rows = grade_class(
        args.folder, args.out, args.jobs, args.tasks, mapping, args.again, seconds=60 * args.minutes
    )
    print(summary_text(rows))
    print(f"it took {(time.monotonic() - began) / 60:.1f} minutes")
    return 1 if any(row.error for row in rows) else 0
