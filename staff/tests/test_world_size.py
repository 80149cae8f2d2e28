"""The check that a script is right with other numbers of workers, too."""

from types import SimpleNamespace

from common.tasks import TASKS
from grading.checks.evidence import Deviation
from grading.checks.graded_task import GradedTask
from grading.checks.observation import Observation, Rank
from grading.checks.world_size import workers
from grading.inputs import LEARNING_RATE, SETTINGS
from grading.plan import Ended
from grading.results import FAILED, PASSED, UNKNOWN

import pytest


def evidence(size, steps=3, rows=4, step=None, reference=True, planned=None):
    """A run of `size` workers whose gradients first deviate at `step`."""
    planned = planned or -(-78 // (size * rows))
    rates = [LEARNING_RATE * (1 - at / planned) for at in range(steps)]
    of_steps = [SimpleNamespace(rows=[None] * rows, rate=rate) for rate in rates]
    ranks = [Rank(steps=list(of_steps)) for _ in range(size)]
    codes = [0 if steps else 1] * size
    deviation = Deviation(worst=0.5, step=step, tensor="bias", at=0.5)
    return SimpleNamespace(
        seen=Observation(ranks, Ended(list(codes), first=0 if not steps else None)),
        reference={} if reference else None,
        why="no reference here",
        gradients=lambda _: deviation,
        ranks=ranks,
        size=size,
        setting=SETTINGS["few"],
        cut=False,
    )


def judged(usual=5, **others):
    """The Outcome for runs with 2 and 3 workers; `usual` is the steps that 4 workers plan."""
    limit = SimpleNamespace(most=1e-4, text="1e-4")
    graded = GradedTask(TASKS["task2b"], 4, 4, {"gradients": limit}, {})
    graded.others = {size: evidence(size, **others) for size in (2, 3)}
    graded.batches = {2: 4, 3: 4}
    graded.runs = {"plain": evidence(4, steps=5, planned=usual)}
    return workers(graded)


def test_right_gradients_with_other_numbers_pass():
    assert judged().status == PASSED
    assert judged(steps=2).status == PASSED  # a rank that was ended early has not made the third


@pytest.mark.parametrize("wrong", [{"step": 1}, {"rows": 8}, {"steps": 0}, {"steps": 1}])
def test_what_is_fixed_to_one_number_fails_and_says_so(wrong):
    outcome = judged(**wrong)
    assert (outcome.status, outcome.cause.name) == (FAILED, "fixed_world_size")
    assert "2 workers" in outcome.where
    assert "4 workers only" in outcome.cause.sentence


def test_a_sampler_for_four_shows_in_the_schedule():
    outcome = judged(planned=5)
    assert (outcome.status, outcome.cause.name) == (FAILED, "fixed_world_size")
    assert "10 steps" in outcome.cause.sentence


def test_a_schedule_that_is_wrong_anyway_is_not_held_against_it():
    assert judged(usual=50, planned=50).status == PASSED


def test_without_a_reference_or_a_run_nothing_is_judged():
    assert judged(reference=False).status == UNKNOWN
    graded = GradedTask(TASKS["task2b"], 4, 4, {}, {})
    assert workers(graded).status == UNKNOWN
