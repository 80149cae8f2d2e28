"""Grades a folder of submissions, several at once, and resumes where it was stopped.

    python -m staff grade FOLDER_OF_SUBMISSIONS --jobs 2 --out grades

Each entry of the folder, a folder or an archive, is a submission. Writes reports/NAME.json,
grades.csv, grades.json and matrix.html. A submission is graded again only if it, the rubric or the
kit has changed since its report was written.
"""

import argparse
import contextlib
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

from common.errors import UserError
from common.tasks import TASKS
from grading.hand_in.archive import is_root, suffix_of
from grading.hand_in.safe_text import line, shown_name, visible
from grading.results import Report
from staff.classroom.jobs import Job, next_messages, stop
from staff.classroom.reports import ReportStore, content_digest, kit_digest
from staff.classroom.tables import Row, summary_text, write_tables

from tqdm import tqdm

DESCRIPTION = "Grades a folder of submissions, and resumes where it was stopped."
IGNORED = ("__MACOSX", "Thumbs.db")


@dataclass(frozen=True)
class Options:
    """How a class is graded; `seconds` are each submission's at most."""

    jobs: int = 1
    tasks: tuple[str, ...] | None = None
    mapping: Path | None = None
    again: bool = False
    seconds: float = 1800.0


def entries(folder: Path, out: Path) -> dict[str, Path]:
    """The submissions in a folder, name -> path; UserError if there are none."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give the folder that holds the submissions")
    if is_root(folder):
        raise UserError(f"{folder} is a submission; give the folder that holds the submissions")
    paths = [
        path
        for path in sorted(folder.iterdir())
        if path.name not in IGNORED
        and not path.name.startswith(".")
        and path.resolve() != out.resolve()
    ]
    if not paths:
        raise UserError(f"no submission in {folder}: put folders or archives there")
    short = {path: path.name[: len(path.name) - len(suffix_of(path))] for path in paths}
    times = Counter(short.values())
    return {short[path] if times[short[path]] == 1 else path.name: path for path in paths}


def grade_class(folder: Path, out: Path, options: Options) -> list[Row]:
    """Grade the submissions in a folder and write their tables; returns the rows.

    Ctrl-C stops what is running and keeps the reports of what is finished.
    """
    found, store = entries(folder, out), ReportStore(out / "reports")
    kit = kit_digest(options.tasks, options.mapping)
    rows, stamps = {}, {}
    for name, path in found.items():
        try:
            stamps[name] = f"{content_digest(path)} {kit}"
        except OSError as error:
            rows[name] = Row(shown(name), error=f"cannot read it: {error.strerror}")
            continue
        if not options.again and (report := store.get(name, stamps[name])):
            rows[name] = Row(shown(name), report)
    if rows:
        print(f"{len(rows)} of {len(found)} already graded (--again regrades them)")
    waiting = {name: path for name, path in found.items() if name not in rows}
    finished = grade_all(waiting, options)
    with (
        contextlib.closing(finished),  # stops what is running
        tqdm(total=len(found), initial=len(rows), unit="submission", file=sys.stderr) as bar,
    ):
        for name, report, error in finished:
            if report:
                report.submission = shown(name)
                store.save(name, stamps[name], report)
            rows[name] = Row(shown(name), report, error)
            bar.update()
            bar.write(rows[name].text)
    ordered = [rows[name] for name in found]
    for path in write_tables(out, ordered):
        print(f"wrote {path}")
    return ordered


def grade_all(
    submissions: Mapping[str, Path], options: Options
) -> Generator[tuple[str, Report | None, str], None, None]:
    """Grade submissions, several at once; yields (name, report, "") or (name, None, why not)."""
    waiting, running = deque(submissions.items()), {}
    try:
        while waiting or running:
            while waiting and len(running) < options.jobs:
                name, path = waiting.popleft()
                job = Job(path, options.tasks, options.mapping, options.seconds)
                running[job] = name
            for job, (kind, content) in next_messages(list(running)):
                if kind == "result":
                    continue
                if kind == "failed":
                    tqdm.write(f"{line(running[job])}: {visible(content)}", file=sys.stderr)
                stop([job])
                yield running.pop(job), *outcome(kind, content)
    finally:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # ignore further Ctrl-C
        stop(running)
        signal.signal(signal.SIGINT, before)


def outcome(kind: str, content: str) -> tuple[Report | None, str]:
    """(report, "") or (None, why there is none) from a job's last message."""
    if kind == "report":
        return Report.from_json(content), ""
    if kind in ("refused", "late"):
        return None, content
    return None, f"the grader failed: {content.strip().splitlines()[-1]}"


def shown(name: str) -> str:
    """A submission's name as text."""
    return shown_name(Path(name))


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """The command line's options; UserError for those that are not valid."""
    parser = argparse.ArgumentParser(prog="python -m staff grade", description=DESCRIPTION)
    add = parser.add_argument
    add("folder", type=Path, metavar="FOLDER", help="the folder of submissions")
    add("--jobs", type=int, default=1, help="submissions graded at once (default: 1)")
    add("--out", type=Path, default=Path("grades"), help="output folder (default: grades)")
    add("--tasks", help="grade only these, such as task2a,task2b")
    add("--mapping", type=Path, help="grading.yaml for submissions without one")
    add("--minutes", type=float, default=30, help="limit for each submission (default: 30)")
    add("--again", action="store_true", help="also grade what is already graded")
    args = parser.parse_args(argv)
    if args.jobs < 1:
        raise UserError(f"--jobs {args.jobs}: give 1 or more")
    if not args.minutes > 0:
        raise UserError(f"--minutes {args.minutes:g}: give more than 0")
    args.tasks = tuple(args.tasks.split(",")) if args.tasks else None
    if wrong := set(args.tasks or ()) - set(TASKS):
        raise UserError(f"--tasks {','.join(sorted(wrong))}: choose from {','.join(TASKS)}")
    if args.mapping and not args.mapping.is_file():
        raise UserError(f"--mapping {args.mapping}: there is no such file")
    return args


def main(argv: list[str] | None = None) -> int:
    """Grade a class; returns the exit code: 1 if a submission could not be graded."""
    args, began = parse_arguments(argv), time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    args.out.mkdir(parents=True, exist_ok=True)
    mapping = args.mapping.resolve() if args.mapping else None
    options = Options(args.jobs, args.tasks, mapping, args.again, 60 * args.minutes)
    rows = grade_class(args.folder, args.out, options)
    print(summary_text(rows))
    print(f"grading took {(time.monotonic() - began) / 60:.1f} minutes")
    return 1 if any(row.error for row in rows) else 0
