"""What the probe cannot see "could not be checked": it is neither passed nor failed."""

from grading.grader import grade
from grading.results import PASSED, UNKNOWN
from staff.gallery.variants import Edit, Variant, build, script

import pytest

BY_HAND = """with torch.no_grad():
                for p in model.parameters():
                    p -= optimizer.param_groups[0]["lr"] * p.grad
"""
HAND_MADE = Variant(
    "updates_by_hand",
    "task2b",
    (
        Edit(script("task2b"), "optimizer.step()\n", BY_HAND),
        Edit(script("task2b"), "import torch.distributed", "import torch, torch.distributed"),
    ),
    note="updates the weights with no optimizer's step",
)


@pytest.mark.slow
def test_updates_without_an_optimizer_could_not_be_checked(tmp_path):
    build(HAND_MADE, tmp_path / "one")
    results = grade(tmp_path / "one", tasks=["task2b"]).results
    status = {result.check.partition("/")[2]: result.status for result in results}
    assert status["runs"] == UNKNOWN
    assert "no update by an optimizer" in results[0].diagnosis
    assert PASSED not in status.values()
    assert sum(result.points for result in results) == 0
