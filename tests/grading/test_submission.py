"""The rubric's checks of one submission: by default this repository's own solution.

Those of a further task are made where its name is given: `pytest tests/grading -k task5`.
"""

from grading import rubric
from grading.results import FAILED, PASSED

import pytest

CHECKS = [*rubric.load(), *rubric.load_further()]


@pytest.mark.parametrize("check", CHECKS, ids=[check.id for check in CHECKS])
def test_check(check, submission, graded):
    result = submission.check(check)
    graded.append(result)
    if result.status == FAILED:
        pytest.fail(result.text(), pytrace=False)
    if result.status != PASSED:
        pytest.skip(result.reason)
    print(result.text())
