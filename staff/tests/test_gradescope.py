"""The autograder: its archive, and what results.json says whatever a submission does."""

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
import zipfile

from common.errors import UserError
from grading import grader, rubric
from grading.hand_in.archive import unpack
from grading.results import FAILED, PASSED, Report, Result
from grading.sandbox import session
from staff.classroom import gradescope, jobs
from staff.classroom.gradescope_results import NOT_YET, Results
from tests.workers import ROOT, ending

import pytest
from markdown_it import MarkdownIt

DEADLINE = 60  # seconds
HOSTILE = (
    "```\n# Passed\n<script>alert(1)</script> <img src=x onerror=alert(1)>\n~~~\n````\n\0\x1b[2J"
    "\u202e\n![x](http://example.org/x.png)\n    ```\n"
) * 2


CHECKS = [
    rubric.Check("task1", "runs", "It runs", 2.0, ()),
    rubric.Check("task2a", "gradients", "Gradients", 3.0, (), "after_published"),
    rubric.Check("task2b", "gradients", "Gradients", 5.0, ()),
]


def stand_in(path, tasks=None, mapping=None, on_result=None, session=None):  # noqa: ARG001
    """A grader for these tests: the words in task1/run_glue.py say what it does."""
    words = (path / "task1" / "run_glue.py").read_text().split()
    report = Report("x", isolation="none", sync_ratio={"task2a": 2.411, "task2b": float("nan")})
    for check, word in zip(CHECKS, words, strict=True):
        if word == "crash":
            raise RuntimeError("the reference says 42")
        if word == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if word == "sleep":
            subprocess.run(["sleep", "1000"], check=False)
        status = PASSED if word == "right" else FAILED
        points = check.points * (status == PASSED)
        report.results.append(
            Result(
                f"{check.task}/{check.name}",
                HOSTILE,
                status,
                points,
                check.points,
                got=HOSTILE,
                diagnosis=HOSTILE,
                cause="summed",
            )
        )
        on_result(report.results[-1], report)
    return report


def work_by_stand_in(*arguments):
    """In a job's new process: its work, with the stand-in as the grader."""
    grader.grade = stand_in
    session.Session = contextlib.nullcontext
    jobs.work(*arguments)


def load_checks():
    """A rubric for these tests."""
    return CHECKS


@pytest.fixture(autouse=True)
def _graded_by_stand_in(monkeypatch):
    monkeypatch.setattr(jobs, "work", work_by_stand_in)
    monkeypatch.setattr(rubric, "load", load_checks)


@pytest.fixture
def root(tmp_path):
    """A folder laid out as /autograder is."""
    (tmp_path / "submission" / "task1").mkdir(parents=True)
    (tmp_path / "results").mkdir()
    (tmp_path / "submission_metadata.json").write_text("{}")
    return tmp_path


def run(root, words, minutes=1.0):
    """Grade a submission with those words; (exit code, results.json)."""
    (root / "submission" / "task1" / "run_glue.py").write_text(words)
    code = gradescope.run_autograder(root, minutes)
    return code, read(root)


def read(root):
    """results.json, which has every test with all that Gradescope wants."""
    facts = json.loads((root / "results" / "results.json").read_text())
    assert [test["max_score"] for test in facts["tests"]] == [2.0, 3.0, 5.0]
    for test in facts["tests"]:
        assert test["status"] in ("passed", "failed")
        assert 0 <= test["score"] <= test["max_score"]
        assert test["output_format"] == "md"
        assert set(test) >= {"number", "name", "output", "tags", "visibility"}
    assert facts["stdout_visibility"] == "hidden"
    assert facts["execution_time"] >= 0
    return facts


def test_points_and_all_that_gradescope_shows(root):
    code, facts = run(root, "right right wrong")
    assert code == 0
    assert facts["score"] == 5.0
    assert [test["status"] for test in facts["tests"]] == ["passed", "passed", "failed"]
    assert [test["score"] for test in facts["tests"]] == [2.0, 3.0, 0.0]
    assert [test["number"] for test in facts["tests"]] == ["1", "2", "3"]
    assert facts["tests"][0]["name"] == "task1/runs: It runs"
    assert facts["tests"][1]["visibility"] == "after_published"
    assert facts["tests"][1]["tags"] == ["task2a"]
    (best,) = facts["leaderboard"]
    assert (best["value"], best["order"]) == (2.41, "asc")
    assert facts["extra_data"]["causes"]["task2b/gradients"] == "summed"
    assert stat.S_IMODE((root / "results").stat().st_mode) == 0o700
    assert [path.name for path in (root / "results").iterdir()] == ["results.json"]


def test_who_does_not_synchronize_leads_no_board(root):
    _, facts = run(root, "right wrong right")
    assert facts["leaderboard"] == []


def test_no_words_of_a_submission_are_markup(root):
    _, facts = run(root, "right right wrong")
    for test in facts["tests"]:
        page = MarkdownIt("commonmark", {"html": True})
        kinds = [token.type for token in page.parse(test["output"])]
        assert kinds == ["fence"]
        assert not set("\0\x1b\u202e") & set(test["output"])
        assert "# Passed" in test["output"]
        assert HOSTILE not in test["name"]


def test_results_are_written_after_every_check(root):
    """While the third check sleeps, the first two are there; SIGTERM ends all."""
    (root / "submission" / "task1" / "run_glue.py").write_text("right wrong sleep")
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from staff.classroom import gradescope\n"
        "from staff.tests import test_gradescope as tests\n"
        "if __name__ == '__main__':\n"
        "    gradescope.rubric.load = tests.load_checks\n"
        "    tests.jobs.work = tests.work_by_stand_in\n"
        f"    sys.exit(gradescope.run_autograder(Path({str(root)!r}), 5))\n"
    )
    (root / "run.py").write_text(script)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(root)}
    with ending(subprocess.Popen([sys.executable, root / "run.py"], env=env)) as process:
        deadline = time.monotonic() + DEADLINE
        file, seen = root / "results" / "results.json", []
        while not seen or NOT_YET in seen[-1][1]:
            assert time.monotonic() < deadline
            assert process.poll() is None
            if file.exists():
                seen.append([test["output"] for test in read(root)["tests"]])
            time.sleep(0.02)
        process.terminate()
        assert process.wait(DEADLINE) == 0
    assert NOT_YET in seen[-1][2]
    facts = read(root)
    assert facts["score"] == 2.0
    assert "stopped" in facts["output"]
    assert not list(root.glob("grading-*"))


def test_results_are_there_before_the_first_check(root, monkeypatch):
    seen = []
    monkeypatch.setattr(gradescope, "Grader", lambda *_, **__: seen.append(read(root)) or 1 / 0)
    run(root, "right right right")
    assert all(NOT_YET in test["output"] for test in seen[0]["tests"])


def test_before_time_is_up_the_last_results_are_written(root):
    began = time.monotonic()
    code, facts = run(root, "right right sleep", minutes=0.25)
    assert time.monotonic() - began < 15 + 20
    assert (code, facts["score"]) == (0, 5.0)
    assert NOT_YET in facts["tests"][2]["output"]
    assert "not finished after 0.25 minutes" in facts["output"]


@pytest.mark.parametrize("word", ["crash", "die"])
def test_a_failure_of_the_grader_is_not_the_students(root, word, capfd):
    code, facts = run(root, f"right {word} right")
    assert code == 1
    assert facts["score"] == 0
    assert "ask your instructor" in facts["output"]
    assert "ask your instructor" in facts["tests"][2]["output"]
    assert facts["leaderboard"] == []
    assert "the reference says" not in json.dumps(facts)
    assert ("the reference says 42" in capfd.readouterr().err) == (word == "crash")


def test_an_invalid_submission_shows_what_is_missing(root):
    (root / "submission" / "task1").rename(root / "submission" / "Task 1")
    (root / "submission" / "```\n# Passed").write_text("")
    code = gradescope.run_autograder(root, 1)
    facts = read(root)
    assert (code, facts["score"]) == (0, 0.0)
    assert "no task1/" in facts["output"]
    page = MarkdownIt("commonmark").parse(facts["output"])
    assert "heading_open" not in [token.type for token in page]


def test_results_that_a_submission_brings_count_for_nothing(root):
    forged = json.dumps({"score": 99, "tests": []})
    for folder in ("submission/results", "results"):
        (root / folder).mkdir(exist_ok=True)
        (root / folder / "results.json").write_text(forged)
    (root / "submission" / "results.json").write_text(forged)
    _, facts = run(root, "wrong wrong wrong")
    assert facts["score"] == 0


def test_points_beyond_the_rubrics_are_cut(root):
    results = Results(root / "results", CHECKS)
    results.add(Result("task1/runs", "", PASSED, float("inf"), 2))
    results.add(Result("task2a/gradients", "", PASSED, 99, 2))
    results.add(Result("task9/forged", "", PASSED, 99, 99))
    assert read(root)["score"] == 3.0


def test_the_archive_holds_what_it_needs(tmp_path):
    out = tmp_path / "autograder.zip"
    index = "https://example.org/cpu; rm -rf /"
    assert (
        gradescope.main(["--out", str(out), "--torch", "torch==9+cpu", "--torch-index", index]) == 0
    )
    whole = out.read_bytes()
    gradescope.build(out, "torch==9+cpu", index)
    assert out.read_bytes() == whole
    source = unpack(out, tmp_path / "source")
    for script in ("setup.sh", "run_autograder", "kit/setup.sh"):
        assert os.access(source / script, os.X_OK)
        subprocess.run(["bash", "-n", source / script], check=True)
    names = zipfile.ZipFile(out).namelist()
    assert len(names) < 320
    for name in (
        "kit/requirements.lock",
        "kit/pyproject.toml",
        "kit/common/models/tiny_vocab.txt",
        "kit/sample_data/RTE/train.tsv",
        "kit/task2a/run_glue.py",
        "kit/staff/classroom/jobs.py",
    ):
        assert name in names
    assert not [
        n for n in names if "cached_" in n or "__pycache__" in n or n.startswith("kit/tests")
    ]
    text = (source / "setup.sh").read_text()
    assert "TORCH=torch==9+cpu TORCH_INDEX='https://example.org/cpu; rm -rf /' ./setup.sh" in text


def test_what_is_installed_is_what_the_instructor_named(tmp_path):
    """setup.sh as Gradescope runs it; the kit's own only prints how it was called."""
    gradescope.build(tmp_path / "a.zip", "torch==9+cpu", "https://example.org/cpu")
    source = unpack(tmp_path / "a.zip", tmp_path / "source")
    (source / "kit/setup.sh").write_text('#!/bin/sh\nmkdir .venv; echo "$TORCH $TORCH_INDEX"\n')
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "apt-get").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "apt-get").chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(
        [source / "setup.sh"], env=env, cwd="/", capture_output=True, text=True, check=True
    )
    assert done.stdout == "torch==9+cpu https://example.org/cpu\n"
    assert stat.S_IMODE((source / "kit/staff").stat().st_mode) == 0o700
    assert stat.S_IMODE((source / "kit/staff/classroom/jobs.py").stat().st_mode) == 0o600
    assert stat.S_IMODE((source / "kit/.venv").stat().st_mode) & 0o5 == 0o5


def test_run_autograder_grades_from_its_own_kit(root):
    """The pristine kit is used, whatever the submission brings; without a rubric it says so."""
    gradescope.build(root / "autograder.zip")
    unpack(root / "autograder.zip", root / "source")
    (root / "source/kit/.venv/bin").mkdir(parents=True)
    python = root / "source/kit/.venv/bin/python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with (root / "source/kit/grading/rubric.py").open("a") as file:
        file.write("\n\ndef load():\n    raise ValueError('broken')\n")
    (root / "submission/grading").mkdir()
    (root / "submission/grading/__init__.py").write_text("raise SystemExit(0)")
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [root / "source/run_autograder", root],
        cwd=root / "submission",
        env=env,
        timeout=DEADLINE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "ValueError: broken" in done.stderr
    facts = json.loads((root / "results" / "results.json").read_text())
    assert facts["score"] == 0
    assert "ask your instructor" in facts["output"]


def test_user_errors_are_reported(tmp_path):
    for arguments in (
        ["--run", str(tmp_path / "none")],
        ["--run", str(tmp_path), "--minutes", "0"],
        ["--out", str(tmp_path / "none" / "a.zip")],
    ):
        with pytest.raises(UserError):
            gradescope.main(arguments)


def test_a_reader_never_meets_half_a_file(root):
    results, broken = Results(root / "results", CHECKS), []
    results.write()
    writer = threading.Thread(target=lambda: [results.write() for _ in range(50)])
    writer.start()
    while writer.is_alive():
        try:
            read(root)
        except ValueError as error:
            broken.append(error)
    writer.join()
    assert not broken
