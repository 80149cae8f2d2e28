"""`pytest tests/grading --submission PATH`: each check of the rubric is a test."""

from pathlib import Path

from common.errors import UserError
from grading.grader import Submission
from grading.hand_in.safe_text import line
from grading.mapping import read_mapping
from grading.results import FAILED, PASSED
from grading.sandbox.session import Session

import pytest

KIT = Path(__file__).parents[2]
GRADED = pytest.StashKey[list]()
CALLS = pytest.StashKey[dict]()


def pytest_addoption(parser):
    """Whose submission, and how it is run."""
    group = parser.getgroup("grading")
    group.addoption("--submission", default=str(KIT), help="its folder (default: the solution)")
    group.addoption(
        "--mapping", default=None, help="auto, or a grading.yaml for tasks that its own leaves out"
    )


def pytest_configure(config):
    """Show why a check was not run, or could not be made."""
    config.stash[GRADED] = []
    config.stash[CALLS] = {}
    config.option.reportchars += "s"


@pytest.fixture(scope="session")
def submission(request):
    """The submission being graded; a task runs when its first check asks for it."""
    path = Path(request.config.getoption("--submission", str(KIT)))
    if not path.is_dir():
        pytest.exit(f"--submission {path}: there is no such folder", returncode=2)
    try:
        mapping = read_mapping(path, request.config.getoption("--mapping", None))
    except UserError as error:
        pytest.exit(str(error), returncode=2)
    with Session() as session:
        graded = Submission(path, mapping, session)
        yield graded
        request.config.stash[CALLS].update(graded.runner.calls.used)


@pytest.fixture
def graded(request):
    """Takes the results, for the points in the summary."""
    return request.config.stash[GRADED]


def pytest_terminal_summary(terminalreporter, config):
    """The points of all checks that were asked for."""
    results = config.stash[GRADED]
    for task, call in config.stash[CALLS].items():
        terminalreporter.write_line(f"{task} was run as: {line(call, 2000)}")
    if results:
        points, possible = sum(r.points for r in results), sum(r.possible for r in results)
        passed = sum(r.status == PASSED for r in results)
        lacking = sum(r.possible for r in results if r.status not in (PASSED, FAILED))
        terminalreporter.write_line(
            f"graded: {passed} of {len(results)} checks passed, {points:g} of {possible:g} points"
            + (f"; {lacking:g} points could not be checked, as said above" if lacking else "")
        )


def pytest_sessionfinish(session, exitstatus):
    """Exit 1 where a check was not made, too: green means that every point was verified."""
    if exitstatus == 0 and any(r.status != PASSED for r in session.config.stash[GRADED]):
        session.exitstatus = 1
