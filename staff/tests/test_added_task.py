"""A task is added to a copy of the repository as the table asks: a folder, and its rows."""

import os
import re
import subprocess
import sys

from tests.workers import ROOT

import pytest

DEADLINE = 240  # seconds
ROW = """    Task(
        "task9",
        "9",
        "all_reduce, once more",
        base="task2a",
        collectives=("all_reduce",),
        by_hand=True,
    ),
"""
LISTED = "| [9](task9/README.md) | all_reduce, once more | "
POINTS = "  task9: {runs: 1, gradients: 2, collectives: 3}\n"


def repository_files():
    """The repository's files, tracked or not, but for those that git ignores."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    return [name for name in names.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The repository with a task 9, a copy of 2(b)'s folder."""
    folder = tmp_path_factory.mktemp("added") / "kit"
    names = repository_files()
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((ROOT / name).read_bytes())
        if name.startswith("task2b/"):
            added = folder / name.replace("task2b/", "task9/", 1)
            added.parent.mkdir(exist_ok=True)
            added.write_text((ROOT / name).read_text().replace("(task2b): ", "(task9): "))
    table = folder / "common" / "tasks.py"
    before, after = table.read_text().split("\n)\nVARIANTS = ")
    table.write_text(f"{before}\n{ROW})\nVARIANTS = {after}")
    rubric = folder / "grading" / "rubric.yaml"
    text = rubric.read_text().replace("total: 120", "total: 126").rstrip("\n")
    rubric.write_text(f"{text}\n{POINTS}")
    return folder


def in_copy(copy, *arguments):
    """Run `python ARGUMENTS` in the copy, with its own modules; returns what it printed."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_it_is_graded(copy):
    selected = ("-p", "no:cacheprovider", "-k", "task9", "--submission", str(copy))
    printed = in_copy(copy, "-m", "pytest", "-q", "tests/grading", *selected)
    assert "graded: 3 of 3 checks passed, 6 of 6 points" in printed


def test_it_is_in_the_table_of_the_readme(copy):
    in_copy(copy, "-m", "common.tasks", "README.md")
    assert LISTED in (copy / "README.md").read_text()


def test_it_is_handed_out(copy):
    handout = copy.parent / "handout"
    in_copy(copy, "-m", "staff", "handout", str(handout))
    script = (handout / "task9" / "run_glue.py").read_text()
    assert script.count("    # TODO(task9): ") == 1
    assert script.count("    # CARRIED(task1): ") == 3
    assert "all_reduce(" not in script
    assert "\n## task9\n\n- task9/run_glue.py:" in (handout / "TODO.md").read_text()
    assert LISTED in (handout / "README.md").read_text()


@pytest.mark.slow
def test_it_runs_in_the_demo(copy):
    folder = copy.parent / "demo"
    flags = ["--max_steps", "3", "--max_seq_length", "16", "--output_dir", str(folder)]
    printed = in_copy(copy, "-m", "experiments.demo", "--tasks", "1,9", "--workers", "2", *flags)
    assert "demo: task9 with 2 worker(s)" in printed
    assert re.search(r"^ +task 1 +task 9$", printed, re.MULTILINE)
    gaps = re.search(r"max \|difference\|, first epoch(.*)", printed)[1].split()
    assert len(gaps) == 2
    assert float(gaps[1]) <= 1e-5
    assert "missing in Task 9: all_reduce, once more: your reasoning" in printed
    assert (folder / "netid_First_Last.pdf").read_bytes().startswith(b"%PDF")


def test_every_command_that_lists_tasks_has_it(copy):
    code = """if 1:
        from experiments import demo, scaling
        from report.cost_model import network_terms
        from report.headings import SECTIONS
        from staff.timing import rounds
        from common.tasks import TABLE
        print([job.name for job in demo.jobs(TABLE, 4) if job.task.key == "9"])
        for parse in (scaling.parse, rounds.parse):
            args, _ = parse(["--output_dir", "nowhere"])
            print([getattr(task, "key", task) for task in args.tasks][-1])
        print(list(SECTIONS)[-3:])
        print(network_terms("9", 4, 100) == network_terms("2b", 4, 100))
    """
    assert in_copy(copy, "-c", code).splitlines() == [
        "['task9']",
        "9",
        "9",
        "['Task 9: all_reduce, once more', 'Implementation details', 'Scalability']",
        "True",
    ]
