"""Make the students' repository from this one, with TODOs in place of the solution.

    python -m staff handout DEST [--zip FILE] [--force]

Students get everything but what manifest.py lists, with the overlay's files; the marked regions
(see regions.py) become TODOs. Nothing is written unless the leak check finds nothing. The same
sources give the same bytes.
"""

import argparse
import re
from collections.abc import Iterable
from pathlib import Path

from common.errors import UserError
from common.files import write_zip
from common.tasks import SCRIPTS, with_table
from staff.classroom.course import FILE, read_course
from staff.handout.folder import is_executable, write_folder
from staff.handout.leaks import dangling_references, find_leaks, solution_statements
from staff.handout.manifest import handed_out
from staff.handout.regions import Region, cut, find_regions, mark_carried, paste
from staff.sheet.sheet import sheet

KIT = Path(__file__).resolve().parents[2]
TODO_LIST = """# Things to implement

Write each part in place of the `raise` that stands there. All tasks share task 1's loop: once a
part of it is written, `python -m grading carry` copies it to the later tasks' scripts.
"""


def main(argv: list[str] | None = None) -> int:
    """Write the handout; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m staff handout", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("dest", type=Path, metavar="DEST", help="folder to write it to")
    parser.add_argument("--zip", type=Path, metavar="FILE", help="also write it as an archive")
    parser.add_argument("--force", action="store_true", help="write into DEST whatever is there")
    args = parser.parse_args(argv)
    dest = args.dest.resolve()
    if KIT in (dest, *dest.parents):
        raise UserError(f"{dest} is within this repository; name a folder outside it")
    files = handout(KIT)
    write_folder(files, dest, args.force)
    if args.zip:
        write_archive(files, args.zip)
    todos = sum(not one.source for regions in regions_of(KIT).values() for one in regions)
    print(f"{args.dest}: {len(files)} files, {todos} TODOs, nothing of the solution")
    return 0


def handout(root: Path) -> dict[str, bytes]:
    """The files of the students' repository, path -> content, from the sources in `root`.

    Raises UserError, with file and line, where anything of the solution would be in it.
    """
    regions = regions_of(root)
    files, solution = {}, {}
    for path, origin in handed_out(root).items():
        files[path] = (root / origin).read_bytes()
        if regions.get(path):
            source = files[path].decode()
            solution |= solution_statements(source, path)
            files[path] = cut(source, regions[path]).encode()
    files["README.md"] = with_table(files["README.md"].decode()).encode()
    files["ASSIGNMENT.md"] = sheet(read_course(FILE, {})).encode()
    files["TODO.md"] = todo_list(files, regions).encode()
    files["pyproject.toml"] = project(files["pyproject.toml"].decode(), regions).encode()
    problems = find_leaks(files, solution) + dangling_references(files)
    if problems:
        raise UserError("the handout is not written:\n" + "\n".join(f"- {p}" for p in problems))
    return dict(sorted(files.items()))


def regions_of(root: Path) -> dict[str, list[Region]]:
    """The regions of each source that students get; none of one without any."""
    found = {
        path: find_regions((root / origin).read_text(), path)
        for path, origin in handed_out(root).items()
        if path.endswith(".py")
    }
    return mark_carried({path: regions for path, regions in found.items() if regions})


def todo_list(files: dict[str, bytes], regions: dict[str, list[Region]]) -> str:
    """TODO.md: what is to be written, by task, with file and line."""
    text = TODO_LIST
    todos = [one for path in regions for one in regions[path] if not one.source]
    for task in SCRIPTS:
        text += f"\n## {task}\n\n"
        for one in todos:
            if one.task == task:
                text += f"- {one.path}:{line_of(one, files[one.path].decode())}: {one.hint}\n"
    return text


def line_of(region: Region, source: str) -> int:
    """The number of the line where a region's TODO stands in the handout."""
    before = source[: source.index(region.stub)] + region.head
    return before.count("\n") + 1


def project(text: str, unfinished: Iterable[str]) -> str:
    """pyproject.toml without what only the staff installs, and with what files with TODOs need."""
    text = re.sub(r"^staff = \[.*?^\]\n", "", text, flags=re.MULTILINE | re.DOTALL)
    head, pyright = "[tool.ruff.lint.per-file-ignores]\n", "[tool.pyright]\n"
    rows = "# what a TODO will need is there already\n"
    rows += "".join(f'"{path}" = ["ARG", "F401", "F841", "RUF059"]\n' for path in unfinished)
    text = text.replace(head, head + rows) if head in text else f"{text}\n{head}{rows}"
    ignored = ", ".join(f'"{path}"' for path in unfinished)  # code below a TODO is unreachable
    return text.replace(pyright, f"{pyright}ignore = [{ignored}]\n")


def write_archive(files: dict[str, bytes], path: Path) -> None:
    """Write a handout as an archive with one folder, handout/, in it."""
    contents = {f"handout/{name}": data for name, data in files.items()}
    write_zip(path, contents, {name for name in contents if is_executable(name)})


def fill(folder: Path, root: Path = KIT, tasks: Iterable[str] = tuple(SCRIPTS)) -> list[str]:
    """Put the solution back in place of a handout's TODOs of these tasks.

    `folder` is the handout, `root` the repository with the solution. What is carried is left to
    `python -m grading carry`. Returns the paths that were filled in. Raises UserError where a TODO
    was changed.
    """
    filled = []
    for path, regions in regions_of(root).items():
        if any(one.task in tasks and not one.source for one in regions):
            target = Path(folder) / path
            target.write_text(paste(target.read_text(), regions, tasks))
            filled.append(path)
    return filled
