"""The likely cause of wrong gradients: which combination of the ranks' own gradients they are."""

from grading.checks.divided_causes import by_parts
from grading.checks.evidence import Deviation, Evidence
from grading.checks.observation import BOOKKEEPING
from grading.checks.pretraining_causes import explain_pretraining
from grading.checks.sharded import by_shards
from grading.checks.tensor_causes import by_clipping, by_rest, by_tensors
from grading.checks.wording import formula, ranks_text
from grading.results import Cause

import numpy as np

CLOSE = 0.02  # a fit is accepted if it leaves at most this share of the gradients unexplained


def explain_gradients(evidence: Evidence, deviation: Deviation) -> Cause:
    """The Cause of gradients that first differ at `deviation`."""
    assert deviation.step is not None, "nothing deviates"
    step = deviation.step - 1
    if "mlm" in evidence.details(step):
        return explain_pretraining(evidence, step)
    fits = [fit(evidence, step, rank) for rank in range(evidence.size)]
    for explain in EXPLANATIONS:
        cause = explain(evidence, step, fits)
        if cause:
            return cause
    return Cause("", "no known mistake leads to these gradients")


def fit(evidence, step, rank):
    """(coefficients of the ranks' own gradients, share left unexplained) of a rank's gradients."""
    local = evidence.details(step)["local"]
    basis = local.reshape(len(local), -1).T
    got = evidence.gradient(step, rank).reshape(-1)
    if not np.isfinite(got).all():
        return np.full(len(local), np.nan), np.inf
    coefficients = np.linalg.lstsq(basis, got, rcond=1e-4)[0]
    rest = np.linalg.norm(got - basis @ coefficients) / max(np.linalg.norm(got), 1e-30)
    return coefficients, rest


def alike(coefficients, expected):
    """Whether coefficients are those expected, to within CLOSE of the largest."""
    expected = np.asarray(expected)
    return bool(np.abs(coefficients - expected).max() <= CLOSE * np.abs(expected).max())


def by_zeros(evidence, step, _):
    """Gradients that are all zero."""
    if any(evidence.gradient(step, rank).any() for rank in range(evidence.size)):
        return None
    return Cause("zeroed", "your gradients are zero: cast to an integer type, or never computed?")


def by_reduction(evidence, step, _):
    """Gradients that all_reduce combines by something else than a sum."""
    calls = [c for c in evidence.ranks[0].steps[step].collectives if c["elements"] > BOOKKEEPING]
    others = sorted({c.get("reduction", "") for c in calls} - {"", "sum", "avg", "premul_sum"})
    if others:
        text = f"all_reduce combines them by ReduceOp.{others[0].upper()}: add them up, and divide"
        return Cause("wrong_reduction", text)
    return None


def by_passes(evidence, step, fits):
    """Several passes per step, the last not averaged, or losses not divided by their number."""
    passes = {len(rank.steps[step].forwards) for rank in evidence.ranks}
    (count,) = passes if len(passes) == 1 else (1,)
    calls = [c for c in evidence.ranks[0].steps[step].collectives if c["elements"] > BOOKKEEPING]
    if calls and count > 1 and all(c.get("passes", count) < count for c in calls):
        return Cause(
            "averaged_too_early",
            f"the gradients are averaged before the last of {count} backward passes: what that one "
            "adds stays each rank's own",
        )
    summed = count * evidence.seen.shares(step)
    if count > 1 and all(r < CLOSE and alike(c, summed) for c, r in fits):
        return Cause(
            "accumulation_unscaled",
            f"your gradients are {count:.2f} times the reference: {count} backward passes are "
            "added up for each update, and their losses are not divided by their number",
        )
    return None


def by_ranks(evidence, step, fits):
    """A combination of the ranks' own gradients that a known mistake leads to."""
    size, norms = evidence.size, evidence.details(step)["norms"]
    mean, most = evidence.reference["norm"][step], evidence.setting.max_grad_norm
    if any(rest > CLOSE for _, rest in fits):
        return None
    coefficients = [c for c, _ in fits]
    own = [np.eye(size)[r] * clip(norms[r], most) for r in range(size)]
    shares = evidence.seen.shares(step)
    right = clip(mean, most) * shares
    if everywhere(coefficients, right):
        return None  # the error is too small for a fit to show
    if size > 1 and all(alike(c, e) for c, e in zip(coefficients, own, strict=True)):
        return local_gradients(evidence, step)
    return (
        by_scale(coefficients, norms, (mean, most), shares)
        or by_shares(evidence, step, coefficients)
        or by_root(coefficients, right, own)
        or by_weights(coefficients, size)
    )


def everywhere(coefficients, expected):
    """Whether every rank's coefficients are those expected."""
    return all(alike(c, expected) for c in coefficients)


def by_scale(coefficients, norms, clipping, shares):
    """The same combination on every rank, of a wrong scale; `clipping` is (the mean's norm, most).

    `shares` are the coefficients of the mean.
    """
    size, (mean, most) = len(coefficients), clipping
    before = np.array([clip(norm, most) for norm in norms])
    clipped_first = (before * shares, before * shares * clip(mean, most))
    if any(everywhere(coefficients, expected) for expected in clipped_first):
        return Cause(
            "clipped_before_average",
            "your gradients equal the average of clipped gradients: clip after averaging",
        )
    summed = (size * shares * clip(size * mean, most), before * size * shares)
    even = alike(shares, np.full(size, 1 / size))  # otherwise by_shares explains it
    if even and any(everywhere(coefficients, expected) for expected in summed):
        return scaled(size, "summed", "summed, not divided by the world size")
    if even and everywhere(coefficients, shares * clip(mean / size, most) / size):
        return scaled(1 / size, "divided_twice", "divided by the world size twice")
    if everywhere(coefficients, shares):
        return Cause("not_clipped", "the gradients are not clipped to --max_grad_norm")
    return None


def by_shares(evidence, step, coefficients):
    """Wrong weights of the ranks' gradients, in a task whose ranks have unequal parts of a batch.

    Whatever all ranks are scaled by; clipping makes up for it.
    """
    weights, shares = np.mean(coefficients, axis=0), evidence.seen.shares(step)
    if not evidence.seen.weighted or not everywhere(coefficients, weights) or weights.sum() <= 0:
        return None
    found, factor = weights / weights.sum(), weights.sum()
    text = "as if all had equally many examples: multiply each rank's by its examples, and divide "
    text += f"by their sum (your gradients are {formula(weights)} of the ranks' own)"
    if alike(found, np.full(len(found), 1 / len(found))):
        return Cause("mean_of_means", f"your gradients are the mean of the ranks' means, {text}")
    if alike(found, shares):
        return Cause(
            "wrong_weights",
            f"the ranks' gradients count by their examples, but are {factor:.3g} times too large: "
            "divide by the number of examples of all ranks, once",
        )
    if alike(found, evidence.seen.shares(0)):
        return Cause(
            "weights_of_full_batch",
            "the ranks count by the parts of a full batch; this batch has fewer examples: count "
            "those that were read",
        )
    return None


def by_root(coefficients, right, own):
    """The mean on some ranks, and each rank's own gradients on the others."""
    with_mean = [r for r, c in enumerate(coefficients) if alike(c, right)]
    rest = [r for r in range(len(coefficients)) if r not in with_mean]
    if with_mean and all(alike(coefficients[r], own[r]) for r in rest):
        return Cause(
            "only_root_has_mean",
            f"only {ranks_text(with_mean)} received the mean; {ranks_text(rest)} used local "
            "gradients: scatter the mean, and copy what arrives into p.grad",
        )
    return None


def local_gradients(evidence, step):
    """The causes of gradients that are every rank's own."""
    checksums = [rank.steps[step].checksums for rank in evidence.ranks]
    late = evidence.elements_by_op(step, 0, late=True)
    total = sum(evidence.reference["sizes"])
    meet = sum(late.values()) >= total / 2 and all(c == checksums[0] for c in checksums)
    if meet or any(one.weights_changed_early for one in evidence.ranks[0].steps):
        return Cause(
            "parameters_averaged",
            "every rank updates with its own gradients, and the weights are averaged instead: "
            "average the gradients, before clipping",
        )
    if late and sum(late.values()) >= total / 2:
        return Cause(
            "averaged_too_late",
            f"every rank updates with its own gradients: {'/'.join(late)} runs only after "
            "optimizer.step()",
        )
    return Cause(
        "no_sync",
        "every rank updates with its own gradients: before the update, nothing that is copied "
        "back into p.grad is synchronized",
    )


def scaled(factor, name, why):
    """The cause of gradients that are the reference's times a factor on every rank."""
    text = f"{factor:.2f} times" if factor >= 1 else f"1/{1 / factor:.0f} of"
    return Cause(name, f"your gradients are {text} the reference on every rank: {why}")


def by_weights(coefficients, size):
    """The mistake that the mean weights of the ranks show, if all ranks agree on them."""
    weights, own = np.mean(coefficients, axis=0), np.diag(coefficients).mean()
    if size > 1 and all(
        alike(c, own * one) for c, one in zip(coefficients, np.eye(size), strict=True)
    ):
        return Cause(
            "no_sync",
            f"every rank updates with {own:.3g} times its own gradients: the result of the "
            "collective is not used, or it is used before the collective has ended",
        )
    if not all(alike(c, weights) for c in coefficients) or not np.abs(weights).max():
        text = "; ".join(f"rank {r}: {formula(c)}" for r, c in enumerate(coefficients))
        return Cause("mixed", f"each rank updates with a different combination: {text}")
    largest = np.abs(weights).max()
    silent = [r for r in range(size) if abs(weights[r]) < CLOSE * largest]
    if silent:
        return Cause(
            "rank_left_out",
            f"your gradients are {formula(weights)}: the mean leaves out {ranks_text(silent)}",
        )
    if np.ptp(weights) < CLOSE * largest:
        factor = weights.mean() * size
        return Cause("scaled", f"your gradients are {factor:.3g} times the reference on every rank")
    return Cause("mixed", f"your gradients are {formula(weights)} of the ranks' own")


def by_history(evidence, step, _):
    """Gradients of the step before that were not cleared."""
    if step == 0:
        return None
    size, rest = evidence.size, []
    for rank in range(size):
        got = evidence.gradient(step, rank).reshape(-1)
        kept = evidence.gradient(step - 1, rank).reshape(-1)
        basis = np.stack([evidence.details(step)["mean"].reshape(-1), kept], axis=1)
        (new, old), *_ = np.linalg.lstsq(basis, got, rcond=None)
        off = np.linalg.norm(got - basis @ [new, old]) / max(np.linalg.norm(got), 1e-30)
        rest.append(off < CLOSE and abs(new - 1) < CLOSE and old > CLOSE)
    if all(rest):
        return Cause(
            "gradients_kept",
            f"at step {step + 1} your gradients still include those of step {step}: call "
            "optimizer.zero_grad() before each backward pass",
        )
    return None


def by_rounding(evidence, step, fits):
    """The mean, but less exact than in float32."""
    scale = clip(evidence.reference["norm"][step], evidence.setting.max_grad_norm)
    right = scale * evidence.seen.shares(step)
    if not all(rest < CLOSE and alike(c, right) for c, rest in fits):
        return None
    found = evidence.ranks[0].steps[step].collectives
    kinds = sorted({c["dtype"] for c in found if c["elements"] > BOOKKEEPING} - {"float32"})
    return Cause(
        "rounded",
        "your gradients are the reference's, rounded: "
        + (f"they travel as {', '.join(kinds)}" if kinds else "to fewer digits than float32 has"),
    )


def clip(norm: float, most: float) -> float:
    """The factor by which clipping to `most` scales gradients of that norm."""
    return min(1.0, most / (norm + 1e-6))


# In this order: the first that has an explanation is right.
EXPLANATIONS = (
    by_parts,
    by_shards,
    by_zeros,
    by_reduction,
    by_passes,
    by_ranks,
    by_clipping,
    by_history,
    by_tensors,
    by_rounding,
    by_rest,
)
