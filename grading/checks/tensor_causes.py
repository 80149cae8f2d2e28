"""The likely cause of gradients that are wrong in some tensors only."""

from grading.results import Cause

import numpy as np

# A reference of gradients clipped in another way -> its cause.
CLIPPED = (
    (
        "by_tensor",
        "clipped_per_tensor",
        "each tensor is clipped by itself: call clip_grad_norm_ once, with all parameters",
    ),
    (
        "local_by_tensor",
        "clipped_per_tensor",
        "each tensor is clipped by itself, on each rank before averaging: average, then call "
        "clip_grad_norm_ once, with all parameters",
    ),
    (
        "by_value",
        "clipped_by_value",
        "each element is clipped to --max_grad_norm, not the norm: call clip_grad_norm_",
    ),
)


def by_tensors(evidence, step, _):
    """Some tensors right, and others each rank's own, or zero."""
    bad, own, zero = wrong_tensors(evidence, step)
    if bad and (own or zero):
        what = "not synchronized" if own else "zero, or never used"
        text = f"{describe(bad, evidence.reference['names'])} {what}; all other tensors are right"
        return Cause("tensors_left_out", text)
    return None


def by_rest(evidence, step, _):
    """Some tensors right, and others wrong in a way that has no explanation."""
    bad, _, _ = wrong_tensors(evidence, step)
    if not bad:
        return None
    text = f"{describe(bad, evidence.reference['names'])} wrong; all other tensors are right"
    return Cause("tensors_left_out", text)


def by_clipping(evidence, step, _):
    """Gradients that were clipped, but not to one norm of all of them together."""
    details, right = evidence.details(step), evidence.reference["clipped"][step]
    for kind, name, sentence in CLIPPED:
        if kind not in details or same(details[kind], right, 0.01):
            continue  # nothing was clipped
        if all(
            same(evidence.gradient(step, rank), details[kind], 1e-3)
            for rank in range(evidence.size)
        ):
            return Cause(name, sentence)
    return None


def same(one, other, share):
    """Whether two gradients are as close as that share of the other's norm."""
    return np.linalg.norm(one - other) < share * np.linalg.norm(other)


def wrong_tensors(evidence, step):
    """(names of the tensors that are wrong, whether they are all each rank's own, or all zero).

    No names if all are wrong, or none. Gradients that are only rounding noise do not count.
    """
    wanted, local = evidence.reference["clipped"][step], evidence.details(step)["local"]
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


def describe(bad: list[str], names: list[str]) -> str:
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
