"""Make the archive that a student hands in, and rehearse it.

    python -m grading pack --student NETID_First_Last FOLDER

What is not part of the work (environments, weights, data) is left out; of finished runs the small
records go along. The rehearsal unpacks the archive in a clean folder and grades it there; in the
students' repository it reads every script instead and lists what is left to write, as `make check`
grades there (with --check it grades, too).
"""

import argparse
import re
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from common.errors import UserError
from common.files import write_zip
from common.tasks import ASSIGNED, TABLE
from grading.hand_in.archive import MAPPING, is_root, submission_root, unpack
from grading.hand_in.files import walk
from grading.hand_in.handed_out import SEAL, digest_of, sealed
from grading.hand_in.records import RUNS, find_records
from grading.hand_in.safe_text import line, visible
from grading.hand_in.unwritten import read_scripts
from grading.reference import has_reference
from grading.results import PASSED, Result

NO_RECORDS = "records of runs: none in runs/ (give --runs DIR ... if yours are elsewhere)"
MOST_LISTED = 12  # lines of what is left out
NEEDED = (".py", ".pdf", ".yaml")  # suffixes of files that must not be left out for their size


def main(argv: list[str] | None = None) -> int:
    """Pack and rehearse; returns the exit code: 0 only if the rehearsal passed."""
    args, began = parse(argv), time.monotonic()
    files, left_out = choose(args.folder)
    records, unfinished = find_records(args.folder, args.runs)
    left_out = unfinished + [(path, why) for path, why in left_out if path != Path(RUNS)]
    show(args.folder, files, left_out)
    print(f"records of runs: {len(records)} files" if records else NO_RECORDS)
    scripts = missing_scripts(files)
    for script in scripts:
        print(f"missing: {script}")
    reported = has_report(files)
    if not reported:
        print("missing: the report, a PDF (`python -m report build` makes it)")
    write_archive(args.folder, files, args.out, args.student or args.out.stem, records)
    print(f"written: {args.out} ({args.out.stat().st_size:,} bytes)")
    ready = rehearse(args.out, args.check) and not scripts and reported
    print(f"took {time.monotonic() - began:.0f} s")
    print("ready to hand in" if ready else "not ready: fix the problems above and pack again")
    return 0 if ready else 1


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line's options; UserError for those that cannot be meant."""
    parser = argparse.ArgumentParser(
        prog="python -m grading pack", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("folder", type=Path, nargs="?", default=Path(), help="(default: this one)")
    parser.add_argument("--student", help="NETID_First_Last: names the archive and its folder")
    parser.add_argument("--out", type=Path, metavar="FILE.zip", help="(default: by the student)")
    parser.add_argument(
        "--runs", type=Path, nargs="+", default=[], metavar="DIR", help="runs that are not in runs/"
    )
    parser.add_argument("--check", action="store_true", help="grade what was packed (minutes)")
    args = parser.parse_args(argv)
    for runs in args.runs:
        if not runs.is_dir():
            raise UserError(f"--runs {runs}: there is no such folder")
    if args.student and not re.fullmatch(r"[^\W_]+(_[\w-]+)+", args.student):
        raise UserError(f"--student {args.student!r}: write it as NETID_First_Last")
    args.folder = args.folder.resolve()
    args.out = args.out or Path(f"{args.student or line(args.folder.name)}.zip")
    if args.out.suffix.lower() != ".zip":
        raise UserError(f"--out {args.out}: choose a name that ends in .zip")
    if not args.out.resolve().parent.is_dir():
        raise UserError(f"--out {args.out}: {args.out.parent} does not exist; create it first")
    return args


def choose(folder: Path) -> tuple[list[Path], list[tuple[Path, str]]]:
    """(files, left out) of a student's folder; UserError if there is nothing to hand in."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give the one that holds {TABLE[0].name}/")
    if not is_root(folder):
        submission_root(folder)  # raises if there is none further down either
        raise UserError(f"the work is further down in {folder}; give the folder that holds it")
    files, left_out = walk(folder)
    for path in files:
        if line(path, 1000) != str(path):
            raise UserError(f"{line(path)}: rename it; use letters and digits only")
    for path, why in left_out:
        if path.suffix in NEEDED and "over 5 MB" in why:
            raise UserError(f"{line(path)} has {why}, which cannot be graded; make it smaller")
    return files, left_out


def show(folder: Path, files: list[Path], left_out: list[tuple[Path, str]]) -> None:
    """Print what goes in, with sizes, and what does not; what was handed out only as a count."""
    sizes = {path: (folder / path).stat().st_size for path in files}
    digests = sealed(folder)
    unchanged = {p for p in files if digests.get(str(p), 0) == digest_of(folder / p)}
    unchanged |= {Path(SEAL)} if digests else set()
    for path, size in sizes.items():
        if path not in unchanged:
            print(f"  {size:>10,}  {line(path)}")
    if unchanged:
        total = sum(sizes.get(path, 0) for path in unchanged)
        print(f"  {total:>10,}  {len(unchanged)} files as they were handed out")
    print(f"  {sum(sizes.values()):>10,}  bytes in {len(files)} files")
    for path, why in left_out[:MOST_LISTED]:
        print(f"left out: {line(path)} ({why})")
    if len(left_out) > MOST_LISTED:
        print(f"left out: {len(left_out) - MOST_LISTED} more")


def missing_scripts(files: list[Path]) -> list[str]:
    """The tasks' scripts that a submission lacks; none where a mapping names its own."""
    if Path(MAPPING) in files:
        return []
    return [task.script for task in ASSIGNED if Path(task.script) not in files]


def has_report(files: list[Path]) -> bool:
    """Whether there is a PDF at the top."""
    return any(path.suffix.lower() == ".pdf" and len(path.parts) == 1 for path in files)


def write_archive(
    folder: Path,
    files: Iterable[Path],
    out: Path,
    top: str,
    records: Mapping[Path, Path] = MappingProxyType({}),
) -> None:
    """Write files of a folder, and records by their path there, into a zip's folder `top`."""
    places = {path: folder / path for path in files} | dict(records)
    paths = {(Path(top) / path).as_posix(): place for path, place in places.items()}
    contents = {name: path.read_bytes() for name, path in paths.items()}
    write_zip(out, contents, {name for name in paths if paths[name].stat().st_mode & 0o100})


def rehearse(archive: Path, check: bool = False) -> bool:
    """Unpack an archive in a clean folder and check it there; returns whether all is well."""
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as clean:
        root = submission_root(unpack(archive, Path(clean) / "submission"))
        if has_reference():
            return rehearse_grading(root)
        print("rehearsal: every script is read; `make check` compares what they compute")
        return read_scripts(root) and (not check or rehearse_grading(root))


def rehearse_grading(root: Path) -> bool:
    """Grade a submission and print its results; returns whether every check passed."""
    from grading.grader import grade  # takes seconds to import, and is seldom needed

    print("rehearsal: unpacked in a clean folder, graded there (some minutes):", flush=True)
    report = grade(root, on_result=lambda result, _: print(in_terminal(result), flush=True))
    passed = sum(result.status == PASSED for result in report.results)
    print(
        f"rehearsal: {passed} of {len(report.results)} checks passed, "
        f"{report.points:g} of {report.possible:g} points"
    )
    return bool(report.results) and passed == len(report.results)


def in_terminal(result: Result) -> str:
    """A result for a terminal: on one line if it passed."""
    text = visible(result.text())
    return text.splitlines()[0] if result.status == PASSED else text
