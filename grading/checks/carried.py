"""What collectives carry: all elements of the gradients, and the gradients themselves."""

from grading.checks.evidence import Evidence

import numpy as np

ALIKE = 0.1  # magnitudes that differ by at most this share are taken for the same


def payload_problem(evidence: Evidence, number: int, rank: int, name: str, ops) -> str:
    """What is wrong with what `ops`, which carry the collective `name`, carry; "" if nothing is.

    All elements of the gradients must go through them, at step `number` (from 0) and this rank.
    The root's scatter carries the averaged gradients, everything else the rank's own. Of a wrapper
    only the sizes are looked at, and only those of collectives in the backward pass.
    """
    step = evidence.ranks[rank].steps[number]
    wrapped = evidence.ranks[rank].ddp
    calls = [c for c in step.collectives if c["op"] in ops and c["backward"] >= wrapped]
    elements = sum(c["elements"] for c in calls)
    if elements < step.held:
        return f"{name} carries {elements:,} of the {step.held:,} elements of the gradients"
    if wrapped:
        return ""
    if name == "scatter":
        return scatter_problem(evidence, number, ops) if rank == 0 else ""
    if any(is_like(content, own) for content in contents(calls) for own in step.own):
        return ""
    if not step.own or not np.isfinite(step.own).all():
        return ""
    return different(name, calls, "this rank's gradients")


def scatter_problem(evidence: Evidence, number: int, ops) -> str:
    """The same for what the roots scatter: it is what the ranks use afterwards."""
    steps = [rank.steps[number] for rank in evidence.ranks]
    calls = [c for step in steps for c in step.collectives if c["op"] in ops]
    used = [step.content for step in steps if step.content is not None]
    if len(used) < len(steps) or not np.isfinite(used).all():
        return ""
    if any(is_like(content, np.sum(used, axis=0)) for content in contents(calls)):
        return ""
    return different("scatter", calls, "the gradients that the ranks use afterwards")


def contents(calls: list[dict]) -> list[np.ndarray]:
    """The magnitudes of what some calls carry: all together, and those of each calling line."""
    measured = [c for c in calls if c["content"] is not None]
    lines = [[c for c in measured if c["where"] == where] for where in {c["where"] for c in calls}]
    groups = (measured, *lines)
    return [np.sum([c["content"] for c in group], axis=0) for group in groups if group]


def is_like(carried: np.ndarray, wanted) -> bool:
    """Whether magnitudes are those of `wanted`, carried once or several times, times a factor."""
    if not wanted[0]:
        return True
    copies = max(1, round(carried[0] / wanted[0]))
    nonzero, roots, total = carried / copies
    same = abs(nonzero - wanted[0]) <= ALIKE * wanted[0]
    spread, expected = roots**2 / max(total, 1e-300), wanted[1] ** 2 / max(wanted[2], 1e-300)
    return same and abs(spread - expected) <= ALIKE * expected


def different(name: str, calls: list[dict], what: str) -> str:
    """The sentence for calls that carry something else."""
    zero = not any(c["content"][0] for c in calls if c["content"])
    return f"the tensors passed to {name} {'hold only zeros, not' if zero else 'are not'} {what}"
