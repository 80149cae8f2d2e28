"""A class is graded: real processes, hostile texts, crashes, resuming; no training."""

import csv
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from html.parser import HTMLParser
from pathlib import Path

from common.errors import UserError
from grading.results import FAILED, NOT_RUN, PASSED, UNKNOWN, Report, Result
from staff.classroom import reports, tables
from staff.classroom.marks import Row
from staff.classroom.summary import summary_text
from staff.tests.classes import DEADLINE, ROOT, grade, submission
from tests.workers import marked

import psutil
import pytest

HOSTILE = (
    "<script>document.title='taken'</script>\" onmouseover='x' </td></pre></details>@ROWS@\0\x1b[2J"
    "\u202etxt.exe\r\n=cmd|'/C calc'!A0"
)


def test_a_class_is_graded_whatever_some_of_it_is(room, tmp_path, capsys, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("STARTED_BY", str(tmp_path))
    submission(room / "ann", "right")
    submission(room / "bob", "wrong")
    submission(room / "cid", "crash")
    submission(room / "dan", "die")
    with zipfile.ZipFile(room / "eve.zip", "w") as bundle:
        bundle.writestr("work/task1/run_glue.py", "odd")
    (room / "fay.zip").write_bytes(b"no zip")
    (room / "gus").mkdir()
    (room / ".DS_Store").write_bytes(b"x")
    rows, table = grade(room, tmp_path / "out", jobs=2)
    assert list(rows) == ["ann", "bob", "cid", "dan", "eve", "fay", "gus"] == list(table)
    assert (table["ann"]["points"], table["ann"]["possible"]) == ("4.0", "4.0")
    assert (table["bob"]["task1/runs"], table["bob"]["task2a/gradients"]) == ("0.0", "0.0")
    assert rows["eve"].report.submission == "eve"
    for name, words in {
        "cid": "the grader failed: RuntimeError: no such reference",
        "dan": "exit code -9",
        "fay": "fay.zip is broken",
        "gus": "no task1/, task2a/",
    }.items():
        assert table[name]["note"].startswith("could not be graded: ")
        assert words in table[name]["note"]
        assert table[name]["points"] == table[name]["task1/runs"] == ""
    reports = sorted(path.name for path in (tmp_path / "out" / "reports").glob("*.json"))
    assert reports == ["ann.json", "bob.json", "eve.json"]
    assert not list((tmp_path / "out").rglob("*.part"))
    assert not list((tmp_path / "tmp").iterdir())
    left = [process for process in marked("STARTED_BY", str(tmp_path)) if process.name() == "sleep"]
    assert not psutil.wait_procs(left, timeout=10)[1]
    facts = json.loads((tmp_path / "out" / "grades.json").read_text())["submissions"]
    assert facts[1]["checks"]["task1/runs"] == {"status": FAILED, "points": 0.0, "cause": "summed"}
    said = capsys.readouterr()
    assert "bob: 0 of 4 points; failed: task1/runs (1 s)" in said.out
    assert "Traceback" in said.err
    summary = summary_text(list(rows.values()))
    assert "graded: 3 of 7" in summary
    assert "  task1/runs: 1 failed, 1 could not be checked: summed (1)" in summary


def test_scripts_of_other_names_are_graded_where_a_mapping_can_find_them(room, tmp_path):
    (room / "ann" / "src").mkdir(parents=True)
    (room / "ann" / "src" / "train_ddp.py").write_text("right")
    rows, _ = grade(room, tmp_path / "out")
    assert "scripts like src/train_ddp.py need a grading.yaml, or --mapping" in rows["ann"].error
    rows, _ = grade(room, tmp_path / "out", mapping=Path("auto"))
    assert rows["ann"].report.points == 4


def test_a_process_grades_submissions_until_it_fails(room, tmp_path):
    for name, word in {"ann": "right", "bob": "wrong", "cid": "crash", "dan": "right"}.items():
        submission(room / name, word)
    (room / "bea.zip").write_bytes(b"no zip")
    rows, _ = grade(room, tmp_path / "out")
    first, second, third = (rows[name].report.isolation for name in ("ann", "bob", "dan"))
    assert first == second
    assert third != first


def test_it_resumes_and_grades_only_what_changed(room, tmp_path, capsys):
    submission(room / "ann", "right")
    submission(room / "bob", "wrong")
    out, ages = tmp_path / "out", []
    first, _ = grade(room, out)

    def again(**options):
        """Which submissions were graded this time, by the age of their reports."""
        before = {p: p.stat().st_mtime_ns for p in (out / "reports").glob("*.json")}
        rows, _ = grade(room, out, **options)
        ages[:] = [p.stem for p, age in sorted(before.items()) if p.stat().st_mtime_ns != age]
        return rows

    assert {name: row.report for name, row in again().items()} == {
        name: row.report for name, row in first.items()
    }
    assert ages == []
    assert "2 of 2 already graded" in capsys.readouterr().out
    (room / "bob" / "task1" / "run_glue.py").write_text("right")
    assert again()["bob"].report.points == 4
    assert ages == ["bob"]
    (room / "bob" / "task1" / "more.py").write_text("")
    again()
    assert ages == ["bob"]
    again(tasks=("task1",))
    assert ages == ["ann", "bob"]
    again(tasks=("task1",), again=True)
    assert ages == ["ann", "bob"]
    (out / "reports" / "ann.json").write_text((out / "reports" / "bob.json").read_text())
    assert again(tasks=("task1",))["ann"].report.submission == "ann"
    assert ages == ["ann"]


def test_every_byte_that_is_graded_counts(tmp_path):
    folder, seen = submission(tmp_path / "ann", "right"), []
    for name, content in (
        ("task1/z.py", "1"),
        ("task1/z.py", "2"),
        ("y.py", "2"),
        ("a.zip", "1"),
        ("a.zip", "2"),
    ):
        (folder / name).write_text(content)
        seen.append(reports.content_digest(folder))
        assert reports.content_digest(folder) == seen[-1]
    (folder / "y.py").rename(folder / "x.py")
    seen.append(reports.content_digest(folder))
    assert len(set(seen)) == 6


def test_a_report_depends_on_the_kit(monkeypatch, tmp_path):
    (tmp_path / "grading").mkdir()
    rubric = tmp_path / "grading" / "rubric.yaml"
    rubric.write_text("points: 1")
    monkeypatch.setattr(reports, "ROOT", tmp_path)
    before = reports.kit_digest(None, None)
    assert reports.kit_digest(None, None) == before
    assert reports.kit_digest(None, rubric) != before
    rubric.write_text("points: 2")
    assert reports.kit_digest(None, None) != before


def test_no_report_depends_on_the_manual_items(monkeypatch, tmp_path):
    text = (reports.ROOT / reports.RUBRIC).read_text()
    (tmp_path / "grading").mkdir()
    monkeypatch.setattr(reports, "ROOT", tmp_path)
    (tmp_path / reports.RUBRIC).write_text(text)
    before = reports.kit_digest(None, None)
    fewer = text.replace("points: 10}", "points: 5}").replace("total: 120", "total: 110")
    (tmp_path / reports.RUBRIC).write_text(fewer)
    assert fewer != text
    assert reports.kit_digest(None, None) == before
    (tmp_path / reports.RUBRIC).write_text(text.replace("runs: 2", "runs: 3"))
    assert reports.kit_digest(None, None) != before


def test_names_do_not_change_places(room, tmp_path):
    """Two submissions whose names differ in the suffix, or in what a file's name cannot hold."""
    names = [
        "ann",
        "x y",
        "a:b",
        "a_b",
        "\u05d0\u202ex",
        os.fsdecode(b"\xff"),
        "=1+1",
        "<b>",
        "n\nl",
    ]
    for name in names:
        submission(room / name, "right")
    with zipfile.ZipFile(room / "ann.zip", "w") as bundle:
        bundle.writestr("task1/run_glue.py", "wrong")
    rows, table = grade(room, tmp_path / "out", jobs=2)
    assert len(rows) == len(table) == len(names) + 1
    assert rows["ann"].report.points == 4
    assert rows["ann.zip"].report.points == 0
    assert {"'=1+1", "<b>", "n | l", "\ufffd", "\u05d0<U+202E>x"} <= set(table)
    files = [path.name for path in (tmp_path / "out" / "reports").glob("*.json")]
    assert len(files) == len(rows)
    assert all(ord(c) > 31 and c not in "<>:\u202e" for name in files for c in name)


class Page(HTMLParser):
    """The tags of a page, those that are open, and its text."""

    VOID = ("meta", "link", "input")

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.names, self.text = [], set(), set(), ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.names |= {name for name, _ in attributes}
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_no_words_break_the_page_or_the_table():
    def row(words):
        fields = ("title", "expected", "got", "where", "cause", "diagnosis", "see", "tolerance")
        statuses = (PASSED, FAILED, NOT_RUN, UNKNOWN)
        checks = [
            Result(
                f"task1/{status}",
                status=status,
                points=0,
                possible=1,
                **dict.fromkeys(fields, words),
            )
            for status in statuses
        ]
        return Row(words, Report(words, checks))

    harmless, hostile = ([row(words), Row(words, error=words)] for words in ("words", HOSTILE))
    pages = [tables.as_page(rows) for rows in (harmless, hostile)]
    first, second = map(Page, pages)
    assert first.tags == second.tags
    assert first.names == second.names
    assert not second.open
    assert "<script>" in second.text
    assert "@ROWS@" in second.text
    scripts = [re.findall("(?s)<script.*?</script>", page) for page in pages]
    assert len(scripts[1]) == 1  # the page's own
    assert scripts[0] == scripts[1]
    assert not set("\0\x1b\u202e\r") & set(pages[1])
    lines = list(csv.reader(tables.as_csv(hostile).splitlines()))
    assert len({len(line) for line in lines}) == 1
    assert len(lines) == 3
    json.loads(tables.as_json(hostile))
    text = "".join(row.text for row in hostile) + summary_text(hostile)
    assert not set("\0\x1b\u202e\r") & set(text)


@pytest.mark.parametrize("text", ["=1", "+1", "-1", "@x", " =1", "\t=1", "\n=1", "\uff1d1", "\r@x"])
def test_no_cell_is_a_formula(text):
    table = tables.as_csv([Row(text, error=text)])
    name = next(csv.reader([table.splitlines()[1]]))[0]
    assert name[0] in "'\u2409\u240d"


def test_a_submission_that_takes_too_long_costs_no_other(room, tmp_path):
    submission(room / "ann", "sleep")
    submission(room / "bob", "right")
    rows, _ = grade(room, tmp_path / "out", jobs=2, seconds=15)
    assert "not finished after 0.25 minutes" in rows["ann"].error
    assert rows["bob"].report.points == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["grade", "nowhere"], "is not a folder; give"),
        (["grade", "."], "no submission in ."),
        (["grade", ".", "--jobs", "0"], "--jobs 0: give 1 or more"),
        (["grade", ".", "--tasks", "task9"], "--tasks task9: choose from task1,"),
        (["grade", ".", "--mapping", "none"], "--mapping none: there is no such file"),
        (["nothing"], "unknown command 'nothing'"),
        ([], "give a command"),
    ],
)
def test_a_user_error_is_reported_in_a_line(tmp_path, arguments, words):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "staff", *arguments]
    done = subprocess.run(
        command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE
    )
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_submission_is_no_class(room, tmp_path):
    submission(room / "ann", "right")
    with pytest.raises(UserError, match="is a submission"):
        grade(room / "ann", tmp_path / "out")
