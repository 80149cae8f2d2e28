"""Ranks and coefficients in words, for diagnoses."""

from collections.abc import Iterable, Sequence


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks in words: "rank 1", or "ranks 1 and 3"."""
    names = [str(rank) for rank in ranks]
    if len(names) == 1:
        return f"rank {names[0]}"
    return f"ranks {', '.join(names[:-1])} and {names[-1]}"


def formula(weights: Iterable[float]) -> str:
    """Coefficients as a sum over the ranks' gradients g0, g1, ..."""
    return " + ".join(f"{w:.2f} g{r}" for r, w in enumerate(weights))
