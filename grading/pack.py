"""Make the archive that a student hands in, and rehearse it.

    python -m grading pack --student NETID_First_Last FOLDER

What is not part of the work (environments, runs, weights, data) is left out. The rehearsal unpacks
the archive in a clean folder and grades it there; in the students' repository it reads every script
instead and lists the TODOs that are left, as `make check` grades there.
"""

import argparse
import ast
import re
import tempfile
import time
import warnings
from collections.abc import Iterable
from pathlib import Path

from common.errors import UserError
from common.files import write_zip
from common.tasks import TABLE
from grading.hand_in.archive import MAPPING, is_root, submission_root, unpack
from grading.hand_in.files import walk
from grading.hand_in.safe_text import line, visible
from grading.hand_in.todos import find_todos
from grading.reference import has_reference
from grading.results import PASSED, Result

MOST_LISTED = 12  # lines of what is left out
NEEDED = (".py", ".pdf", ".yaml")  # suffixes of files that must not be left out for their size


def main(argv: list[str] | None = None) -> int:
    """Pack and rehearse; returns the exit code: 0 only if the rehearsal passed."""
    args, began = parse(argv), time.monotonic()
    files, left_out = choose(args.folder)
    show(args.folder, files, left_out)
    scripts = missing_scripts(files)
    for script in scripts:
        print(f"missing: {script}")
    reported = has_report(files)
    if not reported:
        print("missing: the report, a PDF (`python -m report.build` makes it)")
    write_archive(args.folder, files, args.out, args.student or args.out.stem)
    print(f"written: {args.out} ({args.out.stat().st_size:,} bytes)")
    ready = rehearse(args.out) and not scripts and reported
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
    args = parser.parse_args(argv)
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
    """Print what goes in, with sizes, and what does not."""
    sizes = {path: (folder / path).stat().st_size for path in files}
    for path, size in sizes.items():
        print(f"  {size:>10,}  {line(path)}")
    print(f"  {sum(sizes.values()):>10,}  bytes in {len(files)} files")
    for path, why in left_out[:MOST_LISTED]:
        print(f"left out: {line(path)} ({why})")
    if len(left_out) > MOST_LISTED:
        print(f"left out: {len(left_out) - MOST_LISTED} more")


def missing_scripts(files: list[Path]) -> list[str]:
    """The tasks' scripts that a submission lacks; none where a mapping names its own."""
    if Path(MAPPING) in files:
        return []
    return [task.script for task in TABLE if Path(task.script) not in files]


def has_report(files: list[Path]) -> bool:
    """Whether there is a PDF at the top."""
    return any(path.suffix.lower() == ".pdf" and len(path.parts) == 1 for path in files)


def write_archive(folder: Path, files: Iterable[Path], out: Path, top: str) -> None:
    """Write files of a folder into a zip, within its folder `top`."""
    paths = {(Path(top) / path).as_posix(): folder / path for path in files}
    contents = {name: path.read_bytes() for name, path in paths.items()}
    write_zip(out, contents, {name for name in paths if paths[name].stat().st_mode & 0o100})


def rehearse(archive: Path) -> bool:
    """Unpack an archive in a clean folder and check it there; returns whether all is well."""
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as clean:
        root = submission_root(unpack(archive, Path(clean) / "submission"))
        if has_reference():
            return rehearse_grading(root)
        print("rehearsal: every script is read; `make check` compares what they compute")
        return read_scripts(root)


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


def read_scripts(root: Path) -> bool:
    """Compile every script of a submission and list its TODOs; returns whether all is done."""
    problems = []
    for path in walk(root)[0]:
        if path.suffix == ".py":
            problems += [f"{line(path)}{problem}" for problem in problems_of(root / path)]
    for problem in problems:
        print(f"  {problem}")
    print(
        f"rehearsal: {len(problems)} problems" if problems else "rehearsal: nothing is left to do"
    )
    return not problems


def problems_of(script: Path) -> list[str]:
    """What is wrong with a script, with its line: that it is not Python, or its TODOs."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(script.read_bytes())
            compile(tree, "script", "exec", dont_inherit=True)
    except SyntaxError as error:
        return [f":{error.lineno}: this is not valid Python: {line(error.msg)}"]
    except (ValueError, RecursionError, MemoryError) as error:
        return [f": this is not valid Python: {line(error)}"]
    return [f":{todo.line}: {line(todo.text)}" for todo in find_todos(tree)]
