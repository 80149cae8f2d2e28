"""Ways of masking a row, each to stand in for the solution's `masked`."""

from common.data.pretraining import IGNORED, MASKED
from common.data.wordpiece import MASK, SPECIAL

import numpy as np


def by_word(rng, ids, vocab_size):
    """Right: a coin for each word, and for at least one."""
    words = ids >= len(SPECIAL)
    chosen = words & (rng.random(len(ids)) < MASKED)
    if not chosen.any():
        chosen[rng.choice(np.flatnonzero(words))] = True
    kind, other = rng.random(len(ids)), rng.integers(len(SPECIAL), vocab_size, len(ids))
    labels = np.where(chosen, ids, IGNORED)
    ids = np.where(chosen & (kind < 0.8), MASK, ids)
    return np.where(chosen & (kind >= 0.9), other, ids), labels


def always_mask(rng, ids, _):
    chosen = rng.permutation(np.flatnonzero(ids >= len(SPECIAL)))
    chosen = chosen[: max(1, int(MASKED * len(chosen) + rng.random()))]
    labels = np.full_like(ids, IGNORED)
    labels[chosen] = ids[chosen]
    ids = ids.copy()
    ids[chosen] = MASK
    return ids, labels


def of_all_tokens(rng, ids, vocab_size):
    chosen = rng.permutation(len(ids))[: max(1, int(MASKED * len(ids) + rng.random()))]
    labels = np.full_like(ids, IGNORED)
    labels[chosen] = ids[chosen]
    ids, kind = ids.copy(), rng.random(len(chosen))
    ids[chosen[kind < 0.8]] = MASK
    other = chosen[kind >= 0.9]
    ids[other] = rng.integers(len(SPECIAL), vocab_size, len(other))
    return ids, labels


def all_labels(rng, ids, vocab_size):
    chosen = rng.permutation(np.flatnonzero(ids >= len(SPECIAL)))
    chosen = chosen[: max(1, int(MASKED * len(chosen) + rng.random()))]
    labels = np.where(ids >= len(SPECIAL), ids, IGNORED)
    ids, kind = ids.copy(), rng.random(len(chosen))
    ids[chosen[kind < 0.8]] = MASK
    other = chosen[kind >= 0.9]
    ids[other] = rng.integers(len(SPECIAL), vocab_size, len(other))
    return ids, labels


def labels_after_masking(rng, ids, vocab_size):
    chosen = rng.permutation(np.flatnonzero(ids >= len(SPECIAL)))
    chosen = chosen[: max(1, int(MASKED * len(chosen) + rng.random()))]
    ids, kind = ids.copy(), rng.random(len(chosen))
    other = chosen[kind >= 0.9]
    ids[other] = rng.integers(len(SPECIAL), vocab_size, len(other))
    labels = np.full_like(ids, IGNORED)
    labels[chosen] = ids[chosen]
    ids[chosen[kind < 0.8]] = MASK
    return ids, labels
