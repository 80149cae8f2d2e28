"""What students compare their work with: stored numbers, which name the mistakes as graders do."""

import os
import subprocess
import sys
from pathlib import Path

from common.tasks import SCRIPTS
from grading import inputs, rubric, stored
from grading.checks.graded_task import GradedTask
from grading.hand_in.carry import carry
from grading.mapping import read_mapping
from grading.runner import Runner
from grading.sandbox.session import Session
from staff.handout import build
from staff.handout.folder import write_folder

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
AVERAGE = "average_gradients(model, world)\n"
TODO = "TODO(task1): load the model"
CLIP = "clip_grad_norm_(model.parameters(), args.max_grad_norm)\n"


@pytest.mark.slow
@pytest.mark.parametrize(("task", "workers"), [("task1", 1), ("task2b", 4), ("naive", 1)])
def test_the_stored_numbers_are_the_references(task, workers):
    with Session() as session:
        batch = inputs.TOTAL_BATCH // workers
        tolerances = rubric.load_tolerances()
        _, parts = inputs.division(SCRIPTS[task], session.workers)
        graded = GradedTask(SCRIPTS[task], workers, batch, tolerances, session.known, parts)
        runner = Runner(ROOT, read_mapping(ROOT), session)
        evidence = runner.run_setting(graded, inputs.SETTINGS["plain"])
        found, details = stored.reference("plain", evidence.seen, inputs.model_for(SCRIPTS[task]))
        right = evidence.reference
        assert found["names"] == right["names"]
        assert len(found["loss"]) == len(right["loss"]) == 5
        for name, limit in (("start", 0), ("loss", 1e-5), ("norm", 1e-5), ("clipped", 1e-5)):
            np.testing.assert_allclose(
                found[name], right[name], rtol=1e-4, atol=limit, err_msg=name
            )
        np.testing.assert_allclose(found["weights"], right["weights"], atol=1e-6)
        own, wanted = details(2), evidence.details(2)
        np.testing.assert_allclose(own["local"], wanted["local"], atol=1e-4)
        np.testing.assert_allclose(own["norms"], wanted["norms"], rtol=1e-4)


@pytest.fixture(scope="module")
def handout(tmp_path_factory):
    """A handout with every part written."""
    folder = tmp_path_factory.mktemp("students") / "course"
    write_folder(build.handout(ROOT), folder)
    build.fill(folder)
    carry(folder)
    return folder


def checked(folder, which):
    """`make check` of some checks: what pytest prints, and its exit code."""
    command = [sys.executable, "-m", "pytest", "tests/grading", "-q", "-p", "no:cacheprovider"]
    env = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [*command, "-k", which], cwd=folder, env=env, capture_output=True, text=True, timeout=280
    )
    return done.stdout + done.stderr, done.returncode


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_student_without_the_reference_is_shown_both_classic_mistakes(handout):
    text, code = checked(handout, "task2b")
    assert code == 0, text
    assert "15 of 15 checks passed" in text
    script = handout / "task2b" / "run_glue.py"
    right = script.read_text()
    first, second = (
        next(line for line in right.splitlines(keepends=True) if line.endswith(end))
        for end in (AVERAGE, CLIP)
    )
    wrong = right.replace(second, "").replace(first, second + first)
    script.write_text(wrong)
    text, code = checked(handout, "task2b and (start or gradients or clipping)")
    assert code == 1
    assert "clip after averaging" in text
    assert 'docs/mistakes.md, "Clip after averaging"' in text
    script.write_text(right.replace("    gradients /= world.size\n", ""))
    text, code = checked(handout, "task2b and (start or gradients)")
    script.write_text(right)
    assert code == 1
    assert "summed, not divided by the world size" in text


@pytest.mark.slow
def test_rows_in_another_order_are_not_compared_and_not_green(handout):
    loader = handout / "common" / "data" / "loader.py"
    right = loader.read_text()
    loader.write_text(right.replace("seed=args.seed", "seed=7"))
    text, code = checked(handout, "task1 and (start or gradients)")
    loader.write_text(right)
    assert code == 1
    assert "could not be checked" in text
    assert "with --seed 42" in text


@pytest.mark.slow
def test_a_missing_part_is_said_once_for_all_tasks_and_checks(handout):
    script = handout / "common" / "models" / "bert.py"
    right = script.read_text()
    head = next(line for line in right.splitlines() if line.startswith("def from_pretrained"))
    script.write_text(right.replace(head, f"{head}\n    raise NotImplementedError({TODO!r})"))
    text, code = checked(handout, "(task1 or task3) and (runs or start or gradients or metric)")
    script.write_text(right)
    assert code == 1
    assert text.count("TODO(task1)") == 1
    assert "to be written, so that task1, task3 can be checked: common/models/bert.py:" in text
    assert "not run because" not in text
    assert "graded: 0 of 8 checks passed, 0 of " in text
