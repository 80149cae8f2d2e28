"""What instructors decide about a class: overrides, manual items, late rule, pseudonyms."""

import csv
import json
import os
import stat

from common.errors import UserError
from grading import rubric
from grading.results import FAILED, PASSED, Report, Result
from grading.rubric import Check, ManualItem
from staff.classroom import course, decisions
from staff.classroom.decisions import Decisions
from staff.classroom.feedback import write_feedback
from staff.classroom.marks import Row
from staff.classroom.metadata import read_metadata
from staff.classroom.tables import as_csv, as_json, as_page
from staff.tests.classes import grade, submission

import pytest

CHECKS = [Check("task1", "runs", "Runs", 2.0, ()), Check("task2a", "gradients", "G", 6.0, ())]
ITEMS = [ManualItem("reasoning", "Reasoning", 10.0), ManualItem("scalability", "Scale", 5.0)]
COURSE = 'due: "2026-10-01 12:00"\ntime_zone: America/Chicago\n'
LATE = "late: {grace_minutes: 15, percent: 10, per: day, at_most_percent: 25}\n"


def load_checks(tasks=None):
    """A small rubric for these tests."""
    return [check for check in CHECKS if not tasks or check.task in tasks]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A class of ann, bob and `=cid`, and an empty output folder beside it."""
    monkeypatch.setattr(rubric, "load", load_checks)
    monkeypatch.setattr(decisions, "load_manual", lambda: ITEMS)
    for name in ("ann", "bob", "=cid"):
        (tmp_path / "class" / name).mkdir(parents=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "course.yaml").write_text("due: null\n")
    return tmp_path


def decided(folder):
    """The decisions about the class."""
    found = {path.name: path for path in (folder / "class").iterdir() if path.is_dir()}
    return Decisions(folder / "class", folder / "out", found, folder / "course.yaml")


def report_of(name="ann"):
    """A report of 2 of 8 points."""
    results = [
        Result("task1/runs", "Runs", PASSED, 2.0, 2.0),
        Result("task2a/gradients", "G", FAILED, 0.0, 6.0, got=f"{name}'s sums", cause="summed"),
    ]
    return Report(name, results)


def row_of(folder, name="ann"):
    """A submission's row with everything that was decided."""
    return decided(folder).applied(name, Row(name, report_of(name)))


def test_overrides_replace_points_and_carry_comments(folder):
    (folder / "out" / "overrides.yaml").write_text(
        "checks:\n  task2a/gradients: {points: 1, comment: for all}\n"
        "submissions:\n  ann:\n    comment: Well done\n"
        "    task2a/gradients: {points: full, comment: a typing error}\n"
        '  "\'=cid":\n    task1/runs: {comment: see me}\n'
    )
    ann, bob, cid = (row_of(folder, name) for name in ("ann", "bob", "=cid"))
    assert [mark.points for mark in ann.marks] == [2, 6, None, None]
    assert (ann.points, ann.possible, ann.comment) == (8, 23, "Well done")
    assert "task2a/gradients overridden: 6, not 0" in ann.notes
    assert bob.points == 3
    assert cid.marks[0].comment == "see me"
    assert not cid.marks[0].overridden
    facts = json.loads(as_json([ann]))["submissions"][0]["checks"]["task2a/gradients"]
    assert facts == {
        "status": FAILED,
        "points": 6.0,
        "cause": "summed",
        "overridden": 0.0,
        "comment": "a typing error",
    }
    assert "✗✎" in as_page([ann])


def test_an_override_by_the_same_points_is_not_reported_as_one(folder):
    (folder / "out" / "overrides.yaml").write_text(
        "checks:\n  task1/runs: {points: full, comment: for all}\n"
        "  task2a/gradients: {points: full}\n"
    )
    row = row_of(folder)
    assert [(mark.points, mark.overridden) for mark in row.marks[:2]] == [(2, False), (6, True)]
    assert row.marks[0].comment == "for all"
    assert "task1/runs" not in row.notes


def test_what_could_not_be_graded_can_be_graded_by_overrides(folder):
    (folder / "out" / "overrides.yaml").write_text(
        "submissions: {ann: {task1/runs: {points: 1, comment: by hand}}}\n"
    )
    made = decided(folder)
    row = made.applied("ann", Row("ann", error="ann.zip is broken"))
    assert (row.points, row.possible) == (1, 23)
    assert "could not be graded: ann.zip is broken; graded by overrides.yaml" in row.notes
    assert made.applied("bob", Row("bob", error="broken")).report is None
    made = Decisions(folder / "class", folder / "out", made.found, tasks=["task1"])
    assert made.applied("ann", Row("ann", error="broken")).possible == 17


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("checks:\n  task9/x: {points: 1}\n", "line 2: no check 'task9/x'; "),
        (
            "checks:\n  task1/run: {points: 1}\n",
            "line 2: no check 'task1/run'; did you mean 'task1/",
        ),
        (
            "\nchecks:\n  task1/runs: {points: 3}\n",
            "line 3: task1/runs of everybody: 3 points; give",
        ),
        ("checks:\n  task1/runs: {points: -1}\n", "give 0 to 2, or full"),
        ("checks:\n  task1/runs: {points: yes}\n", "line 2: task1/runs of everybody: True points"),
        ("checks:\n  task1/runs: {point: 1}\n", "line 2: unknown key 'point'; write {points: 4"),
        ("checks:\n  task1/runs: 2\n", "line 2: task1/runs of everybody: '2' is not a mapping"),
        ("submissions:\n  amn: {}\n", "line 2: no submission 'amn'; did you mean 'ann'?"),
        ("all: {}\n", "line 1: unknown key 'all'; use checks or submissions"),
        ("checks:\n  a: [1\n", "line 3: not valid YAML"),
        ("checks: {}\nchecks: {}\n", "line 2: 'checks' is given twice"),
        ("- 1\n", "line 1: the file: "),
    ],
)
def test_a_wrong_override_is_named_with_its_line(folder, text, words):
    (folder / "out" / "overrides.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        decided(folder)
    assert words in str(caught.value)
    assert "overrides.yaml, line" in str(caught.value)


@pytest.mark.parametrize("name", ["manual.csv", "manual.yaml"])
def test_manual_items_count_and_missing_ones_are_named(folder, name):
    text = {
        "manual.csv": 'submission,item,points,comment\nann,reasoning,7.5,"clear, short"\n'
        "ann,scalability,,\n'=cid,scalability,5,\n",
        "manual.yaml": 'ann:\n  reasoning: {points: 7.5, comment: "clear, short"}\n'
        "=cid:\n  scalability: {points: full}\n",
    }[name]
    (folder / "out" / name).write_text(text)
    ann, cid = row_of(folder, "ann"), row_of(folder, "=cid")
    assert (ann.points, ann.possible, ann.missing) == (9.5, 23, ["scalability"])
    assert ann.marks[2].comment == "clear, short"
    assert "not entered yet: scalability" in ann.notes
    assert (cid.points, cid.missing) == (7, ["reasoning"])
    lines = list(csv.DictReader(as_csv([ann]).splitlines()))
    assert (lines[0]["manual/reasoning"], lines[0]["manual/scalability"]) == ("7.5", "")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ann,reasoning,11,", "line 2: reasoning of ann: 11 points; give 0 to 10, or nothing"),
        ("ann,reasoning,ten,", "reasoning of ann: ten points"),
        ("ann,reasoning,nan,", "reasoning of ann: nan points"),
        ("ann,resoning,1,", "no manual item 'resoning'; did you mean 'reasoning'?"),
        ("bo,reasoning,1,", "no submission 'bo'; did you mean 'bob'?"),
        ("ann,reasoning,1,\nann,reasoning,2,", "line 3: ann: reasoning is given twice"),
    ],
)
def test_a_wrong_line_of_manual_points_is_named(folder, line, words):
    (folder / "out" / "manual.csv").write_text(f"submission,item,points,comment\n{line}\n")
    with pytest.raises(UserError) as caught:
        decided(folder)
    assert words in str(caught.value)


def test_a_file_to_fill_in_is_written_once(folder):
    path = decided(folder).write_template(hidden=False)
    assert len(path.read_text().splitlines()) == 7
    assert row_of(folder, "=cid").missing == ["reasoning", "scalability"]  # it reads what it wrote
    path.write_text("submission,item,points\nann,reasoning,3\n")
    assert decided(folder).write_template(hidden=False) is None
    assert "ann,reasoning,3" in path.read_text()


@pytest.mark.parametrize(
    ("submitted", "rule", "percent", "text"),
    [
        ("2026-10-01 12:00", LATE, None, ""),
        ("2026-10-01 12:15", LATE, None, ""),  # the grace
        ("2026-10-01 12:16", LATE, 10, "16 min late: 10 %"),
        ("2026-10-02 12:00", LATE, 10, "1 day late"),
        ("2026-10-02 12:01", LATE, 20, "1 day late"),
        ("2026-10-09 12:01", LATE, 25, "8 days late: 25 %"),  # the cap
        ("2026-10-01T17:20:00+00:00", LATE, 10, "20 min late"),  # Chicago is at -5 h
        ("2026-10-01 14:30", LATE.replace("day", "hour"), 25, "2 h 30 min late"),
        ("2026-10-01 13:00", LATE.replace("day", "hour"), 10, "1 h late: 10 %"),
    ],
)
def test_lateness_costs_what_the_settings_say(folder, submitted, rule, percent, text):
    (folder / "course.yaml").write_text(COURSE + rule)
    (folder / "out" / "submitted.csv").write_text(f"submission,submitted\nann,{submitted}\n")
    row = row_of(folder)
    assert (row.late.percent if row.late else None) == percent
    assert text in row.notes
    assert row.points == pytest.approx(2 * (1 - (percent or 0) / 100))


def test_a_day_of_25_hours_is_counted_as_time(folder):
    (folder / "course.yaml").write_text(COURSE.replace("10-01", "10-31") + LATE)
    (folder / "out" / "submitted.csv").write_text("submission,submitted\nann,2026-11-01 12:00\n")
    assert row_of(folder).late.percent == 20  # the clocks were put back that night


def test_an_extension_and_an_unknown_time(folder):
    (folder / "course.yaml").write_text(COURSE + LATE + 'extensions: {ann: "2026-10-03 12:00"}\n')
    (folder / "out" / "submitted.csv").write_text("submission,submitted\nann,2026-10-03 11:00\n")
    assert row_of(folder).late is None
    assert "time of submission unknown" in row_of(folder, "bob").notes
    (folder / "course.yaml").write_text(COURSE + LATE + "file_times: true\n")
    (folder / "class" / "bob" / "a.py").write_text("")
    os.utime(folder / "class" / "bob" / "a.py", (1791000000, 1791000000))  # October 3rd
    assert row_of(folder, "bob").late.percent == 20


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("due: tomorrow\n", "line 1: 'tomorrow' is not a date and time; write"),
        ("due: 2026-10-01\n", "is not a date and time"),
        ("time_zone: Mars/Base\n", "line 1: no time zone 'Mars/Base'"),
        ("late:\n  percent: 120\n", "line 2: percent 120: give a number from 0 to 100"),
        ("late: {per: week}\n", "per week: use day or hour"),
        ("late: {procent: 3}\n", "unknown key 'procent'; staff/course.yaml shows"),
        ("extensions: {anne: x}\n", "no submission 'anne'; did you mean 'ann'?"),
        ("file_times: 1\n", "file_times 1: use true or false"),
    ],
)
def test_a_wrong_setting_is_named_with_its_line(folder, text, words):
    (folder / "course.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        decided(folder)
    assert words in str(caught.value)


def test_the_settings_that_are_shipped_are_valid():
    settings = course.read_course(course.FILE, {})
    assert settings.due is None
    assert settings.percent == 10


METADATA = """
submission_12:
  :submitters:
  - :name: Ann Alder
    :sid: 0100
    :email: ann@example.edu
  :created_at: 2026-10-02 18:00:00.123456789 Z
  :score: 3.0
ann:
  :submitters:
  - :name: A
    :sid: '1'
    :assignment:
      :due_date: '2026-10-05T12:00:00-05:00'
  :created_at: !ruby/object:ActiveSupport::TimeWithZone
    utc: 2026-10-05 18:00:00 Z
broken: 7
"""


def test_gradescopes_metadata_gives_people_and_times(folder, capsys):
    path = folder / "class" / "submission_metadata.yml"
    path.write_text(METADATA)
    facts = read_metadata(folder / "class")
    assert facts["submission_12"].students[0][:2] == ("Ann Alder", "ann@example.edu")
    assert facts["submission_12"].submitted.isoformat() == "2026-10-02T18:00:00.123456+00:00"
    assert facts["broken"] == ((), None, None)
    (folder / "course.yaml").write_text(COURSE + LATE)
    assert row_of(folder).late.text.startswith("1 h late: 10 %")  # by the student's own due date
    path.write_text(":a: [")
    assert read_metadata(folder / "class") == {}
    assert "is left out" in capsys.readouterr().err


def test_pseudonyms_are_stable_and_the_key_is_private(folder):
    made = decided(folder)
    rows = {name: made.applied(name, Row(name, report_of(name))) for name in made.found}
    hidden = made.hidden(rows)
    key = folder / "out" / "pseudonyms.csv"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    before = dict(made.pseudonyms)
    assert len(set(before.values())) == 3
    text = as_csv(hidden) + as_json(hidden) + as_page(hidden)
    assert "ann" not in text.replace("cannot", "")
    assert f"{before['ann']}&#x27;s sums" in text
    (folder / "class" / "dan").mkdir()
    made = decided(folder)
    made.hidden({name: Row(name) for name in made.found})
    assert before.items() <= made.pseudonyms.items()
    (folder / "out" / "manual.csv").write_text(
        f"submission,item,points\n{before['ann']},reasoning,4\n"
    )
    assert row_of(folder).points == 6  # entered under the pseudonym


def test_decisions_survive_regrading(room, tmp_path, monkeypatch):
    monkeypatch.setattr(decisions, "load_manual", lambda: ITEMS)
    submission(room / "ann", "wrong")
    out = tmp_path / "out"
    out.mkdir()
    text = "submissions: {ann: {task1/runs: {points: 1, comment: <b>half</b>}}}\n"
    (out / "overrides.yaml").write_text(text)
    (out / "manual.csv").write_text("submission,item,points,comment\nann,reasoning,8,`good`\n")
    rows, _ = grade(room, out, anonymous=True)
    assert rows["ann"].points == 9
    (room / "ann" / "task1" / "run_glue.py").write_text("odd")
    rows, table = grade(room, out)
    assert rows["ann"].report.results[1].points == 2
    assert rows["ann"].points == 11
    assert table["ann"]["task1/runs"] == "1.0"
    assert (out / "overrides.yaml").read_text() == text
    page = (out / "feedback" / "ann.html").read_text()
    assert "&lt;b&gt;half&lt;/b&gt;" in page
    assert "<b>" not in page
    (hidden,) = (out / "anonymous" / "feedback").glob("*.md")
    assert "ann" not in hidden.read_text()


def test_manual_items_are_part_of_the_rubrics_total(tmp_path):
    text = "checks: {runs: {title: t, needs: []}}\npoints: {task1: {runs: 1}}\n"
    text += "manual: {reasoning: {title: R, points: 4}}\n"
    file = tmp_path / "rubric.yaml"
    file.write_text(text + "total: 5\n")
    rubric.load(file)
    assert rubric.load_manual(file) == [ManualItem("reasoning", "R", 4.0)]
    file.write_text(text + "total: 1\n")
    with pytest.raises(UserError, match="its points sum to 5, but `total` is 1"):
        rubric.load(file)
    file.write_text(text.replace("points: 4", "points: -4"))
    with pytest.raises(UserError, match="manual/reasoning: -4 points: give 0 or more"):
        rubric.load_manual(file)
    file.write_text(text.replace("{title: R, points: 4}", "4"))
    with pytest.raises(UserError, match="`manual` is not valid"):
        rubric.load_manual(file)


def test_a_hidden_check_counts_and_is_not_shown(tmp_path, monkeypatch):
    secret = CHECKS[1]._replace(visibility="hidden")
    monkeypatch.setattr(rubric, "load", lambda: [CHECKS[0], secret])
    write_feedback(tmp_path / "feedback", [Row("ann", report_of())])
    for file in ("ann.md", "ann.html"):
        text = (tmp_path / "feedback" / file).read_text()
        assert "of 8 points" in text
        assert "runs" in text
        assert "gradients" not in text
        assert "ann's sums" not in text


def test_anonymous_shows_no_names_in_the_terminal(room, tmp_path, capsys):
    for name, word in (("annabel", "right"), ("roberta", "crash"), ("sidonie", "wrong")):
        submission(room / name, word)
    grade(room, tmp_path / "out", anonymous=True)
    said = capsys.readouterr()
    assert "4 of 4 points" in said.out
    for name in ("annabel", "roberta", "sidonie"):
        assert name not in said.out + said.err
