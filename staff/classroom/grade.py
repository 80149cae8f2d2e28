"""Grades a folder of submissions, several at once, and resumes where it was stopped.

    python -m staff grade FOLDER_OF_SUBMISSIONS --jobs 2 --out grades

Each entry of the folder, a folder or an archive, is a submission; files about the class, such as
submission_metadata.yml, are not. Writes reports/NAME.json, grades.csv, grades.json and matrix.html,
also when it is interrupted. A submission is graded again only if it, the rubric or the kit has
changed since its report was written.
"""

import argparse
import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from common.errors import UserError
from common.tasks import SCRIPTS
from grading.mapping import AUTO
from grading.sandbox.temporary import remove_abandoned
from staff.classroom.decisions import Decisions
from staff.classroom.entries import entries, nearest, shown
from staff.classroom.feedback import write_feedback
from staff.classroom.marks import Row
from staff.classroom.reports import ReportStore, content_digest, kit_digest
from staff.classroom.running import Options, grade_all, uninterrupted
from staff.classroom.summary import summary_text
from staff.classroom.tables import write_tables

from tqdm import tqdm

DESCRIPTION = "Grade a folder of submissions; resumes where it was stopped."
NOT_REACHED = "the run was interrupted; run the same command again"
NOT_CHOSEN = "--only did not name it"
STALE = "graded before it, the rubric or the kit changed"


def grade_class(folder: Path, out: Path, options: Options) -> list[Row]:
    """Grade the submissions in a folder and write their tables; returns the rows.

    Ctrl-C stops what is running, keeps the reports of what is finished and still writes the tables.
    """
    found, store = entries(folder, out), ReportStore(out / "reports")
    decisions = Decisions(folder, out, found, options.course, options.tasks)
    options = replace(options, only=tuple(chosen(options.only, decisions.names)))
    if options.anonymous:
        decisions.assign_pseudonyms()
    printed = decisions.hidden_row if options.anonymous else lambda _, row: row
    remove_abandoned()
    rows = {name: Row(shown(name), error=NOT_REACHED, pending=True) for name in found}
    try:
        stamps = examine(found, store, options, rows)
        waiting = {name: path for name, path in found.items() if name in stamps}
        grade_waiting(waiting, stamps, store, options, rows, printed)
    finally:
        with uninterrupted():
            rows = {name: decisions.applied(name, row) for name, row in rows.items()}
            write_all(out, decisions, rows, options.anonymous)
    return list(rows.values())


def chosen(only: Sequence[str], names: Mapping[str, str]) -> Iterator[str]:
    """The submissions that --only names; UserError for one that is not there."""
    for name in only:
        if name not in names:
            raise UserError(f"--only {name}: no such submission; {nearest(name, names)}")
        yield names[name]


def write_all(out: Path, decisions: Decisions, rows: Mapping[str, Row], hidden: bool) -> None:
    """Write tables and feedback, with `hidden` also under pseudonyms, and print the summary."""
    folders = {out: list(rows.values())}
    if hidden:
        folders[out / "anonymous"] = decisions.hidden(rows)
    for folder, each in folders.items():
        for path in write_tables(folder, each):
            print(f"wrote {path}")
        print(f"wrote {folder / 'feedback'}: {write_feedback(folder / 'feedback', each)} of them")
    if template := decisions.write_template(hidden):
        print(f"wrote {template}: enter the points of the manual items there")
    print(summary_text(list(rows.values())))


def examine(
    found: Mapping[str, Path], store: ReportStore, options: Options, rows: dict[str, Row]
) -> dict[str, str]:
    """Set the rows of what need not be graded now; returns name -> stamp of what must be.

    Whatever goes wrong while a submission is read is its own result.
    """
    kit, stamps = kit_digest(options.tasks, options.mapping), {}
    for name, path in found.items():
        try:
            stamp = f"{content_digest(path)} {kit}"
        except Exception as error:
            why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            why = str(error) if isinstance(error, UserError) else why
            rows[name] = Row(shown(name), error=f"cannot read it: {why}")
            continue
        wanted = not options.only or name in options.only
        report = store.get(name, stamp)
        if report and not (options.again and wanted):
            rows[name] = Row(shown(name), report)
        elif wanted:
            stamps[name] = stamp
        elif last := store.last(name):
            rows[name] = Row(shown(name), last, note=STALE)
        else:
            rows[name] = Row(shown(name), error=NOT_CHOSEN, pending=True)
    if graded := sum(bool(row.report) for row in rows.values()):
        print(f"{graded} of {len(found)} already graded (--again regrades them)")
    return stamps


def grade_waiting(
    waiting: Mapping[str, Path],
    stamps: Mapping[str, str],
    store: ReportStore,
    options: Options,
    rows: dict[str, Row],
    printed: Callable[[str, Row], Row],
) -> None:
    """Grade what waits, keep the reports and set the rows; `printed(name, row)` is shown."""
    with (
        contextlib.closing(grade_all(waiting, options)) as finished,  # stops what is running
        tqdm(
            total=len(rows), initial=len(rows) - len(waiting), unit="submission", file=sys.stderr
        ) as bar,
    ):
        for name, report, error in finished:
            rows[name] = Row(shown(name), report, error)
            row = printed(name, rows[name])
            if report:
                report.submission = shown(name)
                try:
                    store.save(name, stamps[name], report)
                except OSError as problem:
                    bar.write(f"{row.name}: its report could not be kept: {problem}")
            bar.update()
            bar.write(row.text)


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """The command line's options; UserError for those that are not valid."""
    parser = argparse.ArgumentParser(prog="python -m staff grade", description=DESCRIPTION)
    add = parser.add_argument
    add("folder", type=Path, metavar="FOLDER", help="the folder of submissions")
    add("--jobs", type=int, default=1, help="submissions graded at once (default: 1)")
    add("--out", type=Path, default=Path("grades"), help="output folder (default: grades)")
    add("--tasks", help="grade only these, such as task2a,task2b")
    add("--mapping", type=Path, help="auto, or a grading.yaml for what they leave out")
    add("--minutes", type=float, default=30, help="limit for each submission (default: 30)")
    add("--again", action="store_true", help="also grade what is already graded")
    add("--only", action="append", default=[], metavar="NAME", help="grade only this submission")
    add("--course", type=Path, metavar="FILE", help="settings (default: staff/course.yaml)")
    add("--anonymous", action="store_true", help="also write tables under pseudonyms")
    args = parser.parse_args(argv)
    if args.jobs < 1:
        raise UserError(f"--jobs {args.jobs}: give 1 or more")
    if not args.minutes > 0:
        raise UserError(f"--minutes {args.minutes:g}: give more than 0")
    args.tasks = tuple(args.tasks.split(",")) if args.tasks else None
    if wrong := set(args.tasks or ()) - set(SCRIPTS):
        raise UserError(f"--tasks {','.join(sorted(wrong))}: choose from {','.join(SCRIPTS)}")
    for flag in ("mapping", "course"):
        file = getattr(args, flag)
        if file and not file.is_file() and (flag, str(file)) != ("mapping", AUTO):
            raise UserError(f"--{flag} {file}: there is no such file")
    return args


def main(argv: list[str] | None = None) -> int:
    """Grade a class; returns the exit code: 1 if a submission could not be graded."""
    args, began = parse_arguments(argv), time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    args.out.mkdir(parents=True, exist_ok=True)
    mapping = args.mapping
    if mapping and str(mapping) != AUTO:
        mapping = mapping.resolve()
    seconds, only = 60 * args.minutes, tuple(args.only)
    options = Options(
        args.jobs, args.tasks, mapping, args.again, seconds, only, args.course, args.anonymous
    )
    rows = grade_class(args.folder, args.out, options)
    print(f"grading took {(time.monotonic() - began) / 60:.1f} minutes")
    return 1 if any(row.error and not row.pending for row in rows) else 0
