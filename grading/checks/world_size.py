"""The check that nothing in a submission is fixed to one number of workers."""

from grading.checks.evidence import Evidence
from grading.checks.exit_causes import explain_end
from grading.checks.graded_task import GradedTask
from grading.checks.wording import ranks_text
from grading.results import Cause, Outcome, failed, passed, unknown

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
    if set(first) != {graded.batches[size]}:
        return failed(expected, f"{first} rows", f"{size} workers, step 1", fixed(graded))
    found = evidence.gradients(most)
    if found.step is None:
        return None
    got = f"gradients off by {found.at:.2g} of their norm"
    where = f"{size} workers, step {found.step}, {ranks_text([found.rank])}, {found.tensor}"
    return failed(expected, got, where, fixed(graded))


def fixed(graded: GradedTask, more: str = "") -> Cause:
    """The cause: right with the usual number of workers, and wrong with another."""
    return Cause(
        "fixed_world_size",
        f"it is right with {graded.workers} workers only: a number of workers, a total batch or a "
        f"rank is written into the script; take it from its arguments{more and f' ({more})'}",
    )


def sizes_text(graded: GradedTask) -> str:
    """The other numbers of workers: "2 and 3"."""
    return " and ".join(map(str, graded.others))
