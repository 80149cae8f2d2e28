"""`pytest tests/grading --submission PATH`: each check of the rubric is a test."""

from pathlib import Path

from common.errors import UserError
from common.tasks import SCRIPTS
from grading.grader import Submission
from grading.hand_in.safe_text import line
from grading.mapping import read_mapping
from grading.results import FAILED, PASSED
from grading.sandbox.session import Session

import pytest

KIT = Path(__file__).parents[2]
TODO = "todo"  # the cause of a run that has reached a part still to be written
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
    """Start the list of results."""
    config.stash[GRADED] = []
    config.stash[CALLS] = {}


def pytest_collection_modifyitems(config, items):
    """Leave out the checks of further tasks, unless -k names the task."""
    further = [name for name, task in SCRIPTS.items() if task.further]
    unasked = [name for name in further if name not in config.option.keyword]
    left_out = [item for item in items if any(f"[{name}/" in item.name for name in unasked)]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


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
    """What is to be written, what was not checked and why, and the points of all checks."""
    results, write = config.stash[GRADED], terminalreporter.write_line
    for task, call in config.stash[CALLS].items():
        write(f"{task} was run as: {line(call, 2000)}")
    todos = by_reason(r for r in results if r.cause == TODO)
    waiting = {task_of(r) for r in results if r.cause == TODO}
    for todo, checks in todos.items():
        tasks = ", ".join(dict.fromkeys(map(task_of, checks)))
        write(f"to be written, so that {tasks} can be checked: {todo}")
    unmade = [r for r in results if r.status not in (PASSED, FAILED)]
    for reason, checks in by_reason(r for r in unmade if task_of(r) not in waiting).items():
        write(f"{', '.join(r.check for r in checks)}: {reason}")
    if results:
        lacking = sum(r.possible for r in results if r in unmade or r.cause == TODO)
        write(
            f"graded: {sum(r.status == PASSED for r in results)} of {len(results)} checks passed, "
            f"{sum(r.points for r in results):g} of {sum(r.possible for r in results):g} points"
            + (f"; {lacking:g} points could not be checked: see above" if lacking else "")
        )


def by_reason(results):
    """Results by why they did not pass: each reason is said once."""
    groups = {}
    for result in results:
        groups.setdefault(result.reason, []).append(result)
    return groups


def task_of(result):
    """The task of a result's check."""
    return result.check.partition("/")[0]


def pytest_sessionfinish(session, exitstatus):
    """Exit 1 where a check was not made, too: green means that every point was verified."""
    if exitstatus == 0 and any(r.status != PASSED for r in session.config.stash[GRADED]):
        session.exitstatus = 1
