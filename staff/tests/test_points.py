"""Points where a run ended early, where a check means nothing, and what a failed run is told."""

from pathlib import Path
from types import SimpleNamespace

from common.errors import UserError
from grading import rubric
from grading.checks.ended_early import outcome_of
from grading.checks.evidence import Evidence
from grading.checks.exit_causes import explain_end
from grading.checks.graded_task import GradedTask
from grading.checks.observation import Evaluation, Forward, Observation, Rank, Step
from grading.grader import Submission, grade
from grading.inputs import SETTINGS
from grading.plan import Ended, Limits
from grading.results import FAILED, NOT_RUN, PASSED, UNKNOWN, Cause, failed, passed
from grading.sandbox.session import Session
from staff.gallery.variants import build
from staff.gallery.wrong import WRONG

import numpy as np
import pytest

SMALLEST = "checks: {runs: {title: t, needs: []}}\npoints: {task1: {runs: 1}}\n"
WIDE = {"op": "allreduce", "elements": 1000, "bytes": 4000, "backward": False, "where": "a.py:1"}
WIDE["content"] = None  # not measured


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        ("total: 2\n", "its points sum to 1, but `total` is 2; correct one of them"),
        ("", "sum to 1, but `total` is not given"),
    ],
)
def test_points_must_sum_to_the_total(rest, words, tmp_path):
    (tmp_path / "rubric.yaml").write_text(SMALLEST + "total: 1\n")
    assert [check.points for check in rubric.load(tmp_path / "rubric.yaml")] == [1]
    (tmp_path / "rubric.yaml").write_text(SMALLEST + rest)
    with pytest.raises(UserError, match=words):
        rubric.load(tmp_path / "rubric.yaml")


def step_of(rows, weights, collectives):
    """A step over those rows, whose new weights are `weights` everywhere."""
    forward = Forward([((row,), (0,), 1) for row in rows], True, True, 0.5, None)
    after = np.full((1, 16), weights)
    return Step([forward], [], after, 0.1, "", after, [weights], list(collectives))


def task_of(steps, codes=(0, 0), same=False, weights=None):
    """A task of two ranks, with 8 rows a step, whose run in every setting is the same."""
    ranks = [Rank(["w"], [1000], start=np.zeros((1, 16))) for _ in range(2)]
    for number in range(steps):
        for rank, one in enumerate(ranks):
            first = 16 * number + (0 if same else 8 * rank)
            one.steps.append(
                step_of(
                    range(first, first + 8), weights(number, rank) if weights else number, (WIDE,)
                )
            )
    task = SimpleNamespace(name="task2b", strategy="task2b", weighted=False, sharded=())
    limits = {"identical": SimpleNamespace(most=0.01, text="")}
    graded = GradedTask(task, 2, 8, limits, {})  # pyright: ignore[reportArgumentType]
    for name in ("plain", "clipped", "adamw"):
        seen = Observation(ranks, Ended(list(codes)))
        graded.runs[name] = Evidence(SETTINGS[name], seen, why="no reference")
    return graded


def test_what_was_seen_of_a_run_that_failed_is_judged():
    graded = task_of(steps=5, codes=(1, 0))  # 78 rows: an epoch has 4 full steps of 16
    assert outcome_of("identical", graded).status == PASSED
    assert outcome_of("collectives", graded).status == PASSED


def test_a_pass_needs_an_epoch_and_a_failure_a_step():
    graded = task_of(steps=2, codes=(1, 0))
    assert outcome_of("identical", graded).status == UNKNOWN
    assert outcome_of("data", graded).status == NOT_RUN  # rows may be missing as the run was cut
    assert outcome_of("timing", graded).status == UNKNOWN
    apart = task_of(steps=2, codes=(1, 0), weights=lambda step, rank: step + rank)
    assert outcome_of("identical", apart).status == FAILED


def test_without_a_record_nothing_is_judged():
    graded = task_of(steps=0, codes=(1, 0))
    assert outcome_of("identical", graded).status == NOT_RUN
    graded = task_of(steps=5, codes=(1, 0))
    del graded.runs["adamw"]
    assert outcome_of("batch", graded).status == NOT_RUN
    graded.runs["clipped"].ranks[0].broken = "ValueError"
    assert outcome_of("identical", graded).status == NOT_RUN


def test_the_same_rows_on_all_ranks_leave_nothing_to_compare():
    graded = task_of(steps=5, same=True)
    for name in ("batch", "gradients", "identical"):
        assert outcome_of(name, graded).status == NOT_RUN, name
    assert outcome_of("collectives", graded).status == PASSED


def test_a_check_is_void_only_after_the_failure_that_its_row_names():
    one = Submission(Path(), {}, None)  # pyright: ignore[reportArgumentType]
    check = next(check for check in rubric.load() if check.id == "task2b/metric")
    for name, void in (("no_sync", True), ("summed", False)):
        one.outcomes = {"task2b/gradients": failed("", "", "", Cause(name, "why"))}
        assert bool(one.why_not(check)) is void
    one.outcomes = {"task2b/gradients": passed()}
    assert not one.why_not(check)


def test_an_evaluation_on_rank_0_alone_is_named_with_its_collective():
    graded = task_of(steps=5)
    seen = graded.runs["plain"].seen
    for rank in seen.ranks:
        rank.collectives = [one for step in rank.steps for one in step.collectives]
    seen.ranks[0].evaluations.append(Evaluation(5, [], []))
    seen.ranks[0].collectives.append({**WIDE, "op": "barrier", "where": "eval.py:7"})
    seen.ranks[0].err = "Connection closed by peer"
    seen.ended.codes = [1, 0]
    _, where, cause = explain_end(seen, Limits())
    assert cause.name == "evaluated_alone"
    assert "rank 0 was in barrier number 1 (eval.py:7)" in cause.sentence
    assert where == "rank 1, after step 5"
    seen.ranks[0].collectives.pop()  # it waits in training: its evaluation is not to blame
    assert explain_end(seen, Limits())[2].name == "dead_rank"


ERROR = """\
Traceback (most recent call last):
  File "/sub/run_glue.py", line 46, in main
    assert world.size == 1
           ^^^^^^^^^^^^^^^
AssertionError
[W] destroy_process_group() was not called
"""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ERROR, "rank 0: AssertionError, raised by `assert world.size == 1`"),
        (
            ERROR.replace("AssertionError", "KeyError: 'x'"),
            "rank 0: KeyError: 'x'",
        ),
        ("no traceback\n", "rank 0: no traceback"),
    ],
)
def test_an_exception_without_a_message_is_shown_with_its_line(error, said):
    seen = Observation([Rank(err=error)], Ended([1], first=0), Path("/sub"))
    assert explain_end(seen, Limits())[2].sentence == said


@pytest.mark.slow
def test_points_of_runs_that_end_late_and_of_four_that_never_talk(tmp_path):
    wanted = {
        "four_independent_runs": (0, 6),  # of 25
        "asserts_in_evaluation": (20, 26),  # of 30
    }
    variants = {variant.name: variant for variant in WRONG}
    with Session() as session:
        for name, (least, most) in wanted.items():
            build(variants[name], tmp_path / name)
            report = grade(tmp_path / name, [variants[name].task], session=session)
            texts = [result.text() for result in report.results]
            assert least <= report.points <= most, texts
            assert len(report.outputs[f"{variants[name].task}/plain"]) == session.workers
    assert "assert world.size == 1" in report.outputs["task2a/plain"][0]["err"]
    assert "raised by `assert world.size == 1`" in report.results[0].diagnosis
