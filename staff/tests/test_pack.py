"""A student's archive: what goes in, what does not, and the rehearsal."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from common.errors import UserError
from grading import pack
from grading.hand_in.files import LARGEST
from grading.results import FAILED, PASSED, Report, Result
from staff.handout.folder import write_folder

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = "def main():\n    return 1\n"
TODO = 'def f():\n    raise NotImplementedError(\n        "TODO(task2a): average them"\n    )\n'


@pytest.fixture
def work(tmp_path):
    """A student's folder with all that is asked for, and much that is not."""
    folder = tmp_path / "work"
    for task in ("task1", "task2a", "task2b", "task3", "task4"):
        (folder / task).mkdir(parents=True)
        (folder / task / "run_glue.py").write_text(SCRIPT)
    (folder / "ann1_Ann_Lee.pdf").write_bytes(b"%PDF")
    for junk in (
        ".venv/bin/python",
        ".git/config",
        "runs/demo/run.json",
        "task1/__pycache__/x.pyc",
        "data/cached_train",
        "model/model.safetensors",
        "old.pt",
        "x/pytorch_model.bin",
        "glue_data/RTE/train.tsv",
        ".DS_Store",
        "old.zip",
    ):
        (folder / junk).parent.mkdir(parents=True, exist_ok=True)
        (folder / junk).write_bytes(b"junk")
    (folder / "film.mov").write_bytes(bytes(LARGEST + 1))
    (folder / "task1" / "data").symlink_to("/etc")
    (folder / "passwd").symlink_to("/etc/passwd")
    return folder


@pytest.fixture
def handout(tmp_path):
    """The students' repository, as far as this command is concerned: no grader in it."""
    kit = tmp_path / "kit"
    for room in ("common", "grading"):
        shutil.copytree(ROOT / room, kit / room, ignore=shutil.ignore_patterns("__pycache__"))
    return kit


# `python -m grading` without this repository: an editable install would lend its modules.
ALONE = f"""import runpy, sys
sys.path[:] = [path for path in sys.path if path != {str(ROOT)!r}]
sys.meta_path[:] = [finder for finder in sys.meta_path if "__editable__" not in repr(finder)]
runpy.run_module("grading", run_name="__main__", alter_sys=True)"""


def command(kit, *arguments, cwd):
    """Run `python -m grading pack`; (exit code, all that it said)."""
    env = {**os.environ, "PYTHONPATH": str(kit), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", ALONE, "pack", *map(str, arguments)],
        env=env,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


def test_a_student_packs_without_the_checks(work, handout, tmp_path):
    code, said = command(handout, "--student", "ann1_Ann_Lee", work, cwd=tmp_path)
    assert code == 0, said
    with zipfile.ZipFile(tmp_path / "ann1_Ann_Lee.zip") as bundle:
        names = bundle.namelist()
    inner = [f"task{task}/run_glue.py" for task in ("1", "2a", "2b", "3", "4")]
    assert names == [f"ann1_Ann_Lee/{name}" for name in ["ann1_Ann_Lee.pdf", *inner]]
    for words in (
        "make check",
        "ready to hand in",
        "25  task1/run",
        "left out: film.mov (5.0 MB: over 5 MB)",
        "left out: passwd (a link)",
        "left out: .venv (an environment)",
        "left out: 2 more",
        "bytes in 6 files",
    ):
        assert words in said
    assert "missing" not in said
    usage = subprocess.run(
        [sys.executable, "-c", ALONE, "--help"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(handout)},
        cwd=tmp_path,
        check=True,
    ).stdout
    assert "pack" in usage
    assert "gradescope" not in usage


def test_what_is_left_to_do_is_listed(work, handout, tmp_path):
    (work / "task2a" / "run_glue.py").write_text(TODO)
    (work / "task2b" / "run_glue.py").write_text("def main(:\n")
    (work / "task1" / "more.py").write_bytes(b"x = '\0'\n")
    (work / "task3" / "run_glue.py").unlink()
    (work / "ann1_Ann_Lee.pdf").unlink()
    code, said = command(handout, work, "--out", "a.zip", cwd=tmp_path)
    assert code == 1
    for words in (
        "missing: task3/run_glue.py",
        "missing: the report, a PDF",
        "3 problems",
        "task2a/run_glue.py:2: TODO(task2a): average them",
        "not ready",
        "task2b/run_glue.py:1: this is not valid Python",
        "task1/more.py",
    ):
        assert words in said
    assert (tmp_path / "a.zip").exists()


def test_records_of_finished_runs_go_along(work, handout, tmp_path):
    (work / "runs" / "demo" / "run.json").write_text('{"end": null}')
    for run in (work / "runs" / "task1", tmp_path / "RTE2a"):
        run.mkdir()
        (run / "run.json").write_text('{"end": 1}')
        for name in (
            "steps.rank0.jsonl",
            "traffic.rank0.json",
            "model.safetensors",
            "net.rank0.csv",
        ):
            (run / name).write_text("{}")
    given = ("--runs", tmp_path / "RTE2a", work / "runs" / "task1")
    code, said = command(handout, "--student", "ann1_Ann_Lee", work, *given, cwd=tmp_path)
    assert code == 0, said
    with zipfile.ZipFile(tmp_path / "ann1_Ann_Lee.zip") as bundle:
        names = [name for name in bundle.namelist() if "/runs/" in name]
    files = ("run.json", "steps.rank0.jsonl", "traffic.rank0.json")
    inside = [f"ann1_Ann_Lee/runs/{run}/{file}" for run in ("RTE2a", "task1") for file in files]
    assert names == inside
    assert "records of runs: 6 files" in said
    assert "left out: runs/demo (a run that did not finish)" in said


def test_what_was_handed_out_is_only_counted(work, handout, tmp_path):
    paths = sorted(path.relative_to(work) for path in (work / "task1").glob("*.py"))
    write_folder({str(path): (work / path).read_bytes() for path in paths}, work, force=True)
    said = command(handout, work, cwd=tmp_path)[1]
    assert "2 files as they were handed out" in said  # task1/run_glue.py and the list itself
    assert "task1/run_glue.py" not in said
    (work / "task1" / "run_glue.py").write_text(SCRIPT * 2)
    assert "50  task1/run_glue.py" in command(handout, work, cwd=tmp_path)[1]


def test_what_is_carried_is_one_problem(work, handout, tmp_path):
    carried = TODO.replace("them", "them; write it in task1/run_glue.py, then run: ")
    (work / "task2a" / "run_glue.py").write_text(TODO)
    for task in ("task2b", "task3"):
        text = carried.replace("run: ", "run: python -m grading carry")
        (work / task / "run_glue.py").write_text(text)
    said = command(handout, work, cwd=tmp_path)[1]
    assert "rehearsal: 2 problems" in said
    assert said.count("TODO(") == 1
    assert "2 parts of later scripts: `python -m grading carry`" in said


def test_without_a_script_alone_it_is_not_ready(work, handout, tmp_path):
    (work / "task4" / "run_glue.py").unlink()
    code, said = command(handout, work, cwd=tmp_path)
    assert code == 1
    assert "no TODO is left" in said
    assert "missing: task4/run_glue.py" in said
    (work / "grading.yaml").write_text("task1: {script: task1/run_glue.py}\n")
    assert command(handout, work, cwd=tmp_path)[0] == 0


def test_without_a_report_alone_it_is_not_ready(work, handout, tmp_path):
    (work / "ann1_Ann_Lee.pdf").unlink()
    code, said = command(handout, work, cwd=tmp_path)
    assert code == 1
    assert "missing: the report, a PDF" in said
    assert "not ready" in said
    assert (tmp_path / "work.zip").exists()


def test_the_same_files_give_the_same_bytes(work, tmp_path):
    files, _ = pack.choose(work)
    pack.write_archive(work, files, tmp_path / "a.zip", "x")
    for path in work.rglob("*.py"):
        os.utime(path, (1, 1))
    pack.write_archive(work, reversed(files), tmp_path / "b.zip", "x")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_an_archive_is_written_whole_or_not_at_all(work, tmp_path):
    out = tmp_path / "a.zip"
    out.write_bytes(b"an earlier one")
    with pytest.raises(FileNotFoundError):
        pack.write_archive(work, [Path("task1/run_glue.py"), Path("task9/none.py")], out, "x")
    assert out.read_bytes() == b"an earlier one"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip", "work"]


def grader(status):
    """A grader for these tests: one check with that status."""

    def grade(path, on_result):
        assert (path / "task1" / "run_glue.py").read_text() == SCRIPT
        assert not (path / "runs").exists()
        report = Report("x")
        report.results.append(Result("task1/runs", "It runs", status, 1, 1, got="\x1b[2J"))
        on_result(report.results[0], report)
        return report

    return grade


@pytest.mark.parametrize("status", [PASSED, FAILED])
def test_with_the_checks_it_is_graded_in_a_clean_folder(
    work, tmp_path, monkeypatch, capsys, status
):
    pack.write_archive(work, pack.choose(work)[0], tmp_path / "a.zip", "ann")
    monkeypatch.setattr("grading.grader.grade", grader(status))
    assert pack.rehearse(tmp_path / "a.zip") == (status == PASSED)
    said = capsys.readouterr().out
    assert f"{status}: task1/runs (1/1)" in said
    assert "\x1b" not in said
    assert f"{int(status == PASSED)} of 1 checks passed" in said


def test_a_rehearsal_with_no_check_is_not_passed(work, tmp_path, monkeypatch):
    pack.write_archive(work, pack.choose(work)[0], tmp_path / "a.zip", "ann")
    monkeypatch.setattr("grading.grader.grade", lambda path, on_result: Report("x"))  # noqa: ARG005
    assert not pack.rehearse(tmp_path / "a.zip")


def test_user_errors_say_what_to_do(work, tmp_path):
    for arguments, words in {
        ("--student", "Ann Lee", str(work)): "NETID_First_Last",
        ("--out", "a.tar", str(work)): "ends in .zip",
        ("--out", "none/a.zip", str(work)): "create it first",
        (str(work / "none"),): "is not a folder",
        (str(tmp_path),): "further down",
        (str(work / "task1" / "__pycache__"),): "no task1/",
    }.items():
        with pytest.raises(UserError, match=words):
            pack.main(arguments)
    (work / "report.pdf").write_bytes(bytes(LARGEST + 1))
    with pytest.raises(UserError, match=r"report.pdf has 5.0 MB.*make it smaller"):
        pack.main([str(work)])
    (work / os.fsdecode(b"task1/\xff\x1b.py")).write_text("")
    with pytest.raises(UserError, match="rename it"):
        pack.main([str(work)])
