"""The handout under the grader: filled in it passes; what is blank fails just its own checks."""

from common.tasks import TASKS
from grading.grader import grade
from grading.hand_in.carry import carry
from grading.results import FAILED, NOT_RUN, PASSED
from grading.sandbox.session import Session
from staff.handout.build import KIT, fill, handout
from staff.handout.folder import write_folder

import pytest

# A part that is not written -> the tasks that cannot run without it.
NEEDED = {
    "task1": {"task1", "task2a", "task2b", "task3", "task4"},
    "task2a": {"task2a", "task2b", "task3", "task4"},  # it opens the process group
    "task2b": {"task2b", "task4"},
    "task3": {"task3"},
    "task4": {"task4"},
}


@pytest.fixture(scope="module")
def session():
    with Session() as session:
        yield session


@pytest.fixture
def folder(tmp_path):
    write_folder(handout(KIT), tmp_path / "handout")
    return tmp_path / "handout"


def judged(folder, session, tasks=None):
    """Task -> its results, in order."""
    found = {}
    for result in grade(folder, tasks=tasks, session=session).results:
        found.setdefault(result.check.partition("/")[0], []).append(result)
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_filled_in_it_passes_every_check(folder, session):
    fill(folder)
    carry(folder)
    for results in judged(folder, session).values():
        failed = [result.text() for result in results if result.status != PASSED]
        assert not failed, "\n".join(failed)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("blank", [*NEEDED, "all"])
def test_what_is_blank_fails_just_its_own_checks(blank, folder, session):
    fill(folder, tasks=[] if blank == "all" else [task for task in TASKS if task != blank])
    carry(folder)
    failing = NEEDED["task1" if blank == "all" else blank]
    for task, (runs, *others) in judged(folder, session).items():
        if task in failing:
            assert (runs.status, runs.cause) == (FAILED, "todo"), runs.text()
            assert "TODO(" in runs.diagnosis
            assert {result.status for result in others} == {NOT_RUN}
        else:
            failed = [result.text() for result in (runs, *others) if result.status != PASSED]
            assert not failed, "\n".join(failed)
