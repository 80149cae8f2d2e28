"""The check that nothing in a submission is fixed to one number of workers."""

from dataclasses import replace

from grading.checks.evidence import Evidence
from grading.checks.exit_causes import explain_end
from grading.checks.graded_task import GradedTask
from grading.checks.rates import explain_rates, planned_steps
from grading.checks.wording import ranks_text
from grading.inputs import LEARNING_RATE
from grading.results import Cause, Outcome, failed, passed, unknown

USUAL = "plain"  # the setting whose updates are like those of these runs
LEAST = 2  # updates to compare: ranks that have made more are ended by the probe meanwhile


def workers(graded: GradedTask) -> Outcome:
    """The first gradients equal the reference with other numbers of workers, too."""
    if not graded.others:
        return unknown("no run with another number of workers was made")
    limit = graded.tolerances["gradients"]
    for size, evidence in graded.others.items():
        outcome = wrong_with(size, evidence, graded, limit.most)
        if outcome:
            return outcome
    return passed(f"right gradients with {sizes_text(graded)}, too", limit.text)


def wrong_with(size: int, evidence: Evidence, graded: GradedTask, most: float) -> Outcome | None:
    """The Outcome of a check that has not passed with this many workers; None if it has."""
    seen, expected = evidence.seen, f"the same training with {sizes_text(graded)} workers"
    if seen.steps < LEAST:
        got, where, cause = explain_end(seen, graded.limits)
        return failed(expected, got, f"{size} workers, {where}", fixed(graded, cause.sentence))
    if evidence.reference is None:
        return unknown(evidence.why)
    first = [len(rank.steps[0].rows) for rank in seen.ranks]
    if first != replace(graded, workers=len(seen.ranks), batch=graded.batches[size]).parts:
        return failed(expected, f"{first} rows", f"{size} workers, step 1", fixed(graded))
    found = evidence.gradients(most)
    if found.step is None:
        return wrong_length(size, evidence, graded, expected)
    got = f"gradients off by {found.at:.2g} of their norm"
    where = f"{size} workers, step {found.step}, {ranks_text([found.rank])}, {found.tensor}"
    return failed(expected, got, where, fixed(graded))


def wrong_length(
    size: int, evidence: Evidence, graded: GradedTask, expected: str
) -> Outcome | None:
    """The Outcome if the schedule is right with the usual number of workers, but not with this.

    It shows how many steps the script plans: as many as for 4 workers if its sampler deals 4 shares
    whatever the number of workers is. Then some rows are in nobody's share.
    """
    usual = graded.runs.get(USUAL)
    if usual is None or usual.cut or explain_rates(rates_of(usual), LEARNING_RATE):
        return None
    rates, planned = rates_of(evidence), planned_steps(graded, evidence)
    if not explain_rates(rates, LEARNING_RATE, planned):
        return None
    got = f"learning rates of {', '.join(f'{rate:.3g}' for rate in rates)}"
    more = f"they do not fall to 0 in {' or '.join(map(str, sorted(planned)))} steps"
    return failed(expected, got, f"{size} workers", fixed(graded, more))


def rates_of(evidence: Evidence) -> list[float]:
    """Rank 0's learning rates."""
    return [step.rate for step in evidence.ranks[0].steps]


def fixed(graded: GradedTask, more: str = "") -> Cause:
    """The cause: right with the usual number of workers, and wrong with another."""
    return Cause(
        "fixed_world_size",
        f"it is right with {graded.processes} workers only: a number of workers, a total batch or "
        f"a rank is written into the script; take it from its arguments{more and f' ({more})'}",
    )


def sizes_text(graded: GradedTask) -> str:
    """The other numbers of workers: "2 and 3"."""
    return " and ".join(map(str, graded.others))
