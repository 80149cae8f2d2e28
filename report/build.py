"""A student's report as a PDF: tables and figures from the runs' records, and their own reasoning.

    python -m report build --template answers.md
    python -m report build --netid NETID --first First --last Last --answers FILE --runs DIR ...

The first writes the headings for the reasoning; the second makes NetID_First_Last.pdf. What is
missing is listed first, with the command that produces it, and marked in the PDF.
"""

import argparse
import difflib
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from common.commands import program
from common.errors import UserError
from common.files import whole
from report.headings import FURTHER, SECTIONS
from report.markdown import sections
from report.runs import Run, load_runs
from report.sections import fill
from report.style import FONT, WIDTH, font_folder

HERE = Path(__file__).resolve().parent
PAPERS = {"a4": "a4", "letter": "us-letter"}  # and what Typst calls each


class Student(NamedTuple):
    """Whose report it is."""

    netid: str
    first: str
    last: str

    @property
    def file_name(self) -> str:
        """What the course wants the report to be called."""
        return "_".join(re.sub(r"[^\w.-]+", "-", word) for word in self) + ".pdf"


class Options(NamedTuple):
    """How a report is made: `images` is what its paths of images are relative to."""

    images: Path = Path()
    paper: str = "a4"
    pages: Path | None = None  # a folder for each page as PNG


DEFAULTS = Options()


def build(
    runs: list[Run],
    answers: dict[str, str],
    student: Student,
    path: Path,
    options: Options = DEFAULTS,
) -> int:
    """Print what is missing, with the command that makes it; write the PDF; returns how many.

    `answers` maps headings to Markdown.
    """
    import typst as compiler

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        parts = fill(runs, answers, options.images, folder)
        missing = [(section.title, item) for section in parts for item in section.missing]
        for title, item in missing:
            print(f"missing in {title}: {item['what']}\n    {item['fix']}")
        data = {
            "title": "Distributed training of language models",
            "author": f"{student.first} {student.last}",
            "netid": student.netid,
            "sections": [vars(section) for section in parts],
            "sources": sources(runs),
            "paper": PAPERS[options.paper],
            "font": FONT,
            "figure_width": WIDTH,
        }
        (folder / "data.json").write_text(json.dumps(data))
        shutil.copy(HERE / "report.typ", folder)
        document = compiler.Compiler(folder / "report.typ", font_paths=[font_folder()])
        if options.pages:
            options.pages.mkdir(parents=True, exist_ok=True)
            document.compile(output=options.pages / "page-{n}.png", format="png", ppi=100)
        with whole(path) as part:
            document.compile(output=part, format="pdf")
    return len(missing)


def sources(runs: list[Run]) -> list[list[str]]:
    """Which run, machine, versions and commit each number comes from, as rows of a table."""
    rows = [["run", "task", "workers", "machine", "torch", "commit"]]
    for run in runs:
        facts = run.facts
        machine = [str(facts["world_size"]), facts["processor"], facts["versions"]["torch"]]
        rows.append([run.folder.name, run.name, *machine, (facts["git_commit"] or "-")[:12]])
    return rows


def read_answers(path: Path) -> dict[str, str]:
    """Heading -> Markdown of a student's file; raises UserError for what is not the template's.

    What stands before a heading's colon is enough: "Task 2(a)". Further headings of the student's
    own are kept, unless they look like a task's or like a misspelled one.
    """
    try:
        found = sections(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--answers {path}: cannot be read ({error})") from None
    titles = {start_of(title).lower(): title for title in (*SECTIONS, *FURTHER)}
    starts = {title: start_of(title).lower() for title in found}
    further = [title for title, start in starts.items() if start not in titles]
    if unknown := [title for title in further if looks_known(starts[title], titles)]:
        raise UserError(
            f"--answers {path}: unknown heading {', '.join(map(repr, unknown))}; the headings "
            f"are {', '.join(map(repr, SECTIONS))}, and any of your own"
        )
    return {titles.get(starts[title], title): text for title, text in found.items()}


def looks_known(start: str, titles: Iterable[str]) -> bool:
    """Whether a heading that is not one of the template's is probably meant to be."""
    return start.startswith("task") or bool(difflib.get_close_matches(start, titles, 1, 0.8))


def start_of(title: str) -> str:
    """What stands before a heading's colon."""
    return title.partition(":")[0].strip()


def write_template(path: Path) -> None:
    """Write the headings for the reasoning; raises UserError rather than overwrite a file."""
    if path.exists():
        raise UserError(f"--template {path}: already exists; choose another file")
    path.write_text(
        "\n".join(f"## {title}\n\n<!-- {about} -->\n" for title, about in SECTIONS.items())
    )


def main(argv: list[str] | None = None) -> int:
    """Build the report; returns the exit code: 0 even if parts are missing, as they are marked."""
    parser = argparse.ArgumentParser(prog=program(), description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--template", type=Path, metavar="FILE", help="write the headings to it")
    for name in Student._fields:
        parser.add_argument(f"--{name}", help="for the file's name and the title")
    parser.add_argument(
        "--runs", type=Path, nargs="+", default=[], metavar="DIR", help="runs, or folders of them"
    )
    parser.add_argument("--answers", type=Path, help="your reasoning, in Markdown")
    parser.add_argument("--output_dir", type=Path, default=Path(), help="of the PDF (default: .)")
    parser.add_argument("--paper", choices=PAPERS, default="a4", help="default: a4")
    parser.add_argument("--pages", type=Path, metavar="DIR", help="write each page as PNG, too")
    args = parser.parse_args(argv)
    try:
        if args.template:
            write_template(args.template)
            print(f"headings: {args.template}")
            return 0
        needed = (*Student._fields, "answers", "runs")
        if lacking := [f"--{name}" for name in needed if not getattr(args, name)]:
            raise UserError(f"{', '.join(lacking)}: missing; see --help")
        student = Student(args.netid, args.first, args.last)
        args.output_dir.mkdir(parents=True, exist_ok=True)
        path = args.output_dir / student.file_name
        runs = load_runs(args.runs)
        options = Options(args.answers.parent, args.paper, args.pages)
        missing = build(runs, read_answers(args.answers), student, path, options)
    except UserError as error:
        print(f"report.build: {error}", file=sys.stderr)
        return 2
    print(f"report: {path}" + (f" (parts missing: {missing})" if missing else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
