"""Makes the archive that a student hands in, and rehearses it.

    python -m grading pack --student NETID_First_Last FOLDER

What is no part of the work (environments, runs, weights, data) is left out. The rehearsal unpacks
the archive in a clean folder and grades it once there; where the checks are not at hand, as in the
students' repository, it reads every script instead and lists the TODOs that are left.
"""

import argparse
import ast
import re
import tempfile
import time
import warnings
import zipfile
from pathlib import Path

from common.errors import UserError
from grading.hand_in.archive import MARKS, TASKS, is_whole, submission_root, unpack
from grading.hand_in.files import walk
from grading.hand_in.safe_text import line, visible
from grading.hand_in.todos import find_todos
from grading.reference import has_reference

LONGEST = 12  # lines of what is left out


def choose(folder):
    """(files, left out) of a student's folder; UserError if there is nothing to hand in."""
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder: give the one that holds {TASKS[0]}/ and so on")
    if not (is_whole(folder) or (folder / MARKS[1]).is_file()):
        submission_root(folder)  # says what is missing, if it is not there at all
        raise UserError(f"the work is further down in {folder}: give the folder that holds it")
    files, left_out = walk(folder)
    for path in files:
        if line(path, 1000) != str(path):
            raise UserError(f"{line(path)}: rename it, with letters and digits alone")
    for path, why in left_out:
        if path.suffix in (".py", ".pdf", ".yaml") and "over 5 MB" in why:
            raise UserError(f"{line(path)} has {why}, which nobody can grade: make it smaller")
    return files, left_out


def missing(files):
    """(scripts, other things) that a submission should have and this one has not."""
    scripts = [] if Path(MARKS[0]) in files else [Path(task) / MARKS[1] for task in TASKS]
    absent = [str(script) for script in scripts if script not in files]
    if not any(path.suffix.lower() == ".pdf" and len(path.parts) == 1 for path in files):
        return absent, ["the report, a PDF (`python -m report.build` makes it)"]
    return absent, []


def write_zip(folder, files, out, top=""):
    """Write files into a zip, in a folder `top`: the same files give the same bytes."""
    part = out.with_name(out.name + ".part")
    try:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as bundle:
            for path in sorted(files):
                member = zipfile.ZipInfo(str(Path(top) / path), (2000, 1, 1, 0, 0, 0))
                runs = (folder / path).stat().st_mode & 0o100
                member.external_attr = (0o100755 if runs else 0o100644) << 16
                member.create_system, member.compress_type = 3, zipfile.ZIP_DEFLATED
                bundle.writestr(member, (folder / path).read_bytes())
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)


def rehearse(archive, grade=None):
    """Unpack an archive in a clean folder and grade it there; returns whether all is well."""
    if grade is None and has_reference():
        from grading.grader import grade
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as clean:
        root = submission_root(unpack(archive, Path(clean) / "submission"))
        if grade is None:
            print("rehearsal: the checks run on the instructors' side; here every script is read")
            return read_scripts(root)
        print("rehearsal: unpacked in a clean folder, graded there (some minutes):", flush=True)
        report = grade(root, on_result=lambda result, _: print(told(result), flush=True))
    passed = sum(result.status == "passed" for result in report.results)
    print(f"rehearsal: {passed} of {len(report.results)} checks passed", end=", ")
    print(f"{report.points:g} of {report.possible:g} points")
    return bool(report.results) and passed == len(report.results)


def told(result):
    """A result for a terminal: in one line if there is nothing to mend."""
    text = visible(result.text())
    return text.splitlines()[0] if result.status == "passed" else text


def read_scripts(root):
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


def problems_of(script):
    """What is wrong with a script, with its line: that it is no Python, or its TODOs."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(script.read_bytes())
            compile(tree, "script", "exec", dont_inherit=True)
    except SyntaxError as error:
        return [f":{error.lineno}: this is no Python: {line(error.msg)}"]
    except (ValueError, RecursionError, MemoryError) as error:
        return [f": this is no Python: {line(error)}"]
    return [f":{todo.line}: {line(todo.text)}" for todo in find_todos(tree)]


def show(folder, files, left_out):
    """Print what goes in, with sizes, and what does not."""
    sizes = {path: (folder / path).stat().st_size for path in files}
    for path, size in sizes.items():
        print(f"  {size:>10,}  {line(path)}")
    print(f"  {sum(sizes.values()):>10,}  bytes in {len(files)} files")
    for path, why in left_out[:LONGEST]:
        print(f"left out: {line(path)} ({why})")
    if len(left_out) > LONGEST:
        print(f"left out: {len(left_out) - LONGEST} more")


def parse(argv):
    """The command line's options; UserError for those that cannot be meant."""
    parser = argparse.ArgumentParser(
        prog="python -m grading pack", description=__doc__.split(".")[0]
    )
    parser.add_argument("folder", type=Path, nargs="?", default=Path(), help="(default: this one)")
    parser.add_argument("--student", help="NETID_First_Last: names the archive and its folder")
    parser.add_argument("--out", type=Path, metavar="FILE.zip", help="(default: by the student)")
    args = parser.parse_args(argv)
    if args.student and not re.fullmatch(r"[^\W_]+(_[\w-]+)+", args.student):
        raise UserError(f"--student {args.student!r}: give it as NETID_First_Last")
    args.folder = args.folder.resolve()
    args.out = args.out or Path(f"{args.student or line(args.folder.name)}.zip")
    if args.out.suffix.lower() != ".zip":
        raise UserError(f"--out {args.out}: give a name that ends in .zip")
    if not args.out.resolve().parent.is_dir():
        raise UserError(f"--out {args.out}: there is no folder {args.out.parent}; make it first")
    return args


def main(argv=None):
    """Pack and rehearse; returns the exit code: 0 only if the rehearsal passed."""
    args, began = parse(argv), time.monotonic()
    files, left_out = choose(args.folder)
    show(args.folder, files, left_out)
    scripts, others = missing(files)
    for what in [*scripts, *others]:
        print(f"missing: {what}")
    write_zip(args.folder, files, args.out, args.student or args.out.stem)
    print(f"written: {args.out} ({args.out.stat().st_size:,} bytes)")
    done = rehearse(args.out) and not scripts
    print(f"it took {time.monotonic() - began:.0f} s")
    print("ready to hand in" if done else "not ready: mend what is listed above, and pack again")
    return 0 if done else 1
