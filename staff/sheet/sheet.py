"""Write the assignment's sheet: ASSIGNMENT.md with the course's due date, late rule and points.

    python -m staff sheet assignment.md            # as Markdown
    python -m staff sheet assignment.pdf --letter  # as a PDF, on US letter (default: A4)

The dates are those of staff/course.yaml, the points those of grading/rubric.yaml.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path

from common.errors import UserError
from common.files import write_whole
from common.tables import markdown_table, replace_between
from common.tasks import TASKS
from grading import rubric
from staff.classroom.course import FILE, Course, read_course

SHEET = Path(__file__).resolve().parents[2] / "ASSIGNMENT.md"
MARKERS = "<!-- course: `python -m staff sheet FILE` fills this in -->", "<!-- end -->"


def sheet(course: Course) -> str:
    """The sheet's text, filled in."""
    return replace_between(SHEET.read_text(), MARKERS, facts(course))


def facts(course: Course) -> str:
    """When the work is due, and what each part is worth."""
    return f"{due_text(course)}\n\n{markdown_table(('part', 'points'), points())}"


def due_text(course: Course) -> str:
    """The due date and the late rule, in words."""
    if not course.due:
        return "**Due:** see the course's page."
    text = f"**Due:** {course.due:%A, %B %-d, %Y, %H:%M} ({course.zone})."
    if course.percent:
        text += (
            f" Late work loses {course.percent:g} % of the points earned for each {course.period} "
            f"begun, at most {course.most:g} %."
        )
    return text


def points() -> Iterable[tuple[str, str]]:
    """Rows of (part, points): each task's checks, and the items that people judge."""
    checks = rubric.load()
    for name in dict.fromkeys(check.task for check in checks):
        worth = sum(check.points for check in checks if check.task == name)
        yield f"task {TASKS[name].title}: {TASKS[name].teaches}", f"{worth:g}"
    for item in rubric.load_manual():
        yield item.title, f"{item.points:g}"


def main(argv: list[str] | None = None) -> int:
    """Write the sheet; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m staff sheet", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("path", type=Path, metavar="FILE", help="FILE.md or FILE.pdf to write")
    parser.add_argument(
        "--course", type=Path, default=FILE, help="settings (default: staff/course.yaml)"
    )
    parser.add_argument("--letter", action="store_true", help="US letter instead of A4")
    args = parser.parse_args(argv)
    if args.path.suffix not in (".md", ".pdf"):
        raise UserError(f"{args.path}: end its name in .md or .pdf")
    if not args.path.resolve().parent.is_dir():
        raise UserError(f"{args.path}: there is no folder {args.path.parent}; make it first")
    text = sheet(read_course(args.course, {}))
    if args.path.suffix == ".md":
        write_whole(args.path, text)
    else:
        from staff.sheet.pdf import write_pdf  # loads what makes PDFs

        write_pdf(text, SHEET.parent, args.path, "us-letter" if args.letter else "a4")
    print(f"wrote {args.path}")
    return 0
