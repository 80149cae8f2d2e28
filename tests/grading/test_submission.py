"""The rubric's checks of one submission: by default this repository's own solution.

Those of a further task are made where its name is given: `pytest tests/grading -k task5`.
"""

from grading import rubric
from grading.results import FAILED, PASSED

import pytest

CHECKS = [*rubric.load(), *rubric.load_further()]
SLOW = {"task2a": [pytest.mark.slow], "task3": [pytest.mark.slow]}  # 50 seconds each
PARAMETERS = [pytest.param(c, id=c.id, marks=SLOW.get(c.task, [])) for c in CHECKS]


@pytest.mark.parametrize("check", PARAMETERS)
def test_check(check, submission, graded):
    result = submission.check(check)
    graded.append(result)
    if result.status == FAILED:
        pytest.fail(result.text(), pytrace=False)
    if result.status != PASSED:
        pytest.skip(result.reason)
    print(result.text())
