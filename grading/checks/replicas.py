"""Replicas of a divided model, each as one rank: what its workers hold and do, put together."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from grading.checks.evidence import WRAPPER, Deviation, Evidence
from grading.checks.observation import TRANSFERS, Rank, Step

import numpy as np


def replicas(workers: Sequence[Rank], size: int) -> list[Rank]:
    """The ranks of a run whose replicas are divided over `size` workers, one after another."""
    return [replica(workers[at : at + size]) for at in range(0, len(workers), size)]


def replica(workers: Sequence[Rank]) -> Rank:
    """What one worker that holds the whole model would have been seen to do.

    Its rows, losses and predictions are the last worker's; what it prints is the first's.
    """
    first, last, holders = workers[0], workers[-1], holders_of(workers)
    steps = min(len(one.steps) for one in workers)
    of_weights = {name: workers[held[0][0]].sizes[held[0][1]] for name, held in holders.items()}
    one = Rank(
        names=list(of_weights),
        sizes=list(of_weights.values()),
        ddp=any(each.ddp for each in workers),
        start=joined(workers, [each.start for each in workers]),
        evaluations=[*last.evaluations],
        collectives=[facts for each in workers for facts in each.collectives],
        broken=next((each.broken for each in workers if each.broken), ""),
        out=first.out,
        err=first.err,
        workers=list(workers),
    )
    one.steps = [step_of(workers, number) for number in range(steps)]
    return one


def holders_of(workers: Sequence[Rank]) -> dict[str, list[tuple[int, int]]]:
    """Name of a tensor -> the workers that have it, or a part of it, and where among theirs."""
    found: dict[str, list[tuple[int, int]]] = {}
    for worker, one in enumerate(workers):
        for at, name in enumerate(one.names):
            found.setdefault(WRAPPER.sub(r"\1", name), []).append((worker, at))
    return found


def joined(workers: Sequence[Rank], arrays: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """The workers' sketches by tensor of the replica: the first's, or the sum of all parts'."""
    seen = [array for array in arrays if array is not None]
    if len(seen) < len(arrays):
        return None
    rows = []
    for held in holders_of(workers).values():
        (worker, at), *_ = held
        of_parts = held if is_piece(workers[worker], at) else []
        rows.append(sum(seen[w][i] for w, i in of_parts or [(worker, at)]))
    return np.stack(rows) if rows else None


def step_of(workers: Sequence[Rank], number: int) -> Step:
    """An update of a replica."""
    steps = [one.steps[number] for one in workers]
    last = steps[-1]
    trained = all(each.training for step in steps for each in step.passes if each)
    return replace(
        last,
        forwards=[replace(each, training=trained) for each in last.passes if each],
        gradients=joined(workers, [step.gradients for step in steps]),
        after=joined(workers, [step.after for step in steps]),
        updated=None,
        checksums=[crc for step in steps for crc in step.checksums],
        collectives=[plain(c) for step in steps for c in step.collectives if between(c)],
        late=[],
        weights_changed_early=any(step.weights_changed_early for step in steps),
        content=None,
        own=[],
        local=joined(workers, [step.local for step in steps]),
        local_norm=float(np.linalg.norm([step.local_norm for step in steps])),
        parts=None,
        norm=float(np.linalg.norm([step.norm for step in steps])),
        memory={},
        passes=[],
    )


def between(facts: dict) -> bool:
    """Whether a collective is between replicas, not between the parts of one."""
    return facts["op"] not in TRANSFERS


def plain(facts: dict) -> dict:
    """A collective's facts without the passes before it, which are those of one worker."""
    return {name: value for name, value in facts.items() if name != "passes"}


def between_copies(evidence: Evidence, allowed: float) -> Deviation:
    """How far tensors that several workers of a replica have are apart, as Evidence.between_ranks.

    All parts of matrices are their workers' own; of the rest each has a copy.
    """
    deviation = Deviation()
    pairs = [(rank, *pair) for rank in evidence.ranks for pair in holders_of(rank.workers).items()]
    for rank, name, held in pairs:
        copies = [(rank.workers[w], w, at) for w, at in held if not is_piece(rank.workers[w], at)]
        for number, (one, worker, at) in product(range(evidence.seen.steps), copies[1:]):
            first, _, first_at = copies[0]
            own, other = first.steps[number], one.steps[number]
            if own.checksums[first_at] != other.checksums[at]:
                moved = max(np.linalg.norm(own.after - first.start), 1e-30)
                off = np.linalg.norm(other.after[at] - own.after[first_at]) / moved
                deviation.update(float(off), allowed, number, worker, name)
    return deviation


def is_piece(worker: Rank, at: int) -> bool:
    """Whether a worker has a part of a tensor, as a worker of tensor parallelism has."""
    return any(worker.pieces[at : at + 1])
