"""Why losses and gradients of a model that is divided over workers are wrong."""

from grading.checks.evidence import Evidence
from grading.checks.observation import Rank
from grading.checks.replicas import holders_of
from grading.checks.sums_of_parts import step_rows, sums_problem
from grading.results import Cause

import numpy as np

CLOSE = 1e-3  # of the norm of a stage's gradients


def by_parts(evidence: Evidence, step: int, _) -> Cause | None:
    """Gradients that are wrong because of how the model is divided."""
    if not evidence.ranks[0].workers:
        return None
    explanations = (unsummed, clipped_alone, counted_alike, cut_at_a_border)
    return next(filter(None, (explain(evidence, step) for explain in explanations)), None)


def unsummed(evidence: Evidence, step: int) -> Cause | None:
    """Outputs or gradients of parts of matrices that are not added up."""
    if not any(map(any, pieces_of(evidence.ranks[0]))):
        return None
    workers = evidence.ranks[0].workers
    return next(filter(None, (sums_problem(one, step) for one in workers)), None)


def clipped_alone(evidence: Evidence, step: int) -> Cause | None:
    """Every worker clips its own part to the norm that all parts together may have."""
    most = evidence.setting.max_grad_norm
    norms = [one.steps[step].norm for rank in evidence.ranks for one in rank.workers]
    clipped = evidence.reference["norm"][step] > most
    if clipped and len(norms) > 1 and all(abs(norm / most - 1) < CLOSE for norm in norms):
        return Cause(
            "clipped_by_local_norm",
            "every worker clips its part of the gradients by the norm of that part: add up the "
            "squares of all workers' norms with all_reduce, and clip by the root of the sum",
        )
    return None


def counted_alike(evidence: Evidence, step: int) -> Cause | None:
    """Micro-batches of unequal rows that count the same: it shows where they first are unequal."""
    rows = [[len(one.rows) for one in s.forwards] for s in evidence.ranks[0].steps[: step + 1]]
    if step and len(set(rows[step])) > 1 and all(len(set(counts)) == 1 for counts in rows[:step]):
        return Cause(
            "mean_of_means",
            f"the micro-batches of this batch have {', '.join(map(str, rows[step]))} rows, and "
            "their means count alike: multiply each micro-batch's loss by its share of the rows",
        )
    return None


def cut_at_a_border(evidence: Evidence, step: int) -> Cause | None:
    """Right gradients on the last stage, and wrong ones on those before it."""
    for number, rank in enumerate(evidence.ranks):
        owners = [held[0][0] for held in holders_of(rank.workers).values()]
        stages = np.array([-1 if at is None else owners[at] for at in evidence.places[number]])
        got, wanted = evidence.gradient(step, number), evidence.reference["clipped"][step]
        wrong = [
            stage
            for stage in range(len(rank.workers))
            if np.linalg.norm((got - wanted)[stages == stage])
            > CLOSE * np.linalg.norm(wanted[stages == stage])
        ]
        if not wrong or wrong[-1] == len(rank.workers) - 1 or any(map(any, pieces_of(rank))):
            continue
        stage = wrong[-1]
        what = "are wrong" if got[stages == stage].any() else "are zero"
        return Cause(
            "graph_cut",
            f"the gradients of stage {stage} {what}, and those of the stages after it are right: "
            "receive a stage's inputs with requires_grad_(), use them as they are, send back their "
            "gradient, and go back from the outputs with the gradient that arrives for them",
        )
    return None


def pieces_of(rank: Rank) -> list[list]:
    """By worker and tensor, whether it has a part of a matrix."""
    return [one.pieces for one in rank.workers]


def explain_parts_loss(evidence: Evidence, step: int) -> Cause | None:
    """Why the loss of a divided model is wrong at a step (from 0), if it is for the rows read."""
    for rank in evidence.ranks:
        rows = [sorted(row[0] for row in step_rows(one, step)) for one in rank.workers]
        if any(one != rows[0] for one in rows):
            text = "the workers of a replica read different rows: all of them need the same batch"
            return Cause("parts_read_differently", text)
    return None


def explain_sums(evidence: Evidence, step: int) -> Cause | None:
    """Why the loss may be wrong where each worker has parts of matrices, and the right weights."""
    if not any(map(any, pieces_of(evidence.ranks[0]))):
        return None
    return unsummed(evidence, step) or Cause(
        "parts_not_summed",
        "the workers' outputs do not add up to the layer's: sum them, and add the bias once, after "
        "the sum",
    )
