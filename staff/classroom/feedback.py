"""One feedback file per student, as Markdown and as a page: points, diagnoses and comments."""

from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from pathlib import Path

from common.files import write_whole
from common.tables import markdown_table
from grading import rubric
from grading.hand_in.safe_text import file_name, for_html, for_markdown, inline_markdown
from grading.results import PASSED, Report
from staff.classroom.marks import MANUAL, PENDING, UNGRADED, Mark, Row

from markdown_it import MarkdownIt

TEMPLATE = Path(__file__).with_name("feedback_page.html")
LAST_LINES = 20  # of an output
LAST_CHARACTERS = 3000


def write_feedback(folder: Path, rows: Sequence[Row]) -> int:
    """Write NAME.md and NAME.html for every submission that is not pending; returns how many.

    The rubric's hidden checks count, and are not shown.
    """
    folder.mkdir(parents=True, exist_ok=True)
    hidden = {check.id for check in rubric.load() if check.visibility == "hidden"}
    written = [row for row in rows if not row.pending]
    for row in written:
        text = as_markdown(row, hidden)
        write_whole(folder / f"{file_name(row.name)}.md", text)
        write_whole(folder / f"{file_name(row.name)}.html", as_html(row.name, text))
    return len(written)


def as_html(name: str, text: str) -> str:
    """The page of a feedback's Markdown; raw HTML in it stays text."""
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    template = TEMPLATE.read_text(encoding="utf-8")
    head, tail = template.split("@BODY@")
    return head.replace("@NAME@", for_html(name, 200)) + body + tail


def as_markdown(row: Row, hidden: Collection[str] = ()) -> str:
    """A submission's feedback without the `hidden` checks; nothing that it printed is markup."""
    blocks = [f"# Feedback for {inline_markdown(row.name)}"]
    if not row.report:
        what = PENDING if row.pending else UNGRADED
        blocks += [f"Your work {what}:", for_markdown(row.error)]
        blocks += [inline_markdown(row.comment)] if row.comment else []
        return "\n\n".join(blocks) + "\n"
    marks = row.marks
    blocks += [f"**{row.points:g} of {row.possible:g} points**", *comments(row.comment)]
    if row.late:
        blocks.append(f"{inline_markdown(row.late.text)}: {row.deducted:g} points deducted.")
    if row.missing:
        blocks.append(f"Not judged yet: {inline_markdown(', '.join(row.missing))}.")
    blocks.append(points_table(marks))
    judged = [mark for mark in marks if not mark.result]
    blocks += manual_section(judged)
    checks = [mark for mark in marks if mark.result and mark.name not in hidden]
    for task, group in groupby(checks, lambda mark: mark.task):
        blocks += task_section(task, list(group), row.report)
    return "\n\n".join(blocks) + "\n"


def comments(*texts: str) -> list[str]:
    """Comments of the instructors as quotes."""
    return [
        "\n".join(f"> {inline_markdown(part, 2000)}" for part in text.splitlines() if part.strip())
        for text in texts
        if text.strip()
    ]


def points_table(marks: Sequence[Mark]) -> str:
    """The points by task."""
    rows = []
    for task, group in groupby(marks, lambda mark: mark.task):
        each = list(group)
        points, possible = sum(m.points or 0 for m in each), sum(m.possible for m in each)
        name = "judged by people" if task == MANUAL else inline_markdown(task)
        rows.append((name, f"{points:g}", f"{possible:g}"))
    return markdown_table(("part", "points", "of"), rows)


def manual_section(marks: Sequence[Mark]) -> list[str]:
    """The manual items with their points and comments."""
    if not marks:
        return []
    blocks = ["## Judged by people"]
    for mark in marks:
        points = (
            "not judged yet" if mark.points is None else f"{mark.points:g} of {mark.possible:g}"
        )
        blocks += [f"**{inline_markdown(mark.title)}**: {points}", *comments(mark.comment)]
    return blocks


def task_section(task: str, marks: Sequence[Mark], report: Report) -> list[str]:
    """A task's checks: those not passed in full, the others in a line, and its outputs' ends."""
    blocks = [f"## {inline_markdown(task)}"]
    shown = [mark for mark in marks if not is_plain(mark)]
    for mark in shown:
        result = mark.result
        assert result
        name, points = inline_markdown(mark.name), f"{mark.points:g} of {mark.possible:g}"
        blocks.append(f"### {name}: {points}")
        if mark.overridden:
            blocks.append(f"Your instructor set the points; the grader gave {result.points:g}.")
        blocks += [*comments(mark.comment), for_markdown(result.text(), 6000)]
    plain = [mark.name.partition("/")[2] for mark in marks if is_plain(mark)]
    if plain:
        blocks.append(f"Passed: {inline_markdown(', '.join(plain))}.")
    if any(mark.result and mark.result.status != PASSED for mark in marks):
        blocks += outputs_of(task, report)
    return blocks


def is_plain(mark: Mark) -> bool:
    """Whether a check passed and nobody had anything to say about it."""
    passed = mark.result is not None and mark.result.status == PASSED
    return passed and not mark.comment and not mark.overridden


def outputs_of(task: str, report: Report) -> Iterable[str]:
    """The ends of what a task's workers printed, equal ones once."""
    blocks = []
    for run, ranks in report.outputs.items():
        if run.partition("/")[0] != task:
            continue
        found = {}
        for rank, printed in enumerate(ranks):
            for kind, name in (("out", "stdout"), ("err", "stderr")):
                end = end_of(printed.get(kind, ""))
                if end:
                    found.setdefault((name, end), []).append(str(rank))
        for (name, end), who in found.items():
            where = f"rank{'s' * (len(who) > 1)} {', '.join(who)}"
            setting = inline_markdown(run.partition("/")[2])
            blocks += [f"The end of {name} of {where}, setting {setting}:", for_markdown(end)]
    return blocks


def end_of(text: str) -> str:
    """The last lines of an output."""
    return "\n".join(text.rstrip().splitlines()[-LAST_LINES:])[-LAST_CHARACTERS:]
