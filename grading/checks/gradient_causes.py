"""The likely cause of wrong gradients: which combination of the ranks' own gradients they are."""

from grading.checks.observation import BOOKKEEPING
from grading.results import Cause

import numpy as np

CLOSE = 0.02  # a fit is believed if this share of the gradients, or less, stays unexplained


def explain_gradients(evidence, apart):
    """The Cause of gradients that first differ at `apart`."""
    step = apart.step - 1
    fits = [fit(evidence, step, rank) for rank in range(evidence.size)]
    for explain in (by_zeros, by_passes, by_ranks, by_history, by_tensors, by_rounding, by_rest):
        cause = explain(evidence, step, fits)
        if cause:
            return cause
    return Cause("", "no known mistake gives these gradients")


def fit(evidence, step, rank):
    """(coefficients of the ranks' own gradients, share left unexplained) of a rank's gradients."""
    local = evidence.reference["local"][step]
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
    """Gradients that are nothing at all."""
    if any(evidence.gradient(step, rank).any() for rank in range(evidence.size)):
        return None
    return Cause("zeroed", "your gradients are zero: an integer type, or never computed?")


def by_passes(evidence, step, fits):
    """Several passes a step whose losses were not divided by their number."""
    size = evidence.size
    passes = {len(rank.steps[step].forwards) for rank in evidence.ranks}
    (count,) = passes if len(passes) == 1 else (1,)
    if count > 1 and all(r < CLOSE and alike(c, np.full(size, count / size)) for c, r in fits):
        return Cause(
            "accumulation_unscaled",
            f"your gradients are {count:.2f} times the reference: {count} backward passes are "
            "added up for each update, and their losses are not divided by their number",
        )
    return None


def by_ranks(evidence, step, fits):
    """A combination of the ranks' own gradients that a known mistake gives."""
    size, norms = evidence.size, evidence.reference["norms"][step]
    mean, most = evidence.reference["norm"][step], evidence.setting.max_grad_norm
    if any(rest > CLOSE for _, rest in fits):
        return None
    coefficients = [c for c, _ in fits]
    own = [np.eye(size)[r] * clip(norms[r], most) for r in range(size)]
    right = np.full(size, clip(mean, most) / size)
    before = np.array([clip(norm, most) for norm in norms])

    def everywhere(expected):
        return all(alike(c, expected) for c in coefficients)

    if everywhere(right):
        return None  # what is wrong is less than a fit tells

    if size > 1 and all(alike(c, e) for c, e in zip(coefficients, own, strict=True)):
        return local_gradients(evidence, step)
    if everywhere(before / size) or everywhere(before / size * clip(mean, most)):
        return Cause(
            "clipped_before_average",
            "your gradients equal the average of clipped gradients: clip after averaging",
        )
    if everywhere(np.full(size, clip(size * mean, most))) or everywhere(before):
        return scaled(size, "summed", "summed, not divided by the world size")
    if everywhere(np.full(size, clip(mean / size, most) / size**2)):
        return scaled(1 / size, "divided_twice", "divided by the world size twice")
    if everywhere(np.full(size, 1 / size)):
        return Cause("not_clipped", "the gradients are not clipped to --max_grad_norm")
    with_mean = [r for r, c in enumerate(coefficients) if alike(c, right)]
    rest = [r for r in range(size) if r not in with_mean]
    if with_mean and all(alike(coefficients[r], own[r]) for r in rest):
        return Cause(
            "only_root_has_mean",
            f"only {ranks_text(with_mean)} has the mean; {ranks_text(rest)} goes on with its own "
            "gradients: scatter the mean back, and copy what arrives into p.grad",
        )
    return by_weights(coefficients, size)


def local_gradients(evidence, step):
    """The causes of gradients that are every rank's own."""
    sums = [rank.steps[step].sums for rank in evidence.ranks]
    moved = evidence.moved(step, 0, late=True)
    total = sum(evidence.reference["sizes"])
    meet = sum(moved.values()) >= total / 2 and all(s == sums[0] for s in sums)
    if meet or any(one.shifted for one in evidence.ranks[0].steps):
        return Cause(
            "parameters_averaged",
            "every rank updates with its own gradients, and the weights are averaged instead: "
            "average the gradients, before the clipping",
        )
    if moved and sum(moved.values()) >= total / 2:
        return Cause(
            "averaged_too_late",
            f"every rank updates with its own gradients: {'/'.join(moved)} runs only after "
            "optimizer.step()",
        )
    return Cause(
        "no_sync",
        "every rank updates with its own gradients: nothing, or nothing that is copied back into "
        "p.grad, is synchronised before the update",
    )


def scaled(factor, name, why):
    """The cause of gradients that are the reference's times a factor on every rank."""
    text = f"{factor:.2f} times" if factor >= 1 else f"1/{1 / factor:.0f} of"
    return Cause(name, f"your gradients are {text} the reference on every rank: {why}")


def by_weights(coefficients, size):
    """What the mean weights of the ranks tell, where all ranks agree on them."""
    weights = np.mean(coefficients, axis=0)
    if not all(alike(c, weights) for c in coefficients) or not np.abs(weights).max():
        told = "; ".join(f"rank {r}: {formula(c)}" for r, c in enumerate(coefficients))
        return Cause("mixed", f"each rank updates with a combination of its own: {told}")
    largest = np.abs(weights).max()
    silent = [r for r in range(size) if abs(weights[r]) < CLOSE * largest]
    if silent:
        return Cause(
            "rank_left_out",
            f"your gradients are {formula(weights)}: {ranks_text(silent)} is left out of the mean",
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
        basis = np.stack([evidence.reference["mean"][step].reshape(-1), kept], axis=1)
        (new, old), *_ = np.linalg.lstsq(basis, got, rcond=None)
        off = np.linalg.norm(got - basis @ [new, old]) / max(np.linalg.norm(got), 1e-30)
        rest.append(off < CLOSE and abs(new - 1) < CLOSE and old > CLOSE)
    if all(rest):
        return Cause(
            "gradients_kept",
            f"at step {step + 1} your gradients still hold those of step {step}: call "
            "optimizer.zero_grad() before each backward pass",
        )
    return None


def by_tensors(evidence, step, _):
    """Some tensors right, and others each rank's own, or zero."""
    bad, own, zero = wrong_tensors(evidence, step)
    if bad and (own or zero):
        what = "not synchronised" if own else "zero, or never used"
        text = f"{describe(bad, evidence.reference['names'])} {what}; all other tensors are right"
        return Cause("tensors_left_out", text)
    return None


def by_rest(evidence, step, _):
    """Some tensors right, and others wrong in a way that nothing explains."""
    bad, _, _ = wrong_tensors(evidence, step)
    text = f"{describe(bad, evidence.reference['names'])} wrong; all other tensors are right"
    return Cause("tensors_left_out", text) if bad else None


def wrong_tensors(evidence, step):
    """(names of the tensors that are wrong, whether they are all each rank's own, or all zero).

    No names where all are wrong, or none. Gradients that are nothing but rounding do not count.
    """
    wanted, local = evidence.reference["clipped"][step], evidence.reference["local"][step]
    got = np.stack([evidence.gradient(step, rank) for rank in range(evidence.size)])
    norm = np.linalg.norm(wanted)

    def largest(arrays):
        return np.linalg.norm(arrays, axis=2).max(axis=0) / norm

    noise = largest(local) < 1e-6
    wrong = (largest(got - wanted) > 1e-4) & ~noise
    if not wrong.any() or (wrong | noise).all():
        return [], False, False
    bad = [name for name, is_bad in zip(evidence.reference["names"], wrong, strict=True) if is_bad]
    return bad, (largest(got - local)[wrong] < 1e-4).all(), (largest(got)[wrong] == 0).all()


def by_rounding(evidence, step, fits):
    """The mean, but not as exactly as float32 gives it."""
    size = evidence.size
    scale = clip(evidence.reference["norm"][step], evidence.setting.max_grad_norm) / size
    if not all(rest < CLOSE and alike(c, np.full(size, scale)) for c, rest in fits):
        return None
    moved = evidence.ranks[0].steps[step].collectives
    kinds = sorted({c["dtype"] for c in moved if c["elements"] > BOOKKEEPING} - {"float32"})
    return Cause(
        "rounded",
        "your gradients are the reference's, rounded: "
        + (f"they travel as {', '.join(kinds)}" if kinds else "to fewer digits than float32 has"),
    )


def describe(bad, names):
    """Some tensors in words, with their verb: "the biases are", say."""
    for word, sign in (
        ("the biases", lambda n: n.endswith("bias")),
        ("the weight matrices", lambda n: n.endswith("weight") and "LayerNorm" not in n),
        ("the embeddings", lambda n: "embeddings" in n),
        ("the word embeddings", lambda n: "word_embeddings" in n),
        ("the classifier's tensors", lambda n: "classifier" in n),
        ("LayerNorm's tensors", lambda n: "LayerNorm" in n),
    ):
        those = [n for n in names if sign(n)]
        if set(bad) <= set(those) and len(bad) >= 0.6 * len(those):
            return f"{word} are"
    more = f" and {len(bad) - 1} more are" if len(bad) > 1 else " is"
    return bad[0] + more


def clip(norm, most):
    """What clipping to `most` multiplies gradients of that norm by."""
    return min(1.0, most / (norm + 1e-6))


def formula(weights):
    """Coefficients as a sum over the ranks' gradients g0, g1, ..."""
    return " + ".join(f"{w:.2f} g{r}" for r, w in enumerate(weights))


def ranks_text(ranks):
    """Ranks in words."""
    names = [str(rank) for rank in ranks]
    return f"rank {names[0]}" if len(names) == 1 else f"each of ranks {', '.join(names)}"
