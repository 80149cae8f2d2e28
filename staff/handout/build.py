"""The students' repository, made from this one: TODOs where the solution stands.

    python -m staff handout DEST [--zip FILE] [--force]

The marked regions (see regions.py) become TODOs; what students do not need, and what would
tell them the solution, stays out; nothing is written unless the leak check finds nothing. The same
sources give the same bytes.
"""

import argparse
import hashlib
import re
import zipfile
from pathlib import Path

from common.errors import UserError
from staff.handout.leaks import find_leaks, loose_ends, solution_statements
from staff.handout.manifest import EDITS, MOVED, rule_for, tracked
from staff.handout.regions import TASKS, cut, find_regions, paste

KIT = Path(__file__).resolve().parent.parent
SEAL = ".handout"  # in DEST: the digest of every file that this command has written there


def main(argv=None):
    """Write the handout; returns the exit code."""
    parser = argparse.ArgumentParser(prog="grading handout", description=__doc__.splitlines()[0])
    parser.add_argument("dest", type=Path, metavar="DEST", help="folder to write it to")
    parser.add_argument("--zip", type=Path, metavar="FILE", help="write it as an archive, too")
    parser.add_argument("--force", action="store_true", help="write into DEST whatever is there")
    args = parser.parse_args(argv)
    files = handout(KIT)
    write_folder(files, args.dest, args.force)
    if args.zip:
        write_zip(files, args.zip)
    regions = [region for path in files for region in regions_of(KIT, path)]
    print(f"{args.dest}: {len(files)} files, {len(regions)} TODOs, nothing of the solution")
    return 0


def handout(root):
    """The files of the students' repository, path -> bytes, from the sources in `root`.

    Raises UserError, with file and line, where anything of the solution would be in it.
    """
    paths = [path for path in tracked(root) if rule_for(path)[1]]
    files, solution, todos = {}, {}, []
    for path in [*paths, *MOVED]:
        data = (root / path).read_bytes()
        regions = regions_of(root, path)
        if regions:
            source = data.decode()
            solution |= solution_statements(source, path)
            data = cut(source, regions).encode()
            todos += [
                (region, line) for region, line in zip(regions, todo_lines(data), strict=True)
            ]
        files[MOVED.get(path, path)] = data
    for path, pattern, new in EDITS:
        text, count = re.subn(pattern, new, files[path].decode())
        if count != 1:
            raise UserError(
                f"{path}: {count} places, and not one, fit {pattern!r}: mend EDITS in "
                "staff/handout/manifest.py"
            )
        files[path] = text.encode()
    files["TODO.md"] = list_of(todos).encode()
    files["pyproject.toml"] = project(files, {region.path for region, _ in todos})
    problems = find_leaks(files, solution) + loose_ends(files)
    if problems:
        raise UserError("the handout is not written:\n" + "\n".join(f"- {p}" for p in problems))
    return dict(sorted(files.items()))


def regions_of(root, path):
    """The regions of one of the sources; none in what is no Python."""
    source = root / path
    if source.suffix != ".py" or not source.is_file():
        return []
    return find_regions(source.read_text(), path)


def todo_lines(data):
    """The numbers of the lines where the TODOs of a file are."""
    lines = data.decode().splitlines()
    return [n for n, line in enumerate(lines, 1) if re.match(r"\s*# TODO\(", line)]


def list_of(todos):
    """TODO.md: what is to be written, by task; (region, line) for each."""
    text = "# What is to be written\n\nIn each place, instead of the `raise` that stands there.\n"
    for task in TASKS:
        text += f"\n## {task}\n\n"
        for region, line in todos:
            if region.task == task:
                text += f"- {region.path}:{line}: {region.hint}\n"
    return text + "\nThe loop of task 1 is that of the other tasks, too.\n"


def project(files, unfinished):
    """pyproject.toml for the rooms that are handed out, with names that only a TODO will use.

    `unfinished` are the paths of the files with TODOs.
    """
    text = files["pyproject.toml"].decode()
    (listed,) = re.findall(r"(?m)^packages = \[(.*)\]$", text)
    rooms = {path.split("/")[0] for path in files}
    kept = [name for name in listed.split(", ") if name.strip('"').split(".")[0] in rooms]
    text = text.replace(f"[{listed}]", f"[{', '.join(kept)}]", 1)
    head = "[tool.ruff.lint.per-file-ignores]\n"
    note = "# what a TODO will need is there already\n"
    rows = "".join(f'"{path}" = ["ARG", "F401", "F841", "RUF059"]\n' for path in sorted(unfinished))
    if head in text:
        return text.replace(head, head + note + rows).encode()
    return f"{text}\n{head}{note}{rows}".encode()


def write_folder(files, dest, force=False):
    """Write a handout as a folder, in place of one that was written there before.

    Raises UserError where something else is in the way; with `force`, only within this repository.
    """
    dest = dest.resolve()
    if KIT in (dest, *dest.parents):
        raise UserError(f"{dest}: is within this repository; name a folder outside it")
    if dest.exists() and not dest.is_dir():
        raise UserError(f"{dest}: is a file; name a folder that is not there yet")
    before = sealed(dest)
    if dest.exists() and any(dest.iterdir()) and not force:
        edited = [path for path, digest in before.items() if digest_of(dest / path) != digest]
        if not before:
            raise UserError(f"{dest}: is not empty, and no handout; name another, or add --force")
        if edited:
            raise UserError(
                f"{dest}: {edited[0]} is not as it was handed out; name another folder, or add "
                "--force to lose what was done there"
            )
    for path in before.keys() - files.keys():
        (dest / path).unlink(missing_ok=True)
    for path, data in files.items():
        target = dest / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        target.chmod(mode_of(path))
    seal = "".join(f"{hashlib.sha256(data).hexdigest()}  {path}\n" for path, data in files.items())
    (dest / SEAL).write_text(seal)


def sealed(dest):
    """Path -> digest of what was handed out there; empty where nothing was."""
    try:
        lines = (dest / SEAL).read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split("  ", 1) for line in lines if "  " in line)
    return {path: digest for digest, path in pairs if not {"..", "/"} & set(Path(path).parts)}


def digest_of(path):
    """SHA-256 of a file, in hex; None if it is not there."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def mode_of(path):
    """The permissions of a file: not those that it happens to have in this checkout."""
    return 0o755 if path.endswith(".sh") else 0o644


def write_zip(files, path):
    """Write a handout as an archive whose bytes depend on nothing but the files."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in sorted(files.items()):
            entry = zipfile.ZipInfo(f"handout/{name}", (1980, 1, 1, 0, 0, 0))
            entry.create_system, entry.external_attr = 3, (0o100000 | mode_of(name)) << 16
            archive.writestr(entry, data)


def fill(folder, root=KIT, tasks=TASKS):
    """Put the solution's regions of these tasks back in place of a handout's TODOs.

    `folder` is the handout, `root` the repository with the solution. Returns the paths of the files
    that were filled in. Raises UserError where a TODO is no longer as it was handed out.
    """
    filled = []
    for path in tracked(root):
        regions = regions_of(root, path) if rule_for(path)[1] else []
        if any(region.task in tasks for region in regions):
            target = Path(folder) / path
            target.write_text(paste(target.read_text(), regions, tasks))
            filled.append(path)
    return filled
