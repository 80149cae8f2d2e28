"""What students get of a graded class, and the files for Canvas and Gradescope."""

import csv
import io
import re

from common.errors import UserError
from grading.hand_in.safe_text import inline_markdown
from grading.results import FAILED, NOT_RUN, PASSED, Report, Result
from staff.classroom import export
from staff.classroom.feedback import LAST_LINES, as_html, as_markdown, write_feedback
from staff.classroom.marks import Lateness, Mark, Override, Row, Student
from staff.classroom.tables import as_json
from staff.tests.test_classroom import HOSTILE, Page

import pytest
from markdown_it import MarkdownIt

CANVAS = (
    '\ufeff"Student","ID","SIS User ID","SIS Login ID","Section","HW 3 (91)","Final Score"\n'
    '"","","","","","Manual Posting",""\n'
    '"    Points Possible","","","","","120.0","(read only)"\n'
    '"Alder, Ann","11","S1","ann@example.edu","A","3","90"\n'
    '"Birch, Bob","12","S2","bob","A","",""\n'
    '"Cedar, Cid","13","S3","cid","B","",""\n'
    '"Cedar, Cid","14","S4","cid2","B","",""\n'
)
GRADESCOPE = (
    "First Name,Last Name,SID,Email,Total Score,Max Points,Status,Submission ID\n"
    "Ann,Alder,S1,ann@example.edu,,120.0,Missing,\n"
    "Bob,Birch,S2,bob@example.edu,,120.0,Missing,\n"
)


def row(name, points=2.0, students=()):
    """A graded submission."""
    results = [Result("task1/runs", "Runs", PASSED, points, 2.0)]
    return Row(name, Report(name, results), students=students)


@pytest.fixture
def out(tmp_path):
    """A graded class: a group of Gradescope's, one of Canvas's files, one named by hand, others."""
    group = (Student("X", "ann@example.edu", ""), Student("Bob Birch", "", ""))
    rows = [row("submission_7", 1.5, group), row("cedarcid_LATE_13_99_hw.tar", 1.0)]
    rows += [row("zoe"), row("cid cedar"), Row("dan", error="broken")]
    (tmp_path / "grades.json").write_text(as_json(rows))
    (tmp_path / "canvas_export.csv").write_text(CANVAS)
    (tmp_path / "gradescope_export.csv").write_text(GRADESCOPE)
    return tmp_path


def run(out, *flags):
    """Export; the exit code and the lines of each file written."""
    code = export.main(["--out", str(out), *flags])
    found = {}
    for name in ("canvas.csv", "gradescope.csv"):
        if (out / name).exists():
            found[name] = list(csv.reader(io.StringIO((out / name).read_text())))
    return code, found


def test_canvas_gets_the_ids_of_its_export(out, capsys):
    code, found = run(out, "--canvas", str(out / "canvas_export.csv"), "--column", "HW 3 (91)")
    assert found["canvas.csv"] == [
        ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "HW 3 (91)"],
        ["    Points Possible", "", "", "", "", "120.0"],
        ["Alder, Ann", "11", "S1", "ann@example.edu", "A", "1.5"],
        ["Birch, Bob", "12", "S2", "bob", "A", "1.5"],
        ["Cedar, Cid", "13", "S3", "cid", "B", "1"],
    ]
    printed = capsys.readouterr().out
    assert code == 1
    assert "not matched: zoe: fits no student of the export; name its id in students.csv" in printed
    assert "not matched: cid cedar: fits 2 students" in printed
    assert "not matched: dan: fits no student" in printed
    assert "not matched: no submission of Cedar, Cid" in printed
    (out / "students.csv").write_text("submission,id\ncid cedar,S4\nzoe,cid2\ndan,none\n")
    _, found = run(out, "--canvas", str(out / "canvas_export.csv"), "--column", "HW 3 (91)")
    assert found["canvas.csv"][-1] == ["Cedar, Cid", "14", "S4", "cid2", "B", "2"]
    assert "cid cedar: another submission has the same student" in capsys.readouterr().out


def test_what_pack_names_is_matched_by_its_id_and_else_by_its_name(out):
    rows = [row("ann_Ann_Alder", 1.5), row("b17_Bob_Birch", 1.0), row("cid2_Cid_Cedar", 0.5)]
    (out / "grades.json").write_text(as_json([*rows, row("submission_13", 0.1)]))
    _, found = run(out, "--canvas", str(out / "canvas_export.csv"), "--column", "HW 3 (91)")
    assert [(line[1], line[-1]) for line in found["canvas.csv"][2:]] == [
        ("11", "1.5"),  # the part of its login before the @
        ("12", "1"),
        ("14", "0.5"),
    ]


def test_gradescope_gets_names_and_totals(out):
    _, found = run(out, "--gradescope", str(out / "gradescope_export.csv"))
    assert found["gradescope.csv"] == [
        ["First Name", "Last Name", "SID", "Email", "Total Score", "Max Points"],
        ["Ann", "Alder", "S1", "ann@example.edu", "1.5", "2"],
        ["Bob", "Birch", "S2", "bob@example.edu", "1.5", "2"],
    ]


def test_a_wrong_use_of_export_is_explained(out, tmp_path):
    with pytest.raises(UserError, match=r"--column: name the assignment's column: HW 3 \(91\)"):
        run(out, "--canvas", str(out / "canvas_export.csv"))
    with pytest.raises(UserError, match="no column Student, ID; it has First Name"):
        run(out, "--canvas", str(out / "gradescope_export.csv"))
    with pytest.raises(UserError, match="grade the class first"):
        run(tmp_path / "none", "--gradescope", str(out / "gradescope_export.csv"))
    with pytest.raises(UserError, match="give --canvas"):
        run(out)
    (out / "students.csv").write_text("submission,id\nzo,S4\n")
    with pytest.raises(UserError, match=r"line 2: no submission 'zo' in grades.json"):
        run(out, "--gradescope", str(out / "gradescope_export.csv"))


def feedback_row(words):
    """A submission with everything that a feedback shows, in those words."""
    results = [
        Result("task1/runs", "Runs", PASSED, 2, 2),
        Result("task2a/gradients", words, FAILED, 0, 6, words, words, words, "", words, words),
        Result("task2a/clipping", words, NOT_RUN, 0, 3, diagnosis=words),
    ]
    printed = {"out": "\n".join(f"step {i} {words}" for i in range(50)), "err": words}
    outputs = {"task1/plain": [printed], "task2a/plain": [printed, printed]}
    return Row(
        words,
        Report(words, results, outputs=outputs),
        comment=words,
        manual=(Mark("manual/reasoning", words, 10, 7, words), Mark("manual/s", words, 5, None)),
        overrides={"task2a/gradients": Override(4, words)},
        late=Lateness("1 h late: 10 % of the points earned", 10),
    )


def test_feedback_has_all_that_counts(tmp_path):
    text = as_markdown(feedback_row("words"))
    for part in (
        "**11.7 of 26 points**",
        "1.3 points deducted",
        "| judged by people | 7 | 15 |",
        "| task2a | 4 | 9 |",
        "**words**: 7 of 10",
        "not judged yet",
        "Your instructor set the points; the grader gave 0.",
        "> words",
        "Passed: runs.",
        "The end of stdout of ranks 0, 1, setting plain:",
    ):
        assert part in text, part
    assert text.count("The end of") == 2  # of task 2(a) alone: task 1 passed
    assert "step 49 words" in text
    assert text.count("step ") == LAST_LINES
    assert write_feedback(tmp_path, [feedback_row("words"), Row("x", error="y", pending=True)]) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["words.html", "words.md"]
    broken = as_markdown(Row("ann", error="ann.zip is broken", comment="again"))
    assert "could not be graded" in broken
    assert "again" in broken


@pytest.mark.parametrize(
    "text",
    """1. a|1) a|- a|+ a|# a|> a|=|*a*|_a_|`a`|[a](b)|<b>|&lt;|~~a~~|http://x.org|www.x.org|a@x.org
    <http://x.org>|![a](b)|\\\\""".replace("\n    ", "|").split("|"),
)
def test_a_line_of_text_stays_text(text):
    """As GitHub renders it, too: with tables, struck text and links that nobody marked."""
    parser = MarkdownIt("gfm-like", {"linkify": False})
    (_, paragraph, _) = parser.parse(inline_markdown(text))
    assert {child.type for child in paragraph.children} <= {"text"}
    assert "".join(child.content for child in paragraph.children) == text
    assert not re.search(r"(?i)(\w://|www\.|\w@)", inline_markdown(text))


def test_no_words_are_markup_in_feedback():
    hostile = HOSTILE + "\n```\n# Passed\n[x](http://x.org) | a |\n> q\n1. z\n![i](http://i.org)"
    plain, taken = (as_markdown(feedback_row(words)) for words in ("words", hostile))
    pages = [Page(as_html(words, text)) for words, text in (("words", plain), (hostile, taken))]
    assert pages[0].tags - {"p"} == pages[1].tags - {"p"}
    assert "script" not in pages[1].tags
    assert not pages[1].open
    kinds = [{t.type for t in MarkdownIt().enable("table").parse(x)} for x in (plain, taken)]
    assert kinds[0] == kinds[1]
    assert not set("\0\x1b\u202e") & set(taken)
