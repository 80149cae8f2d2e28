"""A class of 20 from its first run to the upload: interrupted, resumed, overridden, regraded."""

import csv
import json
import signal
import zipfile

from staff.classroom import export
from staff.tests.classes import DEADLINE, started, submission, wait_until_asleep
from tests.workers import ending

import pytest

NAMES = [f"student{i:02d}" for i in range(20)]
COURSE = 'due: "2026-10-02 23:59"\nlate: {percent: 10, per: day, at_most_percent: 50}\n'


def people(folder):
    """Gradescope's metadata of the class: the last student is two days late."""
    lines = []
    for name in NAMES:
        day = 4 if name == NAMES[-1] else 2
        lines += [f"{name}:", "  :submitters:", f"  - :name: {name}", f"    :sid: s{name[-2:]}"]
        lines += [f"    :email: {name}@example.edu", f"  :created_at: 2026-10-0{day} 12:00:00 Z"]
    (folder / "submission_metadata.yml").write_text("\n".join(lines))


def finished(room, out, *flags):
    """Run to the end; what it printed, and the lines of grades.csv."""
    with ending(started(room, out, *flags)) as process:
        printed, errors = process.communicate(timeout=3 * DEADLINE)
    assert "Traceback" not in errors
    with (out / "grades.csv").open(newline="") as file:
        return printed, {row["submission"]: row for row in csv.DictReader(file)}


@pytest.mark.slow
def test_a_class_from_the_first_run_to_the_upload(room, tmp_path):
    out, settings = tmp_path / "out", tmp_path / "course.yaml"
    settings.write_text(COURSE)
    people(room)
    for i, name in enumerate(NAMES[:-1]):
        submission(room / name, "sleep" if i == 10 else "wrong" if i % 5 == 4 else "right")
    with zipfile.ZipFile(room / f"{NAMES[-1]}.zip", "w") as bundle:
        bundle.writestr("work/task1/run_glue.py", "right")
    flags = ("--course", str(settings))

    with ending(started(room, out, *flags)) as process:
        wait_until_asleep(process)
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=DEADLINE)
    assert "graded: 10 of 20 (10 not graded yet)" in printed
    facts = json.loads((out / "grades.json").read_text())["submissions"]
    assert [each["points"] is not None for each in facts] == [True] * 10 + [False] * 10
    assert "10 of 20 graded, 10 not graded yet" in (out / "matrix.html").read_text()

    (room / NAMES[10] / "task1" / "run_glue.py").write_text("wrong")
    printed, table = finished(room, out, "--jobs", "2", *flags)
    assert "10 of 20 already graded" in printed
    assert "graded: 20 of 20\n" in printed
    assert table[NAMES[-1]]["points"] == "3.2"
    assert "1 day 12 h late: 20 %" in table[NAMES[-1]]["note"]
    assert table[NAMES[4]]["points"] == "0.0"

    manual = (out / "manual.csv").read_text()
    assert manual.count("\n") == 41  # two items for each, to be filled in
    (out / "manual.csv").write_text(
        manual.replace("student00,reasoning,,", "student00,reasoning,9,ok")
    )
    (out / "overrides.yaml").write_text(
        "checks: {task1/runs: {points: full, comment: our error}}\n"
    )
    (room / NAMES[10] / "task1" / "run_glue.py").write_text("right")
    printed, table = finished(room, out, "--only", NAMES[10], "--again", "--anonymous", *flags)
    assert "19 of 20 already graded" in printed
    assert table[NAMES[0]]["points"] == "13.0"
    assert table[NAMES[4]]["points"] == "2.0"
    assert table[NAMES[10]]["points"] == "4.0"
    hidden = (out / "anonymous" / "grades.csv").read_text()
    assert "student00" not in hidden
    assert len(list((out / "feedback").glob("*.md"))) == 20

    lines = [f'"{name}, A.",{i},s{i:02d},{name}@example.edu,X' for i, name in enumerate(NAMES)]
    heads = "Student,ID,SIS User ID,SIS Login ID,Section\n    Points Possible,,,,\n"
    (tmp_path / "canvas.csv").write_text(heads + "\n".join(lines) + "\n")
    assert (
        export.main(["--out", str(out), "--canvas", str(tmp_path / "canvas.csv"), "--column", "HW"])
        == 0
    )
    uploaded = list(csv.reader((out / "canvas.csv").open(newline="")))
    assert [len(uploaded), uploaded[0][-1], uploaded[1][-1]] == [22, "HW", "24"]
    assert [uploaded[2][-1], uploaded[6][-1], uploaded[21][-1]] == ["13", "2", "3.2"]
